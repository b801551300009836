"""How often a broker looks at a log in an object store: where each look is a request, when somebody cares."""

from collections.abc import Callable

import pyarrow as pa
import pytest

from sparklog.storage.s3 import S3Store
from sparklog_server import broker as broker_module
from tests.server.api.fetching import asked, fetch, partitions_of
from tests.support.broker_process import until
from tests.support.running_broker import RunningBroker
from tests.support.wire_client import WireClient

SELDOM = {"broker.heartbeat.interval.ms": "1200000", "broker.session.timeout.ms": "3600000"}


@pytest.fixture(autouse=True)
def nobody_waits_for_the_controller(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(broker_module, "CONTROLLER_POLL_MS", 1_200_000)


def fetched_bytes(client: WireClient, offset: int) -> int:
    """Of what is there at once: a fetch within the log looks at nothing newer by itself."""
    found = partitions_of(fetch(client, asked((0, offset), topic="t")))
    return len(found[0].records or b"")


def gets(broker: RunningBroker) -> int:
    store = broker.broker.root.store
    assert isinstance(store, S3Store)
    return store.requests["get_object"]


def test_who_asks_after_a_long_time_is_answered_on_a_new_image(
    s3_root: str,
    start_broker: Callable[..., RunningBroker],
    connect: Callable[[RunningBroker], WireClient],
) -> None:
    broker = start_broker(SELDOM, root=s3_root)
    attention = broker.broker.attention
    with broker.beside() as log:
        log.create_topic("t", 1)
        client = connect(broker)
        for number in range(3):
            until(lambda: attention.is_idle)
            before = gets(broker)
            log.append("t", pa.table({"value": [b"x"]}))
            assert gets(broker) == before, "nobody cares"
            assert fetched_bytes(client, number) > 0
