"""Two brokers on one root, as on two machines, where no lock file keeps the second one out.

What becomes of the members of a group that know only the first?
"""

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

import sparklog
from sparklog.client import SparkLog
from sparklog_server.cluster.root_lock import LOCK_NAME
from tests.compat.group_members import SHORT_SESSION_MS, joined
from tests.support.broker_process import serving, until
from tests.support.roots import for_one_broker

SETTINGS = {"group.initial.rebalance.delay.ms": "0", "group.min.session.timeout.ms": "500"}
TOPIC, GROUP = "orders", "group"
pytestmark = [
    # The clients' own: sockets left to the garbage collector, when their broker goes.
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "log"


@pytest.fixture
def log(root: Path) -> Iterator[SparkLog]:
    with sparklog.open(for_one_broker(str(root))) as log:
        log.create_topic(TOPIC, 2)
        yield log


@pytest.mark.parametrize("name", ["confluent", "kafka-python"])
def test_a_deposed_broker_that_nobody_produces_to_gives_its_groups_up(
    root: Path, log: SparkLog, name: str
) -> None:
    def produce(count: int) -> None:
        for partition in range(2):
            log.append(TOPIC, pa.table({"value": [b"record"] * count}), partition=partition)

    with (
        serving(root, SETTINGS) as first,
        joined(name, first.bootstrap, GROUP, TOPIC, "range", session_ms=SHORT_SESSION_MS) as old,
    ):
        until(lambda: old.assigned() == {0, 1}, what="the first broker's member has everything")
        produce(1)
        until(lambda: len(old.seen) == 2, what="and reads it")
        (root / LOCK_NAME).unlink()  # on another machine it would keep nobody out
        with serving(root, SETTINGS) as second:
            # No offset is committed and nothing is produced there: it only looks at the log.
            assert first.process.wait(60) == 1
            assert "BROKER_FENCED" in first.errors()
            with joined(name, second.bootstrap, GROUP, TOPIC, "range") as new:
                until(lambda: new.assigned() == {0, 1}, what="the second broker's member has everything")
                produce(2)
                wanted = [(partition, offset) for partition in range(2) for offset in (1, 2)]
                until(lambda: set(wanted) <= set(new.seen), what="and reads it")
                assert not set(wanted) & set(old.seen)
            assert second.stop() == 0, second.errors()
