"""Logins of the HTTP endpoint: who gets in, for how long, and what each user may see and change."""

import asyncio
import base64
import contextlib
import http.client
import json
import socket
import ssl
import urllib.parse
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.routing import Route
from starlette.types import Message, Receive, Scope, Send

import sparklog
from sparklog.client.scram import Mechanism, new_credential
from sparklog.clock import ManualClock
from sparklog.console.app import create_app
from sparklog.console.message_masks import MessageRules
from sparklog.errors import InvalidRequestError
from sparklog.metadata import (
    Acl,
    AclOperation,
    ResourceType,
    ScramUsers,
    plan_change_acls,
    plan_scram_feature,
    plan_set_scram_credential,
)
from sparklog_server.http import login
from sparklog_server.http.endpoint import MAX_CONNECTIONS, MAX_HANDSHAKES
from sparklog_server.http.login import (
    COOKIE,
    FAILURES_MS,
    LOGIN,
    LOGOUT,
    MAX_FAILURES,
    MAX_SESSIONS,
    SESSION_MS,
    Failures,
    Login,
    Sessions,
    TooManyFailuresError,
    needed,
    page_after,
)
from sparklog_server.security.access import Access
from sparklog_server.security.audit import AUDIT_TOPIC
from sparklog_server.security.listeners import check_listeners
from sparklog_server.security.sasl import CHECKS
from sparklog_server.settings.access import STANDARD_AUTHORIZER
from sparklog_server.settings.config import ServerConfig
from tests.support.certificates import Authority
from tests.support.running_broker import RunningBroker
from tests.support.told import Told

BASIC = f"Basic {base64.b64encode(b'alice:secret').decode()}"
FORM = "application/x-www-form-urlencoded"
Reply = tuple[int, dict[str, str], str]


def set_password(log: sparklog.SparkLog, user: str, password: str) -> None:
    credential = new_credential(Mechanism.SHA_256, password)

    def plan(image: sparklog.metadata.Image) -> list[sparklog.metadata.Action]:
        feature = plan_scram_feature(image)
        change = plan_set_scram_credential(image, user, Mechanism.SHA_256.value, credential)
        return [change] if feature is None else [feature, change]

    log.metadata.publish(plan)


class Site:
    """A broker whose HTTP listener wants a login, and requests to it."""

    def __init__(self, broker: RunningBroker, authority: Authority) -> None:
        self.broker = broker
        self._authority = authority

    def ask(self, path: str, *, method: str = "GET", body: str | None = None, **headers: str) -> Reply:
        address = self.broker.broker.http.address
        assert address is not None
        connection = http.client.HTTPSConnection(
            *address, timeout=30, context=self._authority.client_context()
        )
        try:
            named = {name.replace("_", "-"): value for name, value in headers.items()}
            connection.request(method, path, body, named)
            answer = connection.getresponse()
            return answer.status, dict(answer.getheaders()), answer.read().decode()
        finally:
            connection.close()

    def connect(self) -> ssl.SSLSocket:
        """Only a connection."""
        address = self.broker.broker.http.address
        assert address is not None
        connection = socket.create_connection(address, timeout=30)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return self._authority.client_context().wrap_socket(connection, server_hostname=address[0])

    def log_in(self, user: str = "alice", password: str = "secret", **headers: str) -> Reply:
        fields = urllib.parse.urlencode({"user": user, "password": password, "next": "/console/topics"})
        return self.ask(LOGIN, method="POST", body=fields, content_type=FORM, **headers)

    def session(self, user: str = "alice") -> str:
        _, headers, _ = self.log_in(user)
        return headers["set-cookie"].partition(";")[0]

    def grant(self, *acls: Acl) -> None:
        self.broker.beside().metadata.publish(lambda image: plan_change_acls(image, added=acls))
        self.broker.settle()


