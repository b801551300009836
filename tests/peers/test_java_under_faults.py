"""Kafka's Java client under the faults of tests/brokers: an idempotent producer with five requests in flight,
and a group of two members, beside an embedded writer and reader. The environment: striking.py there.
"""

import shlex
from collections.abc import Callable
from pathlib import Path

import pytest

from benchmarks.peers.fetching import Jars
from benchmarks.peers.kafka_process import java
from tests.brokers.java import COMMAND
from tests.brokers.striking import STORES, TIMEOUT_SECONDS, strike_under_load

PROGRAM = Path(__file__).with_name("Working.java")
SHORT = ["SIGKILL of a leader", "SIGKILL of a coordinator", "rolling restart"]
# What the JVM has to say goes to stderr, with what the client goes through.
JVM = (
    "-XX:TieredStopAtLevel=1",
    "-XX:+UseSerialGC",
    "-XX:+DisplayVMOutputToStderr",
    "-Dorg.slf4j.simpleLogger.defaultLogLevel=info",
    "-Dorg.slf4j.simpleLogger.showDateTime=true",
    "-Dorg.slf4j.simpleLogger.dateTimeFormat=HH:mm:ss.SSS",
)


def load(bootstrap: str, root: str) -> list[tuple[str, str, str, str]]:
    words = [("producing", "java", bootstrap, "p-java")]
    words += [("consuming", "java", bootstrap, f"java.{number}") for number in range(2)]
    return [*words, ("beside", "writer", root, "writer"), ("beside", "reader", root, "reader")]


@pytest.mark.timeout(TIMEOUT_SECONDS)
@pytest.mark.parametrize("store", STORES)
def test_java_clients_under_faults(
    store: str,
    kafka_jars: Jars,
    tmp_path: Path,
    request: pytest.FixtureRequest,
    monkeypatch: pytest.MonkeyPatch,
    report: Callable[[str], None],
) -> None:
    monkeypatch.setenv(COMMAND, shlex.join(java(kafka_jars, str(PROGRAM), heap="-Xmx128m", jvm=JVM)))
    server = request.getfixturevalue("s3_server") if store == "s3" else None
    strike_under_load(load, SHORT, tmp_path, server, report)
