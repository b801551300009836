"""The application: headers, errors, static files, the API's description, and every page on a busy root."""

import dataclasses
import json
import re
import threading
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from starlette.responses import PlainTextResponse, StreamingResponse
from starlette.routing import Route
from starlette.testclient import TestClient

from sparklog.client import SparkLog
from sparklog.client.lag import LagHistory
from sparklog.clock import ManualClock
from sparklog.console.app import HEADERS, SUBJECTS, create_app
from sparklog.console.topics import topic_list
from sparklog.console.views import Console, Query, Subject, View
from sparklog.errors import CorruptLogError
from sparklog.metadata import Image, MetadataLog
from sparklog.storage import MemoryStore
from sparklog.storage.base import StoreTraits
from tests.console.conftest import HOSTILE, NOW_MS, as_user, rows
from tests.support.cluster_root import ClusterRoot
from tests.support.told import Told

VIEWS = [view for subject in SUBJECTS for view in subject.views]
PATHS = {
    "/topics/{topic}": "/topics/orders",
    "/group": "/group?group=spark-etl",
    "/groups/{group:any}/history": "/groups/spark-etl/history",
    "/commits/{commit}": "/commits/3",
    "/commits/{commit}/state": "/commits/3/state",
    "/diff": "/diff?from=1&to=4",
    "/transaction": "/transaction?id=etl",
}


@pytest.fixture
def busy(log: SparkLog) -> SparkLog:
    """A root with topics, brokers, groups and a transaction, all with hostile names where they may be."""
    cluster = ClusterRoot(log)
    log.create_topic("orders", partitions=3, configs={"retention.ms": "1000"})
    log.append("orders", rows(100))
    cluster.assign("orders", (1, 2), (2, 3), (3, 1))
    cluster.lead("orders", 1, 2, 3)
    cluster.fence(3)
    for group in ("spark-etl", HOSTILE):
        log.commit_offsets(group, {("orders", 0): 1, ("gone", 0): 5}, metadata=HOSTILE)
    for name in ("etl", HOSTILE):
        txn = log.transaction(name)
        txn.__enter__()
        txn.append("orders", rows(5))
        txn.flush()
    log.clock.advance_ms(600_000)  # type: ignore[attr-defined]
    return log


@pytest.mark.parametrize("view", VIEWS, ids=lambda view: view.path)
def test_every_view_is_a_page_and_a_document(view: Any, busy: SparkLog, client: TestClient) -> None:
    assert busy.image.topics
    path = PATHS.get(view.path, view.path)
    answer = client.get(path)
    if view.template:
        assert (answer.status_code, answer.headers["content-type"]) == (200, "text/html; charset=utf-8")
    else:
        assert answer.status_code == 404
    document = client.get(f"/api/v1{path if view.path != '/' else view.api}")
    assert (document.status_code, document.headers["content-type"]) == (200, "application/json")
    assert isinstance(document.json(), dict)


def test_a_foreign_name_leads_to_its_page(busy: SparkLog, client: TestClient) -> None:
    assert busy.image.topics
    for page, path in (("/groups", "/group?group="), ("/transactions", "/transaction?id=")):
        (link,) = [one for one in re.findall(r'href="([^"]+)"', client.get(page).text) if "%3C" in one]
        assert link.startswith(path)
        shown = client.get(link)
        assert shown.status_code == 200
        assert r"&lt;script&gt;alert(1)&lt;/script&gt;\u001b[31m\u202e" in shown.text


def refuse_what_is_not_text(text: str) -> None:
    """Fail for markup, scripts, styles and unseen characters that names or values have brought in."""
    assert "<script>alert" not in text
    assert re.search("[\x00-\x09\x0b-\x1f\x7f-\x9f\u2028-\u202e]", text) is None
    assert re.search(r"\son\w+=|javascript:|\sstyle=|<style|<script(?! src=)", text) is None


@pytest.mark.slow
def test_every_link_leads_to_a_page_where_foreign_names_are_text(busy: SparkLog, client: TestClient) -> None:
    assert busy.image.topics
    left, seen = ["/"], set()
    while left:
        path = left.pop()
        if path in seen or "#" in path:
            continue
        seen.add(path)
        answer = client.get(path)
        assert answer.status_code == 200, path
        if answer.headers["content-type"].startswith("text/html"):
            refuse_what_is_not_text(answer.text)
            found = re.findall(r'(?:href|src)="([^"]+)"', answer.text)
            assert not [one for one in found if "//" in one.partition("?")[0]], "another host"
            base = path.partition("?")[0]
            links = [one.replace("&amp;", "&") for one in found]
            left += [base + one if one.startswith("?") else one for one in links]
    assert len(seen) > 20


