"""Three brokers over one root, under load, while one fault after the other strikes.

Producers are idempotent, with librdkafka, kafka-python and aiokafka, each with several requests in flight; a
group of each client reads, commits, and sees everything; an embedded writer and reader work beside them. All
is there once, in its producer's order; offsets that were committed never go back; and nobody is stuck.
SPARKLOG_BROKER_ROUNDS: how often each fault strikes, on each store; without it two do, on a directory.
SPARKLOG_FAULTS: of those whose names have one of these words; SPARKLOG_PAUSE_SECONDS: how long a broker
stands still; SPARKLOG_SEED repeats the dice.
"""

import os
import random
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from tests.brokers.cluster import LOOK_SECONDS, Brokers, brokers
from tests.brokers.faults import Nemesis, Struck, faults_of
from tests.brokers.judging import CommittedOffsets, judge
from tests.brokers.pauses import felt, summary
from tests.brokers.stuck import explain
from tests.brokers.working import PARTITIONS, PATIENCE_SECONDS, TOPIC, Worker, working
from tests.seaweed import SeaweedServer
from tests.support.broker_process import until

ROUNDS = int(os.environ.get("SPARKLOG_BROKER_ROUNDS", "0"))
WORDS = [word for word in os.environ.get("SPARKLOG_FAULTS", "").split(",") if word]
PAUSE_SECONDS = float(os.environ.get("SPARKLOG_PAUSE_SECONDS", "6"))
SEED = int(os.environ.get("SPARKLOG_SEED", str(random.SystemRandom().randrange(1 << 31))))
SHORT = ["SIGKILL of the controller", "rolling restart"]
CLIENTS = {"librdkafka": "rd", "kafka-python": "kp", "aiokafka": "aio"}


def load(bootstrap: str, root: str) -> list[tuple[str, str, str, str]]:
    """A producer and a group of each client, and those that need no broker."""
    words = [("producing", client, bootstrap, f"p-{short}") for client, short in CLIENTS.items()]
    words += [("consuming", client, bootstrap, f"{short}.0") for client, short in CLIENTS.items()]
    words += [("consuming", "librdkafka", bootstrap, "rd.1")]
    return [*words, ("beside", "writer", root, "writer"), ("beside", "reader", root, "reader")]


def chosen(store: str, dice: random.Random) -> list[str]:
    """The faults, one after the other."""
    if not ROUNDS and not WORDS:
        return SHORT
    names = faults_of(has_routes=store == "s3")
    names = [name for name in names if not WORDS or any(word in name for word in WORDS)] * max(1, ROUNDS)
    dice.shuffle(names)
    return names


def wait_until_all_get_on(workers: list[Worker], servers: Brokers, commits: CommittedOffsets) -> None:
    """Each has done something more; a member of a group may have nothing to do, if another one has it all."""
    sizes = {one.name: one.size() for one in workers}

    def got_on() -> bool:
        commits.look(CLIENTS.values())
        moved = {one.name.partition(".")[0] for one in workers if one.size() > sizes[one.name]}
        return moved == {one.name.partition(".")[0] for one in workers}

    try:
        until(got_on, PATIENCE_SECONDS, "all clients get on", every_seconds=LOOK_SECONDS)
    except AssertionError as error:
        if not str(error).startswith("not within"):
            raise
        servers.check()
        stuck = [one for one in workers if one.size() == sizes[one.name]]
        raise AssertionError(explain(stuck, servers.bootstrap)) from error
    for one in workers:
        one.check()
    servers.check()


def finish(servers: Brokers, workers: list[Worker]) -> None:
    """Writers first; then groups read everything, and commit it."""
    writers = [one for one in workers if one.script != "consuming"]
    for one in writers:
        one.ask_to_end()
    for one in writers:
        one.wait()
    log = servers.log
    ends = {(TOPIC, number): log.log_end_offset(TOPIC, number) for number in range(PARTITIONS)}

    def has_committed(group: str) -> bool:
        return log.committed_offsets(group).items() >= ends.items()

    members = [one for one in workers if one.script == "consuming"]
    for group in sorted({one.name.partition(".")[0] for one in members}):
        try:
            what = f"{group} has committed everything"
            until(partial(has_committed, group), PATIENCE_SECONDS, what, every_seconds=LOOK_SECONDS)
        except AssertionError as error:
            stuck = [one for one in members if one.name.partition(".")[0] == group]
            lags = {place: (end, log.committed_offsets(group).get(place)) for place, end in ends.items()}
            told = f"{error}: ends and what is committed: {lags}\n{explain(stuck, servers.bootstrap)}"
            raise AssertionError(told) from error
    for one in members:
        one.ask_to_end()
    for one in members:
        one.wait()


@pytest.mark.timeout(600 + 1200 * ROUNDS)
@pytest.mark.parametrize("store", ["directory", "s3"] if ROUNDS or WORDS else ["directory"])
def test_faults_under_load(
    store: str, tmp_path: Path, request: pytest.FixtureRequest, report: Callable[[str], None]
) -> None:
    report(f"SPARKLOG_SEED={SEED}")
    dice = random.Random(f"{SEED} {store}")
    server: SeaweedServer | None = request.getfixturevalue("s3_server") if store == "s3" else None
    root = str(tmp_path / "log") if server is None else server.new_root()
    struck: list[Struck] = []
    names = chosen(store, dice)
    with brokers(root, tmp_path, server=server) as servers:
        with working(tmp_path, load(servers.bootstrap, root)) as workers:
            commits = CommittedOffsets(servers.log)
            nemesis = Nemesis(servers, dice, pause_seconds=PAUSE_SECONDS)
            nemesis.groups = list(CLIENTS.values())
            for name in names:
                wait_until_all_get_on(workers, servers, commits)
                struck.append(nemesis.strike(name))
                took = (struck[-1].ended_us - struck[-1].began_us) / 1e6
                report(f"{name}: {struck[-1].note} ({took:.1f} s)")
            wait_until_all_get_on(workers, servers, commits)
            finish(servers, workers)
            verdict, events = judge(servers.log, workers, tmp_path)
            report(summary(felt(events, struck)))
            report(str(verdict))
        for node, one in servers.processes.items():
            assert one.stop() == 0, f"broker {node}: {one.errors()[-4000:]}"
