"""The pure group: what Kafka's coordinator does, case by case."""

from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from sparklog.format.group_metadata import GroupValue
from sparklog_server.groups.group import NEW_MEMBER_JOIN_TIMEOUT_MS, Group, GroupLimits
from sparklog_server.groups.messages import (
    Answer,
    Effect,
    Instant,
    JoinRequest,
    JoinResult,
    Leaving,
    StoreGroup,
    SyncRequest,
    SyncResult,
)
from sparklog_server.groups.transitions import GroupState

E, P, C, S, D = GroupState
NONE = ErrorCode.none
WALL_MS = 1_700_000_000_000


class Members:
    """A group, and its members by name: their tickets are their names, their member ids get a number."""

    def __init__(self, *, max_size: int = 100, delay_ms: int = 0) -> None:
        self.now_ms = 0
        self.group = Group("g", GroupLimits(max_size=max_size, initial_rebalance_delay_ms=delay_ms), self.now)
        self.answers: dict[Any, JoinResult | SyncResult] = {}
        self.stores: list[StoreGroup] = []
        self.ids: dict[str, str] = {}
        self._next = 0

    @property
    def now(self) -> Instant:
        return Instant(self.now_ms, WALL_MS + self.now_ms)

    @property
    def state(self) -> GroupState:
        return self.group.state

    def take(self, effects: list[Effect]) -> None:
        for effect in effects:
            if isinstance(effect, Answer):
                assert effect.ticket not in self.answers
                self.answers[effect.ticket] = effect.result
                if isinstance(effect.result, JoinResult) and not effect.result.error:
                    self.ids[effect.ticket.partition(":")[0]] = effect.result.member_id
            else:
                self.stores.append(effect)

    def answer(self, ticket: str) -> Any:
        return self.answers.pop(ticket)

    def join(self, name: str, ticket: str | None = None, **fields: Any) -> Any:
        """JoinGroup; `name` joins again if it has an id. The answer, or None if it has to wait."""
        self._next += 1
        values = {
            "member_id": self.ids.get(name, ""),
            "new_member_id": f"{name}-{self._next}",
            "needs_member_id": False,
            "rebalance_timeout_ms": 300,
            "session_timeout_ms": 100,
            "protocol_type": "consumer",
            "protocols": (("range", b"m"), ("sticky", b"m")),
            **fields,
        }
        ticket = ticket or name
        self.take(self.group.join(JoinRequest(**values), ticket, self.now))
        return self.answers.pop(ticket, None)

    def sync(self, name: str, assignments: dict[str, bytes] | None = None, **fields: Any) -> Any:
        """SyncGroup; assignments by name."""
        values = {
            "member_id": self.ids.get(name, ""),
            "generation_id": self.group.generation_id,
            "assignments": tuple((self.ids[who], data) for who, data in (assignments or {}).items()),
            **fields,
        }
        ticket = f"{name}:sync"
        self.take(self.group.sync(SyncRequest(**values), ticket, self.now))
        return self.answers.pop(ticket, None)

    def stored(self, error: ErrorCode = NONE) -> None:
        self.take(self.group.stored(self.stores.pop(0).write_id, error, self.now))

    def heartbeat(self, name: str, **fields: Any) -> ErrorCode:
        values = {"instance_id": None, "generation_id": self.group.generation_id, **fields}
        return self.group.heartbeat(self.ids.get(name, "?"), now=self.now, **values)

    def commit(self, name: str, **fields: Any) -> ErrorCode:
        values = {"instance_id": None, "generation_id": self.group.generation_id, **fields}
        return self.group.check_commit(self.ids.get(name, "?"), now=self.now, **values)

    def leave(self, *names: str) -> list[ErrorCode]:
        leaving = [Leaving(member_id=self.ids.get(name, "?")) for name in names]
        errors, effects = self.group.leave(leaving, self.now)
        self.take(effects)
        return errors

    def advance(self, ms: int) -> None:
        """Time passes, the alarm rings whenever it is due."""
        end_ms = self.now_ms + ms
        while self.group.wake_at_ms is not None and self.group.wake_at_ms <= end_ms:
            self.now_ms = max(self.now_ms, self.group.wake_at_ms)
            self.take(self.group.tick(self.now))
        self.now_ms = end_ms

    def stable(self, *names: str, **fields: Any) -> "Members":
        """Everybody joins at once, and has an assignment; the first one leads."""
        for name in names:
            assert self.join(name, **fields) is None
        self.advance(max(1, self.group._limits.initial_rebalance_delay_ms))
        if self.group.generation_id == 0:
            self.advance(1)
        for name in names:
            assert not self.answer(name).error
        for name in reversed(names):
            assert self.sync(name, {who: who.encode() for who in names}) is None
        self.stored()
        for name in names:
            assert self.answer(f"{name}:sync").assignment == name.encode()
        assert self.state is S
        return self


