"""`brokers api-versions`, of a broker in this process."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from sparklog.cli.api_versions import NAMES
from sparklog_server.protocol.apis import ApiKey
from tests.cli.conftest import Run
from tests.support.ports import reserved_port
from tests.support.running_broker import RunningBroker

pytestmark = pytest.mark.slow


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[RunningBroker]:
    broker = RunningBroker(str(tmp_path / "log"))
    yield broker
    broker.stop()


def test_names_are_kafkas() -> None:
    assert {key: NAMES[key] for key in ApiKey} == {
        key: "".join(map(str.capitalize, key.name.split("_"))) for key in ApiKey
    }
    assert (len(NAMES), NAMES[68], NAMES[92]) == (93, "ConsumerGroupHeartbeat", "DeleteShareGroupOffsets")


def test_versions_are_those_that_are_served(
    run: Run, run_json: Callable[..., Any], broker: RunningBroker
) -> None:
    lines = run("kafka-broker-api-versions.sh", "--bootstrap-server", broker.bootstrap).stdout.splitlines()
    (row,) = run_json("brokers", "api-versions", "--bootstrap-server", broker.bootstrap)
    assert lines[0] == f"{broker.bootstrap} (id: {row['id']}) -> ("
    assert lines[1].startswith("\tProduce(0): ")
    assert lines[1].endswith(",")
    assert lines[-1] == ")"
    served = {api["key"]: (api["name"], api["max_version"]) for api in row["apis"]}
    assert served[3][0] == "Metadata"
    assert served[18] == ("ApiVersions", 5)
    assert len(lines) == len(served) + 2


def test_where_nobody_answers(run: Run) -> None:
    with reserved_port() as taken:
        server = f"127.0.0.1:{taken.getsockname()[1]}"
        result = run("brokers", "api-versions", "--bootstrap-server", server, exit_code=1)
    assert f"BROKER_UNREACHABLE] no answer ({server}: " in result.stderr
    assert "name a broker with --bootstrap-server" in run("brokers", "api-versions", exit_code=2).stderr
