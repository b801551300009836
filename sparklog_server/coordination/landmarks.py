"""What is to be done when a log is applied up to an offset: all that is below, and nothing that is above.

A topic is deleted, and what groups have committed for it is to go; but what is committed after that is for
another topic of its name. Where the log ends in the image of the deletion tells them apart, at the moment in
which it is applied up to there, and not later.
Concurrency: event loop.
"""

from collections.abc import Callable


class Landmarks:
    """See the module's docstring."""

    def __init__(self) -> None:
        self._ahead: list[tuple[int, Callable[[], None]]] = []

    def add(self, offset: int, reached: Callable[[], None]) -> None:
        """One that has not been reached, nor is a read beyond it on its way: it is of the newest image."""
        self._ahead.append((offset, reached))

    def next_in(self, start_offset: int, end_offset: int) -> int:
        """Up to where what is in between may be applied at once."""
        return min((one for one, _ in self._ahead if start_offset < one < end_offset), default=end_offset)

    def applied(self, next_offset: int) -> None:
        """Everything below is applied."""
        passed = [reached for offset, reached in self._ahead if offset <= next_offset]
        self._ahead = [one for one in self._ahead if one[0] > next_offset]
        for reached in passed:
            reached()
