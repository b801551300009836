"""Where verdicts are recorded: the log `kafka.authorizer.logger`, and events for the topic __audit.

Levels are Kafka's: a denied request INFO, an allowed one DEBUG, and TRACE what only filters a listing.

Invariants: one request logs at most MAX_DENIALS denials, whatever it names; the buffer of events is bounded,
    and what does not fit is counted.
Not here: the verdicts (access.py), appending events to the topic (security/audit_topic.py).
Concurrency: event loop; the buffer is emptied by a thread.
Sources: Kafka StandardAuthorizerData.buildAuditMessage, logAuditMessage.
"""

import json
import logging
import threading
from collections import deque
from collections.abc import Mapping
from typing import Final, NamedTuple

from sparklog.client.authorizer import Verdict
from sparklog.clock import Clock
from sparklog.metadata import ResourceType
from sparklog_server.settings.access import AccessSettings

log = logging.getLogger("kafka.authorizer.logger")
AUDIT_TOPIC = "__audit"
TRACE = 5
MAX_DENIALS: Final = 100
MAX_TEXT: Final = 1_000  # characters of a name or client id in an event
_TYPE_NAMES: Mapping[str, str] = {
    ResourceType.TOPIC: "Topic",
    ResourceType.GROUP: "Group",
    ResourceType.CLUSTER: "Cluster",
    ResourceType.TRANSACTIONAL_ID: "TransactionalId",
    ResourceType.DELEGATION_TOKEN: "DelegationToken",
    ResourceType.USER: "User",
}


class Asked(NamedTuple):
    """A question to the authorizer."""

    principal: str
    host: str
    client_id: str
    api: str
    operation: str
    resource_type: str
    name: str
    references: int


class Audit:
    """See the module's docstring."""

    def __init__(self, settings: AccessSettings, clock: Clock) -> None:
        self._as_json = settings.audit_format == "json"
        self._has_topic = settings.audit_topic_enable and settings.is_on
        self._with_allowed = settings.audit_topic_allowed
        self._clock = clock
        self._lock = threading.Lock()
        self._events: deque[bytes] = deque()
        self._most = settings.audit_buffer
        self.dropped = 0  # since they were last taken
        self.dropped_ever = 0

    def is_own_topic(self, name: str) -> bool:
        """True if only brokers may append to the topic."""
        return self._has_topic and name == AUDIT_TOPIC

    @property
    def wants_allowed(self) -> bool:
        """True if allowed requests are recorded."""
        return (self._has_topic and self._with_allowed) or log.isEnabledFor(logging.DEBUG)

    def wants(self, *, is_allowed: bool) -> bool:
        """True if such a verdict is recorded; otherwise an allowed request costs no more than its check."""
        if is_allowed:
            return self.wants_allowed
        return self._has_topic or log.isEnabledFor(logging.INFO)

    def note(self, asked: Asked, verdict: Verdict, *, is_filter: bool = False) -> None:
        """Tell a verdict; `is_filter`: nothing was asked for by its name."""
        level = TRACE if is_filter else logging.DEBUG if verdict.is_allowed else logging.INFO
        if log.isEnabledFor(level):
            log.log(level, "%s", self._json(asked, verdict) if self._as_json else _text(asked, verdict))
        if self._has_topic and not is_filter and (self._with_allowed or not verdict.is_allowed):
            self._keep(self._json(asked, verdict).encode())

    def note_more(self, asked: Asked) -> None:
        """Tell that a request has more denials than are logged."""
        log.info(
            "Principal = %s from host = %s for request = %s: more than %d denials, the others are not logged",
            asked.principal,
            asked.host,
            asked.api,
            MAX_DENIALS,
        )

    def take(self) -> tuple[list[bytes], int]:
        """Return the waiting events, and how many were dropped; any thread."""
        with self._lock:
            events, dropped = list(self._events), self.dropped
            self._events.clear()
            self.dropped = 0
        return events, dropped

    def give_back(self, events: list[bytes], dropped: int) -> None:
        """Keep events that could not be appended, as far as there is room."""
        with self._lock:
            self.dropped += dropped
            for event in reversed(events):
                if len(self._events) >= self._most:
                    self.dropped += 1
                    self.dropped_ever += 1
                else:
                    self._events.appendleft(event)

    def _keep(self, event: bytes) -> None:
        with self._lock:
            if len(self._events) >= self._most:
                self.dropped += 1
                self.dropped_ever += 1
            else:
                self._events.append(event)

    def _json(self, asked: Asked, verdict: Verdict) -> str:
        return json.dumps(
            {
                "time_ms": self._clock.now_ms(),
                "principal": asked.principal[:MAX_TEXT],
                "host": asked.host,
                "client_id": asked.client_id[:MAX_TEXT],
                "request": asked.api,
                "operation": asked.operation,
                "resource_type": asked.resource_type,
                "resource": asked.name[:MAX_TEXT],
                "resource_ref_count": asked.references,
                "allowed": verdict.is_allowed,
                "rule": verdict.rule,
            }
        )


def _text(asked: Asked, verdict: Verdict) -> str:
    return (
        f"Principal = {asked.principal} is {'Allowed' if verdict.is_allowed else 'Denied'} "
        f"operation = {asked.operation} from host = {asked.host} on resource = "
        f"{_TYPE_NAMES[asked.resource_type]}:LITERAL:{asked.name[:MAX_TEXT]} for request = {asked.api} with "
        f"resourceRefCount = {asked.references} based on rule {verdict.rule}"
    )
