"""Forms, previews and confirmations: who may send them, how often they work, and what is bounded."""

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest
from starlette.testclient import TestClient

from sparklog.client import SparkLog
from sparklog.clock import ManualClock
from sparklog.console import app as app_module
from sparklog.console.app import CHANGES, create_app
from sparklog.console.changes import (
    KEEP_MS,
    MAX_BODY,
    MAX_FIELDS,
    MAX_WAITING,
    Fields,
    Plan,
    Preview,
    Previews,
    read_fields,
)
from sparklog.errors import InvalidRequestError, RetriableError
from tests.console.change_client import CODE, confirm, preview, refused, writing_client
from tests.console.conftest import HOSTILE

PATHS = [
    "/create-topic",
    "/topics/orders/settings",
    "/topics/orders/produce",
    "/topics/orders/delete-records",
]
PATHS += ["/topics/orders/delete", "/group/reset?group=etl", "/group/delete?group=etl"]


@pytest.fixture
def writing(log: SparkLog) -> Iterator[TestClient]:
    log.create_topic("orders", partitions=2)
    log.commit_offsets("etl", {("orders", 0): 0})
    with writing_client(log) as client:
        yield client


def test_all_changes_are_tested_here() -> None:
    assert {one.path.replace("{topic}", "orders") for one in CHANGES} == {
        path.partition("?")[0] for path in PATHS
    }


@pytest.mark.parametrize("path", PATHS)
def test_without_write_there_are_no_forms(path: str, log: SparkLog, writing: TestClient) -> None:
    with TestClient(create_app(log)) as client:
        assert client.get(path).status_code == 404
        assert client.post(path, data={}).status_code in {404, 405}
        assert client.post(f"/api/v1{path}", json={}).status_code in {404, 405}
        assert client.post("/confirm", data={"confirm": "x"}).status_code == 404
        assert "post" not in client.get("/api/v1/openapi.json").text
        assert "Everything here is read-only" in client.get("/").text


@pytest.mark.parametrize("path", PATHS)
def test_a_form_is_a_page_and_changes_nothing(path: str, log: SparkLog, writing: TestClient) -> None:
    before = log.refresh(force=True).commit
    page = writing.get(path)
    assert (page.status_code, 'method="post"' in page.text) == (200, True)
    assert writing.post(path, data={"nothing": "1"}).status_code == 400
    assert log.refresh(force=True).commit == before


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize(
    "headers",
    [
        {"sec-fetch-site": "cross-site"},
        {"sec-fetch-site": "same-site"},
        {"sec-fetch-site": "none"},
        {"origin": "http://evil.example"},
        {"origin": "null"},
        {"origin": "http://testserver:81"},
        {"origin": "http://testserver", "sec-fetch-site": "cross-site"},
    ],
    ids=str,
)
def test_pages_of_other_sites_send_no_forms(path: str, headers: dict[str, str], writing: TestClient) -> None:
    for where in (path, "/confirm"):
        assert writing.post(where, data={"confirm": "x"}, headers=headers).status_code == 403
        assert writing.post(f"/api/v1{where}", json={}, headers=headers).status_code == 403


def test_the_consoles_own_pages_may(writing: TestClient) -> None:
    headers = {"origin": "http://testserver", "sec-fetch-site": "same-origin", "sec-fetch-mode": "navigate"}
    answer = writing.post("/topics/orders/settings", data={"retention.ms": "5"}, headers=headers)
    assert answer.status_code == 200
    assert CODE.search(answer.text)


def test_a_form_for_an_api_and_a_document_for_a_page_are_refused(writing: TestClient) -> None:
    assert writing.post("/topics/orders/settings", json={"retention.ms": "5"}).status_code == 415
    path = "/api/v1/topics/orders/settings"  # a form needs no leave of the browser, so the API takes none
    assert writing.post(path, data={"retention.ms": "5"}).status_code == 415
    assert writing.post("/api/v1/confirm", data={"confirm": "x"}).status_code == 415


def test_a_preview_is_confirmed_once(log: SparkLog, writing: TestClient) -> None:
    shown = preview(writing, "/topics/orders/produce", {"value": "a"})
    assert confirm(writing, shown) == {"title": "Write a record to orders", "page": shown_page(log)}
    assert refused(writing, "/confirm", {"confirm": shown["confirm"]}) == (409, "PREVIEW_OUTDATED")
    assert refused(writing, "/confirm", {}) == (409, "PREVIEW_OUTDATED")
    assert sum(log.log_end_offset("orders", number) for number in range(2)) == 1


