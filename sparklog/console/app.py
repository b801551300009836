"""The console as an ASGI application: pages, the JSON API below /api/v1, and static files.

Works for any opened root, with no broker; a broker mounts it with the image that it follows.
Invariants: it reads only, and answers GET and HEAD. Every answer forbids scripts, styles and requests from
    elsewhere (Content-Security-Policy), errors included. No page of another site reads an answer: requests
    for a name that is not the console's, and those that another site makes within its pages, are refused.
    Redirects name no host. At most MAX_REQUESTS are worked on or wait; more get 503.
    It keeps the last hour of the lag of groups, sampled while it runs.
Concurrency: views, templates and samples run in THREADS threads, so that the event loop never waits for the
    storage; those that read much in as many others.
"""

import asyncio
import contextlib
import http
import ipaddress
import logging
from collections.abc import AsyncIterator, Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote, urlsplit

import anyio
import anyio.to_thread
import msgspec
from starlette.applications import Starlette
from starlette.convertors import Convertor, register_url_convertor
from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import HTMLResponse, PlainTextResponse, Response
from starlette.routing import BaseRoute, Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from sparklog.client import SparkLog
from sparklog.client.lag import LagHistory
from sparklog.console import commits, groups, maintenance, message_streams, overview, topics, transactions
from sparklog.console.message_masks import MessageRules
from sparklog.console.openapi import API, description
from sparklog.console.pages import Link, environment
from sparklog.console.views import Console, MissingError, Query, Subject, View
from sparklog.errors import InvalidRequestError, SparklogError, UnknownTopicError
from sparklog.metadata import Image

SUBJECTS: Final = (
    overview.SUBJECT,
    topics.SUBJECT,
    groups.SUBJECT,
    commits.SUBJECT,
    transactions.SUBJECT,
    maintenance.SUBJECT,
)
THREADS: Final = 4
MAX_REQUESTS: Final = 32
_STATIC = Path(__file__).parent / "static"
_NOT_FOUND = "COMMIT_MISSING"
_log = logging.getLogger("sparklog.console")
HEADERS: Final = {
    "content-security-policy": "default-src 'self'; base-uri 'none'; form-action 'self'; "
    "frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
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
) -> Starlette:
    """The console of an opened root, which stays the caller's. Run its lifespan: it samples the lag.

    Args:
        image: returns the newest image; by default the log is refreshed for each request.
        subjects: the pages.
        allowed_hosts: names by which browsers may call it, besides localhost and addresses; empty: any. With
            names, no page of another site can read the console through a name that it lets point here (DNS
            rebinding).
        history: of the lag, which the caller samples; by default the console does.
        messages: show records, by these rules; None: only metadata. A server that stops calls
            `app.state.end_streams` first, since a live tail does not end by itself.
    """
    if messages is not None:
        subjects = [*subjects, message_streams.SUBJECT]
    kept = LagHistory() if history is None else history
    console = Console(log, image or log.refresh, kept, messages)
    server = _Server(console, subjects)
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
        refused = self._refused(Headers(scope=scope)) if scope["type"] == "http" else None
        await (refused or self._app)(scope, receive, send)

    def _refused(self, headers: Headers) -> Response | None:
        if self._names and not self._is_known(headers.get("host", "")):
            return PlainTextResponse(
                "The console does not know the host name of this request (Host header). Use an IP address or "
                "localhost; or name the host: sparklog console --host NAME, or a broker's setting "
                "sparklog.console.hosts.\n",
                400,
            )
        is_page = (headers.get("sec-fetch-mode"), headers.get("sec-fetch-dest")) == ("navigate", "document")
        if headers.get("sec-fetch-site") == "cross-site" and not is_page:
            return PlainTextResponse("Pages of other sites may link to the console, not load it.\n", 403)
        return None

    def _is_known(self, host: str) -> bool:
        name = _name(host)
        return name in self._names or name == "localhost" or _is_address(name)


def _name(host: str) -> str:
    """Return the name or address in a Host header, without port, brackets and last dot, in small letters."""
    if host.startswith("["):
        return host[1:].partition("]")[0]
    name = host if host.count(":") > 1 else host.partition(":")[0]
    return name.lower().removesuffix(".")


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
    def __init__(self, console: Console, subjects: Sequence[Subject]) -> None:
        self._console = console
        self._subjects = subjects
        self._templates = environment()
        self._limiter: anyio.CapacityLimiter | None = None
        self._requests = 0
        self._slow_limiter: anyio.CapacityLimiter | None = None

    def routes(self) -> list[BaseRoute]:
        views = [(subject, view) for subject in self._subjects for view in subject.views]
        document = msgspec.json.encode(description([view for _, view in views]))

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
        return [static, described, *others, *api, *pages]

    @contextlib.asynccontextmanager
    async def sampling(self, _app: Starlette) -> AsyncIterator[None]:
        """Sample the lag of groups until the end."""
        task = asyncio.create_task(self._sample())
        try:
            yield
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def _sample(self) -> None:
        console = self._console
        has_failed = False
        while True:
            try:
                await anyio.to_thread.run_sync(
                    lambda: console.history.sample(console.log, image=console.image), limiter=self._threads()
                )
                has_failed = False
            except Exception as error:  # noqa: BLE001 - pages say what is wrong; samples go on once it is right
                if not has_failed:
                    _log.warning("the lag of groups cannot be sampled: %s", error)
                has_failed = True
            await asyncio.sleep(console.history.interval_ms / 1000)

    async def _page(self, subject: Subject, view: View, request: Request) -> Response:
        return HTMLResponse(await self._in_thread(partial(self._show, subject, view, request), view))

    async def _document(self, view: View, request: Request) -> Response:
        return _json(
            await self._in_thread(
                lambda: msgspec.json.encode(view.data(self._console, _query(request))), view
            )
        )

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
            api=f"{base}{API}",
            here=request.url.path,
            **values,
        )

    def _threads(self, *, slow: bool = False) -> anyio.CapacityLimiter:
        if self._limiter is None or self._slow_limiter is None:  # they belong to the event loop
            self._limiter, self._slow_limiter = (anyio.CapacityLimiter(THREADS) for _ in range(2))
        return self._slow_limiter if slow else self._limiter

    async def _in_thread(self, work: Callable[[], Any], view: View) -> Any:
        if self._requests >= MAX_REQUESTS:
            raise HTTPException(503, "too many requests at a time; try again")
        self._requests += 1
        try:
            return await anyio.to_thread.run_sync(work, limiter=self._threads(slow=view.is_slow))
        finally:
            self._requests -= 1

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


def _query(request: Request) -> Query:
    return Query(request.path_params, request.query_params)


def _json(document: bytes, status: int = 200) -> Response:
    return Response(document, status, media_type="application/json")
