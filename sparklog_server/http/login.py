"""Logins of the HTTP endpoint: the users of the root's SCRAM credentials, or tokens of OAUTHBEARER.

A browser logs in by a form, and gets a cookie of a session. Scripts send the password (Basic) or a token
(Bearer) with each request. With an authorizer, its ACLs say what a user may see and change.

Invariants:
    1. Without a valid session, password or token only the form, its styles and the open paths are answered.
    2. A session ends after SESSION_MS, by logging out, and when its user's credentials change or are removed.
    3. Unknown users take as long as known ones. An address that failed MAX_FAILURES times within FAILURES_MS
       is refused without looking at its password, also if it has sent thousands at the same time: a few are
       checked, the others wait (CHECKS).
    4. Another site's page can neither log in nor out, nor use a session (SameSite, Sec-Fetch-Site).
Bounds: MAX_SESSIONS, MAX_ADDRESSES, MAX_FORM_BYTES; passwords are checked in the threads of authentication.
Not here: TLS (endpoint.py), the checks of passwords and tokens (security/sasl.py, security/tokens.py).
Concurrency: event loop only.
After a crash: sessions are gone; browsers log in again.
Sources: RFC 7617, RFC 6750; OWASP Session Management.
"""

import base64
import binascii
import contextlib
import html
import ipaddress
import logging
import re
import secrets
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import parse_qs, quote, urlsplit

from starlette.requests import ClientDisconnect, Request
from starlette.responses import HTMLResponse, PlainTextResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Receive, Scope, Send

from sparklog.clock import Clock
from sparklog.metadata import CLUSTER_NAME, AclOperation, ResourceType, ScramUsers
from sparklog_server.runtime.budget import Budget, Held
from sparklog_server.security.access import Access
from sparklog_server.security.sasl import CHECKS, PlainExchange
from sparklog_server.security.tokens import AuthenticationError, InvalidTokenError, Tokens
from sparklog_server.settings.network import plain_host

LOGIN: Final = "/console/login"
LOGOUT: Final = "/console/logout"
COOKIE: Final = (
    "__Host-sparklog"  # browsers send a name with this prefix over TLS only, and to this host only
)
SESSION_MS: Final = 12 * 3_600_000
MAX_SESSIONS: Final = 10_000
MAX_FAILURES: Final = 10
FAILURES_MS: Final = 60_000
MAX_ADDRESSES: Final = 10_000
MAX_FORM_BYTES: Final = 4096
_STYLES = ("/console/static/console.css", "/console/static/icon.svg")
_HEADERS = {
    "cache-control": "no-store",
    "content-security-policy": "default-src 'self'; base-uri 'none'; form-action 'self'; "
    "frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
}
Run = Callable[..., Awaitable[Any]]
_log = logging.getLogger("sparklog_server.http")


class TooManyFailuresError(Exception):
    """The address has to wait."""


# --- failures ----------------------------------------------------------------------------------------


