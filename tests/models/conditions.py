"""Brokers that publish for each other: conditions of each part, partial acceptance, and what clients are
told.

A broker accepts batches in the leader epochs of an image that it has seen, and asks whoever publishes to
append them. Whoever does looks at each part, by the image after the actions before it, and takes those that
may still be appended. The broker finds the commit that holds its request, sees in it which parts were taken,
and judges the others by the image that was gone by then: it is the same function of the same image, so the
answer is the same.

Promises:
    fenced           nothing of a request is applied once its broker's registration is over
    deposed          a part is applied in the leader epoch in which it was accepted, by that leader, or never
    twice            a batch is in the log once; a request is applied once
    order            sequences follow each other; no part is taken before an earlier one of its partition
    after an answer  what a client was told to be refused is not in the log, and never comes
    not there        what a client was told to be appended is there
    verdict          what a client is told of a refused part is what it was refused for, or: send it again

Bounds: sends, moves (of leaderships, and fences), crashes, commits, PUTs of requests that land late.
Left out: windows, nonces, clones, and what an image forgets (combining.py); who is controller (cluster.py).
"""

from collections.abc import Iterator
from itertools import permutations

from tests.models.conditions_world import (
    AGAIN,
    FENCED,
    NOBODY,
    NONE,
    SILENCE,
    TAKEN,
    Attempt,
    Broker,
    ConditionsWorld,
    Image,
    Part,
    Request,
    Rules,
    State,
)
from tests.models.explorer import Next, Violation, replaced, step, world

COMBINER, MODEL = "sparklog.metadata.combining:Combiner", "sparklog.metadata.model"


