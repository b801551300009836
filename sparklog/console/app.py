"""The console as an ASGI application: pages, the JSON API below /api/v1, and static files.

Works for any opened root, with no broker; a broker mounts it with the image that it follows.
Invariants: without `write` it reads only, and answers GET and HEAD. With it, forms change the root, each
    after a preview (changes.py). Every answer forbids scripts, styles and requests from elsewhere
    (Content-Security-Policy), errors included. No page of another site reads an answer: requests
    for a name that is not the console's, and those that another site makes within its pages, are refused,
    as are all its POSTs (Origin, Sec-Fetch-Site).
    Redirects name no host. At most MAX_REQUESTS are worked on or wait; more get 503. A user who is logged in
    has a share of that, and half of the threads for what reads much.
    It keeps the last hour of the lag of groups, sampled while it runs.
Concurrency: views, templates and samples run in THREADS threads, so that the event loop never waits for the
    storage; those that read much in as many others.
"""

import asyncio
import contextlib
import http
import ipaddress
import logging
from collections.abc import AsyncIterator, Callable, Collection, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeVar
from urllib.parse import quote, urlsplit

import anyio
import anyio.to_thread
import msgspec
from starlette.applications import Starlette
from starlette.convertors import Convertor, register_url_convertor
from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import HTMLResponse, PlainTextResponse, RedirectResponse, Response
from starlette.routing import BaseRoute, Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from sparklog.client import SparkLog
from sparklog.client.lag import LagHistory
from sparklog.client.security import PLAINTEXT, ClientSecurity
from sparklog.console import (
    commits,
    group_changes,
    groups,
    maintenance,
    message_streams,
    overview,
    topic_changes,
    topics,
    transactions,
)
from sparklog.console.changes import (
    CONFIRM,
    FORM,
    JSON,
    MAX_BODY,
    OUTDATED,
    Change,
    Done,
    Fields,
    Preview,
    Previews,
    read_fields,
)
from sparklog.console.history_file import HistoryFile
from sparklog.console.message_masks import MessageRules
from sparklog.console.openapi import API, description
from sparklog.console.pages import Link, environment
from sparklog.console.views import Console, MissingError, Query, Shares, Subject, View, user_of
from sparklog.errors import InvalidRequestError, SparklogError, UnknownTopicError
from sparklog.metadata import Image
from sparklog.wording import plain

SUBJECTS: Final = (
    overview.SUBJECT,
    topics.SUBJECT,
    groups.SUBJECT,
    commits.SUBJECT,
    transactions.SUBJECT,
    maintenance.SUBJECT,
)
CHANGES: Final = (*topic_changes.CHANGES, *group_changes.CHANGES)
THREADS: Final = 4
MAX_REQUESTS: Final = 32
MAX_BODIES: Final = 4
BODY_SECONDS: Final = 30.0
_PAGES, _SLOW, _CHANGES = "pages", "slow", "changes"  # each has THREADS threads
_STATIC = Path(__file__).parent / "static"
_NOT_FOUND = "COMMIT_MISSING"
_log = logging.getLogger("sparklog.console")
T = TypeVar("T")
HEADERS: Final = {
    "content-security-policy": "default-src 'self'; base-uri 'none'; form-action 'self'; "
    "frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "same-origin",  # with no-referrer browsers send forms with Origin: null
    "cross-origin-resource-policy": "same-origin",
}


