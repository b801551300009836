"""Three brokers over one root, under load, while one fault after the other strikes: how such a test goes.

SPARKLOG_BROKER_ROUNDS: how often each fault strikes, on each store; without it a few do, on a directory.
SPARKLOG_FAULTS: of those whose names have one of these words; SPARKLOG_PAUSE_SECONDS: how long a broker
stands still; SPARKLOG_SEED repeats the dice.
"""

import os
import random
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from tests.brokers.cluster import LOOK_SECONDS, Brokers, brokers
from tests.brokers.faults import Nemesis, Struck, faults_of
from tests.brokers.judging import CommittedOffsets, judge
from tests.brokers.pauses import felt, summary
from tests.brokers.stuck import explain
from tests.brokers.working import PARTITIONS, PATIENCE_SECONDS, TOPIC, Worker, group_of, working
from tests.seaweed import SeaweedServer
from tests.support.broker_process import until

ROUNDS = int(os.environ.get("SPARKLOG_BROKER_ROUNDS", "0"))
WORDS = [word for word in os.environ.get("SPARKLOG_FAULTS", "").split(",") if word]
PAUSE_SECONDS = float(os.environ.get("SPARKLOG_PAUSE_SECONDS", "6"))
SEED = int(os.environ.get("SPARKLOG_SEED", str(random.SystemRandom().randrange(1 << 31))))
STORES = ["directory", "s3"] if ROUNDS or WORDS else ["directory"]
TIMEOUT_SECONDS = 600 + 1200 * ROUNDS
Load = Callable[[str, str], list[tuple[str, str, str, str]]]  # bootstrap, root -> words of workers


def chosen(store: str, dice: random.Random, short: Sequence[str], more: Sequence[str] = ()) -> list[str]:
    """The faults, one after the other; `more`: those of the test's own."""
    if not ROUNDS and not WORDS:
        return list(short)
    names = [*faults_of(has_routes=store == "s3"), *more]
    names = [name for name in names if not WORDS or any(word in name for word in WORDS)] * max(1, ROUNDS)
    dice.shuffle(names)
    return names


def strike_under_load(
    load: Load,
    short: Sequence[str],
    directory: Path,
    server: SeaweedServer | None,
    report: Callable[[str], None],
) -> None:
    """Strike, and judge what came of it.

    Args:
        short: the faults, unless the environment says which.
        server: of the object store that has the root; None: a directory has it.
    """
    report(f"SPARKLOG_SEED={SEED}")
    store = "directory" if server is None else "s3"
    dice = random.Random(f"{SEED} {store}")
    root = str(directory / "log") if server is None else server.new_root()
    struck: list[Struck] = []
    with brokers(root, directory, server=server) as servers:
        with working(directory, load(servers.bootstrap, root)) as workers:
            commits = CommittedOffsets(servers.log)
            nemesis = Nemesis(servers, dice, pause_seconds=PAUSE_SECONDS)
            nemesis.groups = groups_of(workers)
            for name in chosen(store, dice, short):
                wait_until_all_get_on(workers, servers, commits)
                struck.append(nemesis.strike(name))
                took = (struck[-1].ended_us - struck[-1].began_us) / 1e6
                report(f"{name}: {struck[-1].note} ({took:.1f} s)")
            wait_until_all_get_on(workers, servers, commits)
            finish(servers, workers)
            verdict, events = judge(servers.log, workers, directory)
            report(summary(felt(events, struck)))
            report(str(verdict))
        for node, one in servers.processes.items():
            assert one.stop() == 0, f"broker {node}: {one.errors()[-4000:]}"


def groups_of(workers: list[Worker]) -> list[str]:
    """Those that read."""
    return sorted({group_of(one.name) for one in workers if one.script == "consuming"})


def wait_until_all_get_on(workers: list[Worker], servers: Brokers, commits: CommittedOffsets) -> None:
    """Each has done something more; a member of a group may have nothing to do, if another one has it all."""
    sizes, groups = {one.name: one.size() for one in workers}, groups_of(workers)

    def got_on() -> bool:
        commits.look(groups)
        moved = {group_of(one.name) for one in workers if one.size() > sizes[one.name]}
        return moved == {group_of(one.name) for one in workers}

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
    for group in groups_of(workers):
        try:
            what = f"{group} has committed everything"
            until(partial(has_committed, group), PATIENCE_SECONDS, what, every_seconds=LOOK_SECONDS)
        except AssertionError as error:
            stuck = [one for one in members if group_of(one.name) == group]
            lags = {place: (end, log.committed_offsets(group).get(place)) for place, end in ends.items()}
            told = f"{error}: ends and what is committed: {lags}\n{explain(stuck, servers.bootstrap)}"
            raise AssertionError(told) from error
    for one in members:
        one.ask_to_end()
    for one in members:
        one.wait()
