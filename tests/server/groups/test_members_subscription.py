"""The topics that members subscribe to: walked over once, gone through once for all that have the same."""

import struct
from typing import Any

import pytest

from sparklog_server.groups import members as group_members
from sparklog_server.groups import messages
from sparklog_server.groups.messages import names_in, topics_end, topics_of
from tests.server.groups.members import Members


def subscription_to(*topics: str, version: int = 1, user_data: bytes = b"") -> bytes:
    named = b"".join(struct.pack(">h", len(one.encode())) + one.encode() for one in topics)
    return struct.pack(">hi", version, len(topics)) + named + struct.pack(">i", len(user_data)) + user_data


@pytest.mark.parametrize("topics", [(), ("a",), ("orders", "returns", "ö" * 100), ("",), ("x" * 300, "y")])
def test_names_come_back(topics: tuple[str, ...]) -> None:
    found = topics_of(subscription_to(*topics, user_data=b"anything"))
    assert found is not None
    assert [one.decode() for one in names_in(found)] == list(topics)
    assert found == topics_of(subscription_to(*topics, version=3))


@pytest.mark.parametrize(
    "hostile",
    [
        b"",
        b"metadata",
        b"\x00\x01\x00\x00\x00",
        subscription_to("a", version=-1),
        struct.pack(">hi", 1, -1),
        struct.pack(">hi", 1, 1 << 30) + bytes(100),
        struct.pack(">hih", 1, 1, 5) + b"four",
        struct.pack(">hih", 1, 1, -1) + bytes(70_000),
        struct.pack(">hib", 1, 1, 0),
        struct.pack(">hihh", 1, 3, 0, 0) + b"\x00",
    ],
)
def test_what_is_no_subscription_is_none(hostile: bytes) -> None:
    assert topics_end(hostile) is None
    assert topics_of(hostile) is None


def stable(*subscriptions: bytes) -> Members:
    members = Members()
    for number, data in enumerate(subscriptions):
        members.join(f"m{number}", protocols=(("range", data),))
    members.advance(1)
    members.advance(1)
    members.sync("m0", {})
    members.stored()
    return members


def test_which_topics_are_subscribed_to() -> None:
    group = stable(subscription_to("a", "b"), subscription_to("b", "ö")).group
    assert group.subscribed_among({"a", "ö", "x"}) == frozenset(("a", "ö"))
    assert group.subscribed_among(()) == frozenset()
    assert stable(subscription_to("a"), b"user data").group.subscribed_among({"x"}) is None


def test_a_subscription_is_walked_over_when_it_comes(monkeypatch: pytest.MonkeyPatch) -> None:
    """35 bytes asked for it again and again: 20 members with 7,000 topics each took 400 ms."""
    members = stable(subscription_to("a"), subscription_to("b"))
    members.answers.clear()
    members.join("m1", protocols=(("range", subscription_to("other", "c")),))
    members.join("m0", protocols=(("range", subscription_to("a")),))

    def walk(*_: Any) -> None:
        raise AssertionError("it was walked over before")

    monkeypatch.setattr(group_members, "topics_end", walk)
    assert members.group.subscribed_among({"a", "b", "c"}) == frozenset(("a", "c"))


def test_the_same_topics_are_gone_through_once(monkeypatch: pytest.MonkeyPatch) -> None:
    gone_through = []

    def names(topics: bytes) -> Any:
        gone_through.append(topics)
        return names_in(topics)

    monkeypatch.setattr(messages, "names_in", names)
    group = stable(*(subscription_to("a", user_data=bytes([number])) for number in range(5))).group
    assert group.subscribed_among({"a"}) == frozenset(("a",))
    assert len(gone_through) == 1


def test_who_asks_for_no_topic_goes_through_none(monkeypatch: pytest.MonkeyPatch) -> None:
    """OffsetDelete of topics that there are not."""

    def look(*_: Any) -> None:
        raise AssertionError("nothing was asked for")

    group = stable(subscription_to("a")).group
    monkeypatch.setattr(group_members, "topics_of", look)
    assert group.subscribed_among(()) == frozenset()


def test_too_many_topics_are_perhaps_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(messages, "MOST_TOPICS", 3)
    assert stable(*[subscription_to("a", "b", "c")] * 3).group.subscribed_among({"x"}) == frozenset()
    others = stable(subscription_to("a", "b"), subscription_to("c", "d")).group
    assert others.subscribed_among({"x"}) is None
