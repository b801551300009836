"""Share sessions: epochs, owners and bounds."""

import pytest

from sparklog_server.protocol.apis import ErrorCode
from sparklog_server.share import sessions as module
from sparklog_server.share.sessions import (
    FINAL_EPOCH,
    MAX_EPOCH,
    MAX_OF_CONNECTION,
    ShareSession,
    ShareSessions,
)

KEY = ("g", "m")
PLACES = [("t", 0), ("t", 1), ("t", 2)]


@pytest.fixture
def sessions() -> ShareSessions:
    return ShareSessions(max_sessions=2)


def begun(sessions: ShareSessions, key: tuple[str, str] = KEY, owner: int = 1) -> ShareSession:
    session = sessions.begin(key, owner)
    assert isinstance(session, ShareSession)
    return session


def test_epochs(sessions: ShareSessions) -> None:
    assert sessions.next(KEY, 1, 1) is ErrorCode.share_session_not_found
    session = begun(sessions)
    assert sessions.next(KEY, 2, 1) is ErrorCode.invalid_share_session_epoch
    assert sessions.next(KEY, 1, 1) is session
    assert sessions.next(KEY, 1, 1) is ErrorCode.invalid_share_session_epoch
    assert sessions.next(KEY, FINAL_EPOCH, 1) is session
    assert session.epoch == 2
    session.epoch = MAX_EPOCH
    assert sessions.next(KEY, MAX_EPOCH, 1) is session
    assert session.epoch == 1


def test_a_member_has_one_session(sessions: ShareSessions) -> None:
    first = begun(sessions)
    sessions.change(first, PLACES, ())
    assert begun(sessions) is not first
    assert (len(sessions), sessions.partition_count) == (1, 0)


def test_sessions_have_a_bound(sessions: ShareSessions, monkeypatch: pytest.MonkeyPatch) -> None:
    session = begun(sessions)
    begun(sessions, ("g", "n"))
    assert sessions.begin(("g", "o"), 1) is ErrorCode.share_session_limit_reached
    for bound in ("MAX_PARTITIONS", "MAX_PARTITIONS_OF_CONNECTION"):
        with monkeypatch.context() as patch:
            patch.setattr(module, bound, 2)
            assert not sessions.change(session, PLACES, ())
            assert (
                not session.partitions
            )  # else a member would wait for records of the others, without an error
            assert sessions.change(session, PLACES[:2], ())
            assert sessions.change(session, PLACES[:2], PLACES[:2])


def test_a_connection_has_few_sessions() -> None:
    """Members may be invented: one client must not take the sessions of all."""
    sessions = ShareSessions(max_sessions=1_000)
    for number in range(MAX_OF_CONNECTION):
        begun(sessions, ("g", str(number)))
    assert sessions.begin(KEY, 1) is ErrorCode.share_session_limit_reached
    begun(sessions, ("g", "0"))  # in place of its last one
    other = begun(sessions, owner=2)
    assert sessions.next(KEY, 1, 1) is ErrorCode.share_session_limit_reached
    assert sessions.next(KEY, 1, 2) is other


def test_a_connection_takes_over_no_more_partitions_than_it_may_have(
    sessions: ShareSessions, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MAX_PARTITIONS_OF_CONNECTION", 4)
    session, other = begun(sessions), begun(sessions, ("g", "n"), owner=2)
    assert sessions.change(session, PLACES, ())
    assert sessions.change(other, PLACES[:2], ())
    assert sessions.next(KEY, 1, 2) is ErrorCode.share_session_limit_reached
    assert (session.owner, session.epoch) == (1, 1)  # nothing has changed
    assert sessions.change(other, (), PLACES[:1])
    assert sessions.next(KEY, 1, 2) is session
    assert not sessions.change(other, PLACES[:1], ())


def test_partitions_come_in_turn(sessions: ShareSessions) -> None:
    session = begun(sessions)
    assert sessions.change(session, [*PLACES, PLACES[0]], [PLACES[1], ("t", 9)])
    assert sessions.partition_count == 2
    assert session.rotated() == [PLACES[0], PLACES[2]]
    assert session.rotated() == [PLACES[2], PLACES[0]]
    assert ShareSession(KEY, 1).rotated() == []


def test_a_connection_takes_its_sessions_along(sessions: ShareSessions) -> None:
    session = begun(sessions)
    other = begun(sessions, ("g", "n"), owner=2)
    assert sessions.next(KEY, 1, 2) is session
    assert sessions.end_of(1) == []
    assert sessions.end_of(2) in ([session, other], [other, session])
    assert len(sessions) == 0
    assert sessions.end(KEY) is None
