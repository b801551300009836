"""Searches with progress, cancelling, the live tail, and files, over HTTP."""

import asyncio
import contextlib
import csv
import io
import json
import re
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import uvicorn
from starlette.testclient import TestClient

from sparklog.client import SparkLog
from sparklog.client.lag import LagHistory
from sparklog.console import message_streams
from sparklog.console import messages as messages_module
from sparklog.console.app import create_app
from sparklog.console.message_masks import MaskRule, MessageRules
from tests.console.conftest import as_user
from tests.console.made_records import HOSTILE, TOPIC, all_records, fill
from tests.support.told import Told

PAGE = f"/topics/{TOPIC}/messages"
Event = tuple[str, str]


@pytest.fixture
def filled(log: SparkLog) -> SparkLog:
    fill(log)
    return log


@pytest.fixture
def client(log: SparkLog) -> Iterator[TestClient]:
    with TestClient(create_app(log, messages=MessageRules())) as client:
        yield client


def events(text: str) -> list[Event]:
    found = []
    for block in text.strip().split("\n\n"):
        lines = block.split("\n")
        if lines[0].startswith("event: "):
            assert all(line.startswith("data:") for line in lines[1:])
            found.append((lines[0].removeprefix("event: "), "\n".join(line[6:] for line in lines[1:])))
    return found


def named(found: list[Event], name: str) -> str:
    return "\n".join(data for event, data in found if event == name)


# --- search


def test_a_search_sends_rows_and_then_the_result(filled: SparkLog, client: TestClient) -> None:
    answer = client.get(f"{PAGE}/stream?from=beginning&key=k3&records=1000")
    assert answer.headers["content-type"] == "text/event-stream; charset=utf-8"
    assert answer.headers["cache-control"] == "no-store"
    found = events(answer.text)
    expected = sum(record.key == b"k3" for record in all_records(filled))
    assert [name for name, _ in found[-2:]] == ["result", "end"]
    assert named(found, "rows").count("<tr>") == expected
    assert f"{expected} found in 400 records" in named(found, "result")
    assert named(found, "result").count("<tr>") == expected + 1


def test_no_more_rows_are_sent_than_are_shown(filled: SparkLog, client: TestClient) -> None:
    assert filled.image.topics
    found = events(client.get(f"{PAGE}/stream?records=7").text)
    assert named(found, "rows").count("<tr>") == 7
    assert named(found, "result").count("<tr>") == 8