def create_app(
    log: SparkLog,
    *,
    image: Callable[[], Image] | None = None,
    subjects: Sequence[Subject] = SUBJECTS,
    allowed_hosts: Sequence[str] = (),
    messages: MessageRules | None = None,
    history: LagHistory | None = None,
    history_file: Path | None = None,
    write: bool = False,
    may_delete_topics: bool = True,
    closed_topics: Collection[str] = (),
    security: ClientSecurity = PLAINTEXT,
) -> Starlette:
    """The console of an opened root, which stays the caller's. Run its lifespan: it samples the lag.

    Args:
        image: returns the newest image; by default the log is refreshed for each request.
        subjects: the pages.
        allowed_hosts: names by which browsers may call it, besides localhost and addresses; empty: any. With
            names, no page of another site can read the console through a name that it lets point here (DNS
            rebinding).
        history: of the lag, which the caller samples; by default the console does.
        history_file: a SQLite file in which the console keeps its samples (history_file.py).
        messages: show records, by these rules; None: only metadata. A server that stops calls
            `app.state.end_streams` first, since a live tail does not end by itself.
        write: let forms change the root. There is no login: only where no other machine reaches it.
        may_delete_topics: with `write`.
        closed_topics: with `write`: to these nobody appends here.
        security: how to connect to the brokers that coordinate groups, for members and changes.
    """
    if messages is not None:
        subjects = [*subjects, message_streams.SUBJECT]
    kept = LagHistory() if history is None else history
    console = Console(log, image or log.refresh, kept, messages, can_write=write)
    console.closed_topics = frozenset(closed_topics)
    console.security = security
    console.history_file = None if history_file is None else HistoryFile(history_file, log.cluster_id)
    changes = [one for one in CHANGES if write and (may_delete_topics or one is not topic_changes.DELETE)]
    server = _Server(console, subjects, changes)
    middleware = [
        Middleware(_SafeHeaders),
        Middleware(_NoForeignSites, allowed_hosts),
        Middleware(_Failures, server.internal_error),
    ]
    app = Starlette(
        routes=server.routes(),
        middleware=middleware,
        lifespan=server.sampling if history is None else None,
        exception_handlers={
            HTTPException: server.http_error,
            SparklogError: server.log_error,
            MissingError: server.missing,
            OSError: server.os_error,
        },
    )
    app.state.end_streams = console.end_streams
    return app


class _AnyText(Convertor[str]):
    """A part of a path that may have slashes and line ends in it."""

    regex = r"[\s\S]+"

    def convert(self, value: str) -> str:
        return value

    def to_string(self, value: str) -> str:
        return value


register_url_convertor("any", _AnyText())