def test_one_generation_from_empty_to_stable() -> None:
    members = Members()
    assert members.join("a") is None
    assert members.join("b") is None
    assert members.state is P
    members.advance(1)
    assert members.state is C
    leader, follower = members.answer("a"), members.answer("b")
    assert leader.leader == follower.leader == leader.member_id
    assert [one.member_id for one in leader.members] == [leader.member_id, follower.member_id]
    assert follower.members == ()
    assert (leader.generation_id, leader.protocol_type, leader.protocol) == (1, "consumer", "range")
    assert members.sync("b") is None
    assert members.sync("a", {"a": b"A", "b": b"B"}) is None
    (store,) = members.stores
    assert [one.assignment for one in store.value.members] == [b"A", b"B"]
    assert (store.value.generation_id, store.value.state_timestamp_ms) == (1, WALL_MS + 1)
    members.stored()
    assert members.answer("a:sync") == SyncResult(protocol_type="consumer", protocol="range", assignment=b"A")
    assert members.answer("b:sync").assignment == b"B"
    assert members.sync("b").assignment == b"B"  # asked again


class TestMemberIds:
    def test_a_dynamic_member_is_sent_back_for_its_id(self) -> None:
        members = Members()
        answer = members.join("a", needs_member_id=True)
        assert (answer.error, members.state) == (ErrorCode.member_id_required, E)
        assert members.join("a", member_id=answer.member_id) is None
        members.advance(1)
        assert members.answer("a").member_id == answer.member_id

    def test_an_id_that_is_not_used_expires(self) -> None:
        members = Members()
        answer = members.join("a", needs_member_id=True)
        members.advance(100)
        assert members.join("a", member_id=answer.member_id).error == ErrorCode.unknown_member_id

    def test_a_rebalance_waits_for_ids_given_out(self) -> None:
        members = Members().stable("a")
        pending = members.join("b", needs_member_id=True)
        assert members.join("a") is None  # the leader rejoins
        assert members.state is P
        members.join("b", member_id=pending.member_id)
        assert members.state is C

    def test_a_pending_member_may_leave(self) -> None:
        members = Members().stable("a")
        members.ids["b"] = members.join("b", needs_member_id=True).member_id
        assert members.join("a") is None
        assert members.leave("b") == [NONE]
        assert members.state is C

    def test_a_pending_id_is_not_a_static_member(self) -> None:
        members = Members()
        answer = members.join("a", needs_member_id=True)
        refused = members.join("a", member_id=answer.member_id, instance_id="i")
        assert refused.error == ErrorCode.unknown_member_id

    def test_unknown_ids_are_refused_everywhere(self) -> None:
        members = Members().stable("a")
        assert members.join("x", member_id="x").error == ErrorCode.unknown_member_id
        assert members.sync("x").error == ErrorCode.unknown_member_id
        assert members.heartbeat("x") == ErrorCode.unknown_member_id
        assert members.commit("x") == ErrorCode.unknown_member_id
        assert members.leave("x") == [ErrorCode.unknown_member_id]