class Failures:
    """The failed logins of the last minute, by address; an IPv6 network of /64 counts as one."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._times: dict[str, list[int]] = {}

    def check(self, host: str) -> None:
        """Refuse an address that has failed too often. Raises: TooManyFailuresError."""
        if len(self._recent(_network(host))) >= MAX_FAILURES:
            raise TooManyFailuresError

    def note(self, host: str) -> None:
        """Count a failure; of too many addresses the one is forgotten that failed first."""
        network = _network(host)
        times = [*self._recent(network), self._clock.monotonic_ms()]
        self._times.pop(network, None)
        self._times[network] = times
        while len(self._times) > MAX_ADDRESSES:
            del self._times[next(iter(self._times))]

    def _recent(self, network: str) -> list[int]:
        after = self._clock.monotonic_ms() - FAILURES_MS
        return [time for time in self._times.get(network, ()) if time > after]


def _network(host: str) -> str:
    with contextlib.suppress(ValueError):
        address = ipaddress.ip_address(host)
        if address.version == 6:
            return str(ipaddress.ip_network((address, 64), strict=False))
    return host


# --- sessions ----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Session:
    user: str
    credentials: Mapping[str, Any]
    ends_ms: int


class Sessions:
    """Who is logged in, by the code in the cookie."""

    def __init__(self, users: Callable[[], ScramUsers], clock: Clock) -> None:
        self._users = users
        self._clock = clock
        self._sessions: dict[str, _Session] = {}  # the oldest first

    def begin(self, user: str) -> str:
        """Return the code of a new session; of too many the oldest of the user who has the most ends."""
        code = secrets.token_urlsafe(32)
        credentials = self._users().credentials.get(user, {})
        self._sessions[code] = _Session(user, credentials, self._clock.monotonic_ms() + SESSION_MS)
        if len(self._sessions) > MAX_SESSIONS:
            counts = Counter(one.user for one in self._sessions.values())
            del self._sessions[max(self._sessions, key=lambda code: counts[self._sessions[code].user])]
        return code

    def user(self, code: str) -> str | None:
        """Return the user of a session; None if there is none, or it has ended."""
        session = self._sessions.get(code)
        if session is None:
            return None
        credentials = self._users().credentials.get(session.user)
        if session.ends_ms <= self._clock.monotonic_ms() or credentials != session.credentials:
            self.end(code)
            return None
        return session.user

    def end(self, code: str) -> None:
        """End a session, if there is one."""
        self._sessions.pop(code, None)


# --- permissions -------------------------------------------------------------------------------------
#
# Which ACLs a request of the console needs: Describe on the cluster for everything, and what Kafka's request
# for the same would need. A preview of a change is checked; it confirms for a while (console/changes.py).


_VIEW = (AclOperation.DESCRIBE, ResourceType.CLUSTER, CLUSTER_NAME)
_OF_TOPICS: Final = {
    "settings": (AclOperation.ALTER_CONFIGS, AclOperation.ALTER),
    "produce": (AclOperation.WRITE,),
    "delete-records": (AclOperation.DELETE,),
    "delete": (AclOperation.DELETE,),
}
_TOPIC = re.compile(r"/topics/([^/]+)/([^/]+)(?:/.*)?", re.DOTALL)
Permission = tuple[AclOperation, ResourceType, str]


def needed(method: str, path: str, group: str) -> list[Permission] | None:
    """Return what a request needs; None: it is refused, since no rule is known for it.

    Args:
        path: percent-decoded; topics are named by it.
        group: that the query names.
    """
    if path.startswith("/console//") or path.endswith("\n"):
        return None  # Starlette drops these two where it routes, and no page has them: see the test
    inside = path.removeprefix("/console").removeprefix("/api/v1")
    match = _TOPIC.fullmatch(inside)
    if match and match[2] not in _OF_TOPICS:
        return [_VIEW, (AclOperation.READ, ResourceType.TOPIC, match[1])]  # all of these show records
    if method in {"GET", "HEAD"} or inside == "/confirm":
        return [_VIEW]
    if match:
        return [_VIEW, *((one, ResourceType.TOPIC, match[1]) for one in _OF_TOPICS[match[2]])]
    return {
        "/create-topic": [_VIEW, (AclOperation.CREATE, ResourceType.CLUSTER, CLUSTER_NAME)],
        "/group/reset": [_VIEW, (AclOperation.READ, ResourceType.GROUP, group)],
        "/group/delete": [_VIEW, (AclOperation.DELETE, ResourceType.GROUP, group)],
    }.get(inside)


# --- login -------------------------------------------------------------------------------------------


class Login:
    """An ASGI application around the endpoint's: lets those through who have proved who they are."""

    def __init__(
        self,
        app: ASGIApp,
        users: Callable[[], ScramUsers],
        *,
        tokens: Tokens | None,
        access: Access,
        run: Run,
        run_token: Run,
        clock: Clock,
        open_paths: Collection[str],
    ) -> None:
        """Wrap `app`.

        Args:
            tokens: of OAUTHBEARER; None: tokens are refused.
            run: calls a function in a thread of authentication.
            run_token: in a thread for checks of tokens.
            open_paths: are answered without a login.
        """
        self._app = app
        self._users = users
        self._tokens = tokens
        self._access = access
        self._run = run
        self._run_token = run_token
        self._open = frozenset(open_paths)
        self._failures = Failures(clock)
        self._checks = Budget(CHECKS)
        self._sessions = Sessions(users, clock)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request, or pass it on with its user."""
        if scope["type"] != "http" or scope["path"] in self._open or scope["path"] in _STYLES:
            await self._app(scope, receive, send)
            return
        request = Request(scope, receive)
        try:
            answer = await self._answer(request)
        except TooManyFailuresError:
            answer = _refused(request, 429, "Too many failed logins from this address: wait a minute.")
        except AuthenticationError as error:
            self._failed(request, error)
            answer = _refused(request, 401, "The user, the password or the token is wrong.")
        if answer is None:
            await self._app(scope, receive, send)
        else:
            await answer(scope, receive, send)

    def _failed(self, request: Request, error: AuthenticationError) -> None:
        _log.info("a login from %s failed: %s", client_host(request), error)
        self._failures.note(client_host(request))

    async def _answer(self, request: Request) -> Response | None:
        """Return the answer; None: the request goes on, with its `user` in its state."""
        path = _path(request)
        if path == LOGIN:
            return await self._log_in(request)
        code = request.cookies.get(COOKIE, "")
        if path == LOGOUT and request.method == "POST" and _is_own(request):
            self._sessions.end(code)
            answer = RedirectResponse(LOGIN, 303)
            answer.delete_cookie(COOKIE, secure=True, httponly=True, samesite="strict")
            return answer
        user = await self._authenticated(request) or self._sessions.user(code)
        if user is None:
            return _refused(request, 401, "Log in first.")
        missing = self._missing(user, request)
        if missing is not None:
            return PlainTextResponse(f"User {user} may not do this: {missing}.\n", 403, headers=_HEADERS)
        request.scope.setdefault("state", {})["user"] = user
        return None

    def _missing(self, user: str, request: Request) -> str | None:
        """Return a permission that the user needs for this request and lacks."""
        access, principal = self._access, f"User:{user}"
        wanted = needed(request.method, _path(request), request.query_params.get("group", ""))
        if wanted is None:
            return "there is no such page or change"
        if not access.is_on or access.is_super_user(principal):
            return None
        host = client_host(request)
        for operation, kind, name in wanted:
            if not access.authorizer.decide(principal, host, operation, kind, name).is_allowed:
                return f"it needs {operation} on {kind} {name}"
        return None

    async def _authenticated(self, request: Request) -> str | None:
        """Return the user of an Authorization header; None: there is none.

        Raises: AuthenticationError, TooManyFailuresError.
        """
        kind, _, value = request.headers.get("authorization", "").partition(" ")
        if not kind:
            return None
        self._failures.check(client_host(request))
        if kind.lower() == "bearer" and self._tokens is not None:
            try:
                user, _ = await self._in_thread(self._run_token, request, self._tokens.check, value.strip())
            except InvalidTokenError as error:
                raise AuthenticationError(str(error)) from None
            return str(user)
        if kind.lower() != "basic":
            raise AuthenticationError(f"{kind[:20]} is not supported")
        try:
            user, _, password = base64.b64decode(value, validate=True).decode().partition(":")
        except (binascii.Error, UnicodeDecodeError) as error:
            raise AuthenticationError(str(error)) from None
        return await self._checked(request, user, password)

    async def _checked(self, request: Request, user: str, password: str) -> str:
        exchange = PlainExchange(self._users)
        if "\0" in user or "\0" in password:
            raise AuthenticationError("a NUL in the name or password")
        await self._in_thread(self._run, request, exchange.answer, f"\0{user}\0{password}".encode())
        return exchange.user

    async def _in_thread(self, run: Run, request: Request, check: Callable[..., Any], *args: Any) -> Any:
        """Check in a thread, a few at a time of an address; others that failed meanwhile count."""
        host = client_host(request)
        self._failures.check(host)
        held = Held(self._checks, _network(host))
        await held.take(1)
        try:
            self._failures.check(host)
            return await run(check, *args)
        finally:
            held.release()

    async def _log_in(self, request: Request) -> Response:
        if request.method in {"GET", "HEAD"}:
            return _page(request, page_after(request.query_params.get("next", "")), "", 200)
        if request.method != "POST" or not _is_own(request):
            return PlainTextResponse("Only the console's own form logs in.\n", 403)
        fields = await _form(request)
        wanted = page_after(fields.get("next", ""))
        try:
            user = await self._checked(request, fields.get("user", ""), fields.get("password", ""))
        except TooManyFailuresError:
            return _page(request, wanted, "Too many failed logins from this address: wait a minute.", 429)
        except AuthenticationError as error:
            self._failed(request, error)
            return _page(request, wanted, "The user or the password is wrong.", 401)
        answer = RedirectResponse(wanted, 303)
        answer.set_cookie(
            COOKIE,
            self._sessions.begin(user),
            max_age=SESSION_MS // 1000,
            secure=True,
            httponly=True,
            samesite="strict",
        )
        return answer


def _path(request: Request) -> str:
    """Return the path by which the request is routed; that of `request.url` depends on the Host header."""
    return str(request.scope["path"])


def client_host(request: Request) -> str:
    """Return the client's address, that of an IPv4 client without "::ffff:"; "": unknown."""
    return plain_host(request.client.host) if request.client else ""


