"""One simulated history: run, heal, read everything, judge.

Judged by the history checker, by what compaction promises (compacted.py), and besides:
    commit numbers   none is ever taken by two different commits that both could be relied on
    roles            of brokers: what audit.py says, commit by commit
    progress         after the last fault every process gets something done within PROGRESS_US
    offsets          a group's never fall, in the order of the log
    errors           none but those that the faults explain
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from tests.history.checker import check
from tests.history.events import Event
from tests.history.verdict import Verdict
from tests.simulation.asking import Client
from tests.simulation.audit import audit
from tests.simulation.broker_life import Node
from tests.simulation.compacted import problems_of
from tests.simulation.determinism import deterministic
from tests.simulation.directory_store import Disk
from tests.simulation.keeper import Keeper
from tests.simulation.keyed import KEYED
from tests.simulation.last_looks import create_compacted, read_everything
from tests.simulation.limits import small_limits
from tests.simulation.members import Member
from tests.simulation.nemesis import Nemesis
from tests.simulation.processes import Reader, Role
from tests.simulation.producers import Producer
from tests.simulation.remote_store import Server
from tests.simulation.serving import ServingBroker
from tests.simulation.setting import Setting, throw
from tests.simulation.transactors import Transactor
from tests.simulation.world import HOUR_US, StuckError, World
from tests.simulation.writers import Writer

_REST_MS = 100
PROGRESS_US = 30_000_000
_IDS = 1_000  # above those that transactional producers are given
_DAY_US = 24 * HOUR_US


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
                outcome.problems += _store(setting).violations
                outcome.problems += setting.problems
                if setting.brokers:
                    outcome.problems += audit(_store(setting).commits)
        finally:
            world.end()
    outcome.operations = setting.operations
    outcome.steps = world.steps
    outcome.faults = world.faults
    outcome.met = world.met
    outcome.events = setting.events
    outcome.verdict = check(setting.events, compacted={KEYED})
    outcome.problems += problems_of(setting.witness, setting.events, lags=setting.lags)
    return outcome


def _store(setting: Setting) -> Disk | Server:
    store = setting.disk or setting.server
    assert store is not None
    return store


def _roles_of(setting: Setting) -> list[Role]:
    roles: list[Role] = [Writer(f"w{number}", setting) for number in range(setting.writers)]
    roles += [Reader(f"r{number}", setting) for number in range(setting.readers)]
    roles += [Producer(f"p{number}", setting, producer_id=number) for number in range(setting.producers)]
    nodes, clients = range(1, setting.brokers + 1), range(setting.clients)
    brokers: list[Node] = [ServingBroker(f"b{number}", setting, node=number) for number in nodes]
    roles += [Client(f"c{number}", setting, producer_id=_IDS + number, brokers=brokers) for number in clients]
    roles += brokers
    roles += [
        Member(
            f"m{number}",
            setting,
            brokers=brokers,
            second=setting.dice.random() < 0.5,
            keeps_epoch=(setting.world.seed + number) % 3 > 0,
            timeout_ms=setting.transaction_timeout_ms,
        )
        for number in range(setting.members)
    ]
    roles += [
        Transactor(
            f"t{number}",
            setting,
            application="app" if setting.mixes_protocols else f"app{int(second)}",
            second=second,
            timeout_ms=setting.transaction_timeout_ms,
        )
        for number, second in enumerate(setting.transactors)
    ]
    roles.append(Keeper("k0", setting))
    if setting.compaction is not None:
        roles.append(Keeper("k1", setting))
    if setting.members:  # their operations take several requests to brokers: others do less meanwhile
        for role in roles:
            role.rest_ms = _REST_MS if isinstance(role, Keeper | Reader | Client) else 0
    return roles


def _run(setting: Setting, outcome: Outcome, focus: Sequence[str]) -> None:
    world = setting.world
    roles = _roles_of(setting)
    if setting.compaction is not None:
        create_compacted(setting)
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
            deadline_us=healed_us + PROGRESS_US * (4 if setting.members else 1),  # rebalances, sessions
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
        outcome.problems += read_everything(setting)
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
