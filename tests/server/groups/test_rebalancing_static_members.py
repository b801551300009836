"""Static members (KIP-345) of the pure group: they come back with another id."""

from typing import Any

from kio.schema.errors import ErrorCode

from sparklog_server.groups.messages import (
    Leaving,
)
from tests.server.groups.members import NONE, C, E, Members, P, S


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
        assert members.group.members.leader == answer.member_id

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

    def test_those_who_come_back_meanwhile_share_the_next_write(self) -> None:
        """Each is of the whole group, and takes 59 bytes to ask for."""
        members = self.stable()
        self.restart(members, "b")
        assert self.restart(members, "a") is None
        for _ in range(2):
            before = members.join("a", instance_id="ia")
            assert before.error == ErrorCode.fenced_instance_id
        (first,) = members.stores
        stored = {one.member_id for one in first.value.members}
        assert members.group.members.static_member_id("ia") not in stored
        members.stored()
        assert members.answer("b").generation_id == 1
        assert "a" not in members.answers  # first durable, then shown
        (second,) = members.stores
        last = members.group.members.static_member_id("ia")
        assert last in {one.member_id for one in second.value.members}
        members.stored()
        assert members.answer("a").member_id == last
        assert members.stores == []

    def test_those_who_wait_for_a_write_that_fails_have_another_one(self) -> None:
        members = self.stable()
        self.restart(members, "b")
        self.restart(members, "a")
        members.stored(ErrorCode.coordinator_not_available)
        assert members.answer("b").error == ErrorCode.coordinator_not_available
        members.stored()
        assert not members.answer("a").error

    def test_who_waits_for_the_next_write_while_all_join_again_is_told_with_them(self) -> None:
        members = self.stable()
        self.restart(members, "b")
        self.restart(members, "a")
        assert members.join("c").generation_id == 2
        members.stored()
        assert members.stores == []
        for name in "ab":
            assert members.answer(name).generation_id == 2

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

    def test_members_that_ask_for_no_time_to_join_are_waited_for_in_peace(self) -> None:
        members = Members()
        for name, instance_id in (("a", None), ("b", "ib")):
            members.join(name, instance_id=instance_id, session_timeout_ms=60_000)
        members.advance(1)
        for name in ("a", "b"):
            members.answer(name)
        members.sync("b")
        members.sync("a", {"a": b"A", "b": b"B"})
        members.stored()
        self.restart(members, "b", rebalance_timeout_ms=0, session_timeout_ms=60_000)
        members.stored()
        members.leave("a")
        assert members.state is P
        ticks = 0
        while (wake_at_ms := members.group.wake_at_ms) is not None and ticks < 100:
            members.now_ms = max(members.now_ms, wake_at_ms)
            members.take(members.group.tick(members.now))
            ticks += 1
        assert ticks < 100  # until the session is over
        assert (members.state, len(members.group.members)) == (E, 0)
