"""A group that goes from one protocol to the other and back, with members that use partitions meanwhile.

In the classic protocol all members join, with what they keep; then a leader assigns, and each is told by its
SyncGroup. An eager member keeps nothing; a cooperative one uses what it has until it is told, and a leader
assigns nothing that another keeps. In a consumer group the coordinator assigns (reconciling.py); what a
classic member has is given up when it joins without it. Only members of the new protocol make a consumer
group of a classic one; when the last of them leaves, it is a classic one again.

Promises:
    two owners   no partition is used by two members
    no group     the log has the group in one protocol, whenever the coordinator moves

Bounds: rebalances, changes of the target, joins of the new protocol, lost answers, failed appends, moves.
Left out: sessions and time-outs (see reconciling.py), heartbeats (a member may join at any time), generations
(a member that joins is told of the last one).
"""

from collections.abc import Iterator
from typing import NamedTuple

from tests.models.explorer import Model, Next, Violation, replaced, step, world

TABLE = "sparklog_server.groups.consumer_table:ConsumerTable"
MIGRATION = "sparklog_server.groups.migration"
NOTHING: frozenset[int] = frozenset()
COOPERATIVE, EAGER, NEW = "cooperative", "eager", "new"
CLASSIC, CONSUMER, TURNING = "classic", "consumer", "turning"


class Rules(NamedTuple):
    """The safeguards; tests switch them off."""

    counts_what_members_keep: bool = True  # beside what the leader has assigned
    leaves_what_members_use: bool = True  # in the classic group's record, not what they were to have
    waits_for_joins: bool = True  # a classic member has its partitions until it joins without them
    converts_in_one_append: bool = True
    answers_when_durable: bool = True


class Client(NamedTuple):
    """A member, as its consumer sees it."""

    at: str  # its protocol, or how it rebalances
    uses: frozenset[int] = NOTHING


class Group(NamedTuple):
    """The group; by member what is assigned, and what it kept when it joined, or is to give up."""

    protocol: str
    assigned: tuple[frozenset[int], ...]
    other: tuple[frozenset[int], ...]
    new: frozenset[int] = NOTHING  # members of the new protocol
    joined: frozenset[int] = NOTHING  # in this rebalance
    unsynced: frozenset[int] = NOTHING
    is_stable: bool = False


class Append(NamedTuple):
    """On its way to the log: the group, and the answers that wait for it."""

    group: Group | None
    answers: tuple[tuple[int, frozenset[int]], ...] = ()


class State(NamedTuple):
    processes: tuple[Client, ...]
    target: tuple[int, ...]  # of the consumer group, by partition: the member that is to have it
    memory: Group
    log: Group | None
    appends: tuple[Append, ...] = ()
    answers: tuple[tuple[int, frozenset[int]], ...] = ()
    rebalances_left: int = 0
    changes_left: int = 0
    joins_left: int = 0
    losses_left: int = 0
    failures_left: int = 0
    moves_left: int = 0