def test_answers_forbid_what_pages_do_not_need(client: TestClient) -> None:
    for path in ("/", "/api/v1/overview", "/static/console.css", "/nowhere", "/commits/x"):
        headers = client.get(path).headers
        assert {name: headers[name] for name in HEADERS} == HEADERS, path
    assert "default-src 'self'" in HEADERS["content-security-policy"]


@pytest.mark.parametrize("path", [subject.views[0].path for subject in SUBJECTS])
def test_an_empty_root_has_all_pages(path: str, client: TestClient) -> None:
    assert client.get(path).status_code == 200


def test_mounted_pages_link_below_their_mount(busy: SparkLog) -> None:
    from starlette.applications import Starlette
    from starlette.routing import Mount

    with TestClient(Starlette(routes=[Mount("/console", create_app(busy))])) as client:
        text = client.get("/console/topics").text
        links = re.findall(r'(?:href|src)="(/[^"]+)"', text)
        assert links
        assert [one for one in links if not one.startswith("/console/")] == []
        assert all(client.get(one).status_code == 200 for one in links)
        assert client.get("/console/api/v1/topics").json()["paging"]["total"] == 2


def test_nothing_is_changed(busy: SparkLog, client: TestClient) -> None:
    before = busy.refresh(force=True).commit
    for view in VIEWS:
        path = PATHS.get(view.path, view.path)
        path = path if view.template else f"/api/v1{path}"
        assert client.get(path).status_code == 200
        assert client.post(path).status_code == 405
        assert client.delete(path).status_code == 405
    assert busy.refresh(force=True).commit == before


@pytest.mark.parametrize(
    ("path", "status", "code"),
    [
        ("/topics/nope", 404, "TOPIC_MISSING"),
        ("/commits/99999", 404, "COMMIT_MISSING"),
        ("/commits/x", 400, "INVALID_OPTION"),
        ("/topics?page=-1", 400, "INVALID_OPTION"),
        ("/group?group=nope", 404, "NOT_FOUND"),
        ("/group", 404, "NOT_FOUND"),
        ("/transaction?id=nope", 404, "NOT_FOUND"),
        ("/nope", 404, "NOT_FOUND"),
    ],
)
def test_errors_are_pages_and_documents(path: str, status: int, code: str, client: TestClient) -> None:
    shown = client.get(path)
    assert (shown.status_code, shown.headers["content-type"]) == (status, "text/html; charset=utf-8")
    assert code in shown.text
    found = client.get(f"/api/v1{path}")
    assert (found.status_code, found.json()["code"]) == (status, code)
    assert set(found.json()) == {"code", "message", "fix"}


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (PermissionError(13, "denied"), "STORAGE"),
        (
            CorruptLogError("CORRUPT_METADATA_COMMIT", "commit 3: damaged", fix="restore it"),
            "CORRUPT_METADATA_COMMIT",
        ),
    ],
)
def test_a_storage_that_fails_is_a_page(error: Exception, code: str, log: SparkLog) -> None:
    def fail() -> Image:
        raise error

    with TestClient(create_app(log, image=fail)) as client:
        assert (client.get("/").status_code, code in client.get("/").text) == (503, True)
        assert client.get("/api/v1/topics").json()["code"] == code


def test_a_root_on_an_object_store() -> None:
    clock = ManualClock(NOW_MS)
    store = MemoryStore(clock=clock, traits=StoreTraits(is_remote=True, appends_after_sync=False))
    with SparkLog(store, MetadataLog.open(store, clock, create=True), clock) as log:
        log.create_topic("orders")
        log.append("orders", rows(3))
        with TestClient(create_app(log)) as client:
            assert client.get("/api/v1/overview").json()["problems"] == []
            assert all(client.get(subject.views[0].path).status_code == 200 for subject in SUBJECTS)