def shown_page(log: SparkLog) -> str:
    (number,) = [number for number in range(2) if log.log_end_offset("orders", number)]
    return f"/topics/orders/messages/{number}/0"


def test_a_confirmed_page_leads_to_the_result(log: SparkLog, writing: TestClient) -> None:
    answer = writing.post("/topics/orders/settings", data={"retention.ms": "5"})
    (code,) = CODE.findall(answer.text)
    assert log.refresh(force=True).topic("orders").configs == {}
    done = writing.post("/confirm", data={"confirm": code})
    assert (done.status_code, done.headers["location"]) == (303, "/topics/orders")
    assert log.refresh(force=True).topic("orders").configs == {"retention.ms": "5"}
    again = writing.post("/confirm", data={"confirm": code})
    assert (again.status_code, "PREVIEW_OUTDATED" in again.text) == (409, True)


def test_below_a_mount_forms_lead_back_there(log: SparkLog, writing: TestClient) -> None:
    from starlette.applications import Starlette
    from starlette.routing import Mount

    with TestClient(
        Starlette(routes=[Mount("/console", create_app(log, write=True))]), follow_redirects=False
    ) as client:
        answer = client.post("/console/topics/orders/settings", data={"retention.ms": "5"})
        assert 'action="/console/confirm"' in answer.text
        done = client.post("/console/confirm", data={"confirm": CODE.findall(answer.text)[0]})
        assert done.headers["location"] == "/console/topics/orders"


def test_what_is_wrong_is_shown_in_the_form_with_what_was_typed(writing: TestClient) -> None:
    answer = writing.post("/topics/orders/settings", data={"retention.ms": "soon", "segment.ms": HOSTILE})
    assert answer.status_code == 400
    assert "found &#39;soon&#39;" in answer.text
    assert 'value="soon"' in answer.text
    assert "<script>" not in answer.text
    assert "\x1b" not in answer.text


def test_what_would_change_nothing_cannot_be_confirmed(writing: TestClient) -> None:
    assert preview(writing, "/topics/orders/settings", {"partitions": 2})["confirm"] is None
    page = writing.post("/topics/orders/settings", data={"partitions": "2"})
    assert "Nothing would change" in page.text
    assert CODE.search(page.text) is None


def test_the_description_has_all_changes(writing: TestClient) -> None:
    paths = writing.get("/api/v1/openapi.json").json()["paths"]
    posts = {path for path, one in paths.items() if "post" in one}
    assert posts == {*(one.path for one in CHANGES), "/confirm"}
    body = paths["/group/reset"]["post"]["requestBody"]["content"]["application/json"]["schema"]
    assert set(body["properties"]) == {"to", "value", "unit", "topic", "partition", "csv"}
    assert paths["/group/reset"]["post"]["parameters"][0]["name"] == "group"
    assert paths["/topics/{topic}/settings"]["post"]["parameters"][0]["name"] == "topic"


# --- bounds ------------------------------------------------------------------------------------------


