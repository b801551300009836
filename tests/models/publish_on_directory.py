"""Publishing and cleaning in a directory: links, guards, fsyncs, kills and power cuts.

Every commit of the root is its number. A number that was linked once and is free again must never be linked
anew: `top` is the highest that was. Names that are not synced yet are lost or kept by a power cut one by one,
in any order, and removals come back. A process that is stopped or killed takes no step for a while, or ever
again, and leaves its temporary file; after a power cut all open the root anew.

Promises:
    used twice          no number is linked that was linked before
    lost                what was acknowledged, or shown, is there after a power cut
    does not open       whatever a power cut leaves: a snapshot, the commits after it, and the last of them
    older               no look ends before what was acknowledged, or shown, before it began

Bounds: commits of each publisher, looks of each reader, snapshots and cleanings of each cleaner, power cuts.
Left out: the contents of commits, files that are damaged, opening step by step (opening.py), taking turns,
puts that end without an answer, removal of old snapshots.
"""

from dataclasses import dataclass
from itertools import product
from typing import NamedTuple

from tests.models.bits import below, bit, has, highest, lowest, numbers, subsets
from tests.models.explorer import Model, Next, Violation, replaced, step, world

STORE, LOG = "sparklog.storage.local:LocalStore", "sparklog.metadata.log:MetadataLog"
FOLLOWER, CLEANING = "sparklog.metadata.following:LookingFollower", "sparklog.metadata.cleaning"
NOTHING = -1  # the image of an empty log


class Process(NamedTuple):
    kind: str  # publisher, reader, cleaner, sweeper
    left: int  # commits, looks, cleanings
    at: str = "closed"
    image: int = NOTHING
    shown: int = NOTHING  # image known to be durable
    floor: int = NOTHING  # what was acknowledged when the look began
    temporary: int = NOTHING  # the commit that its temporary file aims at
    is_linked: bool = False  # that file has a second name
    kept: int = NOTHING  # cleaner: the snapshot below which it removes
    todo: int = 0  # commits to remove, as bits


class State(NamedTuple):
    processes: tuple[Process, ...]
    cuts_left: int = 0
    names: int = 0  # commits in the directory, as bits
    snapshots: int = 0
    has_marker: bool = False
    top: int = NOTHING
    safe: int = NOTHING  # acknowledged or shown
    # Not synced yet:
    linked: int = 0
    removed: int = 0
    snapshots_put: int = 0
    marker_put: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """The safeguards, as they should be."""

    has_guard: bool = True
    guards_after_temporary: bool = True
    aborts: bool = True  # the cleaner stops puts of a number, ...
    aborts_first: bool = True  # ... and then removes it
    ascends: bool = True
    has_marker: bool = True
    asks_successor_first: bool = True  # is n+1 missing? and then: is n still there?
    reloads: bool = True  # n was cleaned: the newest snapshot is loaded
    syncs_link: bool = True
    syncs_before_showing: bool = True
    syncs_before_linking: bool = True  # behind somebody else's commit
    unlinks_after_sync: bool = True  # one link is durable
    sweeps_aside: bool = True  # a sweep renames first what it may remove, so that nobody can link it any more
    syncs_before_sweeping: bool = True  # and then syncs, if it is linked already
    syncs_before_removing: bool = True  # the snapshot that stands for what is removed
    keeps_newest: bool = True  # the newest commit is not removed, whatever the snapshot


