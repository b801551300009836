"""One Apache Kafka broker (KRaft, controller and broker in one process) on loopback.

Invariants: listens on 127.0.0.1 only, on ports that were free; whatever happens, leaving the context kills
the process and removes its temporary directory.
Not here: fetching it (fetching.py), its tools (kafka_tools.py).
"""

import contextlib
import os
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

from benchmarks.peers.fetching import Jars

READY_SECONDS = 60
HEAP = "-Xmx1g"  # as bin/kafka-server-start.sh gives it
JVM = ("-server", "-XX:+UseG1GC", "-XX:MaxGCPauseMillis=20", "-XX:InitiatingHeapOccupancyPercent=35",
       "-XX:+ExplicitGCInvokesConcurrent", "-Djava.awt.headless=true",
       "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn")  # fmt: skip


QUICK_START = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn")


def java(jars: Jars, *words: str, heap: str, jvm: tuple[str, ...] = JVM) -> list[str]:
    """The command that runs a class with Kafka's class path."""
    classpath = os.pathsep.join(map(str, jars.files))
    return ["java", heap, *jvm, "-classpath", classpath, *words]


def free_ports(count: int) -> list[int]:
    """Different ports that nobody listens on now."""
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]


class KafkaProcess:
    """A running broker."""

    def __init__(self, jars: Jars, directory: Path, settings: Mapping[str, str]) -> None:
        port, controller = free_ports(2)
        self.bootstrap = f"127.0.0.1:{port}"
        self.log_dir = directory / "log"
        self.settings = {
            "process.roles": "broker,controller",
            "node.id": "1",
            "controller.quorum.voters": f"1@127.0.0.1:{controller}",
            "controller.listener.names": "CONTROLLER",
            "listeners": f"PLAINTEXT://{self.bootstrap},CONTROLLER://127.0.0.1:{controller}",
            "advertised.listeners": f"PLAINTEXT://{self.bootstrap}",
            "log.dirs": str(self.log_dir),
            "offsets.topic.replication.factor": "1",
            "offsets.topic.num.partitions": "1",
            "transaction.state.log.replication.factor": "1",
            "transaction.state.log.min.isr": "1",
            "share.coordinator.state.topic.replication.factor": "1",
            "share.coordinator.state.topic.min.isr": "1",
            "group.initial.rebalance.delay.ms": "0",
            **settings,
        }
        path = directory / "server.properties"
        path.write_text("".join(f"{key}={value}\n" for key, value in self.settings.items()))
        words = ("format", "-t", "c3Bhcmtsb2ctcGVlcnMtMA", "-c", str(path))
        subprocess.run(
            java(jars, "kafka.tools.StorageTool", *words, heap="-Xmx256m", jvm=QUICK_START),
            check=True,
            capture_output=True,
        )
        self._output = (directory / "output").open("w+")
        self.process = subprocess.Popen(
            java(jars, "kafka.Kafka", str(path), heap=HEAP), stdout=self._output, stderr=subprocess.STDOUT
        )
        try:
            self._wait(port)
        except BaseException:
            self.close()
            raise

    @property
    def pid(self) -> int:
        return self.process.pid

    def output(self) -> str:
        """What it printed: warnings and errors."""
        self._output.seek(0)
        return self._output.read()

    def close(self) -> None:
        """SIGKILL; its directory goes too."""
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait(READY_SECONDS)
        self._output.close()

    def _wait(self, port: int) -> None:
        """Until it accepts connections: it opens the broker's listener last."""
        end = time.monotonic() + READY_SECONDS
        while True:
            if self.process.poll() is not None:
                raise RuntimeError(f"Kafka ended with {self.process.returncode}: {self.output()[-2000:]}")
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
                return
            if time.monotonic() > end:
                raise RuntimeError(f"Kafka did not listen within {READY_SECONDS} s: {self.output()[-2000:]}")
            time.sleep(0.1)


@contextlib.contextmanager
def kafka_broker(
    jars: Jars, parent: Path | None = None, settings: Mapping[str, str] | None = None
) -> Iterator[KafkaProcess]:
    """A broker for as long as the context lasts."""
    directory = Path(tempfile.mkdtemp(prefix="peers-kafka-", dir=parent))
    try:
        broker = KafkaProcess(jars, directory, settings or {})
        try:
            yield broker
        finally:
            broker.close()
    finally:
        shutil.rmtree(directory, ignore_errors=True)
