"""How often rounds are started for a root: as usual, and less and less often while they come to nothing.

What is due stays due if a round fails: for a bucket that forbids DELETE it has been listed, and a machine
that has somebody else's round going on starts a Python for nothing. Each time twice the usual wait passes,
up to MAX_WAIT_MS. A partition that cannot be read is another matter: it is left out
(maintenance/uncleanable.py), and the others go on as usual.
Invariants: a round that did something and did not fail, or a look that found nothing due, and the usual wait
    is back. A round that has not come back counts as one that came to nothing: its process was killed.
Not here: what is due (sparklog/maintenance), starting it (round_process.py), where it is kept
    (round_state.py).
Concurrency: one thread; the functions on states are pure.
"""

import msgspec

from sparklog.client.round_process import RoundAnswer
from sparklog.client.round_state import RoundState
from sparklog.maintenance import Remembered, remembered_after, still_remembered

MAX_WAIT_MS = 600_000
_MAX_DOUBLINGS = 32


class Pace:
    """Of one root, in one process that lives as long as it is maintained."""

    def __init__(self) -> None:
        self._in_vain = 0
        self._uncleanable: tuple[Remembered, ...] = ()

    def went_well(self) -> None:
        """Something was done, or nothing was due."""
        self._in_vain = 0

    def came_to_nothing(self) -> None:
        """A round failed, could not be started, or did nothing of what was due."""
        self._in_vain = min(self._in_vain + 1, _MAX_DOUBLINGS)

    def note(self, answer: RoundAnswer, now_ms: int) -> None:
        """What came of a round."""
        if is_in_vain(answer):
            self.came_to_nothing()
        else:
            self.went_well()
        if answer.report is not None:
            self._uncleanable = remembered_after(self._uncleanable, answer.report.uncleanable, now_ms)

    def uncleanable(self, now_ms: int) -> tuple[Remembered, ...]:
        """What is left out now."""
        self._uncleanable = still_remembered(self._uncleanable, now_ms)
        return self._uncleanable

    def wait_ms(self, usual_ms: int) -> int:
        """Until the next look."""
        return wait_after(self._in_vain, usual_ms)


def wait_after(in_vain: int, usual_ms: int) -> int:
    """How long nobody looks after so many rounds in vain."""
    return max(usual_ms, min(usual_ms << in_vain, MAX_WAIT_MS))


def is_in_vain(answer: RoundAnswer) -> bool:
    """Has the round failed, or done nothing of what was due?"""
    return answer.report is None or answer.report.is_in_vain


def may_look(state: RoundState, now_ms: int) -> bool:
    """Is it time to? Whatever the clock was set to meanwhile."""
    return not now_ms < state.look_ms <= now_ms + MAX_WAIT_MS


def found_nothing(state: RoundState, now_ms: int, usual_ms: int) -> RoundState:
    """A look has found nothing due."""
    return msgspec.structs.replace(state, in_vain=0, look_ms=now_ms + usual_ms)


def begun(state: RoundState, now_ms: int, usual_ms: int) -> RoundState:
    """A round begins: in vain, until it says otherwise."""
    in_vain = min(state.in_vain + 1, _MAX_DOUBLINGS)
    return msgspec.structs.replace(state, in_vain=in_vain, look_ms=now_ms + wait_after(in_vain, usual_ms))


def ended(state: RoundState, answer: RoundAnswer, now_ms: int, usual_ms: int) -> RoundState:
    """A round that was begun has come back."""
    in_vain = state.in_vain if is_in_vain(answer) else 0
    return msgspec.structs.replace(
        found_uncleanable(state, answer, now_ms),
        in_vain=in_vain,
        look_ms=now_ms + wait_after(in_vain, usual_ms),
    )


def found_uncleanable(state: RoundState, answer: RoundAnswer, now_ms: int) -> RoundState:
    """A round has come back that somebody else keeps the pace of."""
    found = () if answer.report is None else answer.report.uncleanable
    return msgspec.structs.replace(state, uncleanable=remembered_after(state.uncleanable, found, now_ms))
