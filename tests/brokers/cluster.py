"""Several brokers over one root, each a process, and what a test does to them.

Invariants: who leads, coordinates and controls is looked up in the root, by a reader that needs no broker;
    every broker has its own port, which it keeps when it is started again, and on an object store its own
    way there.
Not here: clients (working.py), which faults there are (faults.py).
"""

import contextlib
import signal
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from urllib.parse import urlsplit

import sparklog
from sparklog.client import SparkLog
from sparklog.client.groups import partition_for_group
from sparklog.format.consumer_offsets import TOPIC as OFFSETS_TOPIC
from sparklog.metadata import NO_NODE, Image
from tests.brokers.route import Route
from tests.brokers.working import PARTITIONS, TOPIC
from tests.seaweed import SeaweedServer
from tests.support.broker_process import BrokerProcess, until

SESSION_MS, HEARTBEAT_MS = 4_000, 500
SETTINGS = {
    "broker.session.timeout.ms": str(SESSION_MS),
    "broker.heartbeat.interval.ms": str(HEARTBEAT_MS),
    "default.replication.factor": "3",
    "offsets.topic.num.partitions": "6",
    "offsets.topic.replication.factor": "3",
    "group.initial.rebalance.delay.ms": "0",
    "group.min.session.timeout.ms": "1000",
}
START_SECONDS = 60
LOOK_SECONDS = 0.25  # looks are requests to the store, which has enough to do


class Brokers:
    """See the module's docstring."""

    def __init__(self, processes: dict[int, BrokerProcess], routes: dict[int, Route], log: SparkLog) -> None:
        self.processes = processes
        self.routes = routes
        self.log = log
        self.paused: set[int] = set()

    @property
    def bootstrap(self) -> str:
        """For bootstrap.servers."""
        return ",".join(one.bootstrap for one in self.processes.values())

    # --- who is who -------------------------------------------------------------------------------------

    def image(self) -> Image:
        """The newest."""
        return self.log.refresh(force=True)

    def leaders(self, topic: str = TOPIC) -> list[int]:
        """Of all partitions, NO_NODE where there is none."""
        found = self.image().topics.get(topic)
        return [] if found is None else [one.leadership.leader for one in found.partitions]

    def controller(self) -> int:
        """Or NO_NODE."""
        return self.image().controller.node_id

    def coordinator(self, group: str) -> int:
        """Or NO_NODE."""
        leaders = self.leaders(OFFSETS_TOPIC)
        return leaders[partition_for_group(group, len(leaders))] if leaders else NO_NODE

    def live(self) -> set[int]:
        """Those that are registered, and not fenced."""
        return {node for node, one in self.image().brokers.items() if not one.is_fenced}

    def wait_until_all_serve(self, seconds: float = START_SECONDS) -> None:
        """Every broker has joined, there is a controller, and every partition has a leader."""

        def serve() -> bool:
            leaders = self.leaders() + self.leaders(OFFSETS_TOPIC)
            return (
                self.live() == set(self.processes) and self.controller() != NO_NODE and NO_NODE not in leaders
            )

        until(serve, seconds, "all brokers serve", every_seconds=LOOK_SECONDS)

    # --- what happens to them ---------------------------------------------------------------------------

    def pause(self, node: int) -> None:
        """SIGSTOP."""
        self.processes[node].process.send_signal(signal.SIGSTOP)
        self.paused.add(node)

    def resume(self, node: int) -> None:
        """SIGCONT."""
        self.processes[node].process.send_signal(signal.SIGCONT)
        self.paused.discard(node)

    def check(self) -> None:
        """None has ended by itself."""
        for node, one in self.processes.items():
            code = one.process.poll()
            assert code is None, f"broker {node} ended by itself: exit {code}\n{one.errors()[-4000:]}"

    def write_logs(self, directory: Path) -> None:
        """What each wrote to stderr, for whoever looks into a failure."""
        for node, one in self.processes.items():
            with contextlib.suppress(ValueError, OSError):  # closed
                (directory / f"broker-{node}.log").write_text(one.errors())


@contextmanager
def brokers(
    root: str,
    directory: Path,
    *,
    nodes: Sequence[int] = (1, 2, 3),
    server: SeaweedServer | None = None,
    settings: dict[str, str] | None = None,
) -> Iterator[Brokers]:
    """Brokers that serve, and a topic of PARTITIONS; on an object store each has a way there of its own."""
    with ExitStack() as stack:
        log = stack.enter_context(sparklog.open(root, create=True))
        processes: dict[int, BrokerProcess] = {}
        routes: dict[int, Route] = {}
        found = Brokers(processes, routes, log)
        for node in nodes:
            environment: dict[str, str] = {}
            if server is not None:
                target = urlsplit(server.endpoint_url)
                assert target.hostname is not None
                assert target.port is not None
                routes[node] = stack.enter_context(Route((target.hostname, target.port)))
                environment["AWS_ENDPOINT_URL"] = routes[node].endpoint_url
            own = {**SETTINGS, **(settings or {}), "node.id": str(node)}
            processes[node] = BrokerProcess(root, own, env=environment)
            stack.callback(processes[node].close)
        stack.callback(found.write_logs, directory)
        log.create_topic(TOPIC, PARTITIONS)
        found.wait_until_all_serve()
        yield found