class TestInitialDelay:
    def test_members_that_come_later_extend_it(self) -> None:
        members = Members(delay_ms=50)
        members.join("a")
        members.advance(40)
        members.join("b")
        members.advance(40)  # 80: extended at 50 until 100
        assert members.state is P
        members.join("c")
        members.advance(60)  # 140: extended at 100 until 150
        assert members.state is P
        members.advance(10)
        assert members.state is C
        assert len(members.answer("a").members) == 3

    def test_but_not_beyond_the_rebalance_timeout(self) -> None:
        members = Members(delay_ms=100)
        for number in range(10):
            members.join(f"m{number}")
            members.advance(40)
        assert members.state is C

    def test_it_counts_once_per_life_of_a_group(self) -> None:
        members = Members(delay_ms=50).stable("a")
        members.join("b")
        assert members.join("a") is None or members.state is C
        assert members.state is C


class TestRebalance:
    def test_a_new_member_makes_the_others_join_again(self) -> None:
        members = Members().stable("a", "b")
        assert members.join("c") is None
        assert members.heartbeat("a") == ErrorCode.rebalance_in_progress
        assert members.sync("a").error == ErrorCode.rebalance_in_progress
        assert members.commit("a") == NONE  # what was read before
        assert members.join("a") is None
        assert members.join("b").generation_id == 2
        assert len(members.answer("a").members) == 3

    def test_who_does_not_join_in_time_is_out(self) -> None:
        members = Members().stable("a", "b", session_timeout_ms=1_000)
        members.join("a")
        members.advance(299)
        assert members.state is P
        members.advance(1)
        assert [one.member_id for one in members.answer("a").members] == [members.ids["a"]]
        assert members.heartbeat("b") == ErrorCode.unknown_member_id

    def test_the_longest_rebalance_timeout_counts(self) -> None:
        members = Members().stable("a", "b", session_timeout_ms=5_000)
        members.join("a", rebalance_timeout_ms=2_000)
        members.advance(301)
        assert members.state is P
        members.advance(1_699)
        assert members.state is C

    def test_another_leader_when_the_old_one_does_not_come(self) -> None:
        members = Members().stable("a", "b", session_timeout_ms=1_000)
        members.join("b", protocols=(("range", b"other"),))
        members.advance(300)
        assert members.answer("b").leader == members.ids["b"]

    def test_during_the_assignment_it_starts_over(self) -> None:
        members = Members()
        members.join("a")
        members.join("b")
        members.advance(1)
        members.answer("a")
        members.answer("b")
        assert members.sync("b") is None
        assert members.commit("b") == ErrorCode.rebalance_in_progress
        assert members.heartbeat("b") == NONE
        assert members.join("c") is None
        assert members.answer("b:sync").error == ErrorCode.rebalance_in_progress
        assert members.state is P

    def test_an_assignment_stored_too_late_is_not_used(self) -> None:
        members = Members()
        members.join("a")
        members.advance(1)
        members.answer("a")
        assert members.sync("a", {"a": b"old"}) is None
        members.join("b")
        members.answer("a:sync")
        assert members.join("a").generation_id == 2
        members.answer("b")
        members.stored()  # of generation 1
        assert (members.state, members.group.generation_id) == (C, 2)
        assert members.sync("a", {"a": b"new", "b": b"B"}) is None
        members.stored()
        assert members.answer("a:sync").assignment == b"new"

    def test_a_leader_that_asks_twice_stores_once(self) -> None:
        members = Members()
        members.join("a")
        members.advance(1)
        members.answer("a")
        assert members.sync("a", {"a": b"1"}) is None
        members.take(
            members.group.sync(
                SyncRequest(member_id=members.ids["a"], generation_id=1), "a:again", members.now
            )
        )
        assert members.answer("a:sync").error == ErrorCode.rebalance_in_progress  # superseded
        assert len(members.stores) == 1
        members.stored()
        assert members.answer("a:again").assignment == b"1"

    def test_who_never_syncs_is_out(self) -> None:
        members = Members()
        members.join("a")
        members.join("b", session_timeout_ms=10_000)
        members.advance(1)
        members.answer("a")
        members.answer("b")
        assert members.sync("a", {"a": b"A"}) is None
        members.stored()
        for _ in range(4):
            assert members.heartbeat("a") == NONE
            members.advance(75)
        assert members.state is P
        assert members.heartbeat("b") == ErrorCode.unknown_member_id

    def test_assignments_left_out_are_empty(self) -> None:
        members = Members()
        members.join("a")
        members.join("b")
        members.advance(1)
        members.answer("a")
        members.answer("b")
        assert members.sync("b") is None
        assert members.sync("a", {"a": b"A"}) is None
        members.stored()
        assert members.answer("b:sync") == SyncResult(protocol_type="consumer", protocol="range")


