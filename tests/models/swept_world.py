"""The world of sweeping.py: processes, image, safeguards, and what a commit breaks if one is missing."""

from dataclasses import dataclass
from itertools import count
from typing import NamedTuple

from tests.models.bits import bit, has, numbers
from tests.models.explorer import Model, Next, Violation, replaced

NONE = -1
Extent = tuple[int, int]  # segment, records as bits


class Image(NamedTuple):
    commit: int = 0
    horizon: int = 0
    extents: tuple[Extent, ...] = ()
    settled: int = 0  # requests that were applied, by their records
    retired: int = 0  # segments that may not come to life, whenever they were born


class Process(NamedTuple):
    kind: str  # writer, poster, merger, cleaner, retainer, sweeper, retirer, reader
    left: int
    at: str = "idle"
    seen: int = 0  # the newest commit that it knows of
    image: Image = Image()  # what it goes by
    segment: int = NONE  # its open file
    record: int = NONE
    put: int = NONE  # the number of a commit whose PUT has no answer
    todo: int = 0
    kept: int = 0  # of what it merges; files that it has listed


class State(NamedTuple):
    processes: tuple[Process, ...]
    image: Image = Image()
    born: tuple[int, ...] = ()  # of each segment
    files: int = 0
    was_live: int = 0
    requests: tuple[tuple[int, int], ...] = ()  # record, segment
    told: int = 0  # records whose writers were told of success
    denied: int = 0  # whose writers were told of the opposite, for good
    taken: int = 0  # records that retention or cleaning took


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """The safeguards, as they should be."""

    refuses_old: bool = True  # an action that brings an old, dead segment to life is refused
    refuses_by_newest: bool = True  # ... by the image that it is applied to, not by what its writer has seen
    refuses_requests: bool = True  # ... also in a request
    refuses_merged: bool = True  # ... also what was merged
    exempts_live_only: bool = True  # live now, not once
    born_when_made: bool = True  # not when it is published
    horizon_grows: bool = True
    sweeps_below: bool = True  # born before the horizon, not at it
    has_horizon: bool = True  # it is moved before anything is removed
    looks_after_horizon: bool = True  # what is dead is taken from an image that has the horizon
    by_own_horizon: bool = True  # the horizon is of the image that says what is live
    compares_extents: bool = True  # a replacement says what it removes, ...
    by_checksum: bool = True  # ... and not only how much
    expires_by_image: bool = True  # a writer hears from an image that its request is void, not from a clock
    looks_again: bool = True  # a reader that misses a file
    retires_first: bool = True  # a commit retires a segment before its file is removed
    refuses_retired: bool = True  # an action that brings a retired segment to life is refused
    refuses_to_retire: bool = True  # a segment that is live in the image that the action is applied to


