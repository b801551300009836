"""Answers that go on: a search with progress, the live tail, exports and downloads.

    GET /topics/{topic}/messages/run       a part of the page that connects to the next
    GET /topics/{topic}/messages/stream    the search, as server-sent events: rows, progress, result, end
    GET /topics/{topic}/messages/cancel    ends the search of an id; what it has found stays
    GET /topics/{topic}/messages/export    what a search finds, as a file
    GET /topics/{topic}/messages/{partition}/{offset}/{key or value}    the bytes, masked
    GET /topics/{topic}/tail/stream        the live tail, as server-sent events: rows, notices, end

Invariants: a stream ends soon after its reader has left, and its search with it; and if its reader takes
    nothing for SEND_SECONDS, since it holds a batch meanwhile. MAX_STREAMS at a time; a user has a share.
Memory: a stream holds one step of its scan, and at most one event that the reader has not taken.
Concurrency: the event loop; each step runs in one of THREADS threads, which pages do not share.
"""

import dataclasses
import logging
import secrets
import string
import threading
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from functools import partial
from typing import Any, Final
from urllib.parse import quote

import anyio
import anyio.to_thread
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response, StreamingResponse
from starlette.routing import BaseRoute, Route
from starlette.types import Message, Receive, Scope, Send

from sparklog.console.message_export import EXPORT_FORMATS, MEDIA_TYPES, export
from sparklog.console.message_pages import (
    VIEWS,
    Asked,
    Found,
    Shower,
    asked,
    filters,
    format_of,
    listed,
    partitions_of,
    read_row,
)
from sparklog.console.messages import Limits, Progress, Step, Tail, TailStep, scan
from sparklog.console.pages import environment
from sparklog.console.views import Console, Shares, Subject, user_of
from sparklog.console.views import Query as Given
from sparklog.errors import InvalidRequestError, SparklogError

_log = logging.getLogger("sparklog.console")
THREADS: Final = 4
MAX_STREAMS: Final = 16
MAX_SEARCHES: Final = 64  # whose ids are known
PROGRESS_MS: Final = 250
TAIL_SECONDS: Final = 0.25  # between two polls
HEARTBEAT_SECONDS: Final = 5.0  # a write shows that the reader has left
SEND_SECONDS: Final = 60.0  # a piece is at most SENT_PIECE, so 17 kB/s are enough
SENT_PIECE: Final = 1 << 20
EXPORT_RECORDS: Final = 100_000
_DOWNLOAD_PIECE: Final = 1 << 20


