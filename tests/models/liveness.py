"""Liveness: when an observer may take a broker for dead, by a small object that the broker writes.

A broker writes its broker epoch and a counter, one higher each time, once an interval. PUTs that replace an
object are repeated when they are slow, and the first attempt may land after later ones. An observer looks at
the object once an interval, and counts the looks in a row at which nothing newer was there. After so many it
proposes the fence. A look counts if a sign of life of its own has arrived since the last one that did: where
the storage takes nothing, all are silent. What a fence means is for the commit (cluster.py), and no harm is
done by being wrong but a pause for clients:

Promises:
    killed       a broker that writes in every interval in which the storage can be reached is not fenced,
                 though the storage goes away for everybody, or takes nothing, or the observer stands still
    unnoticed    one that writes no more is, by as many looks as mean death and count, after the last that saw
                 anything new

An interval is a step of the world. In each one every process that can does its part once, in any order; so
two looks have a write between them, but for one before it and one after. Hence two looks mean death where no
PUT is late, and each one that is late takes two more; and one more where the storage may be full, for what is
its own may have arrived just before that. One that somebody could not read, and has replaced by one that says
nothing, is as a PUT that is late.
Bounds: intervals without storage or observer, late PUTs, restarts, replacements.
Left out: clocks. Whoever goes by looks needs none but to keep them an interval apart.
"""

from dataclasses import dataclass
from typing import NamedTuple

from tests.models.explorer import Model, Next, Violation, replaced, step, world

Beat = tuple[int, int]  # broker epoch, counter
NEVER: Beat = (0, 0)
OBSERVER, BROKER = 0, 1


class Process(NamedTuple):
    at: str = "due"  # "done" in this interval; "away": without storage, or it stands still; "dead"
    epoch: int = 1
    counter: int = 0


class State(NamedTuple):
    processes: tuple[Process, ...] = (Process(), Process())
    found: Beat = NEVER  # what is in the storage
    late: tuple[Beat, ...] = ()  # PUTs that may still land
    seen: Beat = NEVER  # by the observer
    newest: Beat = NEVER  # that it ever saw
    misses: int = 0  # looks, as it counts them
    since: int = 0  # looks at which nothing newer than ever before was there, while the broker was dead
    owed: int = 0  # looks for which it had no storage, or did not run
    own: bool = True  # the observer's own sign of life has arrived since the last look that counts
    has_written: bool = False  # it has in this interval, or could not
    outages: int = 0  # left, as all below
    full: int = 0  # intervals in which the storage is read, and takes nothing
    stops: int = 0  # of the observer
    repeats: int = 0
    restarts: int = 0
    replacements: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """The safeguards, as they should be."""

    newer_only: bool = True  # a sign of life is above all that were seen before
    by_epoch: bool = True  # and the counters of a registration are above all of the one before
    counts_looks: bool = True  # not the time since it saw something new
    spaced: bool = True  # nor looks for intervals in which it could not
    counts_own: bool = True  # nor silence that is the observer's as well


