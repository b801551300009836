"""The network side of the broker: its listeners, its connections, and who looks after them.

Not here: what is done with a request (api/), how a connection goes (connection.py).
Concurrency: event loop. One task per listener, one per connection, one that looks at all connections every
    so often: idle ones, clients that send or take their bytes too slowly, clients that left while waiting.
Sources: Kafka SocketServer.
"""

import asyncio
import logging
import socket
from collections.abc import Callable
from typing import Any

from sparklog.clock import Clock
from sparklog_server.metrics import Gauge, Metrics
from sparklog_server.network.connection import Connection
from sparklog_server.network.exchange import Dispatch
from sparklog_server.network.limits import ByteBudget, ConnectionQuota
from sparklog_server.network.listener import Listener
from sparklog_server.network.shared import RunBlocking, Shared
from sparklog_server.settings.addresses import AdvertisedListener
from sparklog_server.settings.network import NetworkSettings

_log = logging.getLogger("sparklog_server.network")
LOOK_MS = 1000
ANSWERED_WITHIN_S = 1.0  # what is being worked on when clients begin to be refused


class Network:
    """See the module's docstring."""

    def __init__(
        self,
        settings: NetworkSettings,
        dispatch: Dispatch,
        *,
        clock: Clock,
        metrics: Metrics,
        run_blocking: RunBlocking,
        on_closed: Callable[[int], None],
    ) -> None:
        """`on_closed`: called with a connection's number when it is gone."""
        self.shared = Shared(
            settings=settings,
            dispatch=dispatch,
            clock=clock,
            metrics=metrics,
            run_blocking=run_blocking,
            budget=ByteBudget(settings.queued_max_request_bytes),
            quota=ConnectionQuota(
                settings.max_connections, settings.max_connections_per_ip, settings.per_ip_overrides()
            ),
        )
        self.listeners: list[Listener] = []
        self.connections: dict[int, Connection] = {}
        self._on_closed = on_closed
        self._tasks: set[asyncio.Task[Any]] = set()
        self._next_number = 1
        self._refuses = self._accepts = False
        self.looks = 0  # how often all connections were looked at
        metrics.gauge(Gauge.CONNECTION_COUNT, lambda: len(self.connections))

    def bind(self) -> None:
        """Take the listeners' ports, so that they are known. Clients are refused yet."""
        for one in self.shared.settings.parsed_listeners():
            listener = Listener(self.shared, one, self.add_connection)
            listener.bind()
            self.listeners.append(listener)

    def change(self, settings: NetworkSettings) -> None:
        """Have these limits of connections from now on."""
        self.shared.quota.change(
            settings.max_connections, settings.max_connections_per_ip, settings.per_ip_overrides()
        )

    def start(self) -> None:
        """Listen, unless told to refuse, and accept connections."""
        self._accepts = True
        if not self._refuses:
            self.listen()
        for listener in self.listeners:
            self._keep(asyncio.create_task(listener.accept()))
        self._keep(asyncio.create_task(self._look_after_connections()))

    def listen(self) -> None:
        """Have clients connect again; once it has started, and until it stops."""
        self._refuses = False
        if self._accepts:
            for listener in self.listeners:
                listener.listen()

    def refuse(self, why: str) -> None:
        """As a broker that is dead: let go of all clients, and refuse new ones, until `listen` is called.

        What is being worked on, and answered within a second, is answered still; who waits is not (Fetch).
        """
        _log.warning("clients are refused, and %d connections ended: %s", len(self.connections), why)
        self._refuses = True
        for listener in self.listeners:
            listener.refuse()
        for connection in list(self.connections.values()):
            connection.drain(why)
            asyncio.get_running_loop().call_later(ANSWERED_WITHIN_S, connection.close, why)

    async def stop(self, timeout_ms: int) -> None:
        """Accept no more; let requests in progress be answered, for so long; close."""
        self._accepts = False
        for task in self._tasks:
            if task not in self._connection_tasks():
                task.cancel()
        for listener in self.listeners:
            listener.close()
        for connection in list(self.connections.values()):
            connection.drain("the broker is shutting down")
        if self._connection_tasks():
            await asyncio.wait(self._connection_tasks(), timeout=timeout_ms / 1000)
        for connection in list(self.connections.values()):
            _log.warning("%s: not done in time", connection)
            connection.abort()
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=1)

    def advertised(self) -> list[AdvertisedListener]:
        """Where clients reach this broker, per listener."""
        return [listener.advertised for listener in self.listeners]

    def add_connection(self, sock: socket.socket, peer_host: str, listener: AdvertisedListener) -> None:
        """Serve an accepted socket; its address is counted already."""
        number = self._next_number
        self._next_number += 1
        connection = Connection(self.shared, sock, number, peer_host, listener)
        self.connections[number] = connection
        self._keep(asyncio.create_task(self._run(connection), name=f"connection-{number}"))

    # --- internals ----------------------------------------------------------------------------------

    async def _run(self, connection: Connection) -> None:
        try:
            await connection.run()
        finally:
            del self.connections[connection.number]
            self._on_closed(connection.number)
            self.shared.quota.remove(connection.peer_host)

    def _keep(self, task: "asyncio.Task[Any]") -> None:
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _connection_tasks(self) -> set["asyncio.Task[Any]"]:
        return {task for task in self._tasks if task.get_name().startswith("connection-")}

    async def _look_after_connections(self) -> None:
        idle_ms = self.shared.settings.connections_max_idle_ms
        patience_ms = self.shared.settings.socket_request_timeout_ms
        while True:
            await asyncio.sleep(min(LOOK_MS, idle_ms / 4, patience_ms / 4) / 1000)
            now_ms = self.shared.clock.monotonic_ms()
            for connection in list(self.connections.values()):
                self._look_after(connection, now_ms, idle_ms, patience_ms)
            self.looks += 1

    @staticmethod
    def _look_after(connection: Connection, now_ms: int, idle_ms: int, patience_ms: int) -> None:
        started_ms = connection.reader.started_ms
        stuck_ms = connection.writer.waiting_since_ms
        if started_ms is not None and now_ms - started_ms > patience_ms:
            connection.close(f"a request not complete after {patience_ms} ms")
        elif connection.reader.is_too_slow(now_ms, patience_ms):
            connection.close("a large request that comes too slowly for the memory that it holds")
        elif stuck_ms is not None and now_ms - stuck_ms > patience_ms:
            connection.close(f"a response not taken for {patience_ms} ms")
        elif connection.writer.is_too_slow(now_ms, patience_ms):
            connection.close("a large response that is taken too slowly for the memory that it holds")
        elif connection.is_idle and now_ms - connection.reader.active_ms > idle_ms:
            connection.close(f"idle for {idle_ms} ms")
        elif connection.is_waiting and connection.is_abandoned():
            connection.close("the client left")
