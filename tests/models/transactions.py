"""Transactions: staged durably, published or dropped by one action, whoever sends what how late.

Two processes of one application have the same transactional id. Each has itself initialised, which ends what
an older one has open; then sends records, and ends with a verdict. Requests are repeated when no answer
comes, and any copy may arrive late. A broker takes a request in, and commits it later, against the newest
image: records are staged, and the end moves all that is staged into the log, or drops it. A transaction that
takes too long is aborted by whoever looks.

With the first protocol of Kafka's clients a producer keeps its epoch from one transaction to the next, adds
partitions before it sends, and has itself initialised again when it aborts something of which it does not
know whether it arrived. A *rude* one keeps its epoch then, too, and gives the sequence to its next record
(kafkajs does); offsets of groups have no sequence, and all clients keep their epoch if only those are in
doubt. With the second protocol each end raises the epoch, and the first record of an epoch opens. Two
processes of one id may speak different protocols, and one may go on with the other protocol, in the epoch
that it has.

Promises:
    torn      what becomes visible by a commit is of the transaction that its client has committed
    partial   all that was acknowledged to it is there then
    lies      who is told committed finds it visible; who is told aborted never does
    doubled   no record becomes visible twice
    zombie    nothing of an older process applies after a newer one was initialised
    refused   a process alone, in time, is not refused for having aborted before

Bounds: records, offsets, transactions, copies of requests, lost answers, time-outs, initialisations.
A broker knows the image that it has looked at last, or has committed; any broker may lead, and coordinate,
at any time: a client that is not answered asks another one while the first still has its request.
Left out: who leads and coordinates (cluster.py: what a broker commits applies while it does, and a
coordinator knows all that was answered before it; here brokers may do more), several partitions: an end is
one action for all.
A copy of a request that a broker reads after the end of its transaction was answered: with the first protocol
nothing tells it from one of the next transaction, here as in Kafka, whose second protocol is there for that.
`late_reads` shows it. What was read before is told apart by the number of the transaction, as the image of
the broker had it when it read the request.
"""

from tests.models.bits import bit, has
from tests.models.explorer import Model, Next, Violation, replaced, step, world
from tests.models.transactions_world import (
    ABORTED,
    ADD,
    COMMITTED,
    EMPTY,
    END,
    INIT,
    NO_SEQUENCE,
    NONE,
    OFFSET,
    OPEN,
    SEND,
    Accepted,
    Broker,
    Client,
    Image,
    Request,
    Rules,
    Staged,
    State,
)

PUBLISH = "sparklog.metadata.log:MetadataLog.publish"


