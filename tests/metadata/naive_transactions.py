"""What FORMAT.md says of transactions, by somebody who has all the time and memory in the world."""

from dataclasses import dataclass, field, replace

Place = tuple[str, int]
Producer = tuple[int, int]
Batch = tuple[int, int, str]  # sequence, records, segment
NOBODY: Producer = (-1, -1)


@dataclass
class Naive:
    """One transactional id."""

    producer: Producer
    previous: Producer = NOBODY
    phase: str = "empty"
    number: int = 0
    raised: bool = False  # the last end was one that raises the epoch
    added: list[Place] = field(default_factory=list)
    staged: list[tuple[Place, Batch]] = field(default_factory=list)


class NaiveRoot:
    """Transactions and logs. What is asked returns a code, or "" after it was done."""

    def __init__(self, places: list[Place]) -> None:
        self.ids: dict[str, Naive] = {}
        self.logs: dict[Place, list[Batch]] = {place: [] for place in places}
        self.last: dict[tuple[Place, int], Producer] = {}  # producer id -> epoch, sequence
        self.next_id = 0

    def begin(self, name: str, known: Producer = NOBODY) -> str:
        one = self.ids.get(name)
        if one is None:
            self.ids[name] = Naive((self.next_id, 0))
            self.next_id += 1
            return ""
        if known not in (NOBODY, one.producer):
            return "" if known == one.previous else "PRODUCER_FENCED"
        previous = NOBODY if known == NOBODY else one.producer
        self.ids[name] = replace(one, previous=previous, phase="empty", added=[], staged=[])
        self.ids[name].producer = one.producer[0], one.producer[1] + 1
        return ""

    def add(self, name: str, producer: Producer, place: Place) -> str:
        refusal = self._who(name, producer)
        if refusal:
            return refusal
        if place not in self.logs:
            return "TOPIC_MISSING"
        one = self._opened(name)
        if place not in one.added:
            one.added.append(place)
        return ""

    def stage(self, producer: Producer, place: Place, batch: Batch, *, opens: bool) -> str:
        if place not in self.logs:
            return "TOPIC_MISSING"
        found = [name for name, one in self.ids.items() if one.producer[0] == producer[0]]
        if not found:
            return "PRODUCER_UNMAPPED"
        one = self.ids[found[0]]
        if one.producer != producer:
            return "PRODUCER_FENCED"
        if not opens and (one.phase != "ongoing" or place not in one.added):
            return "TRANSACTION_STATE"
        epoch, last = self.last.get((place, producer[0]), NOBODY)
        if epoch == producer[1]:
            if batch[0] != last + 1:
                return "DUPLICATE_SEQUENCE" if batch[0] <= last else "OUT_OF_ORDER_SEQUENCE"
        elif batch[0] != 0 and (opens or epoch != -1):
            return "OUT_OF_ORDER_SEQUENCE"
        one = self._opened(found[0])
        if place not in one.added:
            one.added.append(place)
        one.staged.append((place, batch))
        self.last[place, producer[0]] = producer[1], batch[0] + batch[1] - 1
        return ""

    def end(self, name: str, producer: Producer, *, committed: bool, second: bool, number: int) -> str:
        verdict = "committed" if committed else "aborted"
        one = self.ids.get(name)
        before = NOBODY if one is None else (one.producer[0], one.producer[1] - 1)
        was_raised = one is not None and one.raised and one.phase in ("committed", "aborted")
        if one is not None and second and producer == before and was_raised:
            return "" if one.phase == verdict else "TRANSACTION_STATE"
        refusal = self._who(name, producer)
        if refusal or one is None:
            return refusal
        if one.phase != "ongoing" and not (second and not committed):
            return "" if one.phase == verdict and not second else "TRANSACTION_STATE"
        if not second and number not in (-1, one.number):
            return "TRANSACTION_STATE"
        self._end(one, verdict)
        one.raised, one.previous = second, NOBODY
        if second:
            one.previous = producer
            one.producer = producer[0], producer[1] + 1
        return ""

    def abort(self, name: str) -> None:
        one = self.ids.get(name)
        if one is not None and one.phase == "ongoing":
            self._end(one, "aborted")
            one.raised, one.previous = True, NOBODY
            one.producer = one.producer[0], one.producer[1] + 1

    def append(self, place: Place, batch: Batch) -> None:
        if place in self.logs:
            self.logs[place].append(batch)

    def delete(self, topic_id: str) -> None:
        self.logs = {place: log for place, log in self.logs.items() if place[0] != topic_id}
        for one in self.ids.values():
            one.staged = [(place, batch) for place, batch in one.staged if place[0] != topic_id]

    def forget(self, name: str) -> None:
        one = self.ids.get(name)
        if one is not None and one.phase != "ongoing":
            del self.ids[name]

    def live(self) -> set[str]:
        published = {segment for log in self.logs.values() for _, _, segment in log}
        return published | {segment for one in self.ids.values() for _, (_, _, segment) in one.staged}

    def _who(self, name: str, producer: Producer) -> str:
        one = self.ids.get(name)
        if one is None or one.producer[0] != producer[0]:
            return "PRODUCER_UNMAPPED"
        return "" if one.producer == producer else "PRODUCER_FENCED"

    def _opened(self, name: str) -> Naive:
        one = self.ids[name]
        if one.phase != "ongoing":
            one.phase, one.number, one.added = "ongoing", one.number + 1, []
        return one

    def _end(self, one: Naive, verdict: str) -> None:
        if verdict == "committed":
            for place, batch in one.staged:
                self.logs[place].append(batch)
        one.phase, one.added, one.staged = verdict, [], []