class Migrating(Model):
    """See the module's docstring."""

    process_names = ("a", "b", "c")

    def __init__(
        self,
        *,
        members: tuple[str, ...] = (COOPERATIVE, NEW),
        partitions: int = 1,
        rebalances: int = 1,
        changes: int = 1,
        joins: int = 1,
        losses: int = 0,
        failures: int = 0,
        moves: int = 0,
        rules: Rules | None = None,
    ) -> None:
        super().__init__()
        self.rules = rules or Rules()
        self.members, self.partitions = members, partitions
        self.bounds = rebalances, changes, joins, losses, failures, moves

    def initial(self) -> State:
        """A stable classic group, whose first member has everything."""
        everything = frozenset(range(self.partitions))
        nothing = (NOTHING,) * len(self.members)
        group = Group(CLASSIC, replaced(nothing, 0, everything), nothing, is_stable=True)
        clients = tuple(Client(kind) for kind in self.members)
        clients = replaced(clients, 0, clients[0]._replace(uses=everything))
        return State(clients, (0,) * self.partitions, group, group, (), (), *self.bounds)

    # --- the classic group ------------------------------------------------------------------------------

    @world("the group rebalances")
    def rebalance(self, s: State) -> Next:
        if s.memory.protocol == CLASSIC and s.memory.is_stable and s.rebalances_left:
            group = s.memory._replace(is_stable=False, joined=NOTHING, unsynced=NOTHING)
            yield "", s._replace(memory=group, rebalances_left=s.rebalances_left - 1)

    @step(
        "joins the classic group",
        at=(COOPERATIVE, EAGER),
        code="sparklog_server.groups.coordinator:GroupCoordinator.join",
    )
    def join_classic(self, s: State, i: int, p: Client) -> Next:
        group = s.memory
        if group.protocol != CLASSIC or group.is_stable or i in group.joined or self._waits(s, i):
            return
        uses = NOTHING if p.at == EAGER else p.uses
        t = self._with(s, i, p._replace(uses=uses))
        other, joined = replaced(group.other, i, uses), group.joined | {i}
        if len(joined) < sum(kind != NEW for kind in self.members):
            yield "", t._replace(memory=group._replace(other=other, joined=joined))
            return
        # The leader's assignment is not written, and all are to join again.
        nothing = (NOTHING,) * len(self.members)
        again = group._replace(assigned=nothing, other=other, joined=NOTHING)
        yield ", assigned in vain", t._replace(memory=again)
        for owners, assigned in self._assignments(other):
            stable = Group(CLASSIC, assigned, other, unsynced=joined, is_stable=True)
            yield f", assigned {owners}", t._replace(memory=stable, log=stable._replace(unsynced=NOTHING))

    def _assignments(
        self, kept: tuple[frozenset[int], ...]
    ) -> Iterator[tuple[tuple[int, ...], tuple[frozenset[int], ...]]]:
        """Yield what a leader may assign: no partition that another member keeps."""
        classic = [i for i, kind in enumerate(self.members) if kind != NEW]
        for number in range(len(classic) ** self.partitions):
            owners = tuple(
                classic[number // len(classic) ** place % len(classic)] for place in range(self.partitions)
            )
            yield (
                owners,
                tuple(
                    frozenset(
                        p
                        for p, owner in enumerate(owners)
                        if owner == i and not any(p in some for j, some in enumerate(kept) if j != i)
                    )
                    for i in range(len(self.members))
                ),
            )

    @step(
        "syncs",
        at=(COOPERATIVE, EAGER),
        code="sparklog_server.groups.coordinator:GroupCoordinator.sync",
    )
    def sync(self, s: State, i: int, p: Client) -> Next:
        group = s.memory
        if group.protocol == CLASSIC and i in group.unsynced and not self._waits(s, i):
            memory = group._replace(unsynced=group.unsynced - {i})
            yield "", s._replace(memory=memory, answers=(*s.answers, (i, group.assigned[i])))

    # --- the consumer group -----------------------------------------------------------------------------

    @step("beats", at=NEW, code=(f"{TABLE}.heartbeat", f"{MIGRATION}:Upgrade"))
    def beat(self, s: State, i: int, p: Client) -> Next:
        group = s.memory
        if self._waits(s, i) or group.protocol == TURNING:
            return
        if i in group.new:
            yield from self._reconcile(s, group, i, p.uses)
        elif s.joins_left:
            t = s._replace(joins_left=s.joins_left - 1)
            if group.protocol == CLASSIC:
                if not self.rules.converts_in_one_append:
                    t = t._replace(appends=(*t.appends, Append(None)))
                group = self._upgraded(group)
            group = group._replace(new=group.new | {i})
            yield from self._reconcile(t, group, i, p.uses)

    def _upgraded(self, group: Group) -> Group:
        taken = frozenset[int]().union(*group.assigned)
        giving_up = []
        for kept in group.other if self.rules.counts_what_members_keep else (NOTHING,) * len(self.members):
            giving_up.append(kept - taken)
            taken |= kept
        return Group(CONSUMER, group.assigned, tuple(giving_up))

    @step(
        "joins the consumer group",
        at=(COOPERATIVE, EAGER),
        code=(f"{TABLE}.join", "sparklog_server.groups.classic_members:join"),
    )
    def join_consumers(self, s: State, i: int, p: Client) -> Next:
        if s.memory.protocol == CONSUMER and not self._waits(s, i):
            uses = NOTHING if p.at == EAGER else p.uses
            yield from self._reconcile(self._with(s, i, p._replace(uses=uses)), s.memory, i, uses)

    def _reconcile(self, s: State, group: Group, i: int, uses: frozenset[int]) -> Next:
        target = frozenset(number for number, member in enumerate(s.target) if member == i)
        kept = group.assigned[i] & target
        giving_up = (group.assigned[i] - kept) | group.other[i]
        assigned = kept
        if not giving_up & uses:
            held = [
                one | more
                for number, (one, more) in enumerate(zip(group.assigned, group.other, strict=True))
                if number != i and (self.rules.waits_for_joins or number in group.new)
            ]
            giving_up, assigned = NOTHING, kept | (target - frozenset().union(*held))
        following = group._replace(
            assigned=replaced(group.assigned, i, assigned), other=replaced(group.other, i, giving_up)
        )
        answer = (i, assigned)
        if following == s.memory:
            yield "", s._replace(answers=(*s.answers, answer))
        elif self.rules.answers_when_durable:
            yield "", s._replace(memory=following, appends=(*s.appends, Append(following, (answer,))))
        else:
            t = s._replace(memory=following, appends=(*s.appends, Append(following)))
            yield "", t._replace(answers=(*t.answers, answer))

    @step("leaves", at=NEW, code=f"{MIGRATION}:downgraded")
    def leave(self, s: State, i: int, p: Client) -> Next:
        group = s.memory
        if group.protocol != CONSUMER or i not in group.new or self._waits(s, i):
            return
        t = self._with(s, i, p._replace(uses=NOTHING))
        group = group._replace(
            assigned=replaced(group.assigned, i, NOTHING),
            other=replaced(group.other, i, NOTHING),
            new=group.new - {i},
        )
        if group.new:
            yield "", t._replace(memory=group, appends=(*t.appends, Append(group)))
            return
        appends = t.appends if self.rules.converts_in_one_append else (*t.appends, Append(None))
        classic = Group(CLASSIC, self._left(s, group), (NOTHING,) * len(self.members))
        memory = group._replace(protocol=TURNING)
        yield ", the last", t._replace(memory=memory, appends=(*appends, Append(classic)))

    def _left(self, s: State, group: Group) -> tuple[frozenset[int], ...]:
        if self.rules.leaves_what_members_use:
            return tuple(a | b for a, b in zip(group.assigned, group.other, strict=True))
        return tuple(
            frozenset(p for p, member in enumerate(s.target) if member == i) for i in range(len(self.members))
        )

    @world("the target changes")
    def change(self, s: State) -> Next:
        if s.changes_left and s.memory.protocol == CONSUMER:
            for number in range(self.partitions):
                for member in range(len(self.members)):
                    if s.target[number] != member:
                        t = s._replace(target=replaced(s.target, number, member))
                        yield f": {number} for {member}", t._replace(changes_left=s.changes_left - 1)

    # --- the log ----------------------------------------------------------------------------------------

    @world("an append arrives")
    def arrive(self, s: State) -> Next:
        if s.appends:
            group, answers = s.appends[0]
            t = s._replace(log=group, appends=s.appends[1:], answers=(*s.answers, *answers))
            if group is not None and s.memory.protocol == TURNING and group.protocol == CLASSIC:
                t = t._replace(memory=group)
            yield "", t

    @world("an append fails")
    def fail(self, s: State) -> Next:
        if s.appends and s.failures_left:
            yield from self._load(s._replace(failures_left=s.failures_left - 1))

    @world("the coordinator moves")
    def move(self, s: State) -> Next:
        if s.moves_left:
            yield from self._load(s._replace(moves_left=s.moves_left - 1))

    def _load(self, s: State) -> Next:
        if s.log is None:
            yield "", Violation("no group: the log has it in neither protocol")
        else:
            yield "", s._replace(memory=s.log, appends=())

    # --- a member ---------------------------------------------------------------------------------------

    @world("an answer is lost")
    def lose(self, s: State) -> Next:
        if s.losses_left:
            for number in range(len(s.answers)):
                left = (*s.answers[:number], *s.answers[number + 1 :])
                yield "", s._replace(answers=left, losses_left=s.losses_left - 1)

    @step(
        "takes its answer",
        at=(COOPERATIVE, EAGER, NEW),
        code=(
            "sparklog_server.api.consumer_groups:handle_consumer_group_heartbeat",
            "sparklog_server.api.groups:handle_sync_group",
        ),
    )
    def take(self, s: State, i: int, p: Client) -> Next:
        for number, (member, assigned) in enumerate(s.answers):
            if member == i:
                left = (*s.answers[:number], *s.answers[number + 1 :])
                t = self._with(s._replace(answers=left), i, p._replace(uses=assigned))
                uses = [one.uses for one in t.processes]
                if sum(map(len, uses)) > len(frozenset().union(*uses)):
                    yield "", Violation(f"two owners: {[sorted(some) for some in uses]}")
                else:
                    yield "", t

    @staticmethod
    def _waits(s: State, i: int) -> bool:
        asked = (who for append in s.appends for who, _ in append.answers)
        return i in asked or any(who == i for who, _ in s.answers)

    @staticmethod
    def _with(s: State, i: int, client: Client) -> State:
        return s._replace(processes=replaced(s.processes, i, client))