class Transactions(Model):
    """See the module's docstring."""

    def __init__(
        self,
        rules: Rules,
        *,
        second: bool | tuple[bool, ...],
        brokers: int = 1,
        inits: tuple[int, ...] = (1,),
        txns: int = 2,
        records: int = 2,
        copies: int = 0,
        losses: int = 0,
        timeouts: int = 0,
        switches: int = 0,
        offsets: int = 0,
        rude: bool = False,
        late_reads: bool = False,
        without: tuple[str, ...] = (),
    ) -> None:
        """`second`: which protocol, of all processes or of each; `inits`: how often each may be initialised;
        `switches`: how often any goes on with the other protocol; `offsets`: how many records are a group's
        offsets.
        """
        unused = {"expire": timeouts, "switch": switches, "look": brokers > 1}
        super().__init__(without=(*without, *(name for name, used in unused.items() if not used)))
        protocols = second if isinstance(second, tuple) else (second,) * len(inits)
        self.rules, self.rude, self.late_reads = rules, rude, late_reads
        self.txns, self.records, self.offsets = txns, records, offsets
        self.first = State(
            processes=(Broker(),) * brokers,
            clients=tuple(Client(second=one) for one in protocols),
            copies=copies,
            losses=losses,
            timeouts=timeouts,
            switches=switches,
            inits=inits,
        )
        self.process_names = tuple(f"broker {number}" for number in range(brokers))

    def initial(self) -> State:
        return self.first

    # --- clients ----------------------------------------------------------------------------------------

    def client(self, s: State, i: int, c: Client) -> State:
        return s._replace(clients=replaced(s.clients, i, c))

    def asked(self, s: State, i: int, c: Client, request: Request) -> State:
        s = s._replace(network=tuple(sorted({*s.network, request})))
        return self.client(s, i, c._replace(at="waits", waits_for=request))

    @world("a process has itself initialised")
    def init(self, s: State) -> Next:
        for i, c in enumerate(s.clients):
            if s.inits[i] and (c.at == "new" or (c.at == "idle" and c.doubt)):
                left = s._replace(inits=replaced(s.inits, i, s.inits[i] - 1))
                yield f": {i}", self.asked(left, i, c, Request(INIT, i, 0, c.epoch if c.doubt else NONE))

    @world("goes on with the other protocol")
    def switch(self, s: State) -> Next:
        """Between two transactions, and with the epoch that it has: brokers were upgraded, or set back."""
        for i, c in enumerate(s.clients):
            if c.at == "idle" and s.switches:
                left = s._replace(switches=s.switches - 1)
                yield f": {i}", self.client(left, i, c._replace(second=not c.second))

    @world("begins")
    def begin(self, s: State) -> Next:
        for i, c in enumerate(s.clients):
            raises = self.rules.raises_in_doubt and not self.rude
            if c.at != "idle" or s.txns == self.txns or (c.doubt and raises):
                continue
            begun = s._replace(txns=s.txns + 1)
            c = c._replace(at="open", txn=s.txns + 1, sent=0, acknowledged=0, doubt=False)
            if c.second:
                yield f": {i}", self.client(begun, i, c)
            else:
                yield f": {i}", self.asked(begun, i, c, Request(ADD, i, c.txn, c.epoch))

    @world("sends")
    def send(self, s: State) -> Next:
        for i, c in enumerate(s.clients):
            if c.at == "open" and s.records < self.records:
                record = s.records
                request = Request(SEND, i, c.txn, c.epoch, record, c.sequence, second=c.second)
                sent = c._replace(sent=c.sent | bit(record), sequence=c.sequence + 1)
                yield f": {i} record {record}", self.asked(s._replace(records=record + 1), i, sent, request)

    @world("sends a group's offset")
    def send_offset(self, s: State) -> Next:
        """It has no sequence: any that is staged again replaces the one before."""
        for i, c in enumerate(s.clients):
            if c.at == "open" and s.offsets < self.offsets:
                record = self.records + s.offsets
                request = Request(OFFSET, i, c.txn, c.epoch, record, NO_SEQUENCE, second=c.second)
                sent = c._replace(sent=c.sent | bit(record))
                yield (
                    f": {i} offset {record}",
                    self.asked(s._replace(offsets=s.offsets + 1), i, sent, request),
                )

    @world("ends")
    def end(self, s: State) -> Next:
        """A commit, after all that was sent is acknowledged; an abort at any time."""
        for i, c in enumerate(s.clients):
            if c.at == "open" and c.sent:
                if c.sent == c.acknowledged:
                    after = s._replace(wanted=s.wanted | bit(c.txn))
                    request = Request(END, i, c.txn, c.epoch, verdict=COMMITTED, second=c.second)
                    yield f": {i} commits", self.asked(after, i, c, request)
                request = Request(END, i, c.txn, c.epoch, verdict=ABORTED, second=c.second)
                yield f": {i} aborts", self.asked(s, i, c, request)

    @world("waits no longer for a record")
    def give_up(self, s: State) -> Next:
        """It will abort."""
        for i, c in enumerate(s.clients):
            request = c.waits_for
            if c.at == "waits" and request is not None and request.kind in (SEND, OFFSET) and s.losses:
                doubting = c._replace(at="open", waits_for=None, doubt=True)
                if self.rude and request.kind == SEND:
                    doubting = doubting._replace(sequence=request.sequence)
                yield f": {i}", self.client(s._replace(losses=s.losses - 1), i, doubting)

    @world("repeats a request")
    def repeat(self, s: State) -> Next:
        """Since its answer was lost; or since it was slow, and then the first copy may do its work late."""
        for i, c in enumerate(s.clients):
            request = c.waits_for
            if request is None or request in s.network:
                continue
            if not any(request == one.request for b in s.processes for one in b.accepted):
                yield f": {i} {request.kind}", self.asked(s, i, c, request)
            elif s.copies:
                after = s._replace(copies=s.copies - 1)
                yield f": {i} {request.kind}, which was slow", self.asked(after, i, c, request)

    # --- brokers ----------------------------------------------------------------------------------------

    @step("takes in", at="up", code="sparklog_server.publish.publisher:Publisher.submit")
    def accept(self, s: State, i: int, b: Broker) -> Next:
        for request in s.network:
            accepted = Accepted(request, b.known)
            if accepted in b.accepted:
                continue
            taken = replaced(s.processes, i, b._replace(accepted=tuple(sorted({*b.accepted, accepted}))))
            rest = tuple(one for one in s.network if one != request)
            text = f" {request.kind} of {request.client}"
            yield text, s._replace(processes=taken, network=rest)
            if s.copies:
                yield (
                    f"{text}, a copy of which is still under way",
                    s._replace(processes=taken, copies=s.copies - 1),
                )

    @step("commits", at="up", code=PUBLISH)
    def commit(self, s: State, i: int, b: Broker) -> Next:
        for accepted in b.accepted:
            rest = tuple(one for one in b.accepted if one != accepted)
            done = s._replace(processes=replaced(s.processes, i, b._replace(accepted=rest)))
            request = accepted.request
            text = f" {request.kind} of {request.client}{request.verdict and f' ({request.verdict})'}"
            image, answer = self.applied(done, accepted)
            if isinstance(image, Violation):
                yield text, image
                continue
            done = self.looked(done._replace(image=image), i)
            yield f"{text}: {answer}", self.answered(done, request, answer)
            if done.losses and done.clients[request.client].waits_for == request:
                yield f"{text}: {answer}, which is lost", done._replace(losses=done.losses - 1)

    @step("follows the log", at="up", code="sparklog_server.cluster.following:Follower._follow")
    def look(self, s: State, i: int, b: Broker) -> Next:
        if b.known != s.image.known:
            yield "", self.looked(s, i)

    def looked(self, s: State, i: int) -> State:
        known = s.processes[i]._replace(known=s.image.known)
        return s._replace(processes=replaced(s.processes, i, known))

    @step("aborts what takes too long", at="up", code=PUBLISH)
    def expire(self, s: State, i: int, _b: Broker) -> Next:
        image = s.image
        if not s.timeouts or image.phase != OPEN:
            return
        after = self.ended(image, ABORTED, raises=self.rules.timeout_raises)
        yield "", self.looked(s._replace(image=after, is_late=True, timeouts=s.timeouts - 1), i)

    # --- what actions do to an image --------------------------------------------------------------------

    def applied(self, s: State, accepted: Accepted) -> tuple[Image | Violation, str]:
        request, image = accepted.request, s.image
        match request.kind:
            case "init":
                return self.initialised(image, request)
            case "add":
                if self.is_fenced(image, request):
                    return image, "fenced"
                if image.phase == OPEN:
                    return image, "ok"  # a repetition
                return self.opened(image), "ok"
            case "send" | "offset":
                return self.staged(image, accepted)
            case _:
                return self.decided(s, accepted)

    def is_fenced(self, image: Image, request: Request) -> bool:
        return self.rules.checks_epoch and request.epoch != image.epoch

    def initialised(self, image: Image, request: Request) -> tuple[Image | Violation, str]:
        if request.epoch != NONE and self.is_fenced(image, request):
            return image, "fenced"
        if image.phase == OPEN and self.rules.init_aborts:
            image = self.ended(image, ABORTED)
        phase = image.phase if image.phase == OPEN else EMPTY
        return (
            image._replace(
                epoch=image.epoch + 1,
                phase=phase,
                next_sequence=0,
                appended=0,
                owner=request.client,
                ended_epoch=NONE,
            ),
            "ok",
        )

    def opened(self, image: Image) -> Image:
        return image._replace(phase=OPEN, number=image.number + 1, before=image.next_sequence)

    def staged(self, image: Image, accepted: Accepted) -> tuple[Image | Violation, str]:
        request = accepted.request
        if self.is_fenced(image, request):
            return image, "fenced"
        if image.phase != OPEN:
            if not request.second:
                return image, "over"
            image = self.opened(image)
        elif not request.second and self.is_of_another(image, accepted):
            return image, "again"
        has_sequence = request.kind == SEND
        if has_sequence and self.rules.checks_sequence and request.sequence != image.next_sequence:
            is_there = has(image.appended, request.sequence) or any(
                one.sequence == request.sequence for one in image.staged
            )
            return image, "ok" if is_there else "out of order"
        if request.client != image.owner:
            return Violation(f"zombie: record {request.record} of process {request.client}"), ""
        staged = Staged(request.record, request.txn, request.sequence)
        after = image._replace(staged=(*image.staged, staged))
        return after._replace(next_sequence=request.sequence + 1) if has_sequence else after, "ok"

    def is_of_another(self, image: Image, accepted: Accepted) -> bool:
        """Return True if another transaction is open than when the request was read."""
        is_record = accepted.request.kind == SEND
        names = self.rules.record_names_number if is_record else self.rules.offset_names_number
        return names and accepted.number != image.number

    def decided(self, s: State, accepted: Accepted) -> tuple[Image | Violation, str]:
        image, request = s.image, accepted.request
        raises = request.second and self.rules.end_raises
        if request.epoch == image.epoch and image.phase != OPEN and raises and request.verdict == ABORTED:
            return self.ended(image, ABORTED, raises=True), "ok"  # so that what is late opens nothing
        if image.phase != OPEN or (self.rules.checks_epoch and request.epoch != image.epoch):
            return image, self.repeated(image, request)
        if self.rules.names_number and accepted.number != image.number and not request.second:
            return image, "again"
        if request.client != image.owner:
            return Violation(f"zombie: an end of process {request.client}"), ""
        if request.verdict == COMMITTED:
            for record, txn, _ in image.staged:
                if txn != request.txn or not has(s.wanted, txn):
                    return Violation(f"torn: record {record} of transaction {txn}"), ""
                if has(image.visible, record):
                    return Violation(f"doubled: record {record}"), ""
            found = [one.record for one in image.staged if one.sequence != NO_SEQUENCE]
            if len(set(found)) != len(found):
                return Violation("doubled: a record was staged twice"), ""
        return self.ended(image, request.verdict, raises=raises), "ok"

    def repeated(self, image: Image, request: Request) -> str:
        """An end that does not apply: of a transaction that is over, or of a producer that is fenced."""
        epoch = image.epoch
        if request.second and self.rules.end_raises:
            epoch = image.ended_epoch if self.rules.remembers_epoch else image.epoch - 1
        if image.phase in (OPEN, EMPTY) or request.epoch != epoch:
            return "fenced"
        if image.phase == request.verdict or not self.rules.remembers_verdict:
            return "ok"
        return "other"

    def ended(self, image: Image, verdict: str, *, raises: bool = False) -> Image:
        visible, appended = image.visible, image.appended
        if verdict == COMMITTED:
            for record, _, sequence in image.staged:
                visible |= bit(record)
                appended |= 0 if sequence == NO_SEQUENCE else bit(sequence)
        keeps = verdict == COMMITTED or self.rules.keeps_sequences
        after = image._replace(
            phase=verdict,
            staged=() if verdict == COMMITTED or self.rules.abort_drops else image.staged,
            visible=visible,
            appended=appended,
            next_sequence=image.next_sequence if keeps else image.before,
            ended_epoch=NONE,
        )
        if not raises:
            return after
        return after._replace(epoch=image.epoch + 1, next_sequence=0, appended=0, ended_epoch=image.epoch)

    # --- what clients make of answers -------------------------------------------------------------------

    def answered(self, s: State, request: Request, answer: str) -> State | Violation:
        c, i = s.clients[request.client], request.client
        if c.waits_for != request or answer == "again":  # then the client repeats it
            return self.checked(s)
        c = c._replace(waits_for=None)
        if request.kind == END and not request.second and not self.late_reads:
            s = s._replace(network=tuple(one for one in s.network if not self.is_read_in_time(one, i)))
        if answer != "ok":
            alone = len(s.clients) == 1 and not self.first.copies and not s.is_late and not self.rude
            if alone and not c.doubt:
                return Violation(f"refused: {request.kind} of process {i}: {answer}")
            return self.checked(self.client(s, i, c._replace(at="fenced")))
        match request.kind:
            case "init":
                c = c._replace(at="idle", epoch=s.image.epoch, sequence=0, doubt=False)
            case "add":
                c = c._replace(at="open")
            case "send" | "offset":
                c = c._replace(at="open", acknowledged=c.acknowledged | bit(request.record))
            case _:
                if request.verdict == COMMITTED and c.acknowledged & ~s.image.visible:
                    return Violation(f"lies: process {i} was told that it has committed")
                if request.verdict == ABORTED:
                    s = s._replace(dropped=s.dropped | c.sent)
                epoch, sequence = (s.image.epoch, 0) if request.second else (c.epoch, c.sequence)
                c = c._replace(
                    at="idle", epoch=epoch, sequence=sequence, doubt=c.doubt and not request.second
                )
        return self.checked(self.client(s, i, c))

    def is_read_in_time(self, request: Request, client: int) -> bool:
        """Return True for what is read before an end is answered, or never.

        Records of a client that begins a new epoch in doubt may be read whenever that is.
        """
        return request.client == client and (self.rude or request.kind == END)

    def checked(self, s: State) -> State | Violation:
        if s.dropped & s.image.visible:
            return Violation("lies: a process was told that it has aborted what is visible")
        return s