class TestRejoining:
    def test_a_follower_with_nothing_new_is_told_the_generation(self) -> None:
        members = Members().stable("a", "b")
        answer = members.join("b")
        assert (answer.generation_id, members.state) == (1, S)

    def test_a_follower_with_something_new_makes_a_rebalance(self) -> None:
        members = Members().stable("a", "b")
        assert members.join("b", protocols=(("range", b"new"),)) is None
        assert members.state is P

    def test_a_leader_makes_a_rebalance(self) -> None:
        members = Members().stable("a", "b")
        assert members.join("a") is None
        assert members.state is P

    def test_an_answer_that_was_lost_is_given_again(self) -> None:
        members = Members()
        members.join("a")
        members.advance(1)
        first = members.answer("a")
        assert members.join("a") == first
        assert members.state is C

    def test_the_older_of_two_requests_is_answered(self) -> None:
        members = Members().stable("a", "b")
        assert members.join("a") is None
        assert members.join("a", ticket="a:2") is None
        assert members.answer("a").error == ErrorCode.rebalance_in_progress
        members.join("b")
        assert members.answer("a:2").generation_id == 2

    def test_a_new_member_that_never_asks_again_is_given_up(self) -> None:
        members = Members().stable("a", rebalance_timeout_ms=10**9, session_timeout_ms=10**9)
        assert members.join("b") is None
        members.advance(NEW_MEMBER_JOIN_TIMEOUT_MS)
        gone = members.answer("b")
        assert (gone.error, gone.member_id) == (ErrorCode.unknown_member_id, "")


class TestProtocols:
    def test_the_votes_count(self) -> None:
        members = Members()
        members.join("a", protocols=(("range", b""), ("sticky", b"")))
        members.join("b", protocols=(("sticky", b""), ("range", b"")))
        members.join("c", protocols=(("sticky", b""), ("range", b"")))
        members.advance(1)
        assert members.answer("c").protocol == "sticky"

    def test_only_what_all_know_counts(self) -> None:
        members = Members()
        members.join("a", protocols=(("x", b""), ("range", b"")))
        members.join("b", protocols=(("x", b""), ("y", b""), ("range", b"")))
        assert members.join("c", protocols=(("y", b""),)).error == ErrorCode.inconsistent_group_protocol
        members.join("d", protocols=(("range", b""),))
        members.advance(1)
        assert members.answer("d").protocol == "range"

    @pytest.mark.parametrize(
        "fields",
        [
            {"protocols": ()},
            {"protocol_type": ""},
            {"protocol_type": "connect"},
            {"protocols": (("range", b"1"), ("range", b"2"))},
        ],
    )
    def test_what_does_not_fit_is_refused(self, fields: dict[str, Any]) -> None:
        members = Members().stable("a")
        assert members.join("b", **fields).error == ErrorCode.inconsistent_group_protocol

    def test_sync_names_them_too(self) -> None:
        members = Members().stable("a")
        assert members.sync("a", protocol_type="consumer", protocol="range").assignment == b"a"
        wrong = ErrorCode.inconsistent_group_protocol
        assert members.sync("a", protocol_type="connect").error == wrong
        assert members.sync("a", protocol="sticky").error == wrong

    def test_an_empty_group_takes_any(self) -> None:
        members = Members().stable("a")
        members.leave("a")
        assert members.join("b", protocol_type="connect", protocols=(("eager", b""),)) is None