class Streams:
    """The routes; see the module's docstring."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._templates = environment()
        self._limiter: anyio.CapacityLimiter | None = None
        self._open = Shares()
        self._cancelled: dict[tuple[str, str], threading.Event] = {}  # by topic and id
        self._is_ending = False
        console.at_end(self.end)

    def routes(self) -> list[BaseRoute]:
        topic = "/topics/{topic}"
        return [
            Route(f"{topic}/messages/run", self.run),
            Route(f"{topic}/messages/stream", self.search),
            Route(f"{topic}/messages/cancel", self.cancel),
            Route(f"{topic}/messages/export", self.export),
            Route(f"{topic}/messages/{{partition}}/{{offset}}/{{field}}", self.download),
            Route(f"{topic}/tail/stream", self.tail),
        ]

    def end(self) -> None:
        """End tails and searches, since the server stops."""
        self._is_ending = True

    def _render(self, template: str, request: Request, **values: Any) -> str:
        base = quote(request.scope.get("root_path", ""))
        return self._templates.get_template(template).render(
            base=base, given=dict(request.query_params), **values
        )

    async def _in_thread(self, work: Callable[[], Any]) -> Any:
        if self._limiter is None:  # belongs to the event loop
            self._limiter = anyio.CapacityLimiter(THREADS)
        return await anyio.to_thread.run_sync(work, limiter=self._limiter)

    # --- search

    async def run(self, request: Request) -> Response:
        """Return the part of the page that starts the search, or that says what is wrong with it."""
        given = _given(request)

        def part() -> str:
            try:
                wanted = asked(given.name("topic"), given)
                scan(self._console.log, wanted.query, image=self._console.image)
            except SparklogError as error:
                return self._render("message_error.html", request, error=error)
            return self._render(
                "message_run.html", request, topic=given.name("topic"), id=secrets.token_hex(16)
            )

        base = request.scope.get("root_path", "")
        address = quote(f"{base}/topics/{given.name('topic')}/messages")  # both are decoded
        if query := request.scope["query_string"]:
            address += f"?{quote(query, safe=string.punctuation)}"
        return HTMLResponse(await self._in_thread(part), headers={"hx-push-url": address})

    async def search(self, request: Request) -> Response:
        """Search; the events are described in the module's docstring."""
        given = _given(request)
        topic, identity = _identity(given)
        wanted = asked(topic, given)
        cancelled = threading.Event()
        masks = self._console.rules.masks_of(topic)
        steps = await self._in_thread(
            lambda: scan(
                self._console.log,
                wanted.query,
                masks,
                image=self._console.image,
                is_cancelled=lambda: self._is_ending or cancelled.is_set(),
            )
        )
        if identity:
            self._cancelled[topic, identity] = cancelled
        while len(self._cancelled) > MAX_SEARCHES:
            del self._cancelled[next(iter(self._cancelled))]

        def end() -> None:
            cancelled.set()
            if self._cancelled.get((topic, identity)) is cancelled:
                del self._cancelled[topic, identity]

        return self._events(request, self._search_events(request, wanted, steps), end)

    def _search_events(self, request: Request, wanted: Asked, steps: Iterator[Step]) -> Iterator[bytes]:
        topic, console = wanted.query.topic, self._console
        shower = Shower(console.rules, topic, wanted.format)
        found = Found(wanted)
        progress = Progress()
        shown, reported_ms = 0, console.log.clock.monotonic_ms()
        try:
            for step in steps:
                progress = step.progress
                new = found.add(step)[: wanted.records - shown]
                shown += len(new)
                if new:
                    rows = [shower.view(message) for message in new]
                    yield _event("rows", self._render("message_rows.html", request, topic=topic, rows=rows))
                now_ms = console.log.clock.monotonic_ms()
                if now_ms - reported_ms >= PROGRESS_MS:
                    reported_ms = now_ms
                    yield _event(
                        "progress", self._render("message_progress.html", request, progress=progress)
                    )
        except SparklogError as error:
            yield _event("result", self._render("message_error.html", request, error=error))
        else:
            page = listed(console, topic, wanted, found, progress)
            yield _event("result", self._render("message_result.html", request, found=page))
        yield _event("end", "")

    async def cancel(self, request: Request) -> Response:
        """End a search."""
        cancelled = self._cancelled.get(_identity(_given(request)))
        if cancelled is not None:
            cancelled.set()
        return Response(status_code=204)

    # --- tail

    async def tail(self, request: Request) -> Response:
        """Follow the topic; the events are described in the module's docstring."""
        if request.method == "HEAD":  # it would never end
            return Response(media_type="text/event-stream")
        given = _given(request)
        topic = given.name("topic")
        masks = self._console.rules.masks_of(topic)
        shower = Shower(self._console.rules, topic, format_of(given))
        tail = await self._in_thread(
            lambda: Tail(
                self._console.log,
                topic,
                partitions_of(given),
                filters(given),
                masks,
                newest=lambda: self._console.image,
            )
        )
        events = self._tail_events(request, topic, tail, shower)
        return self._stream(request, events, _nothing, "text/event-stream")

    async def _tail_events(
        self, request: Request, topic: str, tail: Tail, shower: Shower
    ) -> AsyncIterator[bytes]:
        written = anyio.current_time()
        yield _event("notices", "")  # the page shows that it is connected
        while not self._is_ending:
            try:
                step = await self._in_thread(tail.poll)
            except SparklogError as error:
                step = TailStep(found=[], ended=str(error))
            events = await self._in_thread(partial(self._tail_step, request, topic, step, shower))
            if events or anyio.current_time() - written >= HEARTBEAT_SECONDS:
                yield events or b": nothing new\n\n"
                written = anyio.current_time()
            if step.ended:
                yield _event("end", "")
                return
            await anyio.sleep(TAIL_SECONDS)

    def _tail_step(self, request: Request, topic: str, step: TailStep, shower: Shower) -> bytes:
        events = b""
        if step.dropped or step.problems or step.ended:
            events += _event("notices", self._render("tail_notices.html", request, step=step))
        if step.found:
            newest_first = [shower.view(message) for message in reversed(step.found)]
            events += _event(
                "rows", self._render("message_rows.html", request, topic=topic, rows=newest_first)
            )
        return events

    # --- files

    async def export(self, request: Request) -> Response:
        """Search without a limit of time, and send what is found."""
        given = _given(request)
        topic, wanted = given.name("topic"), given.text("file", "csv")
        if wanted not in EXPORT_FORMATS:
            raise InvalidRequestError(
                "INVALID_OPTION",
                f"file: found {wanted[:40]!r}, expected one of {', '.join(EXPORT_FORMATS)}",
                fix="choose one of them",
            )
        query = asked(topic, given).query
        most = given.number("most", EXPORT_RECORDS)
        query = dataclasses.replace(query, limits=Limits(records=max(1, most), bytes=None, seconds=None))
        cancelled = threading.Event()
        steps = await self._in_thread(
            lambda: scan(
                self._console.log,
                query,
                self._console.rules.masks_of(topic),
                image=self._console.image,
                is_cancelled=cancelled.is_set,
            )
        )
        pieces = export(steps, wanted)
        headers = _attachment(f"{topic}.{wanted}")
        sent = self._in_threads(pieces)
        return self._stream(request, sent, cancelled.set, MEDIA_TYPES[wanted], headers)

    async def download(self, request: Request) -> Response:
        """Send the bytes of a key or a value."""
        given = _given(request)
        field = given.name("field")
        if field not in {"key", "value"}:
            raise HTTPException(404)
        rows = await self._in_thread(lambda: read_row(self._console, given))
        data = rows.column(field)[0].as_buffer()
        if data is None:
            raise HTTPException(404, f"the {field} is null")
        name = f"{given.name('topic')}-{given.name('partition')}-{given.name('offset')}-{field}.bin"
        view = memoryview(data)

        async def pieces() -> AsyncIterator[bytes]:
            for at in range(0, len(view), _DOWNLOAD_PIECE):
                yield bytes(view[at : at + _DOWNLOAD_PIECE])

        headers = {**_attachment(name), "content-length": str(len(view))}
        return self._stream(request, pieces(), _nothing, "application/octet-stream", headers)

    # --- streams

    def _events(self, request: Request, events: Iterator[bytes], end: Callable[[], None]) -> Response:
        return self._stream(request, self._in_threads(events), end, "text/event-stream")

    async def _in_threads(self, pieces: Iterator[bytes]) -> AsyncIterator[bytes]:
        while (piece := await self._in_thread(lambda: next(pieces, None))) is not None:
            yield piece

    def _stream(
        self,
        request: Request,
        pieces: AsyncIterator[bytes],
        end: Callable[[], None],
        media_type: str,
        headers: Mapping[str, str] | None = None,
    ) -> Response:
        user = user_of(request)
        if not self._open.take(user, MAX_STREAMS):
            end()
            raise HTTPException(503, "too many searches, tails and exports at a time; try again")

        def closed() -> None:
            self._open.give_back(user)
            end()

        return _Stream(pieces, closed, media_type, {"cache-control": "no-store", **(headers or {})})


