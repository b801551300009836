"""How often rounds are started for a root: as usual, and less and less often while they come to nothing.

What is due stays due if a round fails: for a damaged segment gigabytes may have been read before it is found,
for a bucket that forbids DELETE it has been listed, and a machine that has somebody else's round going on
starts a Python for nothing. Each time twice the usual wait passes, up to MAX_WAIT_MS.
Invariants: a round that did something and did not fail, or a look that found nothing due, and the usual wait
    is back.
Not here: what is due (sparklog/maintenance), starting it (round_process.py).
Concurrency: one thread.
"""

from sparklog.client.round_process import RoundAnswer

MAX_WAIT_MS = 600_000
_MAX_DOUBLINGS = 32


class Pace:
    """Of one root, in one process."""

    def __init__(self) -> None:
        self._in_vain = 0

    def went_well(self) -> None:
        """Something was done, or nothing was due."""
        self._in_vain = 0

    def came_to_nothing(self) -> None:
        """A round failed, could not be started, or did nothing of what was due."""
        self._in_vain = min(self._in_vain + 1, _MAX_DOUBLINGS)

    def note(self, answer: RoundAnswer) -> None:
        """What came of a round."""
        report = answer.report
        if report is not None and report.has_done_anything and not report.has_failed:
            self.went_well()
        else:
            self.came_to_nothing()

    def wait_ms(self, usual_ms: int) -> int:
        """Until the next look."""
        return max(usual_ms, min(usual_ms << self._in_vain, MAX_WAIT_MS))