class _SafeHeaders:
    """Adds HEADERS to every answer, and takes the host out of redirects: a proxy may have another."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers[name] = value
                headers.setdefault("cache-control", "no-cache")
                if "location" in headers:
                    headers["location"] = _without_host(headers["location"])
            await send(message)

        await self._app(scope, receive, send_with_headers)


def _without_host(address: str) -> str:
    parts = urlsplit(address)
    path = "/" + parts.path.lstrip("/")  # two slashes would begin a host
    return f"{path}?{parts.query}" if parts.query else path


class _NoForeignSites:
    """Refuses requests by which a page of another site could read the console."""

    def __init__(self, app: ASGIApp, allowed_hosts: Sequence[str]) -> None:
        self._app = app
        self._names = {_name(host) for host in allowed_hosts}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        is_http = scope["type"] == "http"
        refused = self._refused(Headers(scope=scope), scope["method"]) if is_http else None
        await (refused or self._app)(scope, receive, send)

    def _refused(self, headers: Headers, method: str) -> Response | None:
        if self._names and not self._is_known(headers.get("host", "")):
            return PlainTextResponse(
                "The console does not know the host name of this request (Host header). Use an IP address or "
                "localhost; or name the host: sparklog console --host NAME, or a broker's setting "
                "sparklog.console.hosts.\n",
                400,
            )
        is_page = (headers.get("sec-fetch-mode"), headers.get("sec-fetch-dest")) == ("navigate", "document")
        site = headers.get("sec-fetch-site")
        if site == "cross-site" and not is_page:
            return PlainTextResponse("Pages of other sites may link to the console, not load it.\n", 403)
        if method not in {"GET", "HEAD"} and not _is_own_origin(headers):
            return PlainTextResponse("Only pages of the console may change something.\n", 403)
        return None

    def _is_known(self, host: str) -> bool:
        name = _name(host)
        return name in self._names or name == "localhost" or _is_address(name)


def _is_own_origin(headers: Headers) -> bool:
    """True unless a browser says that another site made the request; other programs say nothing."""
    origin = headers.get("origin")
    is_own = origin is None or urlsplit(origin).netloc.lower() == headers.get("host", "").lower()
    return is_own and headers.get("sec-fetch-site") in {None, "same-origin"}


def _name(host: str) -> str:
    """Return the name or address in a Host header, without port, brackets and last dot, in small letters."""
    if host.startswith("["):
        return host[1:].partition("]")[0]
    name = host if host.count(":") > 1 else host.partition(":")[0]
    return name.lower().removesuffix(".")


def is_loopback(host: str) -> bool:
    """True if only this machine can reach a listener at this address or name."""
    name = _name(host)
    return name == "localhost" or (_is_address(name) and ipaddress.ip_address(name).is_loopback)


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


class _Failures:
    """Answers in place of what failed for a reason that nobody expected, unless an answer has begun."""

    def __init__(self, app: ASGIApp, answer: Callable[[Request], Response]) -> None:
        self._app = app
        self._answer = answer

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        has_begun = False

        async def watched_send(message: Message) -> None:
            nonlocal has_begun
            has_begun = True
            await send(message)

        try:
            await self._app(scope, receive, watched_send)
        except Exception:
            if has_begun or scope["type"] != "http":
                raise  # the server logs it, and cuts the answer off
            request = Request(scope)
            _log.exception("%s %a failed", request.method, request.url.path)
            await self._answer(request)(scope, receive, send)


class _Server:
    def __init__(self, console: Console, subjects: Sequence[Subject], changes: Sequence[Change]) -> None:
        self._console = console
        self._subjects = subjects
        self._changes = changes
        self._previews = Previews(console.log.clock)
        self._templates = environment()
        self._requests, self._bodies = Shares(), Shares()
        self._limiters: dict[str, anyio.CapacityLimiter] = {}
        self._own_turns: dict[str, anyio.CapacityLimiter] = {}  # of users, for what reads much

    def routes(self) -> list[BaseRoute]:
        views = [(subject, view) for subject in self._subjects for view in subject.views]
        document = msgspec.json.encode(description([view for _, view in views], self._changes))

        async def openapi(_request: Request) -> Response:
            return _json(document)

        pages = [
            Route(view.path, partial(self._page, subject, view), methods=["GET"])
            for subject, view in views
            if view.template
        ]
        api = [
            Route(f"{API}{view.api_path}", partial(self._document, view), methods=["GET"])
            for _, view in views
        ]
        others = [route for subject in self._subjects for route in subject.routes(self._console)]
        static = Mount("/static", StaticFiles(directory=_STATIC), name="static")
        described = Route(f"{API}/openapi.json", openapi, methods=["GET"])
        return [static, described, *self._change_routes(), *others, *api, *pages]

    def _change_routes(self) -> list[BaseRoute]:
        routes = []
        for change in self._changes:
            api = partial(self._preview_document, change)
            routes += [
                Route(change.path, partial(self._form, change), methods=["GET"]),
                Route(change.path, partial(self._preview, change), methods=["POST"]),
                Route(f"{API}{change.path}", api, methods=["POST"]),
            ]
        if routes:
            routes += [
                Route(CONFIRM, self._confirm, methods=["POST"]),
                Route(f"{API}{CONFIRM}", self._confirm_document, methods=["POST"]),
            ]
        return list[BaseRoute](routes)

    @contextlib.asynccontextmanager
    async def sampling(self, _app: Starlette) -> AsyncIterator[None]:
        """Sample the lag of groups until the end."""
        console, file = self._console, self._console.history_file
        if file is not None:
            await anyio.to_thread.run_sync(file.restore, console.history, console.now_ms)
            console.history.keep = file.add
        task = asyncio.create_task(self._sample())
        try:
            yield
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            if file is not None:
                await anyio.to_thread.run_sync(file.close)

    async def _sample(self) -> None:
        console = self._console
        has_failed = False
        while True:
            try:
                await anyio.to_thread.run_sync(self._take_sample, limiter=self._threads(_PAGES))
                has_failed = False
            except Exception as error:  # noqa: BLE001 - pages say what is wrong; samples go on once it is right
                if not has_failed:
                    _log.warning("the lag of groups cannot be sampled: %s", error)
                has_failed = True
            await asyncio.sleep(console.history.interval_ms / 1000)

    def _take_sample(self) -> None:
        console = self._console
        image = console.image
        console.images.add(console.now_ms, image)
        console.history.sample(console.log, image=image)

    async def _page(self, subject: Subject, view: View, request: Request) -> Response:
        work = partial(self._show, subject, view, request)
        return HTMLResponse(await self._in_thread(work, _kind(view), user_of(request)))

    async def _document(self, view: View, request: Request) -> Response:
        return _json(
            await self._in_thread(
                lambda: msgspec.json.encode(view.data(self._console, _query(request))),
                _kind(view),
                user_of(request),
            )
        )

    # --- changes

    async def _form(self, change: Change, request: Request) -> Response:
        work = partial(self._show_form, change, request, Fields({}), None)
        return HTMLResponse(await self._in_thread(work, _CHANGES, user_of(request)))

    async def _preview(self, change: Change, request: Request) -> Response:
        async with self._body(request, FORM) as body:
            work = partial(self._preview_page, change, request, body)
            page, status = await self._in_thread(work, _CHANGES, user_of(request))
        return HTMLResponse(page, status)

    def _preview_page(self, change: Change, request: Request, body: bytes) -> tuple[str, int]:
        """Show the preview; or the form again, with what is wrong in it."""
        fields = Fields({})
        try:
            fields = read_fields(body, FORM, [one.name for one in change.fields])
            preview = self._plan(change, request, fields)
        except InvalidRequestError as error:
            return self._show_form(change, request, fields, error), 400
        subject = self._subject_of(change)
        return self._render("preview.html", request, subject, found=preview, confirm_path=CONFIRM), 200

    def _show_form(
        self, change: Change, request: Request, fields: Fields, error: SparklogError | None
    ) -> str:
        found = change.form(self._console, _query(request))
        return self._render(
            change.template,
            request,
            self._subject_of(change),
            found=found,
            typed=fields.as_typed(),
            error=error,
        )

    def _subject_of(self, change: Change) -> Subject | None:
        return next((one for one in self._subjects if one.title == change.subject), None)

    def _plan(self, change: Change, request: Request, fields: Fields) -> Preview:
        return self._previews.add(change.plan(self._console, _query(request), fields), user_of(request))

    async def _preview_document(self, change: Change, request: Request) -> Response:
        def preview(body: bytes) -> bytes:
            fields = read_fields(body, JSON, [one.name for one in change.fields])
            return msgspec.json.encode(self._plan(change, request, fields))

        async with self._body(request, JSON) as body:
            return _json(await self._in_thread(partial(preview, body), _CHANGES, user_of(request)))

    async def _confirm(self, request: Request) -> Response:
        done = await self._confirmed(request, FORM)
        return RedirectResponse(quote(request.scope.get("root_path", "")) + done.page, 303)

    async def _confirm_document(self, request: Request) -> Response:
        return _json(msgspec.json.encode(await self._confirmed(request, JSON)))

    async def _confirmed(self, request: Request, media_type: str) -> Done:
        async with self._body(request, media_type) as body:
            code = read_fields(body, media_type, ["confirm"]).text("confirm")
        user = user_of(request)
        done: Done = await self._in_thread(lambda: self._previews.confirm(code, user), _CHANGES, user)
        by = f" by {user}" if user else ""
        _log.info("confirmed in the console%s: %s", by, plain(done.title))  # names may have line ends in them
        return done

    @contextlib.asynccontextmanager
    async def _body(self, request: Request, media_type: str) -> AsyncIterator[bytes]:
        """The body of a request; MAX_BODIES are held at a time."""
        found = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        if found != media_type:
            raise HTTPException(415, f"found content-type {found[:100]!r}, expected {media_type}")
        user = user_of(request)
        if not self._bodies.take(user, MAX_BODIES):
            raise HTTPException(503, "too many changes at a time; try again")
        try:
            yield await _read(request)
        finally:
            self._bodies.give_back(user)

    # --- pages

    def _show(self, subject: Subject, view: View, request: Request) -> str:
        query = _query(request)
        return self._render(
            view.template, request, subject, found=view.data(self._console, query), query=query
        )

    def _render(self, template: str, request: Request, subject: Subject | None, **values: Any) -> str:
        base = quote(request.scope.get("root_path", ""))
        links = [
            Link(one.title, base + one.views[0].path, one is subject)
            for one in self._subjects
            if one.in_navigation
        ]
        console = self._console
        return self._templates.get_template(template).render(
            base=base,
            links=links,
            log=console.log,
            now_ms=console.now_ms,
            given=dict(request.query_params),
            has_messages=console.has_messages,
            can_write=console.can_write,
            user=request.scope.get("state", {}).get("user"),
            may_delete_topics=topic_changes.DELETE in self._changes,
            keeps_history=console.history_file is not None,
            api=f"{base}{API}",
            here=request.url.path,
            **values,
        )

    def _threads(self, kind: str) -> anyio.CapacityLimiter:
        if kind not in self._limiters:  # they belong to the event loop
            self._limiters[kind] = anyio.CapacityLimiter(THREADS)
        return self._limiters[kind]

    async def _in_thread(self, work: Callable[[], T], kind: str, user: str) -> T:
        if not self._requests.take(user, MAX_REQUESTS):
            raise HTTPException(503, "too many requests at a time; try again")
        try:
            async with self._own_turn(user) if user and kind == _SLOW else contextlib.nullcontext():
                return await anyio.to_thread.run_sync(work, limiter=self._threads(kind))
        finally:
            self._requests.give_back(user)

    @contextlib.asynccontextmanager
    async def _own_turn(self, user: str) -> AsyncIterator[None]:
        """Wait until the user has fewer than half of the threads for what reads much."""
        own = self._own_turns.setdefault(user, anyio.CapacityLimiter(THREADS // 2))
        turn = object()  # a task may have one only
        try:
            await own.acquire_on_behalf_of(turn)
            try:
                yield
            finally:
                own.release_on_behalf_of(turn)
        finally:
            found = own.statistics()
            if not found.borrowed_tokens and not found.tasks_waiting:
                self._own_turns.pop(user, None)

    async def http_error(self, request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        title = http.HTTPStatus(error.status_code).phrase
        detail = "" if error.detail == title else error.detail
        return self._failure(request, error.status_code, title.upper().replace(" ", "_"), detail or title, "")

    async def log_error(self, request: Request, error: Exception) -> Response:
        assert isinstance(error, SparklogError)
        status = 503
        if isinstance(error, UnknownTopicError) or error.code == _NOT_FOUND:
            status = 404
        elif error.code == OUTDATED:
            status = 409
        elif isinstance(error, InvalidRequestError):
            status = 400
        return self._failure(request, status, error.code, error.message, error.fix)

    async def missing(self, request: Request, error: Exception) -> Response:
        return self._failure(request, 404, "NOT_FOUND", str(error), "")

    async def os_error(self, request: Request, error: Exception) -> Response:
        return self._failure(request, 503, "STORAGE", str(error), "look at the root's rights and its disk")

    def internal_error(self, request: Request) -> Response:
        return self._failure(
            request, 500, "INTERNAL", "the console failed", "report it, with the traceback in the log"
        )

    def _failure(self, request: Request, status: int, code: str, message: str, fix: str) -> Response:
        path = request.url.path.removeprefix(request.scope.get("root_path", ""))
        if path.startswith(f"{API}/"):
            return _json(msgspec.json.encode({"code": code, "message": message, "fix": fix}), status)
        page = self._render("error.html", request, None, status=status, code=code, message=message, fix=fix)
        return HTMLResponse(page, status)


async def _read(request: Request) -> bytes:
    body = bytearray()
    try:
        with anyio.fail_after(BODY_SECONDS):
            async for piece in request.stream():
                body += piece
                if len(body) > MAX_BODY:
                    raise HTTPException(413, f"found more than {MAX_BODY:,} bytes")
    except ClientDisconnect:
        raise HTTPException(400, "found no end of the body: the client has left") from None
    except TimeoutError:
        raise HTTPException(408, f"found no end of the body within {BODY_SECONDS:.0f} s") from None
    return bytes(body)


def _kind(view: View) -> str:
    return _SLOW if view.is_slow else _PAGES


def _query(request: Request) -> Query:
    return Query(request.path_params, request.query_params)


def _json(document: bytes, status: int = 200) -> Response:
    return Response(document, status, media_type="application/json")
