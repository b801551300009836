"""What goes wrong besides single requests: kills, power cuts, sleep, clones, damage, stores, clocks."""

from collections.abc import Callable, Sequence
from functools import partial

from tests.simulation.cloning import clone_of
from tests.simulation.damage import damage_newest_snapshot
from tests.simulation.processes import Role
from tests.simulation.setting import HOUR_MS, Setting
from tests.simulation.world import HOUR_US, MINUTE_US, SimProcess
from tests.simulation.writers import Writer

_PAUSES_US = (1_000, 100_000, 3_000_000, MINUTE_US, 2 * HOUR_US)
STEPS_PER_OPERATION = 20
_MAX_PAUSED_US = 10 * HOUR_US
_MAX_CLONES = 2


class Nemesis:
    """Strikes at random steps until the world is calm; keeps the roles' processes running."""

    def __init__(self, setting: Setting, roles: Sequence[Role], focus: Sequence[str] = ()) -> None:
        self._focus = focus
        self._setting = setting
        self._world = setting.world
        self.roles = list(roles)
        self.processes: dict[str, SimProcess] = {}
        self._slept_us: dict[str, int] = {}

    def start(self) -> None:
        """Start all processes, and begin."""
        for role in self.roles:
            self._start(role)
        dice = self._world.dice
        expected_steps = STEPS_PER_OPERATION * self._setting.target
        strikes = dice.choice((0, 1, 2, 4, 8)) if not self._focus else 8
        self._world.strike_at([dice.randrange(expected_steps) for _ in range(strikes)], self._strike)

    def _start(self, role: Role) -> SimProcess:
        ahead_ms = self._world.dice.choice((0, 0, 0, 37, -5_000, 800_000, 3_600_000))
        process = self._world.spawn(role.name, role.live, clock_ahead_ms=ahead_ms)
        if ahead_ms > 1_000_000:
            self._set_right(process)
        self.processes[role.name] = process

        def restart() -> None:
            """Killed, or stopped because of an error that says so."""
            if process.failure is None and not self._setting.is_over:
                self._start(role)

        process.on_end = lambda: self._world.at(self._world.dice.choice((0, 1_000, 50_000)), restart)
        return process

    def _strike(self) -> None:
        if self._focus:
            getattr(self, f"_{self._world.dice.choice(self._focus)}")()
            return
        strikes: list[Callable[[], None]] = [
            *(self._kill, self._kill, self._pause, self._pause, self._suspend, self._suspend, self._freeze),
            *(self._jump, self._damage_snapshot, self._restore_checkpoint),
        ]
        if self._setting.is_directory:
            strikes += [self._cut_power, self._cut_power, self._cut_power_after_commit, self._pause_in_put]
            strikes += [self._cut_power_behind_a_killed_publisher]
        else:
            strikes += [self._fail_store, self._break_connection, self._clone, self._night]
            strikes += [self._idle, self._idle, self._oversleep, self._oversleep]
        self._world.dice.choice(strikes)()

    def _victim(self) -> SimProcess:
        return self.processes[self._world.dice.choice(self.roles).name]

    def _kill(self) -> None:
        self._world.faults["kill"] += 1
        self._victim().kill()

    def _pause(self) -> None:
        self._pause_one(self._victim(), self._world.dice.choice(_PAUSES_US))

    def _pause_in_put(self) -> None:
        """The next publisher is stopped between its last check and its commit's getting its name."""
        disk = self._setting.disk
        assert disk is not None
        duration_us = self._world.dice.choice((100_000, MINUTE_US))
        disk.on_put = lambda process: self._pause_one(process, duration_us)

    def _pause_one(self, process: SimProcess, duration_us: int) -> None:
        if self._may_sleep(process, duration_us):
            self._world.faults["pause"] += 1
            process.pause(duration_us)

    def _suspend(self) -> None:
        """A machine sleeps, and CLOCK_MONOTONIC with it."""
        self._suspend_one(self._victim(), self._world.dice.choice(_PAUSES_US))

    def _suspend_one(self, process: SimProcess, duration_us: int) -> None:
        if self._may_sleep(process, duration_us):
            self._world.faults["suspend"] += 1
            process.suspend(duration_us)

    def _freeze(self) -> None:
        """A virtual machine is stopped, and all its clocks; some time after it goes on, one is set."""
        process, dice = self._victim(), self._world.dice
        duration_us = dice.choice(_PAUSES_US)
        if self._may_sleep(process, duration_us):
            self._world.faults["freeze"] += 1
            process.suspend(duration_us, freezes=True)
            self._world.at(duration_us, lambda: self._set_right(process))

    def _may_sleep(self, process: SimProcess, duration_us: int) -> bool:
        slept_us = self._slept_us.get(process.name, 0) + duration_us
        if slept_us > _MAX_PAUSED_US:
            return False
        self._slept_us[process.name] = slept_us
        return True

    def _night(self) -> None:
        """Hours in which nothing happens; one sleeps longer than the others. Machines may be suspended."""
        self._world.faults["night"] += 1
        hours = self._world.dice.choice((5, 7, 8))
        sleep = self._world.dice.choice((self._pause_one, self._suspend_one))
        for name, process in self.processes.items():
            if self._slept_us.get(name, 0) + hours * HOUR_US > _MAX_PAUSED_US:
                return
            sleep(process, hours * HOUR_US)
        sleep(self._victim(), HOUR_US)

    def _idle(self) -> None:
        """Hours in which nobody begins anything, so that commits grow old enough to be removed."""
        self._idle_for(self._world.dice.choice((1, 7, 7)) * HOUR_US)

    def _idle_for(self, duration_us: int) -> None:
        self._world.faults["idle hours"] += 1
        self._setting.idle_until_us = self._world.now_us + duration_us

    def _oversleep(self) -> None:
        """One stops in the midst of something; the others go on, rest, and have cleaned when it wakes."""
        sleep = self._world.dice.choice((self._pause_one, self._suspend_one))
        sleep(self._victim(), 8 * HOUR_US)
        self._world.strike_in(self._world.dice.choice((20, 100, 300)), lambda: self._idle_for(7 * HOUR_US))

    def _jump(self) -> None:
        """Somebody sets a clock; if by hours, then it is set right later."""
        process, dice = self._victim(), self._world.dice
        self._world.faults["clock set"] += 1
        process.clock_ahead_ms += dice.choice(
            (-12 * HOUR_MS, -2 * HOUR_MS, -1_000, 1_000, HOUR_MS, 12 * HOUR_MS)
        )
        self._set_right(process)

    def _set_right(self, process: SimProcess) -> None:
        """An object store that looks at dates refuses a clock that is wrong by more than 15 minutes."""
        delay_us = self._world.dice.choice((0, 100_000, 10 * MINUTE_US, HOUR_US))
        self._world.at(delay_us, process.set_clock)

    def _cut_power(self) -> None:
        self._world.faults["power cut"] += 1
        for process in self.processes.values():
            process.kill()
        assert self._setting.disk is not None
        self._setting.disk.cut_power()

    def _cut_power_after_commit(self) -> None:
        """When the next commit has its name, and the disk is slow to make it durable."""
        disk = self._setting.disk
        assert disk is not None
        delay_us = self._world.dice.choice((300, 5_000, 50_000))

        def cut() -> None:
            if not self._world.calm:
                self._cut_power()

        def stall(_: SimProcess) -> None:
            disk.stalled_until_us = self._world.now_us + delay_us + 1
            self._world.at(delay_us, cut)

        disk.on_commit = stall

    def _cut_power_behind_a_killed_publisher(self) -> None:
        """Whoever makes the next commit is killed before its name is durable, and the power is cut as soon as
        the one after it has its name: of the two the disk may keep the second only.
        """
        disk = self._setting.disk
        assert disk is not None

        def cut() -> None:
            if not self._world.calm:
                self._cut_power()

        def kill(process: SimProcess) -> None:
            self._world.faults["kill"] += 1
            self._world.at(0, process.kill)
            disk.on_commit = lambda _: self._world.at(0, cut)

        disk.on_commit = kill

    def _fail_store(self) -> None:
        self._world.faults["store fails"] += 1
        server = self._setting.server
        assert server is not None
        server.network.fail(self._world.dice.choice((500_000, 5_000_000, MINUTE_US)))

    def _break_connection(self) -> None:
        """The next commit gets there; its answer does not come back, and for a while nothing gets there."""
        self._world.faults["connection broken"] += 1
        server = self._setting.server
        assert server is not None
        server.network.breaks_for_us = self._world.dice.choice((500_000, 5_000_000, MINUTE_US))

    def _clone(self) -> None:
        """The memory of a writer goes on twice: a virtual machine's, or a container's, resumed again."""
        writers = [role for role in self.roles if isinstance(role, Writer) and role.log is not None]
        clones = sum(role.is_clone for role in self.roles)
        if not writers or clones >= _MAX_CLONES:
            return
        role = self._world.dice.choice(writers)
        original = self.processes[role.name]
        if role.log is None or original.dead:
            return
        self._world.faults["clone"] += 1
        twin = Writer(f"{role.name}c{clones}", self._setting, is_clone=True)
        twin.inherit(role)
        self.roles.append(twin)
        process = self._start(twin)
        process.take_clocks_of(original)
        twin.resumes = clone_of(role.log, self._setting.store(process), process)

    def _restore_checkpoint(self) -> None:
        """A query is stopped, and goes on from an older copy of its checkpoint."""
        dice = self._world.dice
        writers = [role for role in self.roles if isinstance(role, Writer)]
        if not writers:
            return
        role = dice.choice(writers)
        self.processes[role.name].kill()
        if role.query.restore(dice.choice((1, 1, 2, 3))):
            self._world.faults["checkpoint restored"] += 1

    def _damage_snapshot(self) -> None:
        """Once there is one that is needed to open the root; then somebody has to open it."""
        dice = self._world.dice
        self._damage_when(only_way=dice.random() < 0.7, looks=dice.choice((1, 20, 100)))

    def _damage_when(self, *, only_way: bool, looks: int) -> None:
        if damage_newest_snapshot(self._setting, only_way=only_way):
            self._world.faults["snapshot damaged"] += 1
            self._victim().kill()
        elif looks > 1:
            again = partial(self._damage_when, only_way=only_way, looks=looks - 1)
            self._world.strike_in(STEPS_PER_OPERATION, again)