class TestSessions:
    def test_heartbeats_and_commits_keep_it_alive(self) -> None:
        members = Members().stable("a", "b")
        for number in range(10):
            members.advance(60)
            assert members.heartbeat("a") == NONE
            assert (members.commit if number % 2 else members.heartbeat)("b") == NONE
        members.advance(60)
        assert members.heartbeat("a") == NONE
        members.advance(40)
        assert members.state is P
        assert members.heartbeat("b") == ErrorCode.unknown_member_id

    def test_who_waits_is_not_expected_to_call(self) -> None:
        members = Members().stable("a", "b", session_timeout_ms=100)
        assert members.join("a") is None
        members.advance(60)
        assert members.heartbeat("b") == ErrorCode.rebalance_in_progress
        members.advance(60)
        assert members.heartbeat("b") == ErrorCode.rebalance_in_progress
        members.advance(60)
        assert members.join("b").generation_id == 2  # a is still in it
        assert members.answer("a").generation_id == 2

    def test_the_last_one_leaves_an_empty_group(self) -> None:
        members = Members().stable("a")
        members.advance(100)
        assert (members.state, members.group.generation_id) == (E, 2)
        (store,) = members.stores
        assert store.value.members == ()
        assert (store.value.protocol, store.value.leader) == (None, None)
        assert members.group.wake_at_ms is None

    def test_other_generations_are_refused(self) -> None:
        members = Members().stable("a")
        for generation_id in (0, 2):
            assert members.heartbeat("a", generation_id=generation_id) == ErrorCode.illegal_generation
            assert members.commit("a", generation_id=generation_id) == ErrorCode.illegal_generation
            assert members.sync("a", generation_id=generation_id).error == ErrorCode.illegal_generation


class TestLeaving:
    def test_several_at_once(self) -> None:
        members = Members().stable("a", "b", "c")
        assert members.leave("a", "x", "c") == [NONE, ErrorCode.unknown_member_id, NONE]
        assert members.state is P
        assert members.join("b").members[0].member_id == members.ids["b"]

    def test_all_at_once(self) -> None:
        members = Members().stable("a", "b")
        assert members.leave("a", "b") == [NONE, NONE]
        assert members.state is E

    def test_while_it_waits(self) -> None:
        members = Members().stable("a", "b")
        assert members.join("a") is None
        members.leave("a")
        assert members.answer("a").error == ErrorCode.unknown_member_id
        members.join("b")
        members.leave("b")
        assert members.state is E

    def test_while_it_syncs(self) -> None:
        members = Members()
        members.join("a")
        members.join("b")
        members.advance(1)
        assert members.sync("b") is None
        members.leave("b")
        assert members.answer("b:sync").error == ErrorCode.unknown_member_id


