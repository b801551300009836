"""The topic __audit: verdicts as records, appended by this broker every second.

Spark SQL reads them as any other topic. A record's value is the JSON of an event (audit.py); its key is the
broker's id. When events were dropped, the next append begins with a record that says how many.

Invariants: requests never wait for the topic. A failed append keeps its events, as far as the buffer has
    room; an append whose outcome is unknown is not repeated.
Not here: which verdicts are events (audit.py).
Concurrency: a task of the event loop; appends run in a storage thread.
After a crash: events of the last interval are lost; the log of the broker has them.
"""

import asyncio
import contextlib
import json
import logging

import pyarrow as pa

from sparklog.errors import FatalStorageError, InvalidRequestError, SparklogError
from sparklog_server.root.live_root import LiveRoot
from sparklog_server.security.audit import AUDIT_TOPIC, Audit
from sparklog_server.settings.access import AccessSettings

_log = logging.getLogger("sparklog_server")


class AuditTopic:
    """See the module's docstring."""

    def __init__(self, root: LiveRoot, audit: Audit, settings: AccessSettings, *, node_id: int) -> None:
        self._root = root
        self._audit = audit
        self._settings = settings
        self._key = str(node_id).encode()
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Append from now on, if the settings say so."""
        if self._settings.audit_topic_enable and self._settings.is_on:
            self._task = asyncio.create_task(self._run(), name="audit-topic")

    async def stop(self) -> None:
        """Append what waits, and end."""
        if self._task is None:
            return
        self._task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._task
        self._task = None
        await self.flush()

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(self._settings.audit_interval_ms / 1000)
            await self.flush()

    async def flush(self) -> None:
        """Append the waiting events; errors are logged."""
        events, dropped = self._audit.take()
        if not events and not dropped:
            return
        try:
            await asyncio.shield(self._root.run_apart(self._append, events, dropped))
        except FatalStorageError as error:
            _log.warning("%s: not known whether %d events were appended: %s", AUDIT_TOPIC, len(events), error)
        except SparklogError as error:
            _log.warning("%s: %d events wait, which cannot be appended: %s", AUDIT_TOPIC, len(events), error)
            self._audit.give_back(events, dropped)

    def _append(self, events: list[bytes], dropped: int) -> None:
        log = self._root.log
        if AUDIT_TOPIC not in log.image.topics:
            with contextlib.suppress(InvalidRequestError):  # another broker has just made it
                log.create_topic(AUDIT_TOPIC, 1)
        if dropped:
            _log.warning("%s: %d events were dropped: more than fit into the buffer", AUDIT_TOPIC, dropped)
            events = [json.dumps({"dropped": dropped}).encode(), *events]
        columns = {
            "key": pa.array([self._key] * len(events), pa.binary()),
            "value": pa.array(events, pa.binary()),
        }
        log.append(AUDIT_TOPIC, pa.table(columns))