class _Stream(StreamingResponse):
    """Calls `closed` once, also if nothing of it was read."""

    def __init__(
        self,
        pieces: AsyncIterator[bytes],
        closed: Callable[[], None],
        media_type: str,
        headers: Mapping[str, str],
    ) -> None:
        super().__init__(pieces, media_type=media_type, headers=headers)
        self._closed = closed

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        is_late = False

        async def send_in_time(message: Message) -> None:
            nonlocal is_late
            body = message.get("body", b"")
            for at in range(0, max(1, len(body)), SENT_PIECE):
                is_last = at + SENT_PIECE >= len(body)
                part = body if len(body) <= SENT_PIECE else bytes(body[at : at + SENT_PIECE])
                more = {"body": part, "more_body": message.get("more_body", False) or not is_last}
                is_late = True
                with anyio.fail_after(SEND_SECONDS):
                    await send({**message, **more} if "body" in message else message)
                is_late = False

        try:
            await super().__call__(scope, receive, send_in_time)
        except TimeoutError:
            if not is_late:
                raise
            _log.warning("%a: its reader took nothing for %g s", scope["path"], SEND_SECONDS)
        finally:
            self._closed()


def _nothing() -> None:
    """Nothing has to be ended."""


def _given(request: Request) -> Given:
    return Given(request.path_params, request.query_params)


def _identity(given: Given) -> tuple[str, str]:
    """Return the topic, and the id of the search in it; empty: it cannot be cancelled by its id."""
    return given.name("topic"), given.text("id")[:64]


def _event(name: str, data: str) -> bytes:
    lines = "".join(f"data: {line}\n" for line in data.splitlines() or [""])
    return f"event: {name}\n{lines}\n".encode()


def _attachment(name: str) -> dict[str, str]:
    """Topic names are letters, digits, dots, dashes and underscores; anything else is left out."""
    safe = "".join(char for char in name if char.isascii() and (char.isalnum() or char in "._-"))
    return {"content-disposition": f'attachment; filename="{safe}"'}


SUBJECT: Final = Subject(
    title="Messages",
    views=VIEWS,
    routes=lambda console: Streams(console).routes(),
    in_navigation=False,  # a topic's page leads to them
)