class TestStaticMembers:
    def stable(self, **fields: Any) -> Members:
        members = Members()
        for name in ("a", "b"):
            members.join(name, instance_id=f"i{name}", **fields)
        members.advance(1)
        for name in ("a", "b"):
            members.answer(name)
        members.sync("b")
        members.sync("a", {"a": b"A", "b": b"B"})
        members.stored()
        members.answers.clear()
        return members

    def restart(self, members: Members, name: str, **fields: Any) -> Any:
        """`name` has forgotten its id."""
        members.ids.pop(name)
        return members.join(name, instance_id=f"i{name}", **fields)

    def test_a_restarted_follower_takes_its_place(self) -> None:
        members = self.stable()
        old = members.ids["b"]
        assert self.restart(members, "b") is None
        assert len(members.stores) == 1  # first durable, then shown
        members.stored()
        answer = members.answer("b")
        assert (answer.generation_id, members.state) == (1, S)
        assert answer.member_id != old
        assert members.sync("b").assignment == b"B"
        assert members.group.heartbeat(old, "ib", 1, members.now) == ErrorCode.fenced_instance_id
        assert members.group.heartbeat(old, None, 1, members.now) == ErrorCode.unknown_member_id

    def test_a_restarted_leader_is_told_that_another_leads(self) -> None:
        members = self.stable()
        old = members.ids["a"]
        self.restart(members, "a")
        members.stored()
        answer = members.answer("a")
        assert (answer.leader, answer.members, answer.skip_assignment) == (old, (), False)
        assert members.group.roster.leader == answer.member_id

    def test_or_to_skip_the_assignment_if_it_knows_how(self) -> None:
        members = self.stable()
        self.restart(members, "a", can_skip_assignment=True)
        members.stored()
        answer = members.answer("a")
        assert (answer.leader, answer.skip_assignment) == (answer.member_id, True)
        assert len(answer.members) == 2

    def test_a_new_id_that_cannot_be_stored_is_not_shown(self) -> None:
        members = self.stable()
        self.restart(members, "b")
        members.stored(ErrorCode.coordinator_not_available)
        answer = members.answer("b")
        assert (answer.error, answer.member_id) == (ErrorCode.coordinator_not_available, "")

    def test_two_with_the_same_instance_id(self) -> None:
        members = self.stable()
        members.join("a")
        assert members.join("twin", instance_id="ia") is None
        assert members.answer("a").error == ErrorCode.fenced_instance_id

    def test_a_twin_during_the_assignment(self) -> None:
        members = Members()
        members.join("a", instance_id="ia")
        members.advance(1)
        members.answer("a")
        members.sync("a", {"a": b"A"})
        assert members.join("twin", instance_id="ia").generation_id == 2
        assert members.answer("a:sync").error == ErrorCode.fenced_instance_id
        assert members.state is C

    def test_another_protocol_makes_a_rebalance(self) -> None:
        members = self.stable()
        self.restart(members, "b", protocols=(("sticky", b"m"),))
        assert members.state is P

    def test_other_topics_make_a_rebalance(self) -> None:
        orders = b"\x00\x01\x00\x00\x00\x01\x00\x06orders"
        members = self.stable(protocols=(("range", orders),))
        assert self.restart(members, "b", protocols=(("range", orders + b"user data"),)) is None
        assert members.state is S
        members.stored()
        members.answer("b")
        self.restart(members, "b", protocols=(("range", orders.replace(b"orders", b"others")),))
        assert members.state is P

    def test_a_rebalance_while_the_new_id_is_stored(self) -> None:
        members = self.stable()
        assert self.restart(members, "b") is None
        members.join("c")
        members.stored()
        assert "b" not in members.answers
        members.join("a", instance_id="ia")
        assert members.answer("b").generation_id == 2

    def test_the_rebalance_timeout_does_not_end_it_the_session_does(self) -> None:
        members = self.stable(session_timeout_ms=1_000)
        members.join("c", session_timeout_ms=1_000)
        members.advance(300)
        assert members.state is C
        assert len(members.answer("c").members) == 3
        assert members.answers == {}

    def test_if_none_of_them_joins_the_group_waits_for_their_sessions(self) -> None:
        members = self.stable(session_timeout_ms=700)
        members.leave("b")
        members.advance(650)
        assert members.state is P
        members.advance(100)
        assert members.state is E

    def test_an_administrator_removes_one(self) -> None:
        members = self.stable()
        errors, effects = members.group.leave(
            [Leaving(member_id="", instance_id="ib"), Leaving(member_id="", instance_id="ix")], members.now
        )
        members.take(effects)
        assert errors == [NONE, ErrorCode.unknown_member_id]
        assert members.state is P

    def test_ids_that_do_not_belong_together(self) -> None:
        members = self.stable()
        fenced, unknown = ErrorCode.fenced_instance_id, ErrorCode.unknown_member_id
        assert members.heartbeat("a", instance_id="ib") == fenced
        assert members.commit("a", instance_id="ib") == fenced
        assert members.sync("a", instance_id="ib").error == fenced
        assert members.join("a", instance_id="ib").error == fenced
        assert members.heartbeat("a", instance_id="ix") == unknown