@pytest.fixture
def start_site(tmp_path: Path, start_broker: Callable[..., RunningBroker]) -> Callable[..., Site]:
    """start_site(**settings): with the users alice and bob, who have the password `secret`."""
    authority = Authority(tmp_path)
    with sparklog.open(str(tmp_path / "log")) as log:
        log.create_topic("orders", 1)
        for user in ("alice", "bob"):
            set_password(log, user, "secret")

    def start(**settings: str) -> Site:
        configs = {
            "sparklog.http.listener": "127.0.0.1:0",
            "sparklog.http.security.protocol": "SASL_SSL",
            "ssl.keystore.location": authority.certificate("broker"),
            "sparklog.console.messages": "true",
            **settings,
        }
        return Site(start_broker(configs), authority)

    return start


def test_without_a_login_only_the_form_and_the_health_are_answered(start_site: Callable[..., Site]) -> None:
    site = start_site()
    assert site.ask("/health")[0] == 200
    assert site.ask("/console/static/console.css")[0] == 200
    assert "password" in site.ask(LOGIN)[2]
    status, headers, _ = site.ask("/console/topics?q=%2F")
    assert (status, headers["location"]) == (303, f"{LOGIN}?next=/console/topics%3Fq%3D%252F")
    for path in ("/metrics", "/console/api/v1/topics", "/console/api/v1/topics/orders/messages"):
        status, headers, _ = site.ask(path)
        assert (status, headers["www-authenticate"].partition(" ")[0]) == (401, "Basic")
    # The path that `request.url` has depends on this header; the one that is routed does not.
    assert site.ask("/console/api/v1/topics", Host="x/health?")[0] == 401


def test_a_browser_logs_in_and_out(start_site: Callable[..., Site]) -> None:
    site = start_site()
    status, headers, _ = site.log_in()
    assert (status, headers["location"]) == (303, "/console/topics")
    flags = headers["set-cookie"].lower()
    assert all(flag in flags for flag in ("secure", "httponly", "samesite=strict", "path=/"))
    cookie = headers["set-cookie"].partition(";")[0]
    status, _, page = site.ask("/console/topics", Cookie=cookie)
    assert status == 200
    assert "orders" in page
    assert "alice" in page
    assert "Log out" in page
    assert site.ask("/metrics", Cookie=cookie)[0] == 200
    assert site.ask("/console/topics", Cookie=f"{COOKIE}=guessed")[0] == 303
    assert site.ask(LOGOUT, method="POST", Cookie=cookie, Sec_Fetch_Site="cross-site")[0] != 303
    assert site.ask("/console/topics", Cookie=cookie)[0] == 200
    assert site.ask(LOGOUT, method="POST", Cookie=cookie)[0] == 303
    assert site.ask("/console/topics", Cookie=cookie)[0] == 303


def test_wrong_passwords_and_other_sites_get_no_session(start_site: Callable[..., Site]) -> None:
    site = start_site()
    for user, password in (("alice", "wrong"), ("nobody", "secret"), ("", ""), ("a\0b", "secret")):
        status, headers, page = site.log_in(user, password)
        assert status == 401
        assert "set-cookie" not in headers
        assert "is wrong" in page
    assert site.log_in(Sec_Fetch_Site="cross-site")[0] == 403
    assert site.log_in(Origin="https://evil.example")[0] == 403
    assert site.log_in(Origin="null")[0] == 403
    status, _, _ = site.ask(LOGIN, method="POST", body="user=alice&" + "x" * 10_000, content_type=FORM)
    assert status == 401


def test_scripts_send_the_password_with_each_request(start_site: Callable[..., Site]) -> None:
    site = start_site()
    assert site.ask("/console/api/v1/topics", Authorization=BASIC)[0] == 200
    assert site.ask("/metrics", Authorization=BASIC)[0] == 200
    for wrong in ("Basic ???", "Basic YWxpY2U6d3Jvbmc=", "Bearer x.y.z", "Digest x"):
        assert site.ask("/metrics", Authorization=wrong)[0] == 401