def test_a_body_is_bounded(writing: TestClient) -> None:
    body = b"value=" + b"a" * MAX_BODY
    headers = {"content-type": "application/x-www-form-urlencoded"}
    assert writing.post("/topics/orders/produce", content=body, headers=headers).status_code == 413
    pieces = (b"a" * 65_536 for _ in range(MAX_BODY // 65_536 + 1))
    assert writing.post("/topics/orders/produce", content=pieces, headers=headers).status_code == 413


def test_a_body_that_does_not_come_is_given_up(
    log: SparkLog, writing: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(app_module, "BODY_SECONDS", 0.01)
    form = (b"content-type", b"application/x-www-form-urlencoded")
    path = "/topics/orders/settings"
    scope = {"type": "http", "method": "POST", "path": path, "headers": [form], "query_string": b""}
    sent: list[Any] = []

    async def receive() -> Any:
        await asyncio.Event().wait()

    async def send(message: Any) -> None:
        sent.append(message)

    asyncio.run(create_app(log, write=True)(scope, receive, send))
    assert sent[0]["status"] == 408


def test_few_bodies_are_held_at_a_time(writing: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(app_module, "MAX_BODIES", 0)
    assert writing.post("/topics/orders/settings", data={"retention.ms": "5"}).status_code == 503


@pytest.mark.parametrize(
    ("body", "media_type"),
    [
        (b"a=%ff", "application/x-www-form-urlencoded"),
        (b"a=\xff", "application/x-www-form-urlencoded"),
        (b"a=1&a=2", "application/x-www-form-urlencoded"),
        (b"&".join(b"a%d=1" % at for at in range(MAX_FIELDS + 1)), "application/x-www-form-urlencoded"),
        (b"b=1", "application/x-www-form-urlencoded"),
        (b"{", "application/json"),
        (b"[]", "application/json"),
        (b'{"a": [1]}', "application/json"),
        (b'{"a": 1.5}', "application/json"),
        (b'{"b": 1}', "application/json"),
        (b"\xff", "application/json"),
        (b"[" * 100_000, "application/json"),
    ],
)
def test_hostile_bodies_are_refused(body: bytes, media_type: str) -> None:
    with pytest.raises(InvalidRequestError, match="INVALID_OPTION"):
        read_fields(body, media_type, ["a"])


def test_fields_are_as_they_were_given() -> None:
    found = read_fields(b"a=x%0D%0Ay+&b=", "application/x-www-form-urlencoded", ["a", "b"])
    assert (found.raw("a"), found.text("a"), found.raw("b"), "b" in found, "c" in found) == (
        "x\ny ",
        "x\ny",
        None,
        True,
        False,
    )
    found = read_fields(b'{"a": "", "b": null, "c": true, "d": -5}', "application/json", "abcd")
    assert [found.raw(name) for name in "abcd"] == ["", None, "true", "-5"]
    assert found.number("d", least=-9) == -5
    with pytest.raises(InvalidRequestError, match="at least 0"):
        found.number("d")
    for text in ("1e3", "٣", "1_000", "9" * 19, "--5"):
        with pytest.raises(InvalidRequestError, match="a whole number"):
            Fields({"a": text}).number("a", least=-1)


def plan(done: list[str], name: str = "it") -> Plan:
    shown = Preview(title=name, button="", rows=(), row_count=1)

    def apply() -> str:
        done.append(name)
        return "/"

    return Plan(preview=shown, apply=apply)


def test_a_preview_is_kept_for_some_minutes() -> None:
    clock, done = ManualClock(0), list[str]()
    previews = Previews(clock)
    first, second = (previews.add(plan(done)).confirm or "" for _ in range(2))
    clock.advance_ms(KEEP_MS)
    previews.confirm(first)
    clock.advance_ms(1)
    with pytest.raises(RetriableError, match="PREVIEW_OUTDATED"):
        previews.confirm(second)
    assert done == ["it"]


def test_only_the_newest_previews_are_kept() -> None:
    done = list[str]()
    previews = Previews(ManualClock(0))
    codes = [previews.add(plan(done, str(at))).confirm or "" for at in range(MAX_WAITING + 1)]
    assert len(set(codes)) == len(codes)
    assert min(map(len, codes)) >= 32
    with pytest.raises(RetriableError, match="PREVIEW_OUTDATED"):
        previews.confirm(codes[0])
    previews.confirm(codes[1])
    assert done == ["1"]


def test_previews_of_one_user_do_not_end_those_of_another() -> None:
    done = list[str]()
    previews = Previews(ManualClock(0))
    first = previews.add(plan(done, "alice"), "alice").confirm or ""
    others = [previews.add(plan(done, "mallory"), "mallory").confirm or "" for _ in range(2 * MAX_WAITING)]
    with pytest.raises(RetriableError, match="PREVIEW_OUTDATED"):
        previews.confirm(others[0], "mallory")
    with pytest.raises(RetriableError, match="PREVIEW_OUTDATED"):
        previews.confirm(first, "mallory")
    previews.confirm(first, "alice")
    previews.confirm(others[-1], "mallory")
    assert done == ["alice", "mallory"]


def test_a_failure_uses_a_preview_up(log: SparkLog, writing: TestClient) -> None:
    shown: Any = preview(writing, "/topics/orders/settings", {"retention.ms": 5})
    log.delete_topic("orders")
    assert refused(writing, "/confirm", {"confirm": shown["confirm"]}) == (409, "PREVIEW_OUTDATED")
    assert refused(writing, "/confirm", {"confirm": shown["confirm"]}) == (409, "PREVIEW_OUTDATED")
