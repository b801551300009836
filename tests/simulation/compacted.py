"""What compaction promises, and whether it was kept: of every look at a partition, and of the last one.

A look has seen all that there was between two offsets. Each record that is known to have been there, and is
not, must be one that may have gone by then:

    superseded    a later record of its partition has its key, and a round could see both
    keyless       it has no key
    expired       a tombstone that a round could see delete.retention.ms before another one

A round can see what was published before it asked for the time, and was older than min.compaction.lag.ms
then: so what is noted of rounds is when they asked, and what their clock said, which may be wrong by hours.
A record whose send has an unknown outcome lies where it was read, or beside another one of its send; if
nobody has read any of them, it may be anywhere: a tombstone that has come and gone explains what is missing
of its key.
And no record is seen again after it was gone. In the end besides, when one process sees one state of all:

    what has gone, and what it went for, lies below the point up to which the partition says it is compacted
    below that point each record has a key, and no two have the same
    a key whose tombstone has gone has no older record left
    the log start is where somebody has moved it
    the last stored batch ends where the log ends, so that readers get there
    once all clocks agree, and all horizons have come, only the last value of each key is left

Not here: what the history checker finds in any topic (offsets that hold two values, order, duplicates).
"""

from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from tests.history.events import Event, completed
from tests.simulation.keyed import KEYED, Keyed, parsed

NEVER_US = 1 << 62


@dataclass(frozen=True, slots=True)
class Rules:
    """The topic's settings."""

    delete_retention_ms: int
    min_compaction_lag_ms: int