def test_an_address_that_fails_too_often_has_to_wait(start_site: Callable[..., Site]) -> None:
    site = start_site()
    for _ in range(MAX_FAILURES):
        assert site.log_in("alice", "wrong")[0] == 401
    assert site.log_in()[0] == 429
    assert site.ask("/metrics", Authorization=BASIC)[0] == 429


def test_no_header_gives_a_client_another_address(start_site: Callable[..., Site]) -> None:
    """The server trusted X-Forwarded-For from this machine: guesses without end, and an ACL of any host."""
    only = Acl("CLUSTER", "kafka-cluster", "LITERAL", "User:bob", "10.0.0.9", "DESCRIBE", "ALLOW")
    site = start_site(**{"authorizer.class.name": STANDARD_AUTHORIZER, "super.users": "User:alice"})
    site.grant(only)
    bob = {"Authorization": f"Basic {base64.b64encode(b'bob:secret').decode()}"}
    assert site.ask("/metrics", **bob, X_Forwarded_For="10.0.0.9")[0] == 403
    for number in range(MAX_FAILURES):
        assert site.log_in("alice", "wrong", X_Forwarded_For=f"10.0.1.{number}")[0] == 401
    assert site.log_in(X_Forwarded_For="10.0.2.1")[0] == 429


@pytest.mark.parametrize("path", [LOGIN, "/console/confirm"])
def test_a_client_that_leaves_within_a_form_is_no_bug(
    start_site: Callable[..., Site], told: Told, path: str
) -> None:
    """Each was a traceback in the log, also before the login."""
    site = start_site(**{"sparklog.console.write": "true"})
    form = (
        f"POST {path} HTTP/1.1\r\nHost: localhost\r\nAuthorization: {BASIC}\r\nContent-Type: {FORM}\r\n"
        "Content-Length: 9\r\n\r\nuser="
    )
    with site.connect() as connection:
        connection.sendall(form.encode())
    endpoint = site.broker.broker.http

    async def is_gone() -> None:
        while endpoint.connection_count:  # noqa: ASYNC110 - there is no event for what tests look at
            await asyncio.sleep(0.001)

    site.broker.call(is_gone())
    assert site.ask("/health")[0] == 200  # by then the form was given up, too
    assert not told("uvicorn.error") + told("sparklog.console")


def test_guesses_that_come_at_the_same_time_count() -> None:
    """And do not fill the queue of the threads that authenticate Kafka's clients."""
    checked = 0
    most = 0
    running = 0

    async def run(check: Callable[..., object], *args: object) -> object:
        nonlocal checked, running, most
        checked, running = checked + 1, running + 1
        most = max(most, running)
        await asyncio.sleep(0)
        running -= 1
        return check(*args)

    async def app(_scope: Scope, _receive: Receive, _send: Send) -> None:
        raise AssertionError("let in")

    login = Login(
        app,
        lambda: ScramUsers(),
        tokens=None,
        access=Access(),
        run=run,
        run_token=run,
        clock=ManualClock(),
        open_paths=(),
    )
    statuses: list[int] = []

    async def guess(host: str) -> None:
        async def receive() -> Message:
            return {"type": "http.request", "body": b"", "more_body": False}

        async def send(message: Message) -> None:
            if message["type"] == "http.response.start":
                statuses.append(message["status"])

        headers = [(b"authorization", BASIC.encode())]
        scope = {"type": "http", "method": "GET", "path": "/metrics", "query_string": b"", "headers": headers}
        await login({**scope, "client": (host, 1)}, receive, send)

    async def flood() -> None:
        await asyncio.gather(*(guess("10.0.0.1") for _ in range(200)))

    asyncio.run(flood())
    assert sorted(set(statuses)) == [401, 429]
    assert checked < MAX_FAILURES + CHECKS
    assert most <= CHECKS