def test_what_was_asked_for_is_text_in_an_error(client: TestClient) -> None:
    shown = client.get("/topics/%3Cscript%3Ealert(1)%3C%2Fscript%3E").text
    assert "<script>alert" not in shown


def test_another_sites_name_is_refused_where_names_are_given(log: SparkLog) -> None:
    with TestClient(create_app(log, allowed_hosts=["localhost"]), base_url="http://localhost") as client:
        assert client.get("/").status_code == 200
        assert client.get("/", headers={"host": "evil.example"}).status_code == 400


@pytest.mark.parametrize(
    ("host", "status"),
    [
        *((host, 200) for host in ("LOGS.example.:80", "localhost:1", "10.0.0.7:9404", "[::1]:80", "[::2]")),
        *((host, 400) for host in ("logs.example.evil", "127.0.0.1.evil", "[evil]:80", "::evil", "", "*")),
    ],
)
def test_a_host_is_an_address_or_a_known_name(host: str, status: int, log: SparkLog) -> None:
    with TestClient(create_app(log, allowed_hosts=["logs.example"])) as client:
        answer = client.get("/api/v1/topics", headers={"host": host})
    assert answer.status_code == status
    assert ("sparklog.console.hosts" in answer.text) == (status == 400)
    assert {name: answer.headers[name] for name in HEADERS} == HEADERS


@pytest.mark.parametrize(
    ("site", "mode", "dest", "status"),
    [
        ("cross-site", "navigate", "document", 200),
        ("cross-site", "navigate", "iframe", 403),
        ("cross-site", "no-cors", "script", 403),
        ("cross-site", "cors", "empty", 403),
        ("same-origin", "cors", "empty", 200),
        ("none", "navigate", "document", 200),
    ],
)
def test_other_sites_may_only_link(site: str, mode: str, dest: str, status: int, client: TestClient) -> None:
    asked = {"sec-fetch-site": site, "sec-fetch-mode": mode, "sec-fetch-dest": dest}
    answer = client.get("/api/v1/topics", headers=asked)
    assert answer.status_code == status
    assert {name: answer.headers[name] for name in HEADERS} == HEADERS


def test_a_failure_that_nobody_expects_is_logged_not_shown(log: SparkLog, told: Told) -> None:
    def fail() -> Image:
        raise RuntimeError("/secret/path")

    with TestClient(create_app(log, image=fail, history=LagHistory())) as client:
        page, document = client.get("/topics"), client.get("/api/v1/topics")
    assert document.json()["code"] == "INTERNAL"
    for answer in (page, document):
        assert (answer.status_code, "INTERNAL" in answer.text) == (500, True)
        assert "secret" not in answer.text
        assert "Traceback" not in answer.text
        assert {name: answer.headers[name] for name in HEADERS} == HEADERS
    assert [record.getMessage() for record in told.records("sparklog.console") if record.exc_info] == [
        "GET '/topics' failed",
        "GET '/api/v1/topics' failed",
    ]


def test_a_failure_after_the_answer_began_cuts_it_off(log: SparkLog) -> None:
    async def pieces() -> AsyncIterator[str]:
        yield "half"
        raise RuntimeError("no more")

    def routes(_console: Console) -> list[Route]:
        return [Route("/half", lambda _request: StreamingResponse(pieces()))]

    subject = Subject(title="Half", views=SUBJECTS[0].views[:0], routes=routes, in_navigation=False)
    with (
        TestClient(create_app(log, subjects=[*SUBJECTS, subject])) as client,
        pytest.raises(RuntimeError, match="no more"),
    ):
        client.get("/half")


def test_a_redirect_names_no_host(client: TestClient) -> None:
    answer = client.get("/topics/?sort=-size", follow_redirects=False)
    assert (answer.status_code, answer.headers["location"]) == (307, "/topics?sort=-size")


def test_the_description_names_every_path_and_its_answer(client: TestClient) -> None:
    found = client.get("/api/v1/openapi.json").json()
    assert set(found["paths"]) == {view.api_path.replace(":any", "") for view in VIEWS}
    schemas = found["components"]["schemas"]
    for path in found["paths"].values():
        schema = path["get"]["responses"]["200"]["content"]["application/json"]["schema"]
        assert schema["$ref"].removeprefix("#/components/schemas/") in schemas
    assert "lag_ms" in schemas["GroupRow"]["properties"]
    assert json.dumps(found)


