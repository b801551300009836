"""What goes wrong, one thing at a time, while clients work: each leaves all brokers running.

A fault begins while every broker serves, and is over when every broker serves again. How long that takes is
nobody's promise here: it is bounded, so that what is stuck is found, and measured (pauses.py).
"""

import random
import signal
from collections.abc import Callable
from dataclasses import dataclass

from sparklog.metadata import NO_NODE
from tests.brokers.cluster import LOOK_SECONDS, SESSION_MS, START_SECONDS, Brokers
from tests.history.recorder import monotonic_us
from tests.support.broker_process import until


@dataclass(frozen=True, slots=True)
class Struck:
    """One fault that was, and what it took."""

    name: str
    began_us: int
    ended_us: int
    note: str = ""


class Nemesis:
    """Strikes; who is hit is up to the dice where the fault leaves it open."""

    def __init__(self, brokers: Brokers, dice: random.Random, *, pause_seconds: float) -> None:
        """`pause_seconds`: how long a broker stands still that is taken for dead meanwhile."""
        self._brokers = brokers
        self._dice = dice
        self._pause_seconds = pause_seconds
        self.groups = ["g"]  # whose coordinator is killed

    def strike(self, name: str) -> Struck:
        """By its name, one of FAULTS."""
        brokers = self._brokers
        brokers.wait_until_all_serve()
        began_us = monotonic_us()
        note = FAULTS[name](self)
        brokers.wait_until_all_serve()
        brokers.check()
        return Struck(name, began_us, monotonic_us(), note)

    # --- kills ------------------------------------------------------------------------------------------

    def kill_leader(self) -> str:
        return self._kill(self._some_leader())

    def kill_controller(self) -> str:
        return self._kill(self._brokers.controller())

    def kill_coordinator(self) -> str:
        return self._kill(self._brokers.coordinator(self._dice.choice(self.groups)))

    def kill_all(self) -> str:
        """Nobody is left to notice."""
        processes = self._brokers.processes
        for one in processes.values():
            one.process.kill()
        for one in processes.values():
            one.kill()
        for one in processes.values():
            one.start()
        return ""

    def _kill(self, node: int) -> str:
        """It is started again at once, or when others have taken its partitions over."""
        process = self._brokers.processes[node]
        process.kill()
        at_once = self._dice.random() < 0.3
        if not at_once:
            self._wait_until_replaced(node)
        process.start()
        return f"broker {node}, started again {'at once' if at_once else 'after the failover'}"

    def _wait_until_replaced(self, node: int) -> None:
        brokers = self._brokers

        def is_replaced() -> bool:
            return not {node, NO_NODE} & {*brokers.leaders(), brokers.controller()}

        what = f"others have taken over from broker {node}"
        until(is_replaced, START_SECONDS, what, every_seconds=LOOK_SECONDS)

    def _some_leader(self) -> int:
        return self._dice.choice(self._brokers.leaders())

    # --- brokers that are away and come back ------------------------------------------------------------

    def pause(self) -> str:
        """SIGSTOP of a leader, for so long that it is taken for dead, and SIGCONT."""
        node = self._some_leader()
        self._brokers.pause(node)
        try:
            self._wait_until_replaced(node)
            self._stand_by(self._pause_seconds - SESSION_MS / 1000)
        finally:
            self._brokers.resume(node)
        return f"broker {node}"

    def pause_shortly(self) -> str:
        """For less than a session, so that it may be a leader still."""
        node = self._some_leader()
        self._brokers.pause(node)
        try:
            self._stand_by(self._dice.uniform(0.2, 0.9) * SESSION_MS / 1000)
        finally:
            self._brokers.resume(node)
        return f"broker {node}"

    def cut_off(self) -> str:
        """From the store alone: clients reach it, and it reaches nothing."""
        node = self._some_leader()
        silent = self._dice.random() < 0.5
        route = self._brokers.routes[node]
        route.cut(silent=silent)
        try:
            self._wait_until_replaced(node)
            self._stand_by(self._pause_seconds - SESSION_MS / 1000)
        finally:
            route.heal()
        return f"broker {node}, {'silently' if silent else 'refused'}"

    def _stand_by(self, seconds: float) -> None:
        """All brokers run on: the fault lasts."""
        if seconds > 0:
            signal.sigtimedwait([], seconds)

    # --- restarts ---------------------------------------------------------------------------------------

    def restart_all(self) -> str:
        """One after the other, as an upgrade does: SIGTERM, start, wait until all serve."""
        stops = []
        for process in list(self._brokers.processes.values()):
            began_us = monotonic_us()
            code = process.stop()
            assert code == 0, f"exit {code}\n{process.errors()[-4000:]}"
            stops.append((monotonic_us() - began_us) / 1e6)
            process.start()
            self._brokers.wait_until_all_serve()
        return "stops took " + ", ".join(f"{one:.1f} s" for one in stops)


FAULTS: dict[str, Callable[[Nemesis], str]] = {
    "SIGKILL of a leader": Nemesis.kill_leader,
    "SIGKILL of the controller": Nemesis.kill_controller,
    "SIGKILL of a coordinator": Nemesis.kill_coordinator,
    "SIGKILL of all": Nemesis.kill_all,
    "SIGSTOP, taken for dead": Nemesis.pause,
    "SIGSTOP, shortly": Nemesis.pause_shortly,
    "rolling restart": Nemesis.restart_all,
    "cut off from the store": Nemesis.cut_off,
}
ON_OBJECT_STORES = ("cut off from the store",)


def faults_of(*, has_routes: bool) -> list[str]:
    """Those that a store can have."""
    return [name for name in FAULTS if has_routes or name not in ON_OBJECT_STORES]
