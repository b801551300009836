"""What goes wrong besides single requests: kills, power cuts, pauses, failing stores, clocks."""

from collections.abc import Callable, Sequence

from tests.simulation.processes import Role
from tests.simulation.setting import Setting
from tests.simulation.world import HOUR_US, MINUTE_US, SimProcess

_PAUSES_US = (1_000, 100_000, 3_000_000, MINUTE_US, 2 * HOUR_US)
STEPS_PER_OPERATION = 20
_MAX_PAUSED_US = 10 * HOUR_US


class Nemesis:
    """Strikes at random steps until the world is calm; keeps the roles' processes running."""

    def __init__(self, setting: Setting, roles: Sequence[Role], focus: str | None = None) -> None:
        self._focus = focus
        self._setting = setting
        self._world = setting.world
        self._roles = list(roles)
        self.processes: dict[str, SimProcess] = {}
        self._paused_us: dict[str, int] = {}

    def start(self) -> None:
        """Start all processes, and begin."""
        for role in self._roles:
            self._start(role)
        dice = self._world.dice
        expected_steps = STEPS_PER_OPERATION * self._setting.target
        strikes = dice.choice((0, 1, 2, 4, 8)) if self._focus is None else 8
        self._world.strike_at([dice.randrange(expected_steps) for _ in range(strikes)], self._strike)

    def _start(self, role: Role) -> None:
        ahead_ms = self._world.dice.choice((0, 0, 0, 37, -5_000, 3_600_000))
        process = self._world.spawn(role.name, role.live, clock_ahead_ms=ahead_ms)
        self.processes[role.name] = process

        def restart() -> None:
            """Killed, or stopped because of an error that says so."""
            if process.failure is None and not self._setting.is_over:
                self._start(role)

        process.on_end = lambda: self._world.at(self._world.dice.choice((0, 1_000, 50_000)), restart)

    def _strike(self) -> None:
        if self._focus is not None:
            getattr(self, f"_{self._focus}")()
            return
        strikes: list[Callable[[], None]] = [self._kill, self._kill, self._pause, self._pause, self._jump]
        if self._setting.is_directory:
            strikes += [self._cut_power, self._cut_power, self._cut_power_after_commit, self._pause_in_put]
            strikes += [self._cut_power_behind_a_killed_publisher]
        else:
            strikes += [self._fail_store, self._night, self._night]
        self._world.dice.choice(strikes)()

    def _victim(self) -> SimProcess:
        return self.processes[self._world.dice.choice(self._roles).name]

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
        paused_us = self._paused_us.get(process.name, 0) + duration_us
        if paused_us <= _MAX_PAUSED_US:
            self._paused_us[process.name] = paused_us
            self._world.faults["pause"] += 1
            process.pause(duration_us)

    def _night(self) -> None:
        """Hours in which nothing happens; one sleeps longer than the others."""
        self._world.faults["night"] += 1
        hours = self._world.dice.choice((5, 7, 8))
        for name, process in self.processes.items():
            if self._paused_us.get(name, 0) + hours * HOUR_US > _MAX_PAUSED_US:
                return
            self._pause_one(process, hours * HOUR_US)
        self._pause_one(self._victim(), HOUR_US)

    def _jump(self) -> None:
        self._world.faults["clock set"] += 1
        self._victim().clock_ahead_ms += self._world.dice.choice((-7_200_000, -1_000, 1_000, 7_200_000))

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
        duration_us = self._world.dice.choice((500_000, 5_000_000, MINUTE_US))
        server.fails_until_us = self._world.now_us + duration_us