@dataclasses.dataclass
class Inner:
    """What another request got, while this one was worked on."""

    status: int


def test_too_many_requests_are_turned_away(log: SparkLog, monkeypatch: pytest.MonkeyPatch) -> None:
    def ask_again(_console: Console, _query: Query) -> Inner:
        return Inner(client.get("/api/v1/topics").status_code)

    view = View(path="/again", template="error.html", data=ask_again, doc="")
    app = create_app(log, subjects=[*SUBJECTS, Subject(title="Again", views=(view,))])
    with TestClient(app) as client:
        assert client.get("/api/v1/again").json() == {"status": 200}
        monkeypatch.setattr("sparklog.console.app.MAX_REQUESTS", 1)
        assert client.get("/api/v1/again").json() == {"status": 503}
        assert client.get("/api/v1/topics").status_code == 200


def test_a_user_leaves_room_to_others(log: SparkLog, monkeypatch: pytest.MonkeyPatch) -> None:
    """32 searches of one viewer had all pages answer 503 to everybody, for minutes."""
    found: list[tuple[int, int]] = []

    def ask(user: str, path: str) -> int:
        return client.get(f"/api/v1{path}", headers={"x-user": user}).status_code

    def ask_again(_console: Console, query: Query) -> Inner:
        found.append((ask("mallory", "/topics"), ask("alice", "/topics")))
        deeper = query.number("deeper", 0)
        return Inner(ask("mallory", f"/again?deeper={deeper - 1}") if deeper else 0)

    monkeypatch.setattr("sparklog.console.app.MAX_REQUESTS", 4)
    view = View(path="/again", template="error.html", data=ask_again, doc="")
    app = create_app(log, subjects=[*SUBJECTS, Subject(title="Again", views=(view,))])
    with TestClient(as_user(app)) as client:
        assert ask("mallory", "/again?deeper=1") == 200
        assert found == [(200, 200), (503, 200)]
        assert ask("mallory", "/again") == 200  # all places are free again


def test_a_user_takes_half_of_the_threads_of_searches(log: SparkLog) -> None:
    running = most = 0
    lock, begun, goes_on = threading.Lock(), threading.Semaphore(0), threading.Event()

    def search(_console: Console, query: Query) -> Inner:
        nonlocal running, most
        if query.text("waits"):
            with lock:
                running += 1
                most = max(most, running)
            begun.release()
            goes_on.wait(60)
            with lock:
                running -= 1
        return Inner(0)

    def ask(user: str, parameters: str = "") -> int:
        return client.get(f"/api/v1/slow{parameters}", headers={"x-user": user}).status_code

    view = View(path="/slow", template="error.html", data=search, doc="", is_slow=True)
    app = create_app(log, subjects=[*SUBJECTS, Subject(title="Slow", views=(view,))])
    with TestClient(as_user(app)) as client, ThreadPoolExecutor(7) as pool:
        try:
            waiting = [pool.submit(ask, "mallory", "?waits=1") for _ in range(6)]
            assert begun.acquire(timeout=60)
            assert begun.acquire(timeout=60)
            assert pool.submit(ask, "alice").result(60) == 200
        finally:
            goes_on.set()
        assert [one.result(60) for one in waiting] == [200] * 6
    assert most == 2


def test_a_subject_may_have_routes_of_its_own_and_no_entry(log: SparkLog) -> None:
    def routes(console: Console) -> list[Route]:
        return [Route("/topics/{topic}/saved", lambda _request: PlainTextResponse(console.log.url))]

    view = View(path="/apart", template="topics.html", data=topic_list, doc="")
    apart = Subject(title="Apart", views=(view,), routes=routes, in_navigation=False)
    with TestClient(create_app(log, subjects=[*SUBJECTS, apart])) as client:
        answer = client.get("/topics/x/saved")
        assert (answer.text, answer.headers["x-content-type-options"]) == (log.url, "nosniff")
        text = client.get("/apart").text
        assert "Topics" in text
        assert "Apart" not in text


def test_the_image_of_a_broker_is_shown(log: SparkLog, page: Callable[[str], str]) -> None:
    old = log.refresh()
    log.create_topic("later")
    with TestClient(create_app(log, image=lambda: old)) as client:
        assert client.get("/api/v1/topics").json()["paging"]["total"] == 0
    assert "later" in page("/topics")
