"""Publishers that publish for each other: posting, applying, giving up, fencing, forgetting, clones.

Commits are numbered 1, 2, ...; of the log only this is kept: how many there are, which of them holds which
call's records, and what the newest image remembers of publishers. A put-if-absent is one step: it succeeds if
nobody took the number since the publisher last looked. A process that is stopped, or crashed, is one that
takes no step for a while, or ever again. A look, and what follows from it for the caller, is one step: nobody
else can tell them apart.

Promises, each checked when a commit is made or a caller is answered:
    applied twice          a call's records are in one commit at most, and in none above its request's window
    after an error         after an error other than UNRESOLVED no later commit holds what was asked for
    not there              a caller that was told of success has its records in the log
    after a later publish  no commit after its process has published again holds what it had given up
    given up               no commit holds a request and a later one of the same publisher

Bounds: calls of each process, commits, clones (made between calls), PUTs of requests that land late.
Left out: put-if-absent without an answer, cleaning (of the commits that would tell), damage, old versions.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import combinations
from typing import NamedTuple

from tests.models.explorer import Model, Next, Violation, replaced, step, world

UNKNOWN, OK, FAILED, UNRESOLVED, CLOSED = "unknown", "ok", "failed", "unresolved", "closed"
COMBINER = "sparklog.metadata.combining:Combiner"


class Request(NamedTuple):
    """The call's number stands for its records, and for the nonce."""

    publisher: int
    sequence: int
    base: int
    call: int

    def __str__(self) -> str:
        return f"request {self.sequence} of publisher {self.publisher} (call {self.call}, base {self.base})"


class Remembered(NamedTuple):
    publisher: int
    sequence: int
    commit: int
    call: int  # whose nonce the commit has


class Call(NamedTuple):
    commit: int = 0  # that holds its records
    outcome: str = UNKNOWN


class Process(NamedTuple):
    at: str = "idle"
    publisher: int = 0
    sequence: int = 0
    image: int = 0  # the newest commit that it has seen
    known: int = 0  # the last sequence of its publisher, by that image
    left: int = 0  # calls
    call: int = -1
    posted: Request | None = None  # by the call that is under way
    opened: Request | None = None  # not known to be settled
    given_up: tuple[int, ...] = ()
    listed: frozenset[Request] = frozenset()


class State(NamedTuple):
    processes: tuple[Process, ...]
    newest: int = 0
    calls: tuple[Call, ...] = ()
    memory: tuple[Remembered, ...] = ()  # of the newest image
    box: frozenset[Request] = frozenset()
    late: frozenset[Request] = frozenset()  # PUTs that may still land
    lates_left: int = 0
    publishers: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """The safeguards, as they should be."""

    window: int = 2
    memory: int | None = None  # commits for which a publisher is remembered; the window
    remembered: int = 1 << 30  # and at most so many
    is_bounded: bool = True  # nobody applies a request beyond its window, ...
    owner_is_bounded: bool = True  # ... nor does its owner
    refuses_sequences: bool = True  # a sequence that is not above the last one is refused
    reads_back: bool = True  # an image that may have forgotten does not say "never applied"
    searches_window: bool = True  # settled by a later sequence: all commits of the window are looked through
    keeps_fence: bool = True  # over calls that made no commit
    fences: bool = True  # the next commit holds a marker of what was given up
    takes_back: bool = True  # an error of the plan is told after a marker without actions is in a commit
    errors_are_unresolved: bool = True  # whatever happens while a request is out
    passes_over_given_up: bool = True  # a request of which a later one is listed
    has_nonce: bool = True
    notices_clone: bool = True  # a sequence that is settled already is not posted


