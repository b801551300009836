"""Opening a root while others publish, write snapshots and clean, and while snapshots are damaged.

A listing is no moment: on an object store names come in order, each as it is when its turn comes; in a
directory what comes or goes meanwhile is listed or not, each name for itself. A hint
may be any number. One snapshot is damaged whenever it likes; more only while another is intact from which
the commits lead to the end, and will when the cleaners are done, or while all commits are there.

Promises:
    does not open   an opener succeeds while any snapshot that is kept is intact
    older           it never shows less than what was acknowledged before it began

Bounds: commits, snapshots and damage, cleanings. How often an opener looks again is not bounded here.
Left out: parts of snapshots (who finds a part missing finds the manifest missing, or damage), power cuts,
names that come and go within one listing of a directory.
"""

from dataclasses import dataclass
from typing import NamedTuple

from tests.models.bits import below, bit, has, highest, lowest, subsets
from tests.models.explorer import Model, Next, Violation, replaced, step, world

LOADING, CLEANING = "sparklog.metadata.loading", "sparklog.metadata.cleaning"
NOTHING = -1


class Listing(NamedTuple):
    commits: int = 0
    snapshots: int = 0
    start: int = 0  # from here on

    @property
    def is_whole(self) -> bool:
        return self.start == 0

    def beyond(self, start: int) -> "Listing":
        """From a hint on: without the commit before it, but with that one's snapshot."""
        commits = self.commits & ~below(start)
        return Listing(commits, self.snapshots & ~below(max(start - 1, 0)), start)


class Process(NamedTuple):
    kind: str
    at: str
    left: int = 1
    # An opener:
    floor: int = NOTHING
    listing: Listing = Listing()
    position: int = 0  # of a listing that is under way; how a directory was at its begin
    began: Listing = Listing()
    failed: Listing | None = None  # that led nowhere
    untried: int = 0  # snapshots of the listing
    image: int = NOTHING
    overtaken: int = NOTHING  # the image that it had when it found that image's commit gone
    # A cleaner:
    kept: int = NOTHING


class State(NamedTuple):
    processes: tuple[Process, ...]
    commits: int
    snapshots: int
    damaged: int = 0
    snapshots_left: int = 0
    damages_left: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """The safeguards, as they should be."""

    snapshots_kept: int = 2
    counts_intact: bool = True  # ones only
    passes_over: bool = True  # a damaged snapshot
    lists_all: bool = True  # when what the hint led to has no intact snapshot
    looks_again: bool = True  # when something is missing that the listing has
    compares_newest: bool = True  # a listing with other snapshots is another one
    knows_end: bool = True  # a listing that goes on beyond the last commit that was found
    asks_if_cleaned: bool = True  # in a directory: is the last commit that was found still there?


