"""Publishing and cleaning on an object store, where time must do: trust, the life of a PUT, and grace.

Time goes in hours, and every age stops to count where it makes no difference any more, so the worlds are
finite however long they last. A commit is removed when it is `grace` old. A publisher may trust what it
knows for less than `trust`, and the store takes a PUT whose date is up to `lifetime` old. Ages are those of
the world; what a process takes for one is the larger of two clocks: a monotonic one, which stands still
while the machine is suspended, and a wall clock, which may be set ahead or back by hours. (The monotonic
clock is a second line of defence: without it nothing is found either, as long as no clock is set back while
a request is under way.) A PUT is lost, late, or delivered twice.

Promises:
    used twice      no PUT lands on a number that was used before
    not there       who was told of success has its commit in the log, ...
    twice           ... once, also when an answer was lost
    older           no look ends before what was in the log before it began

Bounds: commits, calls of each process, settings of wall clocks, PUTs that are delivered twice.
Left out: kills, what commits say, snapshots (who falls behind loads the newest image), skew between the
nodes of the store, clocks that are set between signing a PUT and the guard, which is asked right after it,
and machines that are suspended, or whose clock is set, between an answer and its arrival.
"""

from dataclasses import dataclass
from typing import NamedTuple

from tests.models.explorer import Model, Next, Violation, replaced, step, world

FOLLOWER, CREATOR = (
    "sparklog.metadata.following:RemoteFollower",
    "sparklog.metadata.creating:CommitCreator",
)
NEVER, REMOVED = -1, -2  # instead of an age
SOMEBODY = (-1, 0)


class Age(NamedTuple):
    """How long ago a moment was, by the clocks of a process."""

    monotonic: int
    wall: int


class Put(NamedTuple):
    commit: int
    call: tuple[int, int]  # process, calls left: stands for its bytes, and its uuid
    age: int  # of its date


class Process(NamedTuple):
    left: int
    at: str = "idle"
    image: int = 0
    end: int = 0  # confirmed: whatever comes after it was created after the moment `known`
    known: Age | None = None
    asked: Age | None = None  # before the requests that are under way
    floor: int = 0  # the newest commit when the look began
    ahead: int = 0  # the wall clock; negative: behind
    is_unsure: bool = False  # a PUT of this call has no answer


class State(NamedTuple):
    processes: tuple[Process, ...]
    ages: tuple[int, ...]  # of the commits 0, 1, ...
    owners: tuple[tuple[int, int], ...]
    puts: frozenset[Put] = frozenset()
    settings_left: int = 0
    doubles_left: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """The safeguards, as they should be."""

    trust: int = 1
    lifetime: int = 1  # that the store enforces
    grace: int = 2  # at least trust + lifetime
    refuses_old_dates: bool = True
    has_guard: bool = True
    guards_after_signing: bool = True
    asks_both: bool = True  # without trust: is n+1 missing, and n there?
    asks_successor_first: bool = True
    asks_before: bool = True  # a moment is taken before the request that it vouches for
    asks_wall: bool = True  # and not only the monotonic clock
    earlier_counts: bool = True  # of what the wall clock said before a request and after its answer, ...
    rereads_between: bool = True  # ... of each of a look's requests
    knows_itself: bool = True  # by its uuid, after a PUT without an answer
    stays_with_number: bool = True  # until the PUT has an answer