@dataclass(frozen=True, slots=True)
class Reading:
    """A round has asked for the time."""

    at_us: int
    now_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """All that there was of a partition between two offsets."""

    who: str
    key: str
    start: int
    end: int
    began_us: int
    done_us: int
    found: Mapping[int, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """What metadata and files say of a partition, as of a look at all of it.

    Fields:
        first_dirty_offset: below it the partition is compacted.
        is_held_up: it has extents that cannot be rewritten, of producers that there is no room for.
        is_clean_part_held_up: it has such below first_dirty_offset, which were rewritten before there were so
            many. A round sees all of the clean part or none, so its tombstones stay as well.
        stored_end: where its last stored batch ends; None: there is none.
    """

    look: Look
    log_start: int
    log_end: int
    first_dirty_offset: int
    is_held_up: bool
    is_clean_part_held_up: bool
    stored_end: int | None


@dataclass
class Witness:
    """What is noted while a history goes on."""

    rules: Rules
    stamps: dict[str, int] = field(default_factory=dict)  # a record's timestamp
    readings: list[Reading] = field(default_factory=list)
    looks: list[Look] = field(default_factory=list)
    last: list[State] = field(default_factory=list)
    settled: list[State] = field(default_factory=list)  # long after, and compacted


def problems_of(witness: Witness, events: Sequence[Event], *, lags: bool) -> list[str]:
    """Every promise that was broken, in words; `lags`: readers may be shown something old."""
    done = [event for event in completed(events) if event.key is not None and _is_keyed(event.key)]
    logs = _Logs(witness, done)
    problems: list[str] = []
    for look in (*witness.looks, *(state.look for state in witness.last)):
        problems += logs.missing(look)
    if not lags:
        problems += _revived(witness, logs)
    for state in witness.last:
        problems += logs.wrong_in(state)
    for state in witness.settled:
        problems += logs.unsettled(state)
    return problems


def _is_keyed(key: str) -> bool:
    return key.rpartition("-")[0] == KEYED


class _Logs:
    """What is known to have been in the partitions, and when each record may go."""

    def __init__(self, witness: Witness, done: Iterable[Event]) -> None:
        self._witness = witness
        self._readings = sorted(witness.readings, key=lambda reading: reading.at_us)
        self.records: dict[str, dict[int, Keyed]] = defaultdict(dict)
        self._sent_us: dict[str, int] = {}
        self._truncated: dict[str, list[Event]] = defaultdict(list)
        self._of_key: dict[tuple[str, str], list[int]] = defaultdict(list)  # offsets, ascending
        self._astray: dict[tuple[str, str], list[str]] = defaultdict(list)  # tombstones that may be anywhere
        self._note(done)
        self._may_go_us: dict[tuple[str, int], int] = {}

    def _note(self, done: Iterable[Event]) -> None:
        possible: dict[str, str] = {}
        unknown: list[tuple[str, list[str]]] = []
        sent = Counter[str]()
        for event in done:
            assert event.key is not None
            if event.type == "fail":
                continue
            if event.f == "truncate":
                self._truncated[event.key].append(event)
            if event.f != "send":
                continue
            offsets = event.offset if isinstance(event.offset, list) and event.type == "ok" else None
            sent.update(event.value)
            if offsets is None:
                unknown.append((event.key, event.value))
            for number, text in enumerate(event.value):
                self._sent_us[text] = min(self._sent_us.get(text, NEVER_US), event.t_inv)
                possible[text] = event.key
                if offsets is not None:
                    self.records[event.key][offsets[number]] = parsed(text)
        self._note_looks()
        for key, texts in unknown:
            self._note_whole(key, texts, sent)
        for key, records in self.records.items():
            for offset in sorted(records):
                self._of_key[key, records[offset].key].append(offset)
                possible.pop(records[offset].text, None)
        for text, key in possible.items():
            record = parsed(text)
            if record.is_tombstone and text in self._witness.stamps:  # else it was never written
                self._astray[key, record.key].append(text)

    def _note_looks(self) -> None:
        for look in (*self._witness.looks, *(state.look for state in self._witness.last)):
            self.records[look.key].update({offset: parsed(text) for offset, text in look.found.items()})

    def _note_whole(self, key: str, texts: Sequence[str], sent: Mapping[str, int]) -> None:
        """Where one record of a send was seen, the others are beside it, also those that nobody has seen; if
        none was in another send.
        """
        numbers = {text: number for number, text in enumerate(texts) if sent[text] == 1}
        if len(numbers) < len(texts):
            return
        for offset, record in self.records[key].items():
            if record.text in numbers:
                first = offset - numbers[record.text]
                break
        else:
            return
        for number, text in enumerate(texts):
            self.records[key].setdefault(first + number, parsed(text))

    # --- when a record may go --------------------------------------------------------------------------

    def may_go_us(self, key: str, offset: int) -> int:
        """From when on a look may miss it."""
        found = self._may_go_us.get((key, offset))
        if found is None:
            found = self._may_go_us[key, offset] = min(self._reasons(key, offset), default=NEVER_US)
        return found

    def _reasons(self, key: str, offset: int) -> Iterator[int]:
        record = self.records[key][offset]
        if not record.key:
            yield self._seen_us(record.text)
            return
        offsets = self._of_key[key, record.key]
        for later in offsets[bisect_left(offsets, offset + 1) :]:
            yield self._seen_us(self.records[key][later].text)
        for text in self._astray[key, record.key]:
            yield self._seen_us(text)
        if record.is_tombstone:
            yield self._expired_us(record.text)

    def _seen_us(self, text: str) -> int:
        """When a round could see it first."""
        return next((reading.at_us for reading in self._seen(text)), NEVER_US)

    def _expired_us(self, text: str) -> int:
        """When a round could have removed a tombstone first."""
        earliest: int | None = None
        for reading in self._seen(text):
            if earliest is not None and reading.now_ms >= earliest + self._witness.rules.delete_retention_ms:
                return reading.at_us
            earliest = reading.now_ms if earliest is None else min(earliest, reading.now_ms)
        return NEVER_US

    def _seen(self, text: str) -> Iterator[Reading]:
        lag_ms, sent_us = self._witness.rules.min_compaction_lag_ms, self._sent_us[text]
        stamp_ms = self._witness.stamps[text]
        for reading in self._readings:
            if reading.at_us >= sent_us and (not lag_ms or stamp_ms <= reading.now_ms - lag_ms):
                yield reading

    # --- looks -------------------------------------------------------------------------------------------

    def missing(self, look: Look) -> list[str]:
        """What the look should have found."""
        begun = [event for event in self._truncated[look.key] if event.t_inv <= look.done_us]
        start = max((_target(event) for event in begun), default=0)
        return [
            f"lost: {record.text} of {look.key}@{offset}, not seen by {look.who} at {_moment(look.done_us)}, "
            f"may go at {_moment(self.may_go_us(look.key, offset))}"
            for offset, record in sorted(self.records[look.key].items())
            if max(start, look.start) <= offset < look.end
            and offset not in look.found
            and self.may_go_us(look.key, offset) > look.done_us
        ]

    def wrong_in(self, state: State) -> Iterator[str]:
        """Of one state of all."""
        look, name = state.look, state.look.key
        targets = [(_target(event), event.type) for event in self._truncated[name]]
        least = max((target for target, outcome in targets if outcome == "ok"), default=0)
        if state.log_start < least or state.log_start not in {0, *(target for target, _ in targets)}:
            yield f"log start: {name} begins at {state.log_start}, moved to {sorted(targets)}"
        if state.log_start < state.log_end and state.stored_end != state.log_end:
            yield f"end: {name} ends at {state.log_end}, its last stored batch at {state.stored_end}"
        yield from _doubled(state)
        for offset, record in sorted(self.records[name].items()):
            if offset < state.log_start or offset in look.found:
                continue
            later = [one for one in self._of_key[name, record.key] if one > offset] if record.key else []
            goes = [one for one in later if one < state.first_dirty_offset]
            if offset >= state.first_dirty_offset:
                point = state.first_dirty_offset
                yield f"above the dirty point: {record.text} of {name}@{offset} has gone, which is {point}"
            elif record.key and not record.is_tombstone and not goes and not self._astray[name, record.key]:
                yield f"went for what is above the dirty point: {record.text} of {name}@{offset}, for {later}"
            if record.is_tombstone and not any(one in look.found for one in later):
                shown = [one for one in self._of_key[name, record.key] if one < offset and one in look.found]
                if shown:
                    yield f"revived: {record.key} of {name}@{shown[-1]}, hidden by {record.text}@{offset}"

    def unsettled(self, state: State) -> Iterator[str]:
        """When nothing is left to do."""
        name = state.look.key
        if state.first_dirty_offset < state.log_end and not state.is_held_up:
            point = state.first_dirty_offset
            yield f"not compacted: {name} ends at {state.log_end}, and is dirty from {point} on"
        yield from _doubled(state)
        for offset, text in sorted(state.look.found.items()):
            is_clean = offset < state.first_dirty_offset and not state.is_clean_part_held_up
            if is_clean and parsed(text).is_tombstone:
                yield f"not compacted: {text} of {name}@{offset} is there still"
        before = next(one.look for one in self._witness.last if one.look.key == name)
        for offset, text in sorted(before.found.items()):
            record = parsed(text)
            later = any(parsed(one).key == record.key for o, one in before.found.items() if o > offset)
            if record.key and not record.is_tombstone and not later and offset not in state.look.found:
                yield f"lost in the end: {text} of {name}@{offset}"
        if state.log_start < state.log_end and state.stored_end != state.log_end:
            yield f"end: {name} ends at {state.log_end}, its last stored batch at {state.stored_end}"


def _doubled(state: State) -> Iterator[str]:
    last: dict[str, str] = {}
    for offset, text in sorted(state.look.found.items()):
        key = parsed(text).key
        if offset < state.first_dirty_offset:
            if not key or key in last:
                yield f"not compacted: {text} of {state.look.key}@{offset}, after {last.get(key)}"
            last[key] = text


def _revived(witness: Witness, logs: _Logs) -> Iterator[str]:
    """What was gone is seen again."""
    gone: dict[tuple[str, int], Look] = {}
    events: list[tuple[int, int, Look]] = []
    for look in (*witness.looks, *(state.look for state in witness.last)):
        events += [(look.began_us, 0, look), (look.done_us, 1, look)]
    for _, is_done, look in sorted(events, key=lambda event: event[:2]):
        if is_done:
            for offset in logs.records[look.key]:
                if look.start <= offset < look.end and offset not in look.found:
                    gone.setdefault((look.key, offset), look)
            continue
        for offset, text in look.found.items():
            before = gone.get((look.key, offset))
            if before is not None:
                yield (
                    f"seen again: {text} of {look.key}@{offset} by {look.who} at {_moment(look.done_us)}, "
                    f"not by {before.who} at {_moment(before.done_us)}"
                )


def _target(event: Event) -> int:
    assert isinstance(event.offset, int)
    return event.offset


def _moment(at_us: int) -> str:
    return "no time" if at_us >= NEVER_US else f"{at_us / 1e6:.6f} s"
