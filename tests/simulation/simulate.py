"""One simulated history: run, heal, read everything, judge.

Judged by the history checker, and besides:
    commit numbers   none is ever taken by two different commits that both could be relied on
    progress         after the last fault every process gets something done within PROGRESS_US
    errors           none but those that the faults explain
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from sparklog.client import SparkLog
from tests.history.checker import check
from tests.history.events import Event
from tests.history.recorder import History
from tests.history.verdict import Verdict
from tests.simulation.determinism import deterministic
from tests.simulation.limits import small_limits
from tests.simulation.nemesis import Nemesis
from tests.simulation.processes import Keeper, Reader, Role, key_of
from tests.simulation.producers import Producer
from tests.simulation.setting import TOPICS, Setting, throw
from tests.simulation.world import HOUR_US, SimProcess, StuckError, World
from tests.simulation.writers import Writer

PROGRESS_US = 30_000_000
_DAY_US = 24 * HOUR_US
KINDS = ("directory", "remote")


@dataclass
class Outcome:
    """What became of one history."""

    seed: int
    kind: str
    operations: int = 0
    steps: int = 0
    faults: Counter[str] = field(default_factory=Counter)
    met: Counter[str] = field(default_factory=Counter)
    verdict: Verdict | None = None
    problems: list[str] = field(default_factory=list)
    events: list[Event] = field(default_factory=list)
    recovery_us: int = 0
    error: BaseException | None = None  # that ended a process

    @property
    def names(self) -> set[str]:
        return self.verdict.names if self.verdict is not None else set()

    @property
    def is_clean(self) -> bool:
        return not self.problems and not self.names

    def __str__(self) -> str:
        again = f"python -m tests.simulation --seed {self.seed} --store {self.kind}"
        return "\n".join((f"seed {self.seed}, {self.kind}: {again}", *self.problems, str(self.verdict)))


def simulate(seed: int, kind: str, *, target: int | None = None, focus: Sequence[str] = ()) -> Outcome:
    """Run the history that `seed` means on a kind of store, and judge it.

    Args:
        target: end after so many operations; None: the seed decides.
        focus: of the nemesis, these strikes only.
    """
    outcome = Outcome(seed, kind)
    with deterministic(seed):
        world = World(seed)
        setting = throw(world, kind, target=target)
        try:
            with small_limits(setting):
                _run(setting, outcome, focus)
        finally:
            world.end()
    outcome.operations = setting.operations
    outcome.steps = world.steps
    outcome.faults = world.faults
    outcome.met = world.met
    outcome.events = setting.events
    outcome.verdict = check(setting.events)
    store = setting.disk or setting.server
    assert store is not None
    outcome.problems += store.violations
    return outcome


def _run(setting: Setting, outcome: Outcome, focus: Sequence[str]) -> None:
    world = setting.world
    roles: list[Role] = [Writer(f"w{number}", setting) for number in range(setting.writers)]
    roles += [Reader(f"r{number}", setting) for number in range(setting.readers)]
    roles += [Producer(f"p{number}", setting, producer_id=number) for number in range(setting.producers)]
    roles.append(Keeper("k0", setting))
    nemesis = Nemesis(setting, roles, focus)
    nemesis.start()

    try:
        world.run(lambda: setting.operations >= setting.target or world.failed, deadline_us=10 * _DAY_US)
        _heal(setting, nemesis)
        roles = nemesis.roles
        for role in roles:
            role.done_before = role.done
        healed_us = world.now_us
        world.run(
            lambda: world.failed or all(role.has_recovered for role in roles),
            deadline_us=healed_us + PROGRESS_US,
        )
        outcome.recovery_us = world.now_us - healed_us
        setting.is_over = True
        world.run(
            lambda: world.failed or all(process.dead for process in nemesis.processes.values()),
            deadline_us=world.now_us + PROGRESS_US,
        )
    except StuckError as error:
        stuck = [role.name for role in roles if not role.has_recovered]
        outcome.problems.append(f"stuck: {error}; without progress: {stuck}")
    if not world.failed and not outcome.problems:
        _read_everything(setting, outcome)
    for process in world.failed:
        outcome.problems.append(f"{process.name}: {type(process.failure).__name__}: {process.failure}")
        outcome.error = process.failure


def _heal(setting: Setting, nemesis: Nemesis) -> None:
    """No more faults; what is paused goes on, what is stopped starts, puts that are late may still land."""
    setting.world.calm = True
    for process in nemesis.processes.values():
        process.resume()
        process.set_clock()
        process.call()
    if setting.server is not None:
        setting.server.network.heal()
    if setting.disk is not None:
        setting.disk.heal()


def _read_everything(setting: Setting, outcome: Outcome) -> None:
    """When even the latest put has landed: by a process that has seen nothing before."""
    world = setting.world
    world.drain(3 * HOUR_US)
    world.spawn("last", lambda process: _read(setting, process))
    last = world.processes[-1]
    try:
        world.run(lambda: last.dead, deadline_us=world.now_us + 60 * PROGRESS_US)
    except StuckError as error:
        outcome.problems.append(f"reading everything: {error}")


def _read(setting: Setting, process: SimProcess) -> None:
    history = History("last", setting.events.extend, lambda: process.world.now_us)
    log: SparkLog = Keeper("last", setting).opened(process)
    for topic in TOPICS:
        if topic not in log.topics():
            continue
        for partition in range(setting.partitions):
            place = topic, partition
            polling = history.poll(final=True)
            values: list[str] = []
            offsets: list[int] = []
            for arrow_batch in log.read_batches(topic, partition):
                values += [value.decode() for value in arrow_batch.column("value").to_pylist()]
                offsets += arrow_batch.column("offset").to_pylist()
            start, end = log.log_start_offset(*place), log.log_end_offset(*place)
            assert offsets == list(range(start, end)), f"{key_of(place)}: {start} to {end}, found {offsets}"
            polling.ok({key_of(place): (values, offsets)})
