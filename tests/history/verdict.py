"""What a check of a history says: anomalies by name, and figures.

Names are Jepsen's where it has one (reliability of Kafka-like logs), ours otherwise.
"""

from collections import Counter
from dataclasses import dataclass, field
from enum import StrEnum


class Name(StrEnum):
    """Every anomaly that is looked for."""

    INCONSISTENT_OFFSETS = "inconsistent-offsets"  # one offset, two values
    DUPLICATE = "duplicate"  # one record at two offsets
    LOST_WRITE = "lost-write"  # acknowledged, not read, though later ones of its partition were
    UNSEEN = "unseen"  # acknowledged, and not there at the end
    G1A = "G1a"  # read, though its writer was told it had failed
    PRECOMMITTED_READ = "precommitted-read"  # an operation read its own record
    POLL_SKIP = "poll-skip"  # a reader's next poll left something out
    NONMONOTONIC_POLL = "nonmonotonic-poll"  # a reader's next poll went back
    INT_POLL_SKIP = "int-poll-skip"  # the same within one poll
    INT_NONMONOTONIC_POLL = "int-nonmonotonic-poll"
    NONMONOTONIC_SEND = "nonmonotonic-send"  # a writer's next send came before its last
    INT_NONMONOTONIC_SEND = "int-nonmonotonic-send"
    G0 = "G0"  # writes in a circle
    G1C = "G1c"  # writes and reads in a circle
    G1C_PROCESS = "G1c-process"  # with the order of each process
    G1C_REALTIME = "G1c-realtime"  # with "returned before the other was called"
    # Ours.
    WRONG_TOPIC = "wrong-topic"  # a record of one topic read from another
    PHANTOM = "phantom"  # nobody sent it
    OFFSET_GAP = "offset-gap"  # the last reads found holes between offsets
    EPOCH_REGRESSION = "epoch-regression"  # an older leader's answer after a newer one's
    COMMITTED_OFFSET_REGRESSION = "committed-offset-regression"  # a group's offset went back or vanished
    LOG_END_REGRESSION = "log-end-regression"  # one process saw a log get shorter
    VISIBLE_BEFORE_COMMIT = "visible-before-commit"  # read before its publish was called
    OFFSET_WITHOUT_RECORD = "offset-without-record"  # a group is past a record of which nothing was made
    RECORD_WITHOUT_OFFSET = "record-without-offset"  # something was made of a record that a group is not past
    PARTIAL_BATCH = "partial-batch"  # some records of an atomic unit are there, others are not


@dataclass(frozen=True, slots=True)
class Anomaly:
    """One finding."""

    name: Name
    where: str

    def __str__(self) -> str:
        return f"{self.name}: {self.where}"


@dataclass(slots=True)
class Verdict:
    """Anomalies (at most a few examples of each are kept; `counts` has all), and figures."""

    operations: int = 0
    acknowledged: int = 0  # records whose send was ok
    read: int = 0  # different records read
    unknown: int = 0  # sends whose outcome was never known
    unknown_visible: int = 0  # records of those that were read
    unseen: int = 0
    worst_lag_us: int = 0
    int_send_skips: int = 0  # tolerated: another writer's records between two of one operation
    anomalies: list[Anomaly] = field(default_factory=list)
    counts: Counter[Name] = field(default_factory=Counter)

    EXAMPLES = 5

    def add(self, name: Name, where: str, count: int = 1) -> None:
        """One anomaly, or an example of several."""
        if self.counts[name] < self.EXAMPLES:
            self.anomalies.append(Anomaly(name, where))
        self.counts[name] += count

    def add_more(self, name: Name, total: int) -> None:
        """There are `total`, of which the first EXAMPLES have been added."""
        if total > self.EXAMPLES:
            self.counts[name] += total - self.EXAMPLES

    @property
    def names(self) -> set[str]:
        return {str(name) for name, count in self.counts.items() if count}

    def __str__(self) -> str:
        figures = (
            f"{self.operations} operations, {self.acknowledged} records acknowledged, {self.read} read; "
            f"{self.unknown} sends of unknown outcome, {self.unknown_visible} of their records visible; "
            f"{self.unseen} unseen; worst lag {self.worst_lag_us / 1e6:.3f} s"
        )
        if not self.counts:
            return f"no anomalies: {figures}"
        lines = [f"{count:8} {name}" for name, count in sorted(self.counts.items())]
        return "\n".join((f"ANOMALIES: {figures}", *lines, *map(str, self.anomalies)))