class Opening(Model):
    """See the module's docstring."""

    process_names = ("opener", "cleaner", "another cleaner")

    def __init__(
        self,
        rules: Rules,
        *,
        is_remote: bool = False,
        hint: int = 0,
        commits: int = 3,
        first: tuple[int, ...] = (1,),
        at_first: int = 2,
        snapshots: int = 2,
        damages: int = 0,
        cleanings: tuple[int, ...] = (1,),
        without: tuple[str, ...] = (),
    ) -> None:
        """`commits` in the end, and `at_first`, with the snapshots `first`, and so many `snapshots` more."""
        super().__init__(without=without)
        self.rules, self.is_remote, self.hint, self.commits = rules, is_remote, hint, commits
        cleaners = tuple(Process("cleaner", "idle", left) for left in cleanings)
        self.first = State(
            (Process("opener", "closed"), *cleaners),
            below(at_first),
            sum(bit(snapshot) for snapshot in first),
            snapshots_left=snapshots,
            damages_left=damages,
        )

    def initial(self) -> State:
        return self.first

    # --- opening ---------------------------------------------------------------------------------------

    @step("begins", at="closed", code=f"{LOADING}:load_image")
    def begin(self, s: State, i: int, p: Process) -> Next:
        yield "", self._listing(s, i, p._replace(floor=highest(s.commits)), self.hint)

    @step("lists", at="listing", code=f"{LOADING}:_list")
    def list_names(self, s: State, i: int, p: Process) -> Next:
        if not self.is_remote:
            begin, now = p.began, Listing(s.commits, s.snapshots)
            for commits in subsets(begin.commits ^ now.commits):
                for snapshots in subsets(begin.snapshots ^ now.snapshots):
                    found = Listing(
                        begin.commits & now.commits | commits, begin.snapshots & now.snapshots | snapshots
                    )
                    yield f" {found}", self._listed(s, i, p, found.beyond(p.listing.start))
            return
        one = bit(p.position)
        found = p.listing._replace(
            commits=p.listing.commits | s.commits & one, snapshots=p.listing.snapshots | s.snapshots & one
        )
        if p.position < self.commits - 1:
            q = p._replace(listing=found, position=p.position + 1)
            yield f" what there is of {p.position}", self._with(s, i, q)
        else:
            yield f" what there is of {p.position}", self._listed(s, i, p, found)

    @step("reads the newest snapshot", at="reading", code=f"{LOADING}:_newest_snapshot")
    def read(self, s: State, i: int, p: Process) -> Next:
        newest = highest(p.untried)
        if newest < 0 and not p.listing.is_whole and self.rules.lists_all:
            yield ": none, and lists all", self._listing(s, i, p, 0)
        elif newest < 0:
            yield ": none", self._with(s, i, p._replace(at="following", image=NOTHING))
        elif not has(s.snapshots, newest):
            yield f" {newest}: gone", self._failed(s, i, p)
        elif has(s.damaged, newest):
            untried = p.untried & ~bit(newest) if self.rules.passes_over else 0
            yield f" {newest}: damaged", self._with(s, i, p._replace(untried=untried))
        else:
            yield f" {newest}", self._with(s, i, p._replace(at="following", image=newest))

    @step("reads the next commit", at="following", code=(f"{LOADING}:follow", f"{LOADING}:_follow_to_end"))
    def follow(self, s: State, i: int, p: Process) -> Next:
        if has(s.commits, p.image + 1):
            yield f" {p.image + 1}", self._with(s, i, p._replace(image=p.image + 1))
        elif highest(p.listing.commits | p.listing.snapshots) > p.image and self.rules.knows_end:
            yield f" {p.image + 1}: missing", self._failed(s, i, p)
        elif self.rules.asks_if_cleaned and not self.is_remote and p.image >= 0:
            yield f" {p.image + 1}: none", self._with(s, i, p._replace(at="asking"))
        else:
            yield f" {p.image + 1}: none", self._shown(s, i, p)

    @step("looks whether its commit was cleaned", at="asking", code=f"{CLEANING}:commit_was_cleaned")
    def ask(self, s: State, i: int, p: Process) -> Next:
        gone = s.commits & 0b11 == 0b01 if p.image == 0 else not has(s.commits, p.image)
        if gone:
            yield ": yes", self._failed(s, i, p._replace(overtaken=p.image))
        else:
            yield ": no", self._shown(s, i, p)

    # --- cleaning --------------------------------------------------------------------------------------

    @step("verifies snapshots", at="idle", code=f"{CLEANING}:_oldest_to_keep")
    def verify(self, s: State, i: int, p: Process) -> Next:
        good = s.snapshots & ~s.damaged if self.rules.counts_intact else s.snapshots
        for _ in range(self.rules.snapshots_kept - 1):
            good &= ~bit(highest(good)) if good else 0
        if p.left and good and s.snapshots & below(highest(good)) | s.commits & below(highest(good)) & ~1:
            yield f": keeps {highest(good)}", self._with(s, i, p._replace(at="cleaning", kept=highest(good)))

    @step("removes a commit", at="cleaning", code=f"{CLEANING}:clean_metadata")
    def remove(self, s: State, i: int, p: Process) -> Next:
        old = s.commits & below(p.kept) & ~bit(0)
        if old:
            yield f": {lowest(old)}", self._with(s._replace(commits=s.commits & ~bit(lowest(old))), i, p)
        yield ", no more", self._with(s, i, p._replace(at="dropping"))

    @step("removes a manifest", at="dropping", code=f"{CLEANING}:clean_metadata")
    def drop(self, s: State, i: int, p: Process) -> Next:
        old = s.snapshots & below(p.kept)
        if old:
            t = s._replace(snapshots=s.snapshots & ~bit(lowest(old)), damaged=s.damaged & ~bit(lowest(old)))
            yield f": {lowest(old)}", self._with(t, i, p)
        else:
            yield ", no more", self._with(s, i, p._replace(at="idle", left=p.left - 1, kept=NOTHING))

    # --- the world -------------------------------------------------------------------------------------

    @world("somebody publishes")
    def publish(self, s: State) -> Next:
        if highest(s.commits) < self.commits - 1:
            yield f" {highest(s.commits) + 1}", s._replace(commits=s.commits | bit(highest(s.commits) + 1))

    @world("somebody writes a snapshot of")
    def snapshot(self, s: State) -> Next:
        newest = highest(s.commits)
        if s.snapshots_left and newest > 0 and not has(s.snapshots, newest):
            yield (
                f" {newest}",
                s._replace(snapshots=s.snapshots | bit(newest), snapshots_left=s.snapshots_left - 1),
            )

    @world("a snapshot is damaged:")
    def damage(self, s: State) -> Next:
        for snapshot in range(self.commits if s.damages_left else 0):
            if has(s.snapshots & ~s.damaged, snapshot):
                t = s._replace(damaged=s.damaged | bit(snapshot), damages_left=s.damages_left - 1)
                if s.damages_left == self.first.damages_left or self._can_open(t):
                    yield f" {snapshot}", t

    # --- what these mean -------------------------------------------------------------------------------

    def _with(self, s: State, i: int, p: Process) -> State:
        return s._replace(processes=replaced(s.processes, i, p))

    def _can_open(self, s: State) -> bool:
        """Does a way lead to the end, and will it when the cleaners are done?"""
        kept = max(p.kept for p in s.processes)
        bases = (n for n in range(max(kept, 0), self.commits) if has(s.snapshots & ~s.damaged, n))
        needed = (below(highest(s.commits) + 1) & ~below(base + 1) for base in bases)
        is_whole = s.commits & (s.commits + 1) == 0 and kept == NOTHING
        return is_whole or any(commits & ~s.commits == 0 for commits in needed)

    def _listing(self, s: State, i: int, p: Process, hint: int) -> State:
        """Begin to list, from a hint on. An object store's listing has come as far as that."""
        start = hint
        found = Listing(0, s.snapshots & bit(start - 1) if start else 0, start)
        began = Listing() if self.is_remote else Listing(s.commits, s.snapshots)
        return self._with(
            s, i, p._replace(at="listing", listing=found, position=start, began=began, image=NOTHING)
        )

    def _listed(self, s: State, i: int, p: Process, found: Listing) -> State | Violation:
        if p.failed is not None and self._is_same(found, p.failed):
            if p.overtaken != NOTHING:
                return self._shown(s, i, p._replace(image=p.overtaken))
            return Violation(f"does not open: the same listing as before, {found}")
        q = p._replace(at="reading", listing=found, untried=found.snapshots, failed=None)
        return self._with(s, i, q._replace(position=0, began=Listing(), overtaken=NOTHING))

    def _is_same(self, one: Listing, other: Listing) -> bool:
        def key(listing: Listing) -> tuple[object, ...]:
            second = listing.commits & (listing.commits - 1)
            snapshots = listing.snapshots if self.rules.compares_newest else lowest(listing.snapshots)
            return lowest(listing.commits), lowest(second), snapshots

        return key(one) == key(other)

    def _failed(self, s: State, i: int, p: Process) -> State | Violation:
        """Something is missing: cleaned under our hands, or lost?"""
        if not self.rules.looks_again:
            return Violation(f"does not open: {p.image + 1} is missing")
        hint = 0 if p.listing.is_whole else self.hint
        return self._listing(s, i, p._replace(failed=p.listing, untried=0), hint)

    def _shown(self, s: State, i: int, p: Process) -> State | Violation:
        if p.image < p.floor:
            return Violation(f"older: {p.image} is shown, {p.floor} was acknowledged before")
        return self._with(s, i, Process("opener", "done", 0))
