"""The pure group, case by case. How members join: test_rebalancing_joining.py."""

from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from sparklog_server.groups.messages import (
    SyncRequest,
    SyncResult,
)
from tests.server.groups.members import NONE, WALL_MS, C, E, Members, P, S, value_of


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


def test_a_leader_that_asks_again_is_told_the_same() -> None:
    """What its answers hold while they wait to be sent is there once."""
    members = Members()
    for name in ("a", "b"):
        members.join(name)
    members.advance(1)
    told = members.answer("a").members
    members.answer("b")
    assert members.join("a").members is told
    members.join("c")
    members.join("b")
    again = members.join("a", protocols=(("range", b"new"),))
    assert [one.metadata for one in again.members] == [b"new", b"m", b"m"]


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


class TestRestoring:
    def test_members_have_fresh_sessions(self) -> None:
        before = Members().stable("a", "b")
        members = Members()
        members.ids = before.ids
        members.now_ms = 5_000
        members.group.restore(value_of(before), members.now)
        assert (members.state, members.group.generation_id, members.group.protocol) == (S, 1, "range")
        assert members.group.members.leader == members.ids["a"]
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