class Liveness(Model):
    """See the module's docstring."""

    process_names = ("observer", "broker")

    def __init__(
        self,
        rules: Rules,
        *,
        misses: int = 2,
        outages: int = 0,
        full: int = 0,
        stops: int = 0,
        repeats: int = 0,
        restarts: int = 0,
        replacements: int = 0,
        dies: bool = False,
        without: tuple[str, ...] = (),
    ) -> None:
        """`misses`: so many looks in a row mean death."""
        super().__init__(without=without if dies else (*without, "die"))
        self.rules, self.misses = rules, misses
        self.first = State(
            outages=outages,
            full=full,
            stops=stops,
            repeats=repeats,
            restarts=restarts,
            replacements=replacements,
        )

    def initial(self) -> State:
        return self.first

    def canonical(self, state: State) -> State:
        """Counters by their order alone."""
        if not self.rules.by_epoch:
            return state
        broker = state.processes[BROKER]
        beats = (state.found, state.seen, state.newest, *state.late)
        rank = {
            counter: at
            for at, counter in enumerate(sorted({0, broker.counter, *(beat[1] for beat in beats)}))
        }

        def ranked(beat: Beat) -> Beat:
            return (beat[0], rank[beat[1]])

        return state._replace(
            processes=replaced(state.processes, BROKER, broker._replace(counter=rank[broker.counter])),
            found=ranked(state.found),
            seen=ranked(state.seen),
            newest=ranked(state.newest),
            late=tuple(map(ranked, state.late)),
        )

    def done(self, s: State, i: int, p: Process) -> State:
        return s._replace(processes=replaced(s.processes, i, p._replace(at="done")))

    # --- the broker -----------------------------------------------------------------------------------

    @step("writes", at="due", code="sparklog_server.cluster.liveness:Heartbeat.beat")
    def beat(self, s: State, i: int, p: Process) -> Next:
        if i != BROKER:
            return
        p = p._replace(counter=p.counter + 1)
        beat = (p.epoch, p.counter)
        yield f" {beat}", self.done(s._replace(found=beat), i, p)
        if s.repeats:
            late = tuple(sorted((*s.late, beat)))
            s = s._replace(found=beat, late=late, repeats=s.repeats - 1)
            yield f" {beat}, and an attempt of it is still under way", self.done(s, i, p)

    @step("is started anew", at=("due", "dead"), code="sparklog.metadata.model.registry:join_broker")
    def restart(self, s: State, i: int, p: Process) -> Next:
        """Its new registration is in the image: the observer counts from there."""
        if i == BROKER and s.restarts:
            p = Process("due", p.epoch + 1)
            s = s._replace(restarts=s.restarts - 1, misses=0, since=0, owed=0)
            yield f" with epoch {p.epoch}", s._replace(processes=replaced(s.processes, i, p))

    @world("the broker dies")
    def die(self, s: State) -> Next:
        p = s.processes[BROKER]
        if p.at != "dead":
            yield "", s._replace(processes=replaced(s.processes, BROKER, p._replace(at="dead")), since=0)

    @world("who could not read it replaces it")
    def replace(self, s: State) -> Next:
        """By its epoch and 0, which is above nothing that was seen; the broker may live, or be dead."""
        if s.replacements:
            yield "", s._replace(found=NEVER, replacements=s.replacements - 1)

    # --- the observer -----------------------------------------------------------------------------------

    @step("looks", at="due", code="sparklog_server.cluster.liveness:Observer.look")
    def look(self, s: State, i: int, p: Process) -> Next:
        if i == OBSERVER:
            yield from self.looked(self.done(s, i, p), s.owed if not self.rules.counts_looks else 0)

    @step("looks once more", at="done", code="sparklog_server.cluster.liveness:Observer.look")
    def make_up(self, s: State, i: int, p: Process) -> Next:
        """For a look that it could not take."""
        if i == OBSERVER and s.owed and not self.rules.spaced:
            yield from self.looked(s._replace(owed=s.owed - 1), 0)

    @world("a sign of life of the observer's own arrives")
    def beat_itself(self, s: State) -> Next:
        if not s.has_written:
            yield "", s._replace(own=True, has_written=True)

    def looked(self, s: State, besides: int) -> Next:
        """`besides`: intervals without a look that it counts as misses, too."""
        if self.rules.counts_own and not s.own:
            yield ": which counts for nothing", s
            return
        s = s._replace(own=False)
        rules, is_dead = self.rules, s.processes[BROKER].at == "dead"
        if not rules.newer_only:
            moved = s.found != s.seen
        else:
            moved = s.found > s.seen if rules.by_epoch else s.found[1] > s.seen[1]
        misses = 0 if moved else s.misses + 1 + besides
        since = s.since + 1 if is_dead and s.found <= s.newest else 0
        if misses >= self.misses:
            if not is_dead:
                yield ": nothing for too long", Violation("killed: the broker has written whenever it could")
        elif since >= self.misses:
            yield ": something", Violation(f"unnoticed: nothing newer came in {since} looks")
        else:
            yield (
                f": {s.found}, {misses} missed",
                s._replace(
                    seen=s.found if moved else s.seen,
                    newest=max(s.newest, s.found),
                    misses=misses,
                    since=since,
                    owed=s.owed if rules.counts_looks else 0,
                ),
            )

    # --- time -------------------------------------------------------------------------------------------

    @world("an interval begins")
    def tick(self, s: State) -> Next:
        observer, broker = s.processes
        if observer.at == "due" or broker.at == "due" or not s.has_written:
            return
        yield "", self.following(s._replace(has_written=False), "due", "due")
        if s.full:
            yield ", and the storage is full", self.following(s._replace(full=s.full - 1), "due", "away")
        owed = s.owed + 1
        if s.outages:
            after = s._replace(outages=s.outages - 1, owed=owed)
            yield ", without storage", self.following(after, "away", "away")
        if s.stops:
            after = s._replace(stops=s.stops - 1, owed=owed)
            yield ", and the observer stands still", self.following(after, "away", "due")

    def following(self, s: State, observer: str, broker: str) -> State:
        before = s.processes[BROKER]
        return s._replace(
            processes=(
                s.processes[OBSERVER]._replace(at=observer),
                before if before.at == "dead" else before._replace(at=broker),
            )
        )

    @world("a late PUT lands")
    def land(self, s: State) -> Next:
        for index, beat in enumerate(s.late):
            late = s.late[:index] + s.late[index + 1 :]
            yield f": {beat}", s._replace(found=beat, late=late)
