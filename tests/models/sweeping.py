"""Sweeping by commit numbers: what a file's birth and the horizon keep safe, while all go on.

A segment is born at the commit that its writer had seen when it made the file, and its name says so. The
image has a horizon, which only grows: from the commit on that moves it, no action may bring a segment to life
that was born before it and is dead. Then what was born before and is dead stays dead, and its file may go.
No clock has a part in it: a sweeper does each step at any time, as soon as it can or after a year.

What was live once, and is dead, need not wait for the horizon: a commit retires segments by name, and is
refused if one of them is live. From then on no action may bring one of them to life, so its file may go.
Which segments are retired is a courtesy, as the horizon is: here a retirer takes any that was live and is
dead.

A partition of records, each in one extent: a segment and what of it is live. Writers make a file (or go on in
the one that they have open), have it durable, and publish: by themselves, by a PUT without an answer that is
repeated, or by a request that anybody applies, several in one commit. Mergers put extents together, cleaners
drop a record of one. Retention takes the first extent. Readers hold what an image said, for any time.

Promises:
    unreadable     what the newest image refers to is there
    fails          who reads a record that is kept gets it, though what he holds may be old
    doubled        no record is in two extents, and what a writer was told is not there never comes
    lost           who was told of success has its record in the log until retention or cleaning takes it
    revived        what retention or cleaning took does not come back

Bounds: calls, attempts of each, rounds of sweepers and mergers. A process that takes no more steps is killed.
Left out: offsets (records have names), power cuts (a removal that comes back is one that was not done yet),
how requests are settled and commits numbered (combining.py, hours_on_object_store.py: here a commit is one
step).
"""

from tests.models.bits import bit, has, numbers, subsets
from tests.models.explorer import Next, Violation, step, world
from tests.models.swept_world import NONE, Process, State, SweptWorld, once_more

REWRITING, WRITING = "sparklog.metadata.model.extents", "sparklog.metadata.model.extents"
SWEEPING = "sparklog.metadata.model.sweeping"
LOG, STORE = "sparklog.metadata.log:MetadataLog", "sparklog.storage.base:Store"


