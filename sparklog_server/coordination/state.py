"""What the records of a partition of an internal topic add up to: what a coordinator keeps.

Not here: when records are applied (state_log.py), what they mean (the coordinator's).
Concurrency: event loop; one log is the only writer.
"""

from typing import Any, Protocol, TypeVar

RecordT_contra = TypeVar("RecordT_contra", contravariant=True)


class State(Protocol[RecordT_contra]):
    """What the records of a partition say, all together."""

    def apply(self, record: RecordT_contra, /) -> None:
        """Take in a record: the next one of its key. Never refuses: it is in the log."""

    def clear(self) -> None:
        """Forget what was applied: all of it comes again. What is on its way, or staged, stays."""

    def begin(self, record: RecordT_contra, /) -> None:
        """It is on its way to the log, behind all that began before."""

    def end(self, record: RecordT_contra, /) -> None:
        """It is applied, or it was not appended, as far as this broker knows."""

    def stage(self, record: RecordT_contra, /) -> None:
        """An open transaction may be about to append this; so it may be several times over."""

    def unstage(self, record: RecordT_contra, /) -> None:
        """Not any more, once: it was aborted, or what it has appended is applied."""


StateT = TypeVar("StateT", bound=State[Any])