class SweptWorld(Model):
    """Everything but the steps."""

    def __init__(
        self,
        rules: Rules,
        *,
        writers: tuple[int, ...] = (1,),
        posters: tuple[int, ...] = (),
        attempts: int = 1,
        mergers: tuple[int, ...] = (),
        cleaners: tuple[int, ...] = (),
        retainers: tuple[int, ...] = (),
        sweepers: tuple[int, ...] = (1,),
        retirers: tuple[int, ...] = (),
        readers: int = 0,
        live: int = 0,
        each: int = 1,
        keeps_open: bool = False,
        without: tuple[str, ...] = (),
    ) -> None:
        """Of each process: calls or rounds.

        Args:
            attempts: of a call, after the first was refused.
            live, each: extents that are there at first, in a segment each, and the records of each.
            keeps_open: a writer goes on in its segment.
        """
        super().__init__(without=without)
        self.rules, self.attempts, self.live, self.each = rules, attempts, live, each
        self.keeps_open = keeps_open
        record = count(live * each)
        self.calls: dict[int, tuple[int, ...]] = {}
        kinds = (
            ("writer", writers),
            ("poster", posters),
            ("merger", mergers),
            ("cleaner", cleaners),
            ("retainer", retainers),
            ("sweeper", sweepers),
            ("retirer", retirers),
            ("reader", (1,) * readers),
        )
        self.first = tuple(Process(kind, left) for kind, all_of in kinds for left in all_of)
        for index, process in enumerate(self.first):
            if process.kind in ("writer", "poster"):
                self.calls[index] = tuple(next(record) for _ in range(process.left))
        self.process_names = tuple(
            f"{process.kind} {chr(65 + index)}" for index, process in enumerate(self.first)
        )

    def initial(self) -> State:
        held = (1 << self.each) - 1
        image = Image(1, 0, tuple((number, held << number * self.each) for number in range(self.live)))
        processes = tuple(
            p._replace(
                seen=1,
                record=self.calls[index][0] if index in self.calls else NONE,
                todo=self.attempts if index in self.calls else 0,
            )
            for index, p in enumerate(self.first)
        )
        files = (1 << self.live) - 1
        told = (1 << self.live * self.each) - 1
        return State(processes, image, (0,) * self.live, files, files, told=told)

    def canonical(self, state: State) -> State:
        """Commits by their order alone: nothing goes by how many there are."""
        used = {state.image.commit, state.image.horizon, *state.born}
        for p in state.processes:
            used |= {p.seen, p.put, p.image.commit, p.image.horizon}
        rank = {value: at for at, value in enumerate(sorted(used - {NONE}))}
        rank[NONE] = NONE
        if all(value == at for value, at in rank.items()):
            return state

        def image(one: Image) -> Image:
            return one._replace(commit=rank[one.commit], horizon=rank[one.horizon])

        return state._replace(
            image=image(state.image),
            born=tuple(rank[value] for value in state.born),
            processes=tuple(
                p._replace(seen=rank[p.seen], put=rank[p.put], image=image(p.image)) for p in state.processes
            ),
        )

    # --- what steps mean --------------------------------------------------------------------------------

    def after(self, s: State, i: int, p: Process) -> State:
        return s._replace(processes=replaced(s.processes, i, p))

    def made(self, s: State, born: int) -> tuple[State, int]:
        segment = len(s.born)
        return s._replace(born=(*s.born, born), files=s.files | bit(segment)), segment

    def chosen(self, p: Process) -> tuple[Extent, ...]:
        return p.image.extents[p.todo : p.todo + (2 if p.kind == "merger" else 1)]

    def may_go(self, born: int, horizon: int) -> bool:
        if not self.rules.has_horizon:
            return True
        return born < horizon if self.rules.sweeps_below else born <= horizon

    def is_refused(self, s: State, segment: int, *, by: int) -> bool:
        """`by`: the newest commit that its writer has seen."""
        rules, image = self.rules, s.image
        live = any(segment == one for one, _ in image.extents)
        if not rules.exempts_live_only:
            live = has(s.was_live, segment)
        born = s.born[segment] if rules.born_when_made else image.commit
        horizon = image.horizon if rules.refuses_by_newest else min(image.horizon, by)
        is_retired = rules.refuses_retired and has(image.retired, segment)
        return is_retired or (rules.refuses_old and not live and born < horizon)

    def appended(self, s: State, i: int, p: Process) -> State | Violation:
        after = self.append(s, ((p.record, p.segment),))
        return after if isinstance(after, Violation) else self.told(after, i, p)

    def append(
        self, s: State, requests: tuple[tuple[int, int], ...], *, settles: bool = False
    ) -> State | Violation:
        added = tuple((segment, bit(record)) for record, segment in requests)
        settled = sum(bit(record) for record, _ in requests) if settles else 0
        s = s._replace(image=s.image._replace(settled=s.image.settled | settled))
        return self.committed(s, (*s.image.extents, *added))

    def committed(self, s: State, extents: tuple[Extent, ...]) -> State | Violation:
        """One more commit, after which these are the extents."""
        live = sum({bit(segment) for segment, _ in extents})
        image = s.image._replace(commit=s.image.commit + 1, extents=extents)
        return self.checked(s._replace(image=image, was_live=s.was_live | live))

    def checked(self, s: State) -> State | Violation:
        records = 0
        for segment, held in s.image.extents:
            if not has(s.files, segment):
                return Violation(f"unreadable: segment {segment}, born at {s.born[segment]}, is gone")
            if held & records or held & s.denied:
                return Violation(f"doubled: record {numbers(held & (records | s.denied))[0]}")
            records |= held
        if records & s.taken:
            return Violation(f"revived: record {numbers(records & s.taken)[0]}")
        if s.told & ~records & ~s.taken:
            return Violation(f"lost: record {numbers(s.told & ~records & ~s.taken)[0]}")
        return s

    def told(self, s: State, i: int, p: Process) -> State:
        return self.after(s._replace(told=s.told | bit(p.record)), i, self.next_call(i, p))

    def expired(self, s: State, i: int, p: Process) -> Next:
        """STAGING_EXPIRED: nothing was published, and never will be; the rows are appended again."""
        q = p._replace(at="idle", segment=NONE)
        if p.todo:
            yield ": refused, and it appends again", self.after(s, i, q._replace(todo=p.todo - 1))
        else:
            s = s._replace(denied=s.denied | bit(p.record))
            yield ": refused", self.after(s, i, self.next_call(i, q))

    def next_call(self, i: int, p: Process) -> Process:
        calls = self.calls[i]
        at = calls.index(p.record) + 1
        if at == len(calls):
            return Process(p.kind, 0, "done")
        segment = p.segment if self.keeps_open else NONE
        return Process(
            p.kind, p.left - 1, "idle", p.seen, segment=segment, record=calls[at], todo=self.attempts
        )


def once_more(p: Process) -> Process:
    if p.left > 1:
        return Process(p.kind, p.left - 1, "idle")
    return Process(p.kind, 0, "done")