class Sweeping(SweptWorld):
    """See the module's docstring."""

    # --- writers ---------------------------------------------------------------------------------------

    @step("looks", at="idle", code=f"{LOG}.refresh")
    def look(self, s: State, i: int, p: Process) -> Next:
        if p.kind in ("writer", "poster") and p.seen < s.image.commit:
            yield "", self.after(s, i, p._replace(seen=s.image.commit))

    @step("makes a file", at="idle", code=("sparklog.log.writer:LogWriter.append", f"{STORE}.append_file"))
    def make(self, s: State, i: int, p: Process) -> Next:
        if p.kind not in ("writer", "poster"):
            return
        if p.segment != NONE:
            yield f": goes on in {p.segment}", self.after(s, i, p._replace(at="staged"))
        else:
            s, segment = self.made(s, p.seen)
            yield f" {segment}, born at {p.seen}", self.after(s, i, p._replace(at="staged", segment=segment))

    @step("publishes", at="staged", code=(f"{WRITING}:append_extents", f"{LOG}.publish"))
    def publish(self, s: State, i: int, p: Process) -> Next:
        if p.kind != "writer":
            return
        if self.is_refused(s, p.segment, by=p.seen):
            yield from self.expired(s, i, p)
            return
        yield f" {p.record} in {p.segment}", self.appended(s, i, p)
        # The same without an answer: it is there, is on its way, or is nowhere.
        yield ": no answer yet", self.after(s, i, p._replace(at="unsure", put=s.image.commit))

    @world("a PUT of a commit lands")
    def land(self, s: State) -> Next:
        for i, p in enumerate(s.processes):
            if p.at == "unsure" and p.put == s.image.commit:
                after = self.append(s, ((p.record, p.segment),))
                if isinstance(after, Violation):
                    yield f" with {p.record}", after
                else:
                    yield f" with {p.record}", self.after(after, i, p._replace(at="landed", put=NONE))

    @step("repeats its PUT", at=("unsure", "landed"), code="sparklog.metadata.creating:CommitCreator.resolve")
    def resolve(self, s: State, i: int, p: Process) -> Next:
        if p.at == "landed":
            yield ": it is there", self.told(s, i, p)
        elif p.put == s.image.commit:
            yield "", self.appended(s, i, p)
        else:
            yield ": the number is another's", self.after(s, i, p._replace(at="staged", put=NONE))

    @step("posts a request", at="staged", code="sparklog.metadata.requests:RequestBox.post")
    def post(self, s: State, i: int, p: Process) -> Next:
        if p.kind == "poster":
            s = s._replace(requests=tuple(sorted((*s.requests, (p.record, p.segment)))))
            yield f" for {p.record} in {p.segment}", self.after(s, i, p._replace(at="posted"))

    @world("requests are applied")
    def apply(self, s: State) -> Next:
        """By anybody, any of them in one commit; also those that their owners have given up for dead."""
        waiting = sum(bit(at) for at in range(len(s.requests)))
        for chosen in subsets(waiting):
            requests = tuple(s.requests[at] for at in numbers(chosen))
            fine = not self.rules.refuses_requests or not any(
                self.is_refused(s, segment, by=s.image.commit) for _, segment in requests
            )
            if requests and fine:
                left = tuple(one for one in s.requests if one not in requests)
                after = self.append(s._replace(requests=left), requests, settles=True)
                yield f" for {[record for record, _ in requests]}", after

    @step("sees what came of its request", at="posted", code="sparklog.metadata.requests:find_outcome")
    def settle(self, s: State, i: int, p: Process) -> Next:
        if has(s.image.settled, p.record):
            yield ": it is applied", self.told(s, i, p)
        elif self.is_refused(s, p.segment, by=s.image.commit) or not self.rules.expires_by_image:
            yield from self.expired(s, i, p)

    # --- what takes extents away -----------------------------------------------------------------------

    @step("looks", at="idle", code=f"{LOG}.refresh")
    def choose(self, s: State, i: int, p: Process) -> Next:
        """A merger takes two neighbours, a cleaner one extent of which it drops the first record."""
        wanted = {"merger": 2, "cleaner": 1}.get(p.kind)
        if wanted is None:
            return
        for start in range(len(s.image.extents) - wanted + 1):
            chosen = s.image.extents[start : start + wanted]
            kept = sum(records for _, records in chosen)
            if p.kind == "cleaner":
                kept &= kept - 1
            if kept:
                q = p._replace(at="reading", image=s.image, todo=start, kept=kept)
                yield f", and takes {[segment for segment, _ in chosen]}", self.after(s, i, q)

    @step(
        "reads, and makes a file",
        at="reading",
        code=("sparklog.log.reader:read_ranges", f"{STORE}.append_file"),
    )
    def merge(self, s: State, i: int, p: Process) -> Next:
        chosen = self.chosen(p)
        if all(has(s.files, segment) for segment, _ in chosen):
            s, merged = self.made(s, p.image.commit)
            yield (
                f" {merged}, born at {p.image.commit}",
                self.after(s, i, p._replace(at="merged", segment=merged)),
            )
        else:
            yield ": they are gone", self.after(s, i, once_more(p))

    @step("publishes", at="merged", code=f"{REWRITING}:replace_extents")
    def replace(self, s: State, i: int, p: Process) -> Next:
        chosen, found = self.chosen(p), s.image.extents[p.todo : p.todo + len(self.chosen(p))]
        same = found == chosen if self.rules.by_checksum else len(found) == len(chosen)
        if not same and self.rules.compares_extents:
            yield ": the extents have changed", self.after(s, i, once_more(p))
        elif self.rules.refuses_merged and self.is_refused(s, p.segment, by=p.image.commit):
            yield ": it took too long", self.after(s, i, once_more(p))
        else:
            before, after = s.image.extents[: p.todo], s.image.extents[p.todo + len(found) :]
            if p.kind == "cleaner":
                s = s._replace(taken=s.taken | sum(records for _, records in chosen) & ~p.kept)
            s = self.after(s, i, once_more(p))
            yield f" {p.segment}", self.committed(s, (*before, (p.segment, p.kept), *after))

    @step("takes the first extent", at="idle", code=f"{REWRITING}:advance_log_start")
    def retain(self, s: State, i: int, p: Process) -> Next:
        if p.kind == "retainer" and s.image.extents:
            (segment, records), *left = s.image.extents
            s = self.after(s._replace(taken=s.taken | records), i, once_more(p))
            yield f", in {segment}", self.committed(s, tuple(left))

    # --- sweepers --------------------------------------------------------------------------------------

    @step("looks", at="idle", code=f"{LOG}.refresh")
    def look_to_sweep(self, s: State, i: int, p: Process) -> Next:
        if p.kind == "sweeper":
            at = "moving" if self.rules.has_horizon else "moved"
            yield "", self.after(s, i, p._replace(at=at, image=s.image))

    @step("moves the horizon", at="moving", code=f"{LOG}.publish")
    def move(self, s: State, i: int, p: Process) -> Next:
        """Beyond all that was born when it looked; there is no courtesy to slow writers here."""
        horizon = p.image.commit + 1
        if horizon <= s.image.horizon and self.rules.horizon_grows:
            yield ": it is there", self.after(s, i, p._replace(at="moved"))
        else:
            s = s._replace(image=s.image._replace(commit=s.image.commit + 1, horizon=horizon))
            yield f" to {horizon}", self.after(s, i, p._replace(at="moved"))

    @step("lists", at=("moved", "looked"), code=f"{STORE}.walk")
    def list_files(self, s: State, i: int, p: Process) -> Next:
        """Before it looks for an image, or after: any time may pass between the two."""
        q = p._replace(kept=s.files)
        if p.at == "looked":
            yield from self.judge(s, i, q)
        else:
            yield f": {numbers(s.files)}", self.after(s, i, q._replace(at="listed"))

    @step("looks", at=("moved", "listed"), code=f"{LOG}.refresh")
    def look_again(self, s: State, i: int, p: Process) -> Next:
        q = p
        if self.rules.looks_after_horizon:
            q = p._replace(image=s.image)
        elif p.image.horizon < s.image.horizon:
            q = p._replace(image=p.image._replace(horizon=s.image.horizon))
        if p.at == "listed":
            yield from self.judge(s, i, q)
        else:
            yield "", self.after(s, i, q._replace(at="looked"))

    def judge(self, s: State, i: int, p: Process) -> Next:
        """What is dead of what was listed, by an image and its own horizon."""
        live = sum({bit(segment) for segment, _ in p.image.extents})
        horizon = p.image.horizon if self.rules.by_own_horizon else s.image.horizon
        todo = sum(bit(one) for one in numbers(p.kept & ~live) if self.may_go(s.born[one], horizon))
        if todo:
            yield (
                f": dead are {numbers(todo)}",
                self.after(s, i, p._replace(at="removing", todo=todo, kept=0)),
            )
        else:
            yield ": nothing is dead", self.after(s, i, once_more(p))

    @step("removes a file", at="removing", code=f"{STORE}.delete_many")
    def remove(self, s: State, i: int, p: Process) -> Next:
        segment = numbers(p.todo)[0]
        s, todo = s._replace(files=s.files & ~bit(segment)), p.todo & ~bit(segment)
        q = p._replace(todo=todo) if todo else once_more(p)
        yield f" {segment}", self.checked(self.after(s, i, q))

    # --- what was live, and is dead --------------------------------------------------------------------

    @step("looks", at="idle", code=f"{LOG}.refresh")
    def look_to_retire(self, s: State, i: int, p: Process) -> Next:
        if p.kind != "retirer":
            return
        live = sum({bit(segment) for segment, _ in s.image.extents})
        todo = s.was_live & ~live & s.files
        if todo:
            at = "retiring" if self.rules.retires_first else "removing"
            yield f": {numbers(todo)} are dead", self.after(s, i, p._replace(at=at, todo=todo))

    @step("retires them", at="retiring", code=f"{SWEEPING}:retire_segments")
    def retire(self, s: State, i: int, p: Process) -> Next:
        live = sum({bit(segment) for segment, _ in s.image.extents})
        if live & p.todo and self.rules.refuses_to_retire:
            yield ": one is live again", self.after(s, i, once_more(p))
        else:
            retired = s.image.retired | p.todo
            s = s._replace(image=s.image._replace(commit=s.image.commit + 1, retired=retired))
            yield f" {numbers(p.todo)}", self.after(s, i, p._replace(at="removing"))

    # --- readers ---------------------------------------------------------------------------------------

    @step("plans", at="idle", code="sparklog.log.read_plan:plan_read")
    def plan(self, s: State, i: int, p: Process) -> Next:
        if p.kind == "reader":
            for segment, records in s.image.extents:
                for record in numbers(records):
                    q = p._replace(at="planned", image=s.image, segment=segment, record=record)
                    yield f" to read {record} in {segment}", self.after(s, i, q)

    @step("reads", at="planned", code="sparklog.log.segment_file:SegmentFile.read_exactly")
    def read(self, s: State, i: int, p: Process) -> Next:
        if has(s.files, p.segment):
            yield ": it is there", self.after(s, i, once_more(p))
        elif self.rules.looks_again:
            yield ": it is gone", self.after(s, i, p._replace(at="missed"))
        else:
            yield ": it is gone", Violation(f"fails: record {p.record} in {p.segment}")

    @step("looks again", at="missed", code="sparklog.log.read_plan:plan_read")
    def plan_again(self, s: State, i: int, p: Process) -> Next:
        where = [segment for segment, records in s.image.extents if has(records, p.record)]
        if where:
            yield (
                f": it is in {where[0]}",
                self.after(s, i, p._replace(at="planned", segment=where[0], image=s.image)),
            )
        elif has(s.taken, p.record):
            yield ": it was taken", self.after(s, i, once_more(p))
        else:
            yield "", Violation(f"fails: record {p.record} is nowhere")