class Hours(Model):
    """See the module's docstring."""

    def __init__(
        self,
        rules: Rules,
        *,
        calls: tuple[int, ...] = (1,),
        commits: int = 2,
        clock_settings: int = 0,
        doubles: int = 0,
        without: tuple[str, ...] = (),
    ) -> None:
        super().__init__(without=without)
        self.rules, self.calls, self.commits = rules, calls, commits
        self.clock_settings, self.doubles = clock_settings, doubles
        self.process_names = tuple("ABCDEF"[: len(calls)])
        self.jump = rules.grace + 1  # more makes no difference
        self.oldest = rules.trust + self.jump * clock_settings

    def initial(self) -> State:
        absent = self.commits
        return State(
            tuple(Process(left) for left in self.calls),
            (0, *(NEVER,) * absent),
            (SOMEBODY,) * (absent + 1),
            settings_left=self.clock_settings,
            doubles_left=self.doubles,
        )

    # --- following -------------------------------------------------------------------------------------

    @step("begins to look", at=("idle", "lost"), code=f"{FOLLOWER}._follow")
    def begin(self, s: State, i: int, p: Process) -> Next:
        if p.left:
            at = "looking" if self.rules.asks_successor_first else "asking"
            yield "", self._with(s, i, p._replace(at=at, asked=Age(0, 0), floor=_newest(s)))

    @step("gets the next commit", at="looking", code=(f"{FOLLOWER}._follow", f"{FOLLOWER}.is_confirmed"))
    def look(self, s: State, i: int, p: Process) -> Next:
        if p.ahead:
            yield ": refused, since its clock is wrong", self._with(s, i, p._replace(at="idle", asked=None))
        elif s.ages[p.image + 1 :][:1] >= (0,):
            yield ": it is there", self._with(s, i, p._replace(image=p.image + 1))
        elif self._trusts(p) or not self.rules.asks_both or not self.rules.asks_successor_first:
            yield ": none, and that is the end", self._confirmed(s, i, p)
        else:
            asked = self._earlier(p.asked) if self.rules.rereads_between else p.asked
            yield ": none", self._with(s, i, p._replace(at="asking", asked=asked))

    @step(
        "looks whether its commit was cleaned",
        at="asking",
        code="sparklog.metadata.cleaning:commit_was_cleaned",
    )
    def ask(self, s: State, i: int, p: Process) -> Next:
        if p.ahead:
            yield ": refused, since its clock is wrong", self._with(s, i, p._replace(at="idle", asked=None))
        elif s.ages[p.image] == REMOVED or (p.image == 0 and REMOVED in s.ages):
            p = p._replace(image=_newest(s), at="looking", asked=Age(0, 0))
            yield f": yes, and loads {p.image}", self._with(s, i, p)
        elif self.rules.asks_successor_first:
            yield ": no", self._confirmed(s, i, p)
        else:
            yield ": no", self._with(s, i, p._replace(at="looking"))

    # --- publishing ------------------------------------------------------------------------------------

    @step("plans", at=("idle", "looked"), code=(f"{FOLLOWER}.is_confirmed", f"{CREATOR}.create"))
    def plan(self, s: State, i: int, p: Process) -> Next:
        if p.left and p.image < self.commits and (p.at == "looked" or self._trusts(p)):
            yield f" {p.image + 1}", self._with(s, i, p._replace(at="planned", asked=Age(0, 0)))

    @step("signs a PUT, and asks the guard", at=("planned", "guarded"), code=f"{FOLLOWER}.guard")
    def put(self, s: State, i: int, p: Process) -> Next:
        passes = not self.rules.has_guard or self._trusts(p)
        if p.at == "planned" and not passes:
            if not p.is_unsure:
                yield ": refused", self._with(s, i, p._replace(at="lost", asked=None))
            elif p.end > p.image:
                yield ": refused, and the number is taken", self._settled(s, i, p)
            else:  # the caller is told that it is unknown; the next call looks, and goes on with this PUT
                yield ": refused", self._with(s, i, p._replace(at="unresolved", asked=None))
        elif p.at == "planned" and not self.rules.guards_after_signing:
            yield ": only the guard", self._with(s, i, p._replace(at="guarded"))
        else:
            one = Put(p.image + 1, (i, p.left), -p.ahead)
            sent = s.puts | {one} if self._is_taken(one) or one.age < 0 else s.puts
            yield f" of {p.image + 1}", self._with(s._replace(puts=sent), i, p._replace(at="putting"))

    @step("looks, with its PUT still open", at="unresolved", code=f"{CREATOR}.resolve")
    def resume(self, s: State, i: int, p: Process) -> Next:
        # The look of the call goes beyond the open PUT's number: only what it confirms is kept here.
        if p.ahead:
            return
        end = _newest(s)
        p = p._replace(end=end, known=Age(0, 0), at="planned", asked=Age(0, 0))
        yield f": the end is {end}", self._with(s, i, p)

    @step("has no answer, and tries again", at="putting", code=f"{CREATOR}.create")
    def time_out(self, s: State, i: int, p: Process) -> Next:
        if self.rules.stays_with_number:
            yield "", self._with(s, i, p._replace(at="planned", is_unsure=True))
        else:
            yield " elsewhere", self._with(s, i, p._replace(at="lost", asked=None))

    # --- the world -------------------------------------------------------------------------------------

    @world("a PUT lands:")
    def land(self, s: State) -> Next:
        for put in s.puts:
            if put.age < 0:
                continue  # its date is in the future
            process, left = put.call
            p = s.processes[process]
            t = s._replace(puts=s.puts - {put})
            age, who = s.ages[put.commit], self.process_names[process]
            waits = p.at == "putting" and p.left == left and p.image + 1 == put.commit
            if age == REMOVED:
                yield f" {put.commit} of {who}", Violation(f"used twice: {put.commit}, of {_newest(s)}")
                continue
            if age == NEVER:
                if put.call in s.owners:
                    yield (
                        f" {put.commit} of {who}",
                        Violation(f"twice: commit {put.commit} is of a call that has one"),
                    )
                    continue
                t = t._replace(
                    ages=replaced(s.ages, put.commit, 0), owners=replaced(s.owners, put.commit, put.call)
                )
            for u in (t, t._replace(puts=s.puts, doubles_left=s.doubles_left - 1)):
                if u.doubles_left < 0:
                    continue
                again = ", and stays on its way" if u.puts == s.puts else ""
                if waits and age == NEVER:
                    yield f" {put.commit} of {who}, who hears of it{again}", self._done(u, process, p)
                elif waits:
                    yield f" {put.commit} of {who}, which exists{again}", self._settled(u, process, p)
                yield f" {put.commit} of {who}, and nobody hears of it{again}", u

    @world("a PUT is lost")
    def lose(self, s: State) -> Next:
        for put in s.puts:
            yield "", s._replace(puts=s.puts - {put})

    @world("somebody else publishes")
    def filler(self, s: State) -> Next:
        if NEVER in s.ages:
            commit = s.ages.index(NEVER)
            yield f" {commit}", s._replace(ages=replaced(s.ages, commit, 0))

    @world("a cleaner removes")
    def clean(self, s: State) -> Next:
        for commit in range(1, _newest(s)):
            if s.ages[commit] != REMOVED:
                if s.ages[commit] >= self.rules.grace:
                    yield f" {commit}", s._replace(ages=replaced(s.ages, commit, REMOVED))
                return

    @world("an hour passes")
    def tick(self, s: State) -> Next:
        ages = tuple(min(age + 1, self.rules.grace) if age >= 0 else age for age in s.ages)
        older = (put._replace(age=put.age + 1) for put in s.puts)
        t = s._replace(ages=ages, puts=frozenset(put for put in older if self._is_taken(put)))
        for suspended in range(1 << len(s.processes)):
            names = "".join(name for i, name in enumerate(self.process_names) if suspended >> i & 1)
            yield (
                f", suspended: {names}" if names else "",
                t._replace(
                    processes=tuple(
                        p._replace(
                            known=self._older(p.known, not suspended >> i & 1, 1),
                            asked=self._older(p.asked, not suspended >> i & 1, 1),
                        )
                        for i, p in enumerate(s.processes)
                    )
                ),
            )

    @world("a wall clock is set:")
    def set_clock(self, s: State) -> Next:
        for i, p in enumerate(s.processes if s.settings_left else ()):
            for ahead in (-self.jump, 0, self.jump):
                if ahead != p.ahead:
                    jump = ahead - p.ahead
                    q = p._replace(
                        known=self._older(p.known, 0, jump), asked=self._older(p.asked, 0, jump), ahead=ahead
                    )
                    t = s._replace(settings_left=s.settings_left - 1)
                    yield f" {self.name_of(i, p)}'s by {jump}", self._with(t, i, q)

    # --- what these mean -------------------------------------------------------------------------------

    def _with(self, s: State, i: int, p: Process) -> State:
        return s._replace(processes=replaced(s.processes, i, p))

    def _older(self, age: Age | None, monotonic: int, wall: int) -> Age | None:
        if age is None:
            return None
        return Age(min(age.monotonic + monotonic, self.rules.trust), min(age.wall + wall, self.oldest))

    def _is_taken(self, put: Put) -> bool:
        """By the store, which refuses what is too old."""
        return put.age <= self.rules.lifetime or not self.rules.refuses_old_dates

    def _trusts(self, p: Process) -> bool:
        if p.known is None or p.end > p.image:
            return False
        return max(p.known.monotonic, p.known.wall if self.rules.asks_wall else 0) < self.rules.trust

    def _confirm(self, p: Process, end: int) -> Process:
        asked = self._earlier(p.asked if self.rules.asks_before else Age(0, 0))
        return p._replace(end=end, known=asked, asked=None)

    def _earlier(self, asked: Age | None) -> Age:
        """A moment before a request, after its answer."""
        assert asked is not None
        return asked._replace(wall=max(asked.wall, 0)) if self.rules.earlier_counts else asked

    def _confirmed(self, s: State, i: int, p: Process) -> State | Violation:
        if p.image < p.floor:
            return Violation(f"older: {p.image} is the end, {p.floor} was there before")
        return self._with(s, i, self._confirm(p, p.image)._replace(at="looked", floor=0))

    def _settled(self, s: State, i: int, p: Process) -> State | Violation:
        """The name is taken: by whom?"""
        commit = p.image + 1
        if s.ages[commit] >= 0 and s.owners[commit] == (i, p.left) and self.rules.knows_itself:
            return self._done(s, i, p, is_confirmed=False)
        if s.ages[commit] == REMOVED and p.is_unsure:
            return self._with(s, i, self._next_call(p))  # told that it is unknown, forever
        return self._with(s, i, p._replace(at="lost", asked=None, is_unsure=False))

    def _done(self, s: State, i: int, p: Process, *, is_confirmed: bool = True) -> State | Violation:
        commit = p.image + 1
        if s.owners[commit] != (i, p.left):
            return Violation(f"not there: commit {commit} is somebody else's")
        p = self._confirm(p, commit) if is_confirmed else p
        return self._with(s, i, self._next_call(p)._replace(image=commit))

    def _next_call(self, p: Process) -> Process:
        if p.left == 1:
            return Process(0, "done")
        return p._replace(left=p.left - 1, at="idle", asked=None, floor=0, is_unsure=False)


def _newest(s: State) -> int:
    return max(commit for commit, age in enumerate(s.ages) if age >= 0)