def test_a_session_ends_when_the_password_changes(start_site: Callable[..., Site]) -> None:
    site = start_site()
    cookie, other = site.session(), site.session("bob")
    set_password(site.broker.beside(), "alice", "changed")
    site.broker.settle()
    assert site.ask("/console/topics", Cookie=cookie)[0] == 303
    assert site.ask("/console/topics", Cookie=other)[0] == 200


def test_a_user_may_see_and_change_what_the_acls_say(start_site: Callable[..., Site]) -> None:
    site = start_site(
        **{
            "authorizer.class.name": STANDARD_AUTHORIZER,
            "super.users": "User:bob",
            "sparklog.console.write": "true",
        }
    )
    cookie, super_user = site.session(), site.session("bob")
    assert site.ask("/console/topics", Cookie=cookie)[0] == 403
    assert site.ask("/console/topics", Cookie=super_user)[0] == 200
    site.grant(Acl("CLUSTER", "kafka-cluster", "LITERAL", "User:alice", "*", "DESCRIBE", "ALLOW"))
    assert site.ask("/console/topics", Cookie=cookie)[0] == 200
    assert site.ask("/console/topics/orders", Cookie=cookie)[0] == 200
    for path in ("/topics/orders/messages", "/topics/orders/tail", "/api/v1/topics/orders/messages"):
        assert site.ask(f"/console{path}", Cookie=cookie)[0] == 403
    site.grant(Acl("TOPIC", "orders", "LITERAL", "User:alice", "*", "READ", "ALLOW"))
    assert site.ask("/console/topics/orders/messages", Cookie=cookie)[0] == 200
    change = ("/console/topics/orders/produce", "value=x")
    for who, expected in ((cookie, 403), (super_user, 200)):
        status, _, _ = site.ask(change[0], method="POST", body=change[1], content_type=FORM, Cookie=who)
        assert status == expected
    site.grant(Acl("TOPIC", "orders", "LITERAL", "User:alice", "*", "WRITE", "ALLOW"))
    status, _, _ = site.ask(change[0], method="POST", body=change[1], content_type=FORM, Cookie=cookie)
    assert status == 200


def test_a_path_that_is_routed_as_another_one_shows_no_records(start_site: Callable[..., Site]) -> None:
    """Starlette's patterns end before a line end, and its mount then takes one slash of two."""
    site = start_site(**{"authorizer.class.name": STANDARD_AUTHORIZER, "super.users": "User:bob"})
    site.grant(Acl("CLUSTER", "kafka-cluster", "LITERAL", "User:alice", "*", "DESCRIBE", "ALLOW"))
    for path in (
        "/console//topics/orders/messages%0A",
        "/console//topics/orders/tail%0a",
        "/console//topics/orders/messages/export%0A?format=jsonl",
        "/console//api/v1/topics/orders/messages%0A",
        "/console/topics/orders/messages%0A",
        "/console//topics/orders/messages",
    ):
        assert site.ask(path, Authorization=BASIC)[0] in {403, 404}, path
    assert needed("POST", "/console//topics/orders/delete\n", "") is None
    assert needed("POST", "/console/topics/orders/delete\n", "") is None


def test_every_path_of_the_console_has_a_rule(tmp_path: Path) -> None:
    """A path that changes something, and that no rule knows, is refused."""
    with sparklog.open(str(tmp_path / "log")) as log:
        app = create_app(log, messages=MessageRules(), write=True)
        paths = [(route.path, route.methods or set()) for route in _routes(app)]
    assert len(paths) > 40
    for path, methods in paths:
        found = {method: needed(method, f"/console{path}", "readers") for method in methods}
        assert None not in found.values(), path
        if "/messages" in path or "/tail" in path:
            reads = (AclOperation.READ, ResourceType.TOPIC, "{topic}")
            assert all(reads in (rules or ()) for rules in found.values()), path
        elif "POST" in methods and path.removeprefix("/api/v1") != "/confirm":
            assert len(found["POST"] or ()) > 1, path
    assert needed("POST", "/console/unknown", "") is None
    assert needed("DELETE", "/console/topics/orders", "") is None


