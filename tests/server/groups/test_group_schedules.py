"""Random schedules on the pure group: whatever members, time and storage do, its promises hold."""

import struct
from collections import Counter
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kio.schema.errors import ErrorCode

from sparklog.format.consumer_offsets import GroupValue, decode_group_value, encode_group_value
from sparklog_server.groups.group import Group
from sparklog_server.groups.members import PENDING_BYTES
from sparklog_server.groups.messages import (
    Answer,
    Effect,
    GroupState,
    Instant,
    JoinRequest,
    JoinResult,
    Leaving,
    StoreGroup,
    SyncRequest,
    SyncResult,
)
from sparklog_server.groups.rebalancing import GroupLimits

LIMITS = GroupLimits(max_size=4, initial_rebalance_delay_ms=30)
PROTOCOLS = ("range", "roundrobin", "sticky")


def subscription(topics: tuple[str, ...]) -> bytes:
    data = struct.pack(">hi", 1, len(topics))
    for topic in topics:
        data += struct.pack(">h", len(topic)) + topic.encode()
    return data


class Schedule:
    """A group, everything that was asked of it, and what it owes."""

    def __init__(self) -> None:
        self.now_ms = 1_000
        self.group = Group("g", LIMITS, self.now)
        self.open: dict[int, str] = {}  # ticket -> "join" | "sync"
        self.writes: list[StoreGroup] = []
        self.durable: GroupValue | None = None
        self.known: list[str] = []  # member ids that somebody was told
        self.next_ticket = 0
        self.next_id = 0
        self.last_generation = 0
        self.leaders: dict[int, set[str]] = {}
        self.durable_assignments: dict[int, dict[str, bytes]] = {}

    @property
    def now(self) -> Instant:
        return Instant(self.now_ms, 1_700_000_000_000 + self.now_ms)

    def ticket(self, kind: str) -> int:
        self.next_ticket += 1
        self.open[self.next_ticket] = kind
        return self.next_ticket

    # What happens

    def join(self, pick: int, instance: int, mask: int, flags: int) -> None:
        known = self.known[-1 - pick % len(self.known)] if self.known and pick % 3 else ""
        instance_id = f"i{instance}" if instance < 2 else None
        names = [name for bit, name in enumerate(PROTOCOLS) if mask >> bit & 1]
        topics = ("a", "b") if flags & 4 else ("a",)
        self.next_id += 1
        request = JoinRequest(
            member_id=known,
            new_member_id=f"m{self.next_id}",
            instance_id=instance_id,
            needs_member_id=bool(flags & 1),
            can_skip_assignment=bool(flags & 2),
            client_id="c",
            rebalance_timeout_ms=100,
            session_timeout_ms=60,
            protocol_type="consumer",
            protocols=tuple((name, subscription(topics)) for name in names),
        )
        self.process(self.group.join(request, self.ticket("join"), self.now))

    def rejoin_all(self) -> None:
        """What well-behaved members do when they are told of a rebalance."""
        for member in list(self.group.members):
            if member.join_ticket is None and not member.is_new:
                request = JoinRequest(
                    member_id=member.member_id,
                    new_member_id="unused",
                    instance_id=member.instance_id,
                    rebalance_timeout_ms=100,
                    session_timeout_ms=60,
                    protocol_type="consumer",
                    protocols=member.protocols,
                )
                self.process(self.group.join(request, self.ticket("join"), self.now))

    def sync(self, pick: int, stale: int) -> None:
        if not self.known:
            return
        member_id = self.known[-1 - pick % len(self.known)]
        generation_id = self.group.generation_id - (stale == 0)
        members = [member.member_id for member in self.group.members]
        request = SyncRequest(
            member_id=member_id,
            generation_id=generation_id,
            assignments=tuple((one, f"{generation_id}:{one}".encode()) for one in members),
        )
        self.process(self.group.sync(request, self.ticket("sync"), self.now))

    def sync_all(self) -> None:
        for member in list(self.group.members):
            members = [one.member_id for one in self.group.members]
            generation_id = self.group.generation_id
            request = SyncRequest(
                member_id=member.member_id,
                generation_id=generation_id,
                assignments=tuple((one, f"{generation_id}:{one}".encode()) for one in members),
            )
            self.process(self.group.sync(request, self.ticket("sync"), self.now))

    def heartbeat(self, pick: int, stale: int) -> None:
        if self.known:
            member_id = self.known[-1 - pick % len(self.known)]
            generation_id = self.group.generation_id - (stale == 0)
            self.group.heartbeat(member_id, None, generation_id, self.now)
            self.group.check_commit(member_id, None, generation_id, self.now)

    def leave(self, pick: int, instance: int) -> None:
        if instance < 2:
            leaving = Leaving(member_id="", instance_id=f"i{instance}")
        elif self.known:
            leaving = Leaving(member_id=self.known[-1 - pick % len(self.known)])
        else:
            return
        _, effects = self.group.leave([leaving], self.now)
        self.process(effects)

    def advance(self, ms: int) -> None:
        self.now_ms += ms
        self.process(self.group.tick(self.now))

    def finish_write(self, fails: bool) -> None:
        if not self.writes:
            return
        write = self.writes.pop(0)
        error = ErrorCode.coordinator_not_available if fails else ErrorCode.none
        if not fails:
            self.durable = decode_group_value(encode_group_value(write.value), where="test")
            assigned = {member.member_id: member.assignment for member in write.value.members}
            self.durable_assignments[write.value.generation_id] = assigned
        self.process(self.group.stored(write.write_id, error, self.now))

    def crash(self) -> None:
        """The broker dies: who waits sees a broken connection; the log is what is left."""
        self.open.clear()
        self.writes.clear()
        self.group = Group("g", LIMITS, self.now)
        if self.durable is not None:
            self.group.restore(self.durable, self.now)
            self.last_generation = min(self.last_generation, self.durable.generation_id)
            self.leaders = {
                generation_id: leaders
                for generation_id, leaders in self.leaders.items()
                if generation_id <= self.durable.generation_id
            }
            if self.group.state is GroupState.STABLE:
                assert [member.member_id for member in self.group.members] == [
                    member.member_id for member in self.durable.members
                ]
        else:
            self.last_generation = 0
            self.leaders.clear()
        self.check()

    # What must hold

    def process(self, effects: list[Effect]) -> None:
        for effect in effects:
            if isinstance(effect, StoreGroup):
                self.writes.append(effect)
                continue
            kind = self.open.pop(effect.ticket)  # KeyError: answered twice, or never asked
            self.check_answer(kind, effect)
        self.check()

    def check_answer(self, kind: str, answer: Answer) -> None:
        result: Any = answer.result
        assert isinstance(result, JoinResult if kind == "join" else SyncResult)
        if isinstance(result, JoinResult):
            if result.error in {ErrorCode.none, ErrorCode.member_id_required}:
                self.known.append(result.member_id)
            if not result.error:
                assert result.generation_id == self.group.generation_id
                assert result.protocol in PROTOCOLS
                if result.member_id == result.leader:
                    self.leaders.setdefault(result.generation_id, set()).add(result.leader)
                    assert result.members
                else:
                    assert not result.members
        elif not result.error:
            # Shown only after it was durable, and as it was stored.
            assigned = self.durable_assignments[self.group.generation_id]
            assert result.assignment in assigned.values()

    def check(self) -> None:
        group, members = self.group, self.group.members
        assert group.generation_id >= self.last_generation
        self.last_generation = group.generation_id
        listed = list(members)
        ids: set[str | None] = {member.member_id for member in listed}
        assert members.leader in (ids or {None})
        statics = [member.instance_id for member in listed if member.instance_id is not None]
        assert len(statics) == len(set(statics))
        assert all(
            members.static_member_id(member.instance_id) == member.member_id
            for member in listed
            if member.instance_id is not None
        )
        assert not members.pending.keys() & {member.member_id for member in listed}
        held_bytes = sum(member.held_bytes + len(member.assignment) for member in listed)
        assert members.held_bytes == held_bytes + PENDING_BYTES * len(members.pending)
        assert group.held_bytes >= members.held_bytes
        assert members.joining == sum(member.join_ticket is not None for member in listed)
        assert members.votes == Counter(name for member in listed for name, _ in member.protocols)
        held = [t for member in listed for t in (member.join_ticket, member.sync_ticket) if t is not None]
        assert sorted(held) == sorted(self.open)  # who waits can be answered
        assert all(member.waits or member.session_deadline_ms is not None for member in listed)
        deadlines = group.rebalancing.deadlines()
        assert not deadlines or (group.wake_at_ms is not None and group.wake_at_ms <= min(deadlines))
        if group.state in {GroupState.EMPTY, GroupState.DEAD}:
            assert not listed
            assert not self.open
        if group.state is GroupState.STABLE:
            assert all(member.sync_ticket is None for member in listed)
        if group.state is GroupState.PREPARING_REBALANCE:
            assert group.rebalancing.join_deadline_ms is not None
            assert all(member.sync_ticket is None for member in listed)
        if group.state is GroupState.COMPLETING_REBALANCE:
            assert listed
            assert group.rebalancing.sync_deadline_ms is not None or group.writes.have_assignment
        if group.state in {GroupState.COMPLETING_REBALANCE, GroupState.STABLE}:
            assert all(any(name == group.protocol for name, _ in member.protocols) for member in listed)

    def check_one_leader_per_generation(self) -> None:
        """More than one only if a static leader was replaced, which is a new id of the same member."""
        for leaders in self.leaders.values():
            assert len(leaders) <= 3

    def wind_down(self) -> None:
        """Everybody falls silent: whoever waits is answered, and in the end nobody is left."""
        for _ in range(200):
            if not self.open and self.group.state is GroupState.EMPTY and not self.group.members.pending:
                break
            while self.writes:
                self.finish_write(fails=False)
            if self.group.wake_at_ms is not None:
                self.now_ms = max(self.now_ms, self.group.wake_at_ms)
                self.process(self.group.tick(self.now))
        assert not self.open
        assert self.group.state is GroupState.EMPTY
        assert self.group.wake_at_ms is None or not self.group.rebalancing.deadlines()

    def settle(self) -> None:
        """Everybody behaves from now on: the group becomes stable, in a bounded number of steps."""
        for _ in range(40):
            while self.writes:
                self.finish_write(fails=False)
            for member in list(self.group.members):
                self.group.heartbeat(member.member_id, None, self.group.generation_id, self.now)
            if self.group.state is GroupState.STABLE and not self.open:
                break
            if self.group.state is GroupState.PREPARING_REBALANCE:
                self.rejoin_all()
                if self.group.state is GroupState.PREPARING_REBALANCE:
                    self.advance(30)
            elif self.group.state is GroupState.COMPLETING_REBALANCE:
                self.sync_all()
            elif self.group.state is GroupState.EMPTY and not self.group.members.pending:
                break
            else:
                self.advance(30)
        assert self.group.state in {GroupState.STABLE, GroupState.EMPTY}
        assert not self.open