def _is_own(request: Request) -> bool:
    """True unless a browser says that a page of another site sends this."""
    site = request.headers.get("sec-fetch-site")
    if site is not None:
        return site in {"same-origin", "none"}
    origin = request.headers.get("origin")
    return origin is None or urlsplit(origin).netloc == request.headers.get("host", "")


def page_after(path: str) -> str:
    """Return a path of the console to go on to; the overview for everything else."""
    is_safe = path.startswith("/console/") and "\\" not in path and path.isprintable()
    return path if is_safe and not path.startswith((LOGIN, LOGOUT)) else "/console/"


async def _form(request: Request) -> dict[str, str]:
    body = b""
    try:
        async for chunk in request.stream():
            body += chunk
            if len(body) > MAX_FORM_BYTES:
                return {}
    except ClientDisconnect:
        return {}
    with contextlib.suppress(ValueError):
        fields = parse_qs(body.decode("ascii"), errors="strict", max_num_fields=10)
        return {name: values[-1] for name, values in fields.items()}
    return {}


def _refused(request: Request, status: int, text: str) -> Response:
    """Send browsers to the form; say to others how to authenticate."""
    path = _path(request)
    is_page = path.startswith("/console") and not path.startswith("/console/api/")
    if status == 401 and is_page and "authorization" not in request.headers:
        query = request.scope["query_string"].decode("latin-1")
        target = f"{quote(path)}?{query}" if query else quote(path)
        return RedirectResponse(f"{LOGIN}?next={quote(target)}", 303)
    headers = dict(_HEADERS)
    if status == 401:
        headers["www-authenticate"] = 'Basic realm="sparklog", charset="UTF-8"'
    else:
        headers["retry-after"] = str(FAILURES_MS // 1000)
    return PlainTextResponse(f"{text}\n", status, headers=headers)


def _page(request: Request, wanted: str, problem: str, status: int) -> Response:
    note = f'<p class="problem" role="alert">{html.escape(problem)}</p>' if problem else ""
    text = f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>Log in - sparklog</title>
<link rel="stylesheet" href="/console/static/console.css">
<link rel="icon" href="/console/static/icon.svg">
</head>
<body>
<main class="login">
<h1>sparklog</h1>
{note}
<form method="post" action="{LOGIN}">
<input type="hidden" name="next" value="{html.escape(wanted)}">
<p><label for="user">User</label><br>
<input id="user" name="user" autocomplete="username" required autofocus></p>
<p><label for="password">Password</label><br>
<input id="password" name="password" type="password" autocomplete="current-password" required></p>
<p><button>Log in</button></p>
</form>
</main>
</body>
</html>
"""
    return HTMLResponse("" if request.method == "HEAD" else text, status, headers=_HEADERS)
