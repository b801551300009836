"""What this broker has done for transactions. Counted on the event loop."""


class TransactionCounters:
    """Since the start."""

    __slots__ = ("aborted", "aborted_by_administrators", "committed", "forgotten", "initialised", "timed_out")

    def __init__(self) -> None:
        self.initialised = 0
        self.committed = 0
        self.aborted = 0
        self.timed_out = 0
        self.aborted_by_administrators = 0
        self.forgotten = 0