SMALL = st.integers(0, 7)
STEPS = st.one_of(
    st.tuples(st.just("join"), SMALL, st.integers(0, 5), st.integers(0, 7), SMALL),
    st.tuples(st.just("join"), st.just(0), st.integers(0, 2), st.just(7), SMALL),
    st.tuples(st.just("settle")),
    st.tuples(st.just("settle")),
    st.tuples(st.just("rejoin_all")),
    st.tuples(st.just("sync"), SMALL, SMALL),
    st.tuples(st.just("sync_all")),
    st.tuples(st.just("heartbeat"), SMALL, SMALL),
    st.tuples(st.just("leave"), SMALL, SMALL),
    st.tuples(st.just("advance"), st.sampled_from([1, 10, 31, 61, 101, 400_000])),
    st.tuples(st.just("finish_write"), st.booleans()),
    st.tuples(st.just("crash")),
)


@pytest.mark.slow
@settings(max_examples=400, deadline=None)
@given(st.lists(STEPS, min_size=5, max_size=50), st.booleans())
def test_promises_hold_whatever_happens(steps: list[tuple[Any, ...]], well_behaved_end: bool) -> None:
    schedule = Schedule()
    for name, *arguments in steps:
        getattr(schedule, name)(*arguments)
    schedule.check_one_leader_per_generation()
    if well_behaved_end:
        schedule.settle()
    schedule.wind_down()


def random_step(random: Random) -> tuple[Any, ...]:
    """Members that mostly behave: long schedules get to states that a few arbitrary steps do not reach."""
    small = random.randrange(8)
    return random.choice(
        [
            ("join", 0, random.randrange(4), 7, small),
            ("join", small, random.randrange(4), random.choice([7, 7, 7, 3, 6, 1]), small),
            ("join", 1, 5, 7, 1),
            ("settle",),
            ("rejoin_all",),
            ("sync", small, random.randrange(5)),
            ("sync_all",),
            ("heartbeat", small, random.randrange(5)),
            ("leave", small, random.randrange(4)),
            ("advance", random.choice([1, 10, 31, 61, 101])),
            ("finish_write", random.random() < 0.2),
            ("finish_write", False),
            *([("crash",)] if random.random() < 0.3 else []),
        ]
    )


@pytest.mark.sampled(30)
@pytest.mark.parametrize("seed", range(150))
def test_promises_hold_in_long_schedules(seed: int) -> None:
    random = Random(seed)
    schedule = Schedule()
    for _ in range(150):
        name, *arguments = random_step(random)
        getattr(schedule, name)(*arguments)
    schedule.check_one_leader_per_generation()
    schedule.settle()
    schedule.wind_down()
