"""A consumer group (KIP-848): target and current assignment with epochs, in a coordinator that moves.

A coordinator changes its memory with each heartbeat, appends what follows, one append at a time, and answers
when that is durable. The target assignment is any. Members take what they are told, some time later.

Promises:
    two owners    no partition is used by two members, as far as they have been told and have not been fenced
    in the log    no partition is in the assignments of two members as the log has them

Bounds: changes of the target, lost answers, failed appends, moves of the coordinator.
Left out: sessions (a member that is removed and does not know it uses its partitions on; its commits are
refused), epochs of requests, subscriptions, static members, appends that arrive although they failed.
"""

from typing import NamedTuple

from tests.models.explorer import Model, Next, Violation, step, world

GROUP = "sparklog_server.groups.consumer_group:ConsumerGroup"
TABLE = "sparklog_server.groups.consumer_table:ConsumerTable"
NOTHING: frozenset[int] = frozenset()


class Rules(NamedTuple):
    """The safeguards; tests switch them off."""

    waits_for_release: bool = True  # a partition is assigned when no other member has it
    waits_for_giving_up: bool = True  # a member's partition is free when it says so
    answers_when_durable: bool = True
    appends_one_at_a_time: bool = True
    forgets_after_failure: bool = True  # memory is made again from the log


class Current(NamedTuple):
    """A member as the coordinator has it."""

    epoch: int = 0
    assigned: frozenset[int] = NOTHING
    giving_up: frozenset[int] = NOTHING


class Client(NamedTuple):
    """A member, as its consumer sees it."""

    at: str = "up"
    uses: frozenset[int] = NOTHING


class Append(NamedTuple):
    """On its way to the log: a member's new state, and the answer that waits for it."""

    member: int
    current: Current


class State(NamedTuple):
    processes: tuple[Client, ...]
    target: tuple[int, ...]  # by partition: the member that is to have it
    target_epoch: int
    memory: tuple[Current, ...]
    log: tuple[Current, ...]
    appends: tuple[Append, ...] = ()
    answers: tuple[tuple[int, Current], ...] = ()
    changes_left: int = 0
    losses_left: int = 0
    failures_left: int = 0
    moves_left: int = 0


class Reconciling(Model):
    """See the module's docstring."""

    process_names = ("a", "b", "c")

    def __init__(
        self,
        *,
        members: int = 2,
        partitions: int = 1,
        changes: int = 2,
        losses: int = 0,
        failures: int = 0,
        moves: int = 0,
        rules: Rules | None = None,
    ) -> None:
        super().__init__()
        self.rules = rules or Rules()
        self.members, self.partitions = members, partitions
        self.bounds = changes, losses, failures, moves

    def initial(self) -> State:
        changes, losses, failures, moves = self.bounds
        empty = (Current(),) * self.members
        return State(
            (Client(),) * self.members,
            (0,) * self.partitions,
            1,
            empty,
            empty,
            changes_left=changes,
            losses_left=losses,
            failures_left=failures,
            moves_left=moves,
        )

    # --- the coordinator --------------------------------------------------------------------------------

    @step("beats", at="up", code=(f"{GROUP}.heartbeat", "sparklog_server.groups.consumer_members:reconciled"))
    def beat(self, s: State, i: int, p: Client) -> Next:
        if any(append.member == i for append in s.appends) or any(who == i for who, _ in s.answers):
            return  # it waits for its answer
        current = s.memory[i]
        following = self._reconciled(s, i, p, current)
        if following == current:
            yield "", s._replace(answers=(*s.answers, (i, current)))
            return
        memory = (*s.memory[:i], following, *s.memory[i + 1 :])
        t = s._replace(memory=memory, appends=(*s.appends, Append(i, following)))
        if not self.rules.answers_when_durable:
            t = t._replace(answers=(*t.answers, (i, following)))
        yield "", t

    def _reconciled(self, s: State, i: int, p: Client, current: Current) -> Current:
        target = frozenset(number for number, member in enumerate(s.target) if member == i)
        kept = current.assigned & target
        giving_up = (current.assigned - kept) | current.giving_up
        if giving_up & p.uses and self.rules.waits_for_giving_up:
            return Current(current.epoch, kept, giving_up)
        others = [one for number, one in enumerate(s.memory) if number != i]
        held = frozenset[int]().union(*(one.assigned | one.giving_up for one in others))
        free = target - held if self.rules.waits_for_release else target
        return Current(s.target_epoch, kept | free, NOTHING)

    @world("an append arrives")
    def arrive(self, s: State) -> Next:
        numbers = [0] if self.rules.appends_one_at_a_time else range(len(s.appends))
        for number in numbers if s.appends else ():
            append = s.appends[number]
            log = (*s.log[: append.member], append.current, *s.log[append.member + 1 :])
            left = (*s.appends[:number], *s.appends[number + 1 :])
            answers = s.answers
            if self.rules.answers_when_durable:
                answers = (*answers, (append.member, append.current))
            owned = [one.assigned | one.giving_up for one in log]
            if sum(map(len, owned)) > len(frozenset().union(*owned)):
                yield "", Violation(f"in the log: {log}")
            else:
                yield "", s._replace(log=log, appends=left, answers=answers)

    @world("an append fails")
    def fail(self, s: State) -> Next:
        if not s.appends or not s.failures_left:
            return
        # What was planned after it is void, and so is memory.
        void = s.appends[1:] if not self.rules.forgets_after_failure else ()
        memory = s.memory if not self.rules.forgets_after_failure else s.log
        yield "", s._replace(appends=void, memory=memory, failures_left=s.failures_left - 1)

    @world("the coordinator moves")
    def move(self, s: State) -> Next:
        if s.moves_left:
            yield "", s._replace(memory=s.log, appends=(), moves_left=s.moves_left - 1)

    @world("the target changes")
    def change(self, s: State) -> Next:
        if s.changes_left:
            for number in range(self.partitions):
                for member in range(self.members):
                    if s.target[number] != member:
                        target = (*s.target[:number], member, *s.target[number + 1 :])
                        t = s._replace(target=target, target_epoch=s.target_epoch + 1)
                        yield (
                            f": partition {number} for {member}",
                            t._replace(changes_left=s.changes_left - 1),
                        )

    # --- a member ---------------------------------------------------------------------------------------

    @world("an answer is lost")
    def lose(self, s: State) -> Next:
        if s.losses_left:
            for number in range(len(s.answers)):
                left = (*s.answers[:number], *s.answers[number + 1 :])
                yield "", s._replace(answers=left, losses_left=s.losses_left - 1)

    @step(
        "takes its answer",
        at="up",
        code="sparklog_server.api.consumer_groups:handle_consumer_group_heartbeat",
    )
    def take(self, s: State, i: int, p: Client) -> Next:
        for number, (member, current) in enumerate(s.answers):
            if member == i:
                left = (*s.answers[:number], *s.answers[number + 1 :])
                # It gives up before it takes: both here, since nobody sees it in between.
                client = Client(uses=current.assigned)
                t = self._with(s._replace(answers=left), i, client)
                uses = [one.uses for one in t.processes]
                if sum(map(len, uses)) > len(frozenset().union(*uses)):
                    yield "", Violation(f"two owners: {uses}")
                else:
                    yield f" (epoch {current.epoch})", t

    def _with(self, s: State, i: int, client: Client) -> State:
        return s._replace(processes=(*s.processes[:i], client, *s.processes[i + 1 :]))