def test_progress_is_sent_now_and_then(
    filled: SparkLog, client: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert filled.image.topics
    monkeypatch.setattr(message_streams, "PROGRESS_MS", 0)
    found = events(client.get(f"{PAGE}/stream?from=beginning&key=none").text)
    shown = re.findall(r'<progress max="100" value="(\d+)">', named(found, "progress"))
    assert len(shown) > 3
    assert list(map(int, shown)) == sorted(map(int, shown))
    assert shown[-1] == "100"


def test_hostile_records_stay_in_their_lines(log: SparkLog, client: TestClient) -> None:
    data = [*HOSTILE, b"a\r\ndata: b\n\nevent: end\ndata:"]
    log.create_topic("h", 1)
    log.append("h", pa.table({"value": pa.array(data, pa.binary())}))
    found = events(client.get("/topics/h/messages/stream").text)
    assert [name for name, _ in found] == ["rows", "result", "end"]
    assert "<script>" not in named(found, "rows")


def test_the_part_that_starts_a_search(filled: SparkLog, client: TestClient) -> None:
    assert filled.image.topics
    answer = client.get(f"{PAGE}/run?key=k3")
    assert answer.headers["hx-push-url"] == f"{PAGE}?key=k3"
    (stream,) = re.findall(r'sse-connect="([^"]+)"', answer.text)
    assert events(client.get(stream.replace("&amp;", "&")).text)[-1] == ("end", "")
    wrong = client.get(f"{PAGE}/run?regex=(")
    assert wrong.status_code == 200  # htmx shows nothing else
    assert "a pattern of values" in wrong.text
    assert "sse-connect" not in wrong.text


def test_a_search_is_cancelled(filled: SparkLog, client: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    """The search waits in its first step until it is cancelled."""
    assert filled.image.topics
    begun = threading.Event()
    scan = messages_module.scan

    def waiting(*args: Any, is_cancelled: Callable[[], bool], **named: Any) -> Iterator[Any]:
        def is_cancelled_soon() -> bool:
            begun.set()
            deadline = time.monotonic() + 60
            while not is_cancelled() and time.monotonic() < deadline:
                threading.Event().wait(0.01)
            return is_cancelled()

        return scan(*args, is_cancelled=is_cancelled_soon, **named)

    monkeypatch.setattr(message_streams, "scan", waiting)
    with ThreadPoolExecutor(1) as pool:
        answer = pool.submit(client.get, f"{PAGE}/stream?from=beginning&id=mine")
        assert begun.wait(60)
        assert client.get(f"{PAGE}/cancel?id=other").status_code == 204
        assert not answer.done()
        assert client.get(f"{PAGE}/cancel?id=mine").status_code == 204
        assert "The search was cancelled" in answer.result(60).text


@pytest.fixture
def held(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Callable[[], bool], threading.Event]]:
    """Of each search that has begun: whether it is cancelled, and what lets it go on."""
    begun: list[tuple[Callable[[], bool], threading.Event]] = []
    scan = messages_module.scan

    def holding(*args: Any, is_cancelled: Callable[[], bool], **named: Any) -> Iterator[Any]:
        released = threading.Event()
        begun.append((is_cancelled, released))

        def is_cancelled_soon() -> bool:
            deadline = time.monotonic() + 60
            while not (is_cancelled() or released.wait(0.01)) and time.monotonic() < deadline:
                pass
            return is_cancelled()

        return scan(*args, is_cancelled=is_cancelled_soon, **named)

    monkeypatch.setattr(message_streams, "scan", holding)
    return begun


def wait_until(is_true: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not is_true():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_only_a_search_of_the_same_topic_and_id_is_cancelled(
    filled: SparkLog, held: list[tuple[Callable[[], bool], threading.Event]]
) -> None:
    assert filled.image.topics
    app = create_app(filled, messages=MessageRules())
    with TestClient(app) as client, ThreadPoolExecutor(2) as pool:
        answers = [pool.submit(client.get, f"{PAGE}/stream?{query}") for query in ("", "id=mine")]
        wait_until(lambda: len(held) == 2)
        for path in (f"{PAGE}/cancel", f"{PAGE}/cancel?id=", "/topics/other/messages/cancel?id=mine"):
            assert client.get(path).status_code == 204
        assert not any(is_cancelled() for is_cancelled, _ in held)
        app.state.end_streams()  # also those without an id
        assert all("The search was cancelled" in answer.result(60).text for answer in answers)


def test_a_search_that_ends_leaves_another_of_its_id(
    filled: SparkLog, client: TestClient, held: list[tuple[Callable[[], bool], threading.Event]]
) -> None:
    assert filled.image.topics
    with ThreadPoolExecutor(2) as pool:
        answers = []
        for number in range(2):
            answers.append(pool.submit(client.get, f"{PAGE}/stream?id=mine"))
            wait_until(lambda: len(held) == number + 1)  # noqa: B023 - called in this turn
        held[0][1].set()
        assert "The search was cancelled" not in answers[0].result(60).text
        assert client.get(f"{PAGE}/cancel?id=mine").status_code == 204
        assert "The search was cancelled" in answers[1].result(60).text


@pytest.mark.parametrize(
    ("asked", "pushed"),
    [
        ("%E6%97%A5/messages/run", "%E6%97%A5/messages"),
        ("a%0bb/messages/run?key=%E6%97%A5", "a%0Bb/messages?key=%E6%97%A5"),
        ("a%0D%0Ab%25/messages/run", "a%0D%0Ab%25/messages"),
    ],
)
def test_the_address_of_a_search_is_quoted(
    log: SparkLog, client: TestClient, asked: str, pushed: str
) -> None:
    assert log.image is not None
    assert client.get(f"/topics/{asked}").headers["hx-push-url"] == f"/topics/{pushed}"


def test_htmx_comes_before_its_extension(filled: SparkLog, client: TestClient) -> None:
    assert filled.image.topics
    for path in ("messages", "tail"):
        scripts = re.findall(
            r'<script src="/static/([^"]+)" defer>', client.get(f"/topics/{TOPIC}/{path}").text
        )
        assert scripts[:2] == ["htmx-2.0.11.min.js", "htmx-ext-sse-2.2.4.min.js"]


# --- tail


def test_a_tail_sends_new_records_and_reports_until_the_topic_ends(
    log: SparkLog, client: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(message_streams, "TAIL_SECONDS", 0.01)
    made = threading.Event()
    polled = messages_module.Tail.poll

    def poll(tail: messages_module.Tail) -> messages_module.TailStep:
        made.set()
        return polled(tail)

    monkeypatch.setattr(messages_module.Tail, "poll", poll)
    log.create_topic("t", 1)
    log.append("t", pa.table({"value": ["before"]}))
    with ThreadPoolExecutor(1) as pool:
        answer = pool.submit(client.get, "/topics/t/tail/stream?value=%3Cb")
        assert made.wait(60)
        log.append("t", pa.table({"value": ["<b>1", "other", "<b>2"]}))
        made.clear()
        assert made.wait(60)  # one poll at least has begun after the append
        made.clear()
        assert made.wait(60)  # and has ended
        log.delete_topic("t")
        found = events(answer.result(60).text)
    assert [name for name, _ in found if name == "end"] == ["end"]
    rows = named(found, "rows")
    assert "before" not in rows
    assert "other" not in rows
    assert rows.index("&lt;b&gt;2") < rows.index("&lt;b&gt;1")  # the newest comes first
    assert "The tail has ended:" in named(found, "notices")


def test_a_tail_says_what_it_dropped(
    log: SparkLog, client: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    log.create_topic("t", 1)
    steps = iter(
        [
            messages_module.TailStep(
                found=[],
                dropped=[messages_module.Dropped(partition=0, start=5, end=1005)],
                problems=((0, "<b>damaged"),),
            ),
            messages_module.TailStep(found=[], ended="gone"),
        ]
    )
    monkeypatch.setattr(messages_module.Tail, "poll", lambda _: next(steps))
    notices = named(events(client.get("/topics/t/tail/stream").text), "notices")
    assert "1,000 offsets of partition 0: 5 to 1,004" in notices
    assert "&lt;b&gt;damaged" in notices


@pytest.mark.parametrize("parameters", ["regex=(", "partition=a", "format=xml"])
def test_wrong_parameters_of_a_tail_are_refused(log: SparkLog, client: TestClient, parameters: str) -> None:
    log.create_topic("t", 1)
    for path in ("tail", "tail/stream"):
        assert client.get(f"/topics/t/{path}?{parameters}").status_code == 400


def test_a_server_that_stops_ends_its_tails(log: SparkLog) -> None:
    log.create_topic("t", 1)
    app = create_app(log, messages=MessageRules())
    with TestClient(app) as client:
        app.state.end_streams()
        assert events(client.get("/topics/t/tail/stream").text) == [("notices", "")]


def test_headers_of_a_tail_are_an_answer_of_their_own(log: SparkLog, client: TestClient) -> None:
    log.create_topic("t", 1)
    assert client.head("/topics/t/tail/stream").status_code == 200


@contextlib.contextmanager
def served(log: SparkLog) -> Iterator[int]:
    """Serve the console on a port of this machine."""
    app = create_app(log, messages=MessageRules())
    with socket.create_server(("127.0.0.1", 0)) as listening:
        config = uvicorn.Config(as_user(app), log_config=None, access_log=False, lifespan="off")
        server = uvicorn.Server(config)
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
        thread.start()
        try:
            yield listening.getsockname()[1]
        finally:
            server.should_exit = True
            thread.join()


def test_a_reader_that_leaves_ends_its_tail(log: SparkLog, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(message_streams, "MAX_STREAMS", 1)
    monkeypatch.setattr(message_streams, "HEARTBEAT_SECONDS", 0.0)
    monkeypatch.setattr(message_streams, "TAIL_SECONDS", 0.01)
    log.create_topic("t", 1)

    def status(connection: socket.socket) -> bytes:
        connection.sendall(b"GET /topics/t/tail/stream HTTP/1.1\r\nHost: localhost\r\n\r\n")
        return connection.recv(100)[9:12]

    with served(log) as port:
        first = socket.create_connection(("127.0.0.1", port), 60)
        assert status(first) == b"200"
        with socket.create_connection(("127.0.0.1", port), 60) as second:
            assert status(second) == b"503"
        first.close()
        deadline = time.monotonic() + 60
        found = b"503"
        while found != b"200" and time.monotonic() < deadline:
            with socket.create_connection(("127.0.0.1", port), 60) as third:
                found = status(third)
        assert found == b"200"


def test_tails_of_one_user_leave_room_to_others(log: SparkLog, monkeypatch: pytest.MonkeyPatch) -> None:
    """Sixteen tails of one viewer kept all others from searches, tails and exports."""
    monkeypatch.setattr(message_streams, "MAX_STREAMS", 2)
    log.create_topic("t", 1)

    def status(connection: socket.socket, user: str) -> bytes:
        request = f"GET /topics/t/tail/stream HTTP/1.1\r\nHost: localhost\r\nX-User: {user}\r\n\r\n"
        connection.sendall(request.encode())
        return connection.recv(100)[9:12]

    with served(log) as port, contextlib.ExitStack() as stack:
        found = [
            status(stack.enter_context(socket.create_connection(("127.0.0.1", port), 60)), user)
            for user in ("mallory", "mallory", "alice", "bob")
        ]
        assert found == [b"200", b"503", b"200", b"503"]


# --- files


@pytest.mark.parametrize("wanted", ["csv", "jsonl", "parquet"])
def test_exports_hold_all_that_is_found(filled: SparkLog, client: TestClient, wanted: str) -> None:
    answer = client.get(f"{PAGE}/export?from=beginning&key=k3&records=1&seconds=1&mb=1&file={wanted}")
    assert answer.headers["content-disposition"] == f'attachment; filename="{TOPIC}.{wanted}"'
    expected = sorted((one.partition, one.offset) for one in all_records(filled) if one.key == b"k3")
    if wanted == "csv":
        rows: list[Any] = list(csv.DictReader(io.StringIO(answer.text, newline="")))
    elif wanted == "jsonl":
        rows = [json.loads(line) for line in answer.text.splitlines()]
    else:
        rows = pq.read_table(io.BytesIO(answer.content)).to_pylist()
    assert sorted((int(row["partition"]), int(row["offset"])) for row in rows) == expected


def test_an_export_has_a_limit_and_masks(filled: SparkLog) -> None:
    rules = MessageRules(masks=(MaskRule(regex="k[0-9]+", fields=("key",)),))
    with TestClient(create_app(filled, messages=rules)) as client:
        answer = client.get(f"{PAGE}/export?from=beginning&file=jsonl&most=9")
        rows = [json.loads(line) for line in answer.text.splitlines()]
        assert len(rows) == 9
        assert {row["key"] for row in rows if isinstance(row["key"], str)} == {"***"}
        assert client.get(f"{PAGE}/export?file=exe").status_code == 400


def test_a_reader_that_takes_nothing_is_cut_off(
    filled: SparkLog, monkeypatch: pytest.MonkeyPatch, told: Told
) -> None:
    monkeypatch.setattr(message_streams, "SEND_SECONDS", 0.05)
    monkeypatch.setattr(message_streams, "MAX_STREAMS", 1)
    app = create_app(filled, messages=MessageRules(), history=LagHistory())
    scope = {
        "type": "http",
        "method": "GET",
        "path": f"/topics/{TOPIC}/messages/export",
        "query_string": b"from=beginning",
        "headers": [],
    }

    async def receive() -> Any:
        await asyncio.Event().wait()

    async def send(message: Any) -> None:
        if message["type"] == "http.response.body":
            await asyncio.Event().wait()

    async def read() -> None:
        for _ in range(2):  # the first has given its place back
            await app(scope, receive, send)

    asyncio.run(read())
    assert (
        told("sparklog.console")
        == [f"'/topics/{TOPIC}/messages/export': its reader took nothing for 0.05 s"] * 2
    )


@pytest.mark.slow
def test_large_pieces_are_sent_in_parts(filled: SparkLog, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = export_bytes(filled)
    monkeypatch.setattr(message_streams, "SENT_PIECE", 100)
    assert export_bytes(filled) == whole
    assert len(whole) > 1000


def export_bytes(log: SparkLog) -> bytes:
    with TestClient(create_app(log, messages=MessageRules(), history=LagHistory())) as client:
        return client.get(f"/topics/{TOPIC}/messages/export?from=beginning").content
