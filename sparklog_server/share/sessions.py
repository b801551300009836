"""Share sessions: which partitions a member of a share group fetches from this broker, and its next epoch.

Invariants: a member has one session, of the connection that began it or used it last; a request of another
    epoch changes nothing; the sessions and what they hold have bounds.
Not here: acquired records (partition.py): they outlive a request, and end with the session (service.py).
Concurrency: event loop.
Sources: KIP-932; Kafka ShareSession, ShareSessionCache, SharePartitionManager.newContext.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Final

from sparklog.metadata import SharePlace
from sparklog_server.protocol.apis import ErrorCode

INITIAL_EPOCH: Final = 0
FINAL_EPOCH: Final = -1
MAX_EPOCH: Final = (1 << 31) - 1
MAX_PARTITIONS: Final = 200_000  # of all sessions
MAX_PARTITIONS_OF_CONNECTION: Final = 20_000
MAX_OF_CONNECTION: Final = 16  # a client has one: it could invent members, and take the sessions of all
MAX_MEMBER_ID_CHARACTERS: Final = 255
MAX_GROUP_CHARACTERS: Final = 10_000

SessionKey = tuple[str, str]  # group, member


@dataclass(slots=True, eq=False)
class ShareSession:
    """One member's partitions, in the order in which they are read next."""

    key: SessionKey
    owner: int
    epoch: int = INITIAL_EPOCH + 1
    partitions: dict[SharePlace, None] = field(default_factory=dict)

    def rotated(self) -> list[SharePlace]:
        """Return the partitions; next time another one comes first."""
        places = list(self.partitions)
        if places:
            del self.partitions[places[0]]
            self.partitions[places[0]] = None
        return places


class ShareSessions:
    """The sessions of this broker."""

    def __init__(self, *, max_sessions: int) -> None:
        self._max_sessions = max_sessions
        self._sessions: dict[SessionKey, ShareSession] = {}
        self._of_owner: dict[int, set[SessionKey]] = {}
        self.partition_count = 0

    def __len__(self) -> int:
        return len(self._sessions)

    def __iter__(self) -> Iterator[ShareSession]:
        return iter(self._sessions.values())

    def begin(self, key: SessionKey, owner: int) -> ShareSession | ErrorCode:
        """Begin a session, in place of the member's last one."""
        self.end(key)
        if len(self._sessions) >= self._max_sessions or self._is_full(owner):
            return ErrorCode.share_session_limit_reached
        session = self._sessions[key] = ShareSession(key, owner)
        self._of_owner.setdefault(owner, set()).add(key)
        return session

    def next(self, key: SessionKey, epoch: int, owner: int) -> ShareSession | ErrorCode:
        """Return the session for a request of this epoch, and move it on; the final one stays as it is."""
        session = self._sessions.get(key)
        if session is None:
            return ErrorCode.share_session_not_found
        if epoch == FINAL_EPOCH:
            return session
        if epoch != session.epoch:
            return ErrorCode.invalid_share_session_epoch
        if session.owner != owner and (
            self._is_full(owner)
            or self._partitions_of(owner) + len(session.partitions) > MAX_PARTITIONS_OF_CONNECTION
        ):
            return ErrorCode.share_session_limit_reached
        session.epoch = 1 if epoch == MAX_EPOCH else epoch + 1
        if session.owner != owner:
            self._disown(session)
            session.owner = owner
            self._of_owner.setdefault(owner, set()).add(key)
        return session

    def change(
        self, session: ShareSession, added: Iterable[SharePlace], forgotten: Iterable[SharePlace]
    ) -> bool:
        """Add and then remove partitions; False: they are too many, and none was added."""
        new = {place: None for place in added if place not in session.partitions}
        if new:
            if (
                self.partition_count + len(new) > MAX_PARTITIONS
                or self._partitions_of(session.owner) + len(new) > MAX_PARTITIONS_OF_CONNECTION
            ):
                return False
            session.partitions.update(new)
            self.partition_count += len(new)
        for place in forgotten:
            if place in session.partitions:
                del session.partitions[place]
                self.partition_count -= 1
        return True

    def is_current(self, session: ShareSession) -> bool:
        """True if it goes on: neither has it ended, nor has the member begun another one."""
        return self._sessions.get(session.key) is session

    def end(self, key: SessionKey) -> ShareSession | None:
        """End a member's session; None: it has none."""
        session = self._sessions.pop(key, None)
        if session is not None:
            self.partition_count -= len(session.partitions)
            self._disown(session)
        return session

    def end_of(self, owner: int) -> list[ShareSession]:
        """End the sessions of a closed connection."""
        ended = [self.end(key) for key in list(self._of_owner.get(owner, ()))]
        return [session for session in ended if session is not None]

    def _is_full(self, owner: int) -> bool:
        return len(self._of_owner.get(owner, ())) >= MAX_OF_CONNECTION

    def _partitions_of(self, owner: int) -> int:
        return sum(len(self._sessions[key].partitions) for key in self._of_owner.get(owner, ()))

    def _disown(self, session: ShareSession) -> None:
        owned = self._of_owner.get(session.owner)
        if owned is not None:
            owned.discard(session.key)
            if not owned:
                del self._of_owner[session.owner]