def _routes(app: Starlette) -> list[Route]:
    return [route for route in app.routes if isinstance(route, Route)]


def test_sessions_and_failures_are_bounded_and_end() -> None:
    clock = ManualClock()
    users = ScramUsers(credentials={"alice": {}})
    sessions = Sessions(lambda: users, clock)
    first = sessions.begin("alice")
    assert sessions.user(first) == "alice"
    last = [sessions.begin("alice") for _ in range(MAX_SESSIONS)][-1]
    assert (sessions.user(first), sessions.user(last)) == (None, "alice")
    clock.advance_ms(SESSION_MS)
    assert sessions.user(last) is None

    failures = Failures(clock)
    for number in range(MAX_FAILURES):
        failures.note(f"2001:db8::{number:x}")
    with pytest.raises(TooManyFailuresError):
        failures.check("2001:db8::ffff:1")  # of the same network
    failures.check("2001:db8:0:1::1")
    clock.advance_ms(FAILURES_MS)
    failures.check("2001:db8::1")


@pytest.mark.parametrize(
    "wanted",
    [
        "",
        "https://evil.example/",
        "//evil.example/console/",
        "/console/\\evil",
        "/metrics",
        LOGIN,
        "/console/\n",
    ],
)
def test_a_login_goes_on_within_the_console(wanted: str) -> None:
    assert page_after(wanted) == "/console/"
    assert page_after("/console/topics?q=1") == "/console/topics?q=1"


def test_new_certificates_are_taken_without_a_restart(
    start_site: Callable[..., Site], tmp_path: Path
) -> None:
    site = start_site()
    other = Authority(tmp_path, "other")
    assert site.ask("/health")[0] == 200
    renewed = Path(other.certificate("renewed"))
    renewed.replace(tmp_path / "broker.pem")
    with pytest.raises(ssl.SSLCertVerificationError):
        site.ask("/health")
    assert Site(site.broker, other).ask("/health")[0] == 200


@pytest.mark.slow
def test_connections_that_shake_no_hands_are_few(start_site: Callable[..., Site]) -> None:
    site = start_site()
    address = site.broker.broker.http.address
    assert address is not None
    with contextlib.ExitStack() as stack:
        silent = [
            stack.enter_context(socket.create_connection(address, timeout=30))
            for _ in range(MAX_HANDSHAKES + 20)
        ]
        assert [one.recv(1) for one in silent[:20]] == [b""] * 20
        for _ in range(20):  # connections that have shaken hands, or are being closed, do not count
            assert site.ask("/health")[0] == 200


def test_nobody_appends_to_the_topic_of_verdicts(start_site: Callable[..., Site]) -> None:
    """As over Kafka's protocol: also with Write on all topics."""
    settings = {"authorizer.class.name": STANDARD_AUTHORIZER, "super.users": "User:alice"}
    audit = {"sparklog.audit.topic.enable": "true", "sparklog.audit.interval.ms": "3600000"}
    site = start_site(**settings, **audit, **{"sparklog.console.write": "true"})
    site.broker.beside().create_topic(AUDIT_TOPIC, 1)
    statuses = {}
    for topic in ("orders", AUDIT_TOPIC):
        path = f"/console/api/v1/topics/{topic}/produce"
        form = {"content_type": "application/json", "Authorization": BASIC}
        statuses[topic] = site.ask(path, method="POST", body='{"value": "forged"}', **form)[0]
    assert statuses == {"orders": 200, AUDIT_TOPIC: 400}