class Combining(Model):
    """See the module's docstring."""

    def __init__(
        self,
        rules: Rules,
        *,
        calls: tuple[int, ...] = (1, 1),
        publishers: tuple[int, ...] = (0, 1, 2),
        commits: int = 5,
        clones: int = 0,
        lates: int = 0,
        without: tuple[str, ...] = (),
    ) -> None:
        """`calls` and `publishers` of each process at first: two of one publisher are clones."""
        super().__init__(without=without)
        self.rules, self.calls, self.publishers = rules, calls, publishers
        self.commits, self.clones, self.lates = commits, clones, lates
        self.memory = rules.window if rules.memory is None else rules.memory
        self.process_names = tuple("ABCDEF"[: len(calls) + clones])

    def initial(self) -> State:
        running = tuple(
            Process(publisher=publisher, left=left)
            for publisher, left in zip(self.publishers, self.calls, strict=False)
        )
        free = (Process(at="none"),) * self.clones
        return State(running + free, lates_left=self.lates, publishers=len(self.publishers))

    # --- a call, and publishing alone ------------------------------------------------------------------

    @step("looks for news", at=("idle", "alone"), code="sparklog.metadata.following:RemoteFollower.newest")
    def look(self, s: State, i: int, p: Process) -> Next:
        if p.image < s.newest and (p.left or p.call >= 0):
            yield f": {s.newest}", self._with(s, i, self._seeing(s, p))

    @step(
        "publishes alone",
        at=("idle", "alone"),
        code=("sparklog.metadata.log:MetadataLog._publish_with_retries", f"{COMBINER}.fencing_actions"),
    )
    def alone(self, s: State, i: int, p: Process) -> Next:
        for t, q in self._calling(s, p):
            if q.image == s.newest < self.commits:
                markers = []
                if q.opened and self.rules.fences and self._allows(s.memory, q.opened, s.newest + 1):
                    markers = [(q.opened, False)]
                yield f" (call {q.call})", self._committed(t, i, q, markers, own=q.call)

    @step(
        "finds nothing to do",
        at=("idle", "alone"),
        code="sparklog.metadata.log:MetadataLog._publish_with_retries",
    )
    def nothing_to_do(self, s: State, i: int, p: Process) -> Next:
        for t, q in self._calling(s, p):
            if q.opened:  # else it is as if it had not been called
                opened = q.opened if self.rules.keeps_fence else None
                yield f" (call {q.call})", self._answered(t, i, q._replace(opened=opened), FAILED)

    # --- a request -------------------------------------------------------------------------------------

    @step(
        "posts a request",
        at="idle",
        code=(
            f"{COMBINER}.publish",
            f"{COMBINER}.start_anew",
            "sparklog.metadata.model.image:Image.has_settled",
            "sparklog.metadata.requests:RequestBox.post",
        ),
    )
    def post(self, s: State, i: int, p: Process) -> Next:
        for t, q in self._calling(s, p):
            if self.rules.notices_clone and q.known > q.sequence:
                q = q._replace(publisher=t.publishers, sequence=0, known=0, opened=None)
                t = t._replace(publishers=t.publishers + 1)
            request = Request(q.publisher, q.sequence + 1, q.image, q.call)
            q = q._replace(at="waiting", sequence=q.sequence + 1, posted=request, opened=request)
            t = t._replace(box=t.box | {request})
            yield f": {request}", self._with(t, i, q)
            if t.lates_left:
                t = t._replace(late=t.late | {request}, lates_left=t.lates_left - 1)
                yield f": {request}, with an attempt still on its way", self._with(t, i, q)

    @step("lists the requests", at="waiting", code=f"{COMBINER}._list_waiting")
    def list_requests(self, s: State, i: int, p: Process) -> Next:
        others = frozenset(one for one in s.box if one.publisher != p.publisher)
        if others != p.listed:
            yield f": {len(others)} of others", self._with(s, i, p._replace(listed=others))

    @step(
        "looks what has become of its request",
        at="waiting",
        code=(f"{COMBINER}._settle", f"{COMBINER}._found"),
    )
    def settle(self, s: State, i: int, p: Process) -> Next:
        request = p.posted
        assert request is not None
        settled, void = self._is_settled(s, request), self._is_void(s, request)
        if not (settled or void):
            if p.image < s.newest:
                yield f": nothing by {s.newest}", self._with(s, i, self._seeing(s, p))
            return
        p = self._seeing(s, p)._replace(opened=None, posted=None)
        for text, box in (("", s.box - {request}), (", and cannot delete it", s.box)):
            t = s._replace(box=box)
            if self._finds_itself(s, request):
                yield f": applied{text}", self._answered(t, i, p, OK)
            elif settled:
                # By a clone: our number is taken, and we go on with numbers of our own.
                new = p._replace(at="alone", publisher=s.publishers, sequence=0, known=0)
                yield (
                    f": settled by a clone{text}",
                    self._with(t._replace(publishers=s.publishers + 1), i, new),
                )
            else:
                yield f": never applied{text}", self._with(t, i, p._replace(at="alone"))

    @step(
        "publishes its request",
        at="waiting",
        code=(f"{COMBINER}._publish_all", "sparklog.metadata.model.actions:apply_actions"),
    )
    def publish_all(self, s: State, i: int, p: Process) -> Next:
        request = p.posted
        assert request is not None
        if (
            p.image != s.newest
            or s.newest >= self.commits
            or not self._allows(s.memory, request, s.newest + 1, own=True)
        ):
            return
        for others in self._choices(s, p, request):
            text = "".join(f", and {other}" for other in others)
            markers = [(request, True), *((other, True) for other in others)]
            yield text, self._committed(s, i, p, markers, own=None)
        if self.rules.takes_back:
            yield (
                ": the plan fails, and it is taken back",
                self._committed(s, i, p, [(request, False)], own=None),
            )
        else:
            yield ": the plan fails", self._answered(s, i, p._replace(opened=None, posted=None), FAILED)

    @step("gives up", at="waiting", code=f"{COMBINER}._unresolved")
    def give_up(self, s: State, i: int, p: Process) -> Next:
        outcome = UNRESOLVED if self.rules.errors_are_unresolved else FAILED
        yield "", self._answered(s, i, p._replace(posted=None), outcome)

    # --- the world -------------------------------------------------------------------------------------

    @world("somebody else publishes")
    def filler(self, s: State) -> Next:
        if s.newest < self.commits:
            yield f" commit {s.newest + 1}", self._grown(s, s.memory)

    @world("a late PUT lands:")
    def land(self, s: State) -> Next:
        for request in s.late:
            yield f" {request}", s._replace(late=s.late - {request}, box=s.box | {request})

    @world("a process is cloned:")
    def clone(self, s: State) -> Next:
        free = next((index for index, p in enumerate(s.processes) if p.at == "none"), None)
        for index, p in enumerate(s.processes if free is not None else ()):
            if p.at == "idle" and free is not None:
                yield f" {self.name_of(index, p)}", self._with(s, free, p)

    # --- what these mean -------------------------------------------------------------------------------

    def _calling(self, s: State, p: Process) -> Iterator[tuple[State, Process]]:
        """In a call: the one under way, or a new one."""
        if p.call >= 0:
            yield s, p
        elif p.left:
            yield s._replace(calls=(*s.calls, Call())), p._replace(left=p.left - 1, call=len(s.calls))

    def _with(self, s: State, i: int, p: Process) -> State:
        return s._replace(processes=replaced(s.processes, i, p))

    def _seeing(self, s: State, p: Process) -> Process:
        known = next((one.sequence for one in s.memory if one.publisher == p.publisher), 0)
        return p._replace(image=s.newest, known=known)

    def _is_settled(self, s: State, request: Request) -> bool:
        return any(
            one.publisher == request.publisher and one.sequence >= request.sequence for one in s.memory
        )

    def _is_void(self, s: State, request: Request) -> bool:
        bounded = self.rules.is_bounded and self.rules.owner_is_bounded
        return bounded and s.newest >= request.base + self.rules.window

    def _finds_itself(self, s: State, request: Request) -> bool:
        """As find_outcome does: by the image if that is conclusive, else by the commits of the window."""
        truth = s.calls[request.call].commit != 0
        for one in s.memory:
            if one.publisher == request.publisher and one.sequence >= request.sequence:
                is_it = one.sequence == request.sequence and (
                    one.call == request.call or not self.rules.has_nonce
                )
                return is_it or (self.rules.searches_window and self.rules.has_nonce and truth)
        conclusive = s.newest <= request.base + self.rules.window + 1
        return truth and self.rules.reads_back and not conclusive

    def _allows(
        self, memory: tuple[Remembered, ...], request: Request, commit: int, *, own: bool = False
    ) -> bool:
        """Does an image take `request_applied` of this request in this commit?"""
        bounded = self.rules.is_bounded and (self.rules.owner_is_bounded or not own)
        if bounded and not request.base < commit <= request.base + self.rules.window:
            return False
        return not self.rules.refuses_sequences or not any(
            one.publisher == request.publisher and one.sequence >= request.sequence for one in memory
        )

    def _choices(self, s: State, p: Process, request: Request) -> Iterator[tuple[Request, ...]]:
        """Others' requests that may go along: any of them, since what does not apply is left out."""

        def may(one: Request) -> bool:
            given_up = any(two.publisher == one.publisher and two.sequence > one.sequence for two in p.listed)
            return self._allows(s.memory, one, s.newest + 1) and not (
                given_up and self.rules.passes_over_given_up
            )

        eligible = sorted(one for one in p.listed if may(one))
        for size in range(len(eligible), -1, -1):
            for chosen in combinations(eligible, size):
                if len({one.publisher for one in chosen}) == size or not self.rules.passes_over_given_up:
                    yield chosen

    def _grown(self, s: State, memory: tuple[Remembered, ...]) -> State:
        """One commit more; the image forgets."""
        newest = s.newest + 1
        kept = sorted(memory, key=lambda one: -one.commit)[: self.rules.remembered]
        return s._replace(
            newest=newest, memory=tuple(sorted(one for one in kept if newest <= one.commit + self.memory))
        )

    def _committed(
        self, s: State, i: int, p: Process, markers: list[tuple[Request, bool]], own: int | None
    ) -> State | Violation:
        """Commit newest + 1 with these requests (applied, or taken back), and the records of call `own`."""
        commit, memory, calls = s.newest + 1, {one.publisher: one for one in s.memory}, list(s.calls)
        applied = [request.call for request, is_applied in markers if is_applied] + (
            [] if own is None else [own]
        )
        for call in applied:
            if calls[call].commit:
                return Violation(
                    f"applied twice: call {call} in the commits {calls[call].commit} and {commit}"
                )
            if calls[call].outcome == FAILED:
                return Violation(f"after an error: call {call} in commit {commit}")
            if calls[call].outcome == CLOSED:
                return Violation(f"after a later publish: call {call} in commit {commit}")
            calls[call] = calls[call]._replace(commit=commit)
        publishers = [request.publisher for request, is_applied in markers if is_applied]
        if len(set(publishers)) < len(publishers):
            return Violation(f"given up: commit {commit} holds two requests of one publisher")
        for request, _ in markers:
            if commit > request.base + self.rules.window and self.rules.is_bounded:
                return Violation(f"applied twice: {request} could be, in commit {commit}")
            memory[request.publisher] = Remembered(request.publisher, request.sequence, commit, request.call)
        s = self._grown(s._replace(calls=tuple(calls)), tuple(memory.values()))
        if p.posted is not None:
            s = s._replace(box=s.box - {p.posted})
        p = self._seeing(s, p)._replace(opened=None, posted=None)
        return self._answered(s, i, p, OK if own is not None or markers[0][1] else FAILED)

    def _answered(self, s: State, i: int, p: Process, outcome: str) -> State | Violation:
        """The caller is told how its call ended."""
        calls, given_up = list(s.calls), p.given_up
        if outcome == OK and not calls[p.call].commit:
            return Violation(f"not there: call {p.call} was told that it succeeded")
        if outcome == FAILED and calls[p.call].commit:
            return Violation(f"after an error: call {p.call} is in commit {calls[p.call].commit} already")
        calls[p.call] = calls[p.call]._replace(outcome=outcome)
        if outcome == UNRESOLVED:
            given_up = (*given_up, p.call)
        if outcome == OK:
            for call in given_up:
                calls[call] = calls[call]._replace(outcome=CLOSED)
            given_up = ()
        p = p._replace(at="idle", call=-1, posted=None, given_up=given_up, listed=frozenset())
        return s._replace(calls=tuple(calls), processes=replaced(s.processes, i, p))
