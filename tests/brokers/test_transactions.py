"""Three brokers over one root, and transactions in flight, while brokers and clients are killed.

Transactional producers commit and abort; two members of a group copy the topic into another one, each record
with its offset in one transaction. In the end: what was committed is there once, whole, and what was aborted
is not (tests/history); and the copy has the same records as the topic, in the same order.
SPARKLOG_BROKER_ROUNDS: how often each fault strikes, on each store; without it two do, on a directory.
SPARKLOG_FAULTS, SPARKLOG_PAUSE_SECONDS, SPARKLOG_SEED: as in striking.py.
"""

import random
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.brokers.cluster import Brokers, brokers
from tests.brokers.faults import Nemesis
from tests.brokers.judging import judge
from tests.brokers.striking import PAUSE_SECONDS, SEED, STORES, TIMEOUT_SECONDS, chosen
from tests.brokers.stuck import explain
from tests.brokers.transforming import OUT
from tests.brokers.working import PARTITIONS, PATIENCE_SECONDS, TOPIC, Worker, working
from tests.compat.embedded import stored_records
from tests.seaweed import SeaweedServer
from tests.support.broker_process import until

CLIENT = "SIGKILL of a client"
SHORT = ["SIGKILL of a leader", CLIENT]
GROUP = "copy"


def load(bootstrap: str, root: str) -> list[tuple[str, str, str, str]]:
    # kafka-python 3.0.12 forgets an EndTxn whose coordinator refuses the connection, and waits forever.
    words = [("transacting", "librdkafka", bootstrap, f"txn-{number}") for number in range(2)]
    words += [("transforming", "librdkafka", bootstrap, f"{GROUP}.{number}") for number in range(2)]
    words += [("producing", "librdkafka", bootstrap, "plain")]
    return [*words, ("beside", "reader", root, "reader")]


class Clients:
    """The workers, whose lives are many."""

    def __init__(self, workers: list[Worker], bootstrap: str, directory: Path) -> None:
        self.workers = workers  # of all lives
        self._bootstrap = bootstrap
        self._directory = directory
        self.alive = list(workers)

    def wait_until_all_get_on(self) -> None:
        """Each has done something more; of the group's members one, who may have it all."""
        sizes = {one.name: one.size() for one in self.alive}

        def who_moved() -> set[str]:
            return {_kind(one.name) for one in self.alive if one.size() > sizes[one.name]}

        expected = {_kind(one.name) for one in self.alive}
        try:
            until(lambda: who_moved() == expected, PATIENCE_SECONDS, "all clients get on")
        except AssertionError:
            stuck = [one for one in self.alive if one.size() == sizes[one.name]]
            raise AssertionError(explain(stuck, self._bootstrap)) from None
        for one in self.alive:
            one.check()

    def kill_one(self, dice: random.Random) -> str:
        """The next life of it goes on under the same transactional id."""
        lost = dice.choice([one for one in self.alive if one.script in ("transacting", "transforming")])
        lost.kill()
        name, _, life = lost.name.partition("@")
        next_life = f"{name}@{int(life or 0) + 1}"
        again = Worker(lost.script, "librdkafka", self._bootstrap, next_life, self._directory)
        self.alive[self.alive.index(lost)] = again
        self.workers.append(again)
        return lost.name

    def finish(self, servers: Brokers) -> str:
        """Writers first; then everything is copied, however much is left, as long as it gets less."""
        copying = [one for one in self.alive if one.script == "transforming"]
        _end([one for one in self.alive if one.script != "transforming"])
        log, began = servers.log, time.monotonic()
        log.refresh(force=True)
        ends = {(TOPIC, number): log.log_end_offset(TOPIC, number) for number in range(PARTITIONS)}

        def left() -> int:
            committed = log.committed_offsets(GROUP)
            return sum(max(0, end - committed.get(one, 0)) for one, end in ends.items())

        behind = before = left()
        while before:
            try:
                until(lambda: left() < before, PATIENCE_SECONDS, "the copy gets on", every_seconds=0.5)  # noqa: B023
            except AssertionError:
                why = f"{before} of {behind} records are not copied"
                raise AssertionError(f"{why}: {explain(copying, self._bootstrap)}") from None
            before = left()
        _end(copying)
        return f"the last {behind} records were copied in {time.monotonic() - began:.0f} s"


def _end(workers: list[Worker]) -> None:
    for one in workers:
        one.ask_to_end()
    for one in workers:
        one.wait()


def _kind(name: str) -> str:
    return name.partition(".")[0].partition("@")[0]


@pytest.mark.timeout(TIMEOUT_SECONDS)
@pytest.mark.parametrize("store", STORES)
def test_transactions_under_faults(
    store: str, tmp_path: Path, request: pytest.FixtureRequest, report: Callable[[str], None]
) -> None:
    report(f"SPARKLOG_SEED={SEED}")
    dice = random.Random(f"{SEED} {store} transactions")
    server: SeaweedServer | None = request.getfixturevalue("s3_server") if store == "s3" else None
    root = str(tmp_path / "log") if server is None else server.new_root()
    with brokers(root, tmp_path, server=server) as servers:
        servers.log.create_topic(OUT, PARTITIONS)
        with working(tmp_path, load(servers.bootstrap, root)) as workers:
            clients = Clients(workers, servers.bootstrap, tmp_path)
            nemesis = Nemesis(servers, dice, pause_seconds=PAUSE_SECONDS)
            nemesis.groups = [GROUP]
            for name in chosen(store, dice, SHORT, [CLIENT]):
                clients.wait_until_all_get_on()
                note = clients.kill_one(dice) if name == CLIENT else nemesis.strike(name).note
                report(f"{name}: {note}")
            clients.wait_until_all_get_on()
            report(clients.finish(servers))
            verdict, _ = judge(servers.log, workers, tmp_path)
            report(str(verdict))
            copied = 0
            for partition in range(PARTITIONS):
                read = [one.value for one in stored_records(servers.log, TOPIC, partition)]
                written = [one.value for one in stored_records(servers.log, OUT, partition)]
                assert written == read, f"partition {partition}"
                copied += len(read)
            assert servers.log.refresh(force=True).transactions.staged_extents == 0
            report(f"{copied} records copied exactly once")