class Conditions(ConditionsWorld):
    """See the module's docstring."""

    # --- a broker -----------------------------------------------------------------------------------------

    @step("follows the log", at="up", code="sparklog.metadata.following:RemoteFollower.newest")
    def look(self, s: State, i: int, p: Broker) -> Next:
        if p.seen < len(s.images) - 1 and p.posted is None:
            yield "", self.with_broker(s, i, p._replace(seen=len(s.images) - 1))

    @step("accepts a batch", at="up", code=f"{MODEL}.registry:leadership_of")
    def accept(self, s: State, i: int, p: Broker) -> Next:
        if not s.sends_left or p.posted is not None or len(p.queue) == self.sizes:
            return
        image = s.images[p.seen]
        if p.epoch == NONE or image.registered[i] != p.epoch:
            return
        for number, batch in enumerate(self.batches):
            leader, epoch = image.leaders[batch.partition]
            part = Part(len(s.attempts), number, epoch)
            t = s._replace(attempts=(*s.attempts, Attempt(number)), sends_left=s.sends_left - 1)
            queue = (*p.queue, part)
            trial = Request(i, p.life, 0, p.epoch, queue)
            verdict = self.verdicts(t, image, trial, Rules(keeps_order=False))[part.attempt]
            if leader == i and verdict == TAKEN:
                yield (
                    f" (attempt {part.attempt}: batch {number})",
                    self.with_broker(t, i, p._replace(queue=queue)),
                )

    @step(
        "posts a request", at="up", code=(f"{COMBINER}.publish", "sparklog.metadata.requests:RequestBox.post")
    )
    def post(self, s: State, i: int, p: Broker) -> Next:
        if not p.queue or p.posted is not None:
            return
        request = Request(i, p.life, p.number + 1, p.epoch, p.queue)
        q = p._replace(number=p.number + 1, queue=(), posted=request)
        t = self.with_broker(s._replace(box=s.box | {request}), i, q)
        yield f": {request}", t
        if s.lates_left:
            yield (
                f": {request}, with an attempt still on its way",
                t._replace(late=s.late | {request}, lates_left=s.lates_left - 1),
            )

    @step("lists the requests", at="up", code=f"{COMBINER}._list_waiting")
    def list_requests(self, s: State, i: int, p: Broker) -> Next:
        others = frozenset(one for one in s.box if one.publisher != (i, p.life))
        if p.posted is not None and others != p.listed:
            yield f": {len(others)} of others", self.with_broker(s, i, p._replace(listed=others))

    @step(
        "publishes",
        at="up",
        code=(
            f"{COMBINER}._publish_all",
            "sparklog.metadata.combining:OtherRequests.actions",
            f"{MODEL}.conditions:plan_accepted",
        ),
    )
    def publish(self, s: State, i: int, p: Broker) -> Next:
        """Its request, which it takes back if nothing of it holds, and others', in any order, or none."""
        own = p.posted
        if own is None or len(s.images) > self.commits or self.is_settled(s.newest, own):
            return
        # The look, and the put that finds nobody in its place, are one step: any other put is a lost race.
        started = s._replace(images=(*s.images, s.newest))
        mine = self.applied(started, started.newest, own)
        if mine is None:
            mine = self.decided(started, started.newest, own, [])
        if isinstance(mine, Violation):
            yield "", mine
            return
        for text, t in self._with_others(mine, sorted(p.listed)):
            if not isinstance(t, Violation):
                t = self._found(t, i, p, own)
            yield text, t

    @step("looks what has become of its request", at="up", code=(f"{COMBINER}._settle", f"{COMBINER}._found"))
    def settle(self, s: State, i: int, p: Broker) -> Next:
        if p.posted is not None and self.is_settled(s.newest, p.posted):
            yield "", self._found(s, i, p, p.posted)

    @step("gives up", at="up", code=f"{COMBINER}._unresolved")
    def give_up(self, s: State, i: int, p: Broker) -> Next:
        own = p.posted
        if own is not None:
            answers = {part.attempt: SILENCE for part in own.parts}
            yield "", self._answered(s, i, p, own, answers, keeps_file=True)

    @step("crashes, and comes again", at="up", code=f"{MODEL}.registry:join_broker")
    def crash(self, s: State, i: int, p: Broker) -> Next:
        """Its clients hear nothing. Its old registration is fenced, and its new one leads nothing."""
        if not s.crashes_left or len(s.images) > self.commits:
            return
        attempts = list(s.attempts)
        for part in (*p.queue, *(p.posted.parts if p.posted else ())):
            attempts[part.attempt] = attempts[part.attempt]._replace(told=SILENCE)
        image = self._fenced(s.newest, i)
        epoch = image.registrations + 1
        image = image._replace(registered=replaced(image.registered, i, epoch), registrations=epoch)
        t = s._replace(images=(*s.images, image), attempts=tuple(attempts), crashes_left=s.crashes_left - 1)
        yield "", self.with_broker(t, i, Broker(seen=len(t.images) - 1, life=p.life + 1, epoch=epoch))

    # --- the world ----------------------------------------------------------------------------------------

    @world("a leadership moves:")
    def move(self, s: State) -> Next:
        if not s.moves_left or len(s.images) > self.commits:
            return
        image = s.newest
        for partition, (leader, epoch) in enumerate(image.leaders):
            for broker, registration in enumerate(image.registered):
                if broker != leader and registration != NONE:
                    leaders = replaced(image.leaders, partition, (broker, epoch + 1))
                    images = (*s.images, image._replace(leaders=leaders))
                    yield (
                        f" partition {partition} to broker {broker}",
                        s._replace(images=images, moves_left=s.moves_left - 1),
                    )

    @world("a broker is fenced:")
    def fence(self, s: State) -> Next:
        if s.moves_left and len(s.images) <= self.commits:
            for broker, registration in enumerate(s.newest.registered):
                if registration != NONE:
                    images = (*s.images, self._fenced(s.newest, broker))
                    yield f" {broker}", s._replace(images=images, moves_left=s.moves_left - 1)

    @world("a late PUT lands:")
    def land(self, s: State) -> Next:
        for request in s.late:
            yield f" {request}", s._replace(late=s.late - {request}, box=s.box | {request})

    # --- what these mean ----------------------------------------------------------------------------------

    def _fenced(self, image: Image, broker: int) -> Image:
        leaders = tuple(
            (NOBODY, epoch + 1) if led == broker else (led, epoch) for led, epoch in image.leaders
        )
        return image._replace(registered=replaced(image.registered, broker, NONE), leaders=leaders)

    def _with_others(self, s: State, listed: list[Request]) -> Iterator[tuple[str, State | Violation]]:
        """The commit with the requests of others in it: any of them, in any order."""
        for size in range(len(listed) + 1):
            for chosen in permutations(listed, size):
                t: State | Violation | None = s
                for one in chosen:
                    assert isinstance(t, State)
                    t = self.applied(t, t.newest, one, old=not self.rules.has_version)
                    if not isinstance(t, State):
                        break
                if t is not None:  # what does not apply is passed over, which is another choice
                    yield "".join(f", and {one}" for one in chosen), t

    def _found(self, s: State, i: int, p: Broker, own: Request) -> State | Violation:
        """Its request is settled: what came of each part?"""
        decision = next(
            one for one in s.decisions if (one.publisher, one.number) == (own.publisher, own.number)
        )
        image = {
            "against": decision.against,
            "before": decision.before,
            "after": decision.after,
            "newest": s.newest,
        }[self.rules.judged_by]
        answers = {}
        verdicts = self.verdicts(s, image, own, self.rules)
        for part in own.parts:
            is_taken = s.attempts[part.attempt].at[0] != NOBODY or not self.rules.looks_for_parts
            verdict = verdicts[part.attempt]
            answers[part.attempt] = TAKEN if is_taken else AGAIN if verdict == TAKEN else verdict
        return self._answered(s, i, p, own, answers)

    def _answered(
        self,
        s: State,
        i: int,
        p: Broker,
        own: Request,
        answers: dict[int, str],
        *,
        keeps_file: bool = False,
    ) -> State | Violation:
        box = s.box if keeps_file else s.box - {own}
        p = p._replace(posted=None, listed=frozenset(), seen=len(s.images) - 1)
        if FENCED in answers.values():
            p = p._replace(epoch=NONE)
        told = self.told(s._replace(box=box), own, answers)
        return told if isinstance(told, Violation) else self.with_broker(told, i, p)