def test_groups_of_a_broker_that_wants_a_login_itself(
    start_site: Callable[..., Site], tmp_path: Path
) -> None:
    """Its console asks coordinators as any client does, so it needs a login of its own."""
    (tmp_path / "console.properties").write_text(
        "security.protocol=SASL_SSL\nsasl.mechanism=SCRAM-SHA-256\n"
        "sasl.jaas.config=org.apache.kafka.common.security.scram.ScramLoginModule required "
        'username="bob" password="secret";\n'
        f"ssl.truststore.type=PEM\nssl.truststore.location={tmp_path}/ca.pem\n"
    )
    site = start_site(
        **{
            "listeners": "SASL_SSL://127.0.0.1:0",
            "authorizer.class.name": STANDARD_AUTHORIZER,
            "super.users": "User:alice;User:bob",
            "sparklog.console.write": "true",
            "sparklog.console.command.config": str(tmp_path / "console.properties"),
        }
    )
    log = site.broker.beside()
    log.append("orders", pa.table({"value": ["x"] * 5}))
    log.commit_offsets("etl", {("orders", 0): 1})
    asked = {"method": "POST", "content_type": "application/json", "Authorization": BASIC}
    status, _, shown = site.ask("/console/api/v1/group/reset?group=etl", body='{"to": "latest"}', **asked)
    assert status == 200, shown
    confirmed = json.dumps({"confirm": json.loads(shown)["confirm"]})
    assert site.ask("/console/api/v1/confirm", body=confirmed, **asked)[0] == 200
    log.refresh(force=True)
    assert log.committed_offsets("etl") == {("orders", 0): 5}


def test_forms_that_never_end_do_not_fill_the_listener(start_site: Callable[..., Site]) -> None:
    """Each held a connection for 70 seconds, before its login, and there was no bound."""
    site = start_site()
    endpoint = site.broker.broker.http
    form = f"POST {LOGIN} HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\n\r\nuser="
    with contextlib.ExitStack() as stack:
        for _ in range(MAX_CONNECTIONS + 20):
            stack.enter_context(site.connect()).sendall(form.encode())
            assert site.ask("/health")[0] == 200  # the form has been read by then
        assert site.broker.call_soon(lambda: endpoint.connection_count) <= MAX_CONNECTIONS + 1


def test_settings_of_the_http_listener(tmp_path: Path) -> None:
    keys = {"ssl.keystore.location": Authority(tmp_path).certificate("broker")}
    listener = {"sparklog.http.listener": ":9404"}
    secured = {"sparklog.http.security.protocol": "SASL_SSL"}
    with pytest.raises(InvalidRequestError, match=r"ssl\.keystore\.location is missing"):
        ServerConfig.parse({**listener, **secured})
    with pytest.raises(InvalidRequestError, match="no login"):
        ServerConfig.parse({**listener, "sparklog.console.write": "true"})
    ServerConfig.parse({**listener, **secured, **keys, "sparklog.console.write": "true"})
    own = {"listener.name.http.ssl.keystore.location": keys["ssl.keystore.location"]}
    config = ServerConfig.parse({**listener, **secured, **own})
    assert config.secured_http().settings.ssl_keystore_location == keys["ssl.keystore.location"]
    required = {"sparklog.require.authentication": "true"}
    check_listeners(ServerConfig.parse({**listener, **secured, **keys, **required}))
    with pytest.raises(InvalidRequestError, match="OPEN_LISTENER"):
        check_listeners(ServerConfig.parse({**listener, **required}))


def test_an_ipv4_client_of_a_dual_stack_socket_has_its_ipv4_address() -> None:
    """Else all IPv4 clients share failures (one /64), and no ACL of a host holds."""
    request = Request({"type": "http", "headers": [], "client": ("::ffff:192.0.2.7", 1)})
    assert login.client_host(request) == "192.0.2.7"


def test_sessions_of_one_user_do_not_end_those_of_another(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(login, "MAX_SESSIONS", 3)
    users = ScramUsers("", {"alice": {}, "mallory": {}})
    sessions = login.Sessions(lambda: users, ManualClock())
    alice = sessions.begin("alice")
    many = [sessions.begin("mallory") for _ in range(10)]
    assert sessions.user(alice) == "alice"
    assert [sessions.user(code) for code in many[-3:]] == [None, "mallory", "mallory"]