class TestSize:
    def test_a_full_group_takes_nobody(self) -> None:
        members = Members(max_size=2).stable("a", "b")
        assert members.join("c").error == ErrorCode.group_max_size_reached
        assert members.join("c", needs_member_id=True).error == ErrorCode.group_max_size_reached
        assert members.join("b").generation_id == 1

    def test_ids_given_out_count(self) -> None:
        members = Members(max_size=2).stable("a")
        pending = members.join("b", needs_member_id=True)
        assert members.join("c", needs_member_id=True).error == ErrorCode.group_max_size_reached
        assert members.join("b", member_id=pending.member_id) is None

    def test_the_last_to_join_have_to_go_when_it_was_lowered(self) -> None:
        value = Members().stable("a", "b", "c")
        members = Members(max_size=2)
        members.ids = value.ids
        join: Any = {"protocols": (("range", b"m"),)}
        members.group.restore(value_of(value), members.now)
        assert members.state is P
        assert members.join("a", **join) is None
        assert members.join("b", **join) is None
        assert members.join("c", **join).error == ErrorCode.group_max_size_reached
        assert members.answer("a").generation_id == 2


def value_of(members: Members) -> Any:
    """What the log says of a stable group."""
    group = members.group
    assignments = {one.member_id: one.assignment for one in group.roster}
    return GroupValue(
        protocol_type="consumer",
        generation_id=group.generation_id,
        protocol=group.protocol,
        leader=group.roster.leader,
        members=group.roster.stored_members(group.protocol, assignments),
    )


class TestRestoring:
    def test_members_have_fresh_sessions(self) -> None:
        before = Members().stable("a", "b")
        members = Members()
        members.ids = before.ids
        members.now_ms = 5_000
        members.group.restore(value_of(before), members.now)
        assert (members.state, members.group.generation_id, members.group.protocol) == (S, 1, "range")
        assert members.group.roster.leader == members.ids["a"]
        assert members.sync("b").assignment == b"b"
        members.advance(99)
        assert members.heartbeat("a") == NONE
        members.advance(1)
        assert members.heartbeat("b") == ErrorCode.unknown_member_id

    def test_an_empty_group(self) -> None:
        before = Members().stable("a")
        before.leave("a")
        members = Members()
        members.group.restore(before.stores[-1].value, members.now)
        assert (members.state, members.group.generation_id) == (E, 2)
        assert members.group.state_since_ms == before.group.state_since_ms
        assert not members.group.is_disposable  # it is in the log


def test_a_dead_group_answers_nothing_else() -> None:
    members = Members().stable("a", "b")
    members.join("c")
    members.take(members.group.close(ErrorCode.not_coordinator, members.now))
    assert members.answer("c").error == ErrorCode.not_coordinator
    gone = ErrorCode.coordinator_not_available
    assert members.join("a").error == gone
    assert members.join("new").error == gone
    assert members.sync("a").error == gone
    assert members.heartbeat("a") == gone
    assert members.commit("a") == gone
    assert members.commit("nobody", generation_id=-1) == gone
    assert members.leave("a", "b") == [gone, gone]
    assert members.group.wake_at_ms is None


def test_who_may_commit_without_a_group() -> None:
    members = Members()
    assert members.group.check_commit("", None, -1, members.now) == NONE
    members.stable("a")
    assert members.group.check_commit("", None, -1, members.now) == ErrorCode.unknown_member_id
    assert members.group.check_commit("", "i", -1, members.now) == ErrorCode.unknown_member_id
    members.leave("a")
    assert members.group.check_commit("", None, -1, members.now) == NONE
    assert members.group.check_commit("a", None, 1, members.now) == ErrorCode.unknown_member_id