class Directory(Model):
    """See the module's docstring."""

    def __init__(
        self,
        rules: Rules,
        *,
        commits: int = 0,
        publishers: tuple[int, ...] = (1, 1),
        readers: tuple[int, ...] = (),
        cleaners: tuple[int, ...] = (),
        sweepers: int = 0,
        cuts: int = 0,
        without: tuple[str, ...] = (),
    ) -> None:
        """Of each process: commits to publish, looks, cleanings; and the commits that are there at first."""
        super().__init__(without=without)
        self.rules, self.commits, self.cuts = rules, commits, cuts
        self.first = (
            *(Process("publisher", left, "idle") for left in publishers),
            *(Process("cleaner", left, "idle") for left in cleaners),
            *(Process("reader", left) for left in readers),
            *((Process("sweeper", 1, "sweeping"),) * sweepers),
        )

    def initial(self) -> State:
        made = below(self.commits)  # durable, and shown to all who have opened the root already
        processes = tuple(
            p if p.at != "idle" else p._replace(image=self.commits - 1, shown=self.commits - 1)
            for p in self.first
        )
        return State(processes, self.cuts, made, top=self.commits - 1, safe=self.commits - 1)

    def canonical(self, state: State) -> State:
        """Processes of a kind are interchangeable, and go by what they have seen instead of by names."""
        return state._replace(processes=tuple(sorted(state.processes)))

    def name_of(self, index: int, process: Process) -> str:  # type: ignore[override]
        return process.kind if process.image == NOTHING else f"{process.kind} at {process.image}"

    # --- opening, and looking for news -----------------------------------------------------------------

    @step("opens", at="closed", code="sparklog.metadata.loading:load_image")
    def open(self, s: State, i: int, p: Process) -> Next:
        image = self._loaded(s)
        if isinstance(image, Violation):
            yield "", image
        else:
            p = p._replace(image=image, floor=s.safe, at="opening" if image >= 0 else "idle")
            yield f": {image}", self._with(s, i, p)

    @step(
        "syncs, and shows",
        at=("opening", "showing"),
        code=(f"{LOG}._install_durably", f"{STORE}.sync_directory"),
    )
    def show(self, s: State, i: int, p: Process) -> Next:
        if p.image < p.floor:
            yield f" {p.image}", Violation(f"older: {p.image} is shown, {p.floor} was acknowledged before")
            return
        s = self._synced(s) if self.rules.syncs_before_showing else s
        s = s._replace(safe=max(s.safe, p.image))
        q = p._replace(at="idle", shown=p.image, floor=NOTHING)
        if p.kind == "cleaner" and p.at == "showing":
            q = q._replace(at="shown")
        elif p.at == "showing":
            q = _once_more(q)
        yield f" {p.image}", self._with(s, i, q)

    @step("looks for the next commit", at=("idle", "looking"), code=(f"{FOLLOWER}.newest", f"{STORE}.exists"))
    def look(self, s: State, i: int, p: Process) -> Next:
        if p.at == "idle":
            p = p._replace(floor=s.safe)
            if not self.rules.asks_successor_first:
                yield ", but first", self._with(s, i, p._replace(at="asking"))
                return
        if has(s.names, p.image + 1):
            yield ": it is there", self._with(s, i, p._replace(at="looking", image=p.image + 1))
        elif self.rules.asks_successor_first:
            yield ": it is missing", self._with(s, i, p._replace(at="asking"))
        else:
            yield ": it is missing", self._at_end(s, i, p)

    @step("looks whether its commit was cleaned", at="asking", code=f"{CLEANING}:commit_was_cleaned")
    def ask(self, s: State, i: int, p: Process) -> Next:
        if self._is_cleaned(s, p.image) and self.rules.reloads:
            image = self._loaded(s)
            if isinstance(image, Violation):
                yield ": yes", image
            else:
                yield f": yes, and loads {image}", self._at_end(s, i, p._replace(image=image))
        elif self.rules.asks_successor_first:
            yield ": no", self._at_end(s, i, p)
        else:
            yield ": no", self._with(s, i, p._replace(at="looking"))

    def _at_end(self, s: State, i: int, p: Process) -> State | Violation:
        """To here the log goes: `image`."""
        if p.kind == "cleaner" or (p.kind == "reader" and p.image > p.shown):
            return self._with(s, i, p._replace(at="showing"))
        if p.image < p.floor:
            return Violation(f"older: {p.image} is the end, {p.floor} was acknowledged before")
        p = p._replace(floor=NOTHING)
        return self._with(s, i, p._replace(at="planned") if p.kind == "publisher" else _once_more(p))

    # --- publishing ------------------------------------------------------------------------------------

    @step(
        "makes sure of the commit before", at="planned", code=(f"{LOG}._before_linking", f"{STORE}.sync_name")
    )
    def make_sure(self, s: State, i: int, p: Process) -> Next:
        at = "preparing" if self.rules.guards_after_temporary else "guarding"
        q = p._replace(at=at)
        if p.image == p.shown or not self.rules.syncs_before_linking:
            yield ": its own, or shown", self._with(s, i, q)
        elif has(s.names, p.image) and self._links(s, p.image) == 1:
            yield ": one link", self._with(s, i, q)
        else:
            yield ": syncs", self._with(self._synced(s), i, q)

    @step("writes a temporary file", at="preparing", code=f"{STORE}._create_temporary")
    def prepare(self, s: State, i: int, p: Process) -> Next:
        at = "guarding" if self.rules.guards_after_temporary else "linking"
        yield "", self._with(s, i, p._replace(at=at, temporary=p.image + 1, is_linked=False))

    @step("asks the guard", at="guarding", code=f"{FOLLOWER}.guard")
    def guard(self, s: State, i: int, p: Process) -> Next:
        if self.rules.has_guard and self._is_cleaned(s, p.image):
            yield ": refused", self._with(s, i, p._replace(at="idle", temporary=NOTHING))
        else:
            at = "linking" if self.rules.guards_after_temporary else "preparing"
            yield ": passed", self._with(s, i, p._replace(at=at))

    @step("links", at="linking", code=f"{STORE}._link")
    def link(self, s: State, i: int, p: Process) -> Next:
        commit = p.image + 1
        if p.temporary != commit:
            yield ": aborted", self._with(s, i, p._replace(at="idle"))
        elif has(s.names, commit):
            yield ": exists", self._with(s, i, p._replace(at="idle", temporary=NOTHING))
        elif commit <= s.top:
            yield f" {commit}", Violation(f"used twice: commit {commit}, of {s.top}")
        else:
            s = s._replace(names=s.names | bit(commit), linked=s.linked | bit(commit), top=commit)
            at = "linked" if self.rules.unlinks_after_sync else "unlinked early"
            temporary = commit if self.rules.unlinks_after_sync else NOTHING
            p = p._replace(at=at, temporary=temporary, is_linked=temporary == commit)
            yield f" {commit}", self._with(s, i, p)

    @step("syncs", at=("linked", "unlinked early"), code="sparklog.storage.local_files:DurableNames.sync")
    def sync_link(self, s: State, i: int, p: Process) -> Next:
        s = self._synced(s) if self.rules.syncs_link else s
        yield "", self._with(s, i, p._replace(at="synced"))

    @step("unlinks the temporary file, and acknowledges", at="synced", code=f"{STORE}.put_if_absent")
    def acknowledge(self, s: State, i: int, p: Process) -> Next:
        commit = p.image + 1
        p = p._replace(image=commit, shown=commit, temporary=NOTHING, is_linked=False)
        yield f" {commit}", self._with(s._replace(safe=max(s.safe, commit)), i, _once_more(p))

    # --- cleaning --------------------------------------------------------------------------------------

    @step("links a snapshot", at="shown", code="sparklog.metadata.documents.snapshot:write_snapshot")
    def write_snapshot(self, s: State, i: int, p: Process) -> Next:
        if has(s.snapshots, p.image):
            yield ": it is there", self._with(s, i, p._replace(at="choosing"))
        else:
            put = bit(p.image)
            s = s._replace(snapshots=s.snapshots | put, snapshots_put=s.snapshots_put | put)
            yield f" of {p.image}", self._with(s, i, p._replace(at="snapshot linked"))

    @step("syncs", at=("snapshot linked", "marker linked"), code=f"{STORE}.sync_directory")
    def sync_put(self, s: State, i: int, p: Process) -> Next:
        if p.at == "snapshot linked":
            s = s._replace(snapshots_put=0)
        at = "choosing" if p.at == "snapshot linked" else "aborting"
        yield "", self._with(self._synced(s), i, p._replace(at=at))

    @step("lists", at="choosing", code=f"{CLEANING}:_oldest_to_keep")
    def choose(self, s: State, i: int, p: Process) -> Next:
        kept = highest(s.snapshots & below(p.image + 1))
        todo = s.names & below(kept if self.rules.keeps_newest else kept + 1) & ~bit(0)
        q = p._replace(at="keeping", todo=todo)
        yield f": keeps {kept}", self._with(s, i, q if q.todo else _once_more(p))

    @step("syncs what it keeps", at="keeping", code=f"{STORE}.sync_directory")
    def keep(self, s: State, i: int, p: Process) -> Next:
        s = self._synced(s)._replace(snapshots_put=0) if self.rules.syncs_before_removing else s
        at = "marking" if self.rules.has_marker else "aborting"
        yield "", self._with(s, i, p._replace(at=at))

    @step("links the marker", at="marking", code=f"{CLEANING}:put_marker")
    def mark(self, s: State, i: int, p: Process) -> Next:
        if s.has_marker:
            yield ": it is there", self._with(s, i, p._replace(at="aborting"))
        else:
            s = s._replace(has_marker=True, marker_put=True)
            yield "", self._with(s, i, p._replace(at="marker linked"))

    @step("aborts the puts", at=("aborting", "removing"), code=f"{STORE}.abort_puts")
    def abort(self, s: State, i: int, p: Process) -> Next:
        if (p.at == "aborting") == self.rules.aborts_first:
            commit = self._next_to_remove(p)
            t = self._without_temporaries(s, commit) if self.rules.aborts else s
            yield f" of {commit}", self._with(t, i, self._one_done(p))

    @step("removes the commit", at=("aborting", "removing"), code=f"{STORE}.delete")
    def remove(self, s: State, i: int, p: Process) -> Next:
        if (p.at == "removing") == self.rules.aborts_first:
            commit = self._next_to_remove(p)
            gone = bit(commit) & s.names
            t = s._replace(
                names=s.names & ~gone, removed=s.removed | gone & ~s.linked, linked=s.linked & ~gone
            )
            yield f" {commit}", self._with(t, i, self._one_done(p))

    def _one_done(self, p: Process) -> Process:
        """Of the two steps that a commit takes."""
        if p.at == "aborting":
            return p._replace(at="removing")
        left = p.todo & ~bit(self._next_to_remove(p))
        return p._replace(at="aborting", todo=left) if left else _once_more(p)

    # --- sweeping, and power cuts ----------------------------------------------------------------------

    @step("sets a temporary file aside", at="sweeping", code=f"{STORE}.sweep_temporary")
    def set_aside(self, s: State, i: int, p: Process) -> Next:
        for owner, q in enumerate(s.processes):
            if q.temporary != NOTHING and owner != i:
                r = p._replace(at="swept", temporary=q.temporary, is_linked=q.is_linked)
                if self.rules.sweeps_aside:
                    t = self._with(s, owner, q._replace(temporary=NOTHING, is_linked=False))
                    yield f" of {q.temporary}", self._with(t, i, r)
                else:
                    r = r._replace(temporary=NOTHING, kept=q.temporary)
                    yield f" of {q.temporary}, no: only looks at it", self._with(s, i, r)

    @step("removes it", at="swept", code=f"{STORE}.sweep_temporary")
    def sweep(self, s: State, i: int, p: Process) -> Next:
        s = self._synced(s) if p.is_linked and self.rules.syncs_before_sweeping else s
        s = s if self.rules.sweeps_aside else self._without_temporaries(s, p.kept)
        yield "", self._with(s, i, _once_more(p._replace(temporary=NOTHING, is_linked=False, kept=NOTHING)))

    @world("the power fails;")
    def cut(self, s: State) -> Next:
        if not s.cuts_left:
            return
        again = tuple(
            p if p.at == "done" else Process(p.kind, p.left, "sweeping" if p.kind == "sweeper" else "closed")
            for p in s.processes
        )
        unsynced = (s.linked, s.removed, s.snapshots_put, bit(0) if s.marker_put else 0)
        for lost, back, snapshots, marker in product(*map(subsets, unsynced)):
            names, kept = s.names & ~lost | back, s.snapshots & ~snapshots
            t = State(again, s.cuts_left - 1, names, kept, s.has_marker and not marker, safe=s.safe)
            t = t._replace(top=highest(names | kept))
            end, text = self._loaded(t), f" {numbers(lost)} are lost, {numbers(back)} are back"
            if isinstance(end, Violation):
                yield text, end
            elif end < s.safe:
                yield text, Violation(f"lost: all above {end}, {s.safe} was acknowledged")
            else:
                yield text, t

    # --- what these mean -------------------------------------------------------------------------------

    def _with(self, s: State, i: int, p: Process) -> State:
        return s._replace(processes=replaced(s.processes, i, p))

    def _synced(self, s: State) -> State:
        """The directory of the commits; that of a snapshot, with its manifest, is another."""
        return s._replace(linked=0, removed=0, marker_put=False)

    def _without_temporaries(self, s: State, commit: int) -> State:
        return s._replace(
            processes=tuple(
                p._replace(temporary=NOTHING, is_linked=False) if p.temporary == commit else p
                for p in s.processes
            )
        )

    def _next_to_remove(self, p: Process) -> int:
        return lowest(p.todo) if self.rules.ascends else highest(p.todo)

    def _is_cleaned(self, s: State, commit: int) -> bool:
        return s.has_marker if commit == 0 else commit > 0 and not has(s.names, commit)

    def _links(self, s: State, commit: int) -> int:
        return 1 + any(p.is_linked and p.temporary == commit for p in s.processes)

    def _loaded(self, s: State) -> int | Violation:
        """The newest snapshot, and the commits after it up to the first that is missing."""
        image = highest(s.snapshots)
        while has(s.names, image + 1):
            image += 1
        if s.names >> (image + 1):
            return Violation(f"does not open: commit {image + 1} is missing, of {highest(s.names)}")
        if image >= 0 and not has(s.names, image):
            return Violation(f"does not open: commit {image}, the last, is missing")
        return image


def _once_more(p: Process) -> Process:
    if p.left > 1:
        return p._replace(at="idle", left=p.left - 1, kept=NOTHING, todo=0)
    return Process(p.kind, 0, "done")
