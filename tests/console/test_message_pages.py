"""Pages of records: parameters, what is shown, hostile records, masks."""

import base64
import json
import re
from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
import pytest
from starlette.testclient import TestClient

from sparklog.client import SparkLog
from sparklog.console.app import HEADERS, create_app
from sparklog.console.message_masks import MaskRule, MessageRules
from sparklog.console.message_pages import PREVIEW_BYTES, VIEWS
from sparklog.console.message_values import FORMATS, AvroDecoder
from tests.console.made_records import HOSTILE, PARTITIONS, TOPIC, all_records, fill
from tests.console.test_message_values import USER, avro

PAGE = f"/topics/{TOPIC}/messages"


@pytest.fixture
def filled(log: SparkLog) -> SparkLog:
    fill(log)
    return log


@pytest.fixture
def client(log: SparkLog) -> Iterator[TestClient]:
    with TestClient(create_app(log, messages=MessageRules())) as client:
        yield client


def places(document: Any) -> list[tuple[int, int]]:
    return [(one["partition"], one["offset"]) for one in document["messages"]]


# --- searching


def test_without_parameters_the_newest_are_shown(filled: SparkLog, api: Callable[[str], Any]) -> None:
    newest = sorted(all_records(filled), key=lambda one: (one.timestamp_ms, one.partition), reverse=True)[:50]
    document = api(PAGE)
    assert places(document) == [(record.partition, record.offset) for record in newest]
    assert (document["progress"]["stopped"], document["progress"]["found"]) == ("end", 150)


def test_the_newest_of_many_steps_are_shown(log: SparkLog, api: Callable[[str], Any]) -> None:
    log.create_topic("t", 1)
    for start in range(0, 90, 30):
        rows = {
            "value": [b"x"] * 30,
            "timestamp": pa.array(range(start, start + 30), pa.timestamp("ms", "UTC")),
        }
        log.append("t", pa.table(rows))
    assert places(api("/topics/t/messages?records=3")) == [(0, 89), (0, 88), (0, 87)]
    assert places(api("/topics/t/messages?records=3&at=2")) == [(0, 89), (0, 88)]


def test_records_are_shown_as_they_are_stored(filled: SparkLog, api: Callable[[str], Any]) -> None:
    document = api(f"{PAGE}?from=beginning&records=1000")
    shown = {(one["partition"], one["offset"]): one for one in document["messages"]}
    for record in all_records(filled):
        one = shown[record.partition, record.offset]
        assert one["timestamp_ms"] == record.timestamp_ms
        for name in ("key", "value"):
            stored = getattr(record, name)
            assert one[name]["size_bytes"] == len(stored or b"")
            coded = one[name]["base64"]
            assert (None if coded is None else base64.b64decode(coded)) == (
                stored or None if coded is None else stored
            )
        assert [header["name"] for header in one["headers"]] == [name for name, _ in record.headers]


@pytest.mark.parametrize(
    ("parameters", "is_found"),
    [
        ("key=k3", lambda one: one.key == b"k3"),
        ("key_part=k1", lambda one: b"k1" in (one.key or b"")),
        ("value=caf%C3%A9 3", lambda one: "café 3".encode() in (one.value or b"")),
        ("header=trace&header_value=t99", lambda one: ("trace", b"t99") in one.headers),
        ("regex=order [0-9]%2B", lambda one: re.search(rb"order [0-9]+", one.value or b"") is not None),
        ("until=1970-01-01T00:16:42", lambda one: one.timestamp_ms <= 1_002_000),
        ("until=1002000", lambda one: one.timestamp_ms <= 1_002_000),
        ("from=time&at=1970-01-01T02:16:42%2B02:00", lambda one: one.timestamp_ms >= 1_002_000),
        ("from=offset&at=100", lambda one: one.offset >= 100),
        ("partition=0, 2", lambda one: one.partition in {0, 2}),
    ],
)
def test_parameters_are_filters(
    filled: SparkLog, api: Callable[[str], Any], parameters: str, is_found: Callable[[Any], bool]
) -> None:
    found = api(f"{PAGE}?records=1000&{parameters}")
    expected = [(one.partition, one.offset) for one in all_records(filled) if is_found(one)]
    assert sorted(places(found)) == expected
    assert expected


def test_a_path_and_what_it_equals_are_a_filter(filled: SparkLog, api: Callable[[str], Any]) -> None:
    found = api(f"{PAGE}?path=$.user.name&equals=bob")
    assert found["messages"]
    assert {json.loads(one["value"]["text"])["user"]["name"] for one in found["messages"]} == {"bob"}


@pytest.mark.parametrize(
    ("parameters", "problem"),
    [
        ("from=middle", "from: found 'middle', expected one of latest, beginning, offset, time"),
        ("from=offset&at=-1", "at: found '-1', expected a number"),
        ("from=time&at=noon", "at: found 'noon', expected a time"),
        ("until=noon", "until: found 'noon', expected a time"),
        ("partition=a", "partition: found 'a', expected numbers with commas"),
        ("partition=-1", "partition: found '-1'"),
        ("records=0", "records: found '0', expected 1 to 1,000"),
        ("records=1001", "records: found '1001'"),
        ("seconds=61", "seconds: found '61'"),
        ("format=xml", "format: found 'xml', expected one of auto"),
        ("regex=(", "a pattern of values"),
        ("path=a[", "a JSON path"),
    ],
)
def test_wrong_parameters_are_refused(
    filled: SparkLog, client: TestClient, parameters: str, problem: str
) -> None:
    assert filled.image.topics
    answer = client.get(f"/api/v1{PAGE}?{parameters}")
    assert answer.status_code == 400
    assert problem in answer.json()["message"]
    assert client.get(f"{PAGE}?{parameters}").status_code == 400


def test_what_is_not_there_is_missing(filled: SparkLog, client: TestClient) -> None:
    assert filled.image.topics
    for path in ("/topics/nothing/messages", "/topics/nothing/tail", f"{PAGE}?partition=9"):
        assert client.get(path).status_code == 404
    for place in ("0/100000", "9/0"):
        assert client.get(f"{PAGE}/{place}").status_code == 404
        assert client.get(f"{PAGE}/{place}/value").status_code == 404
    assert client.get(f"{PAGE}/0/0/offset").status_code == 404
    assert client.get(f"{PAGE}/0/x").status_code == 400


def test_a_search_that_stops_says_so(filled: SparkLog, page: Callable[[str], str]) -> None:
    assert filled.image.topics
    assert "10 found in" in page(f"{PAGE}?from=beginning&records=10")
    assert "as many as may be shown" in page(f"{PAGE}?from=beginning&records=10")
    assert "150 found in 150 records" in page(PAGE)
    assert "shown are the newest 50" in page(PAGE)
    assert "No record is like this." in page(f"{PAGE}?key=nothing")


# --- what is shown


def hostile(log: SparkLog) -> None:
    log.create_topic("h", 1)
    texts = [data.decode(errors="replace") for data in HOSTILE]
    headers = [[{"key": text, "value": data}] for text, data in zip(texts, HOSTILE, strict=True)]
    log.append("h", pa.table({"key": pa.array(HOSTILE), "value": pa.array(HOSTILE), "headers": headers}))


def is_plain(text: str) -> bool:
    executed = r"<script>alert|<img|\son\w+=|javascript:|\sstyle=|<style|<script(?! src=)"
    unseen = "[\x00-\x09\x0b-\x1f\x7f-\x9f\u2028-\u202e]"
    return re.search(executed, re.sub("&lt;img src=x onerror", "", text)) is None and not re.search(
        unseen, text
    )


@pytest.mark.parametrize("wanted", FORMATS)
def test_hostile_records_are_text(log: SparkLog, client: TestClient, wanted: str) -> None:
    hostile(log)
    answer = client.get(f"/topics/h/messages?format={wanted}")
    assert answer.status_code == 200
    assert is_plain(answer.text)
    for offset in range(len(HOSTILE)):
        answer = client.get(f"/topics/h/messages/0/{offset}?format={wanted}")
        assert answer.status_code == 200
        assert is_plain(answer.text)
        assert answer.headers["content-security-policy"] == HEADERS["content-security-policy"]


def test_hostile_parameters_are_text(log: SparkLog, client: TestClient) -> None:
    hostile(log)
    for name in ("key_part", "value", "regex", "partition", "from", "at", "format"):
        answer = client.get("/topics/h/messages", params={name: '"><script>alert(1)</script>\x1b'})
        assert is_plain(answer.text), name


@pytest.mark.slow
def test_large_values_are_cut_and_can_be_downloaded(log: SparkLog, client: TestClient) -> None:
    log.create_topic("big", 1, {"max.message.bytes": str(64 << 20)})
    value = b"<b>" + b"v" * (50 << 20)
    log.append("big", pa.table({"value": pa.array([value, None], pa.binary())}))
    document = client.get("/api/v1/topics/big/messages?from=beginning").json()
    field = document["messages"][0]["value"]
    assert (field["size_bytes"], len(base64.b64decode(field["base64"]))) == (len(value), PREVIEW_BYTES)
    assert field["notes"] == [f"the first {PREVIEW_BYTES:,} of {len(value):,} bytes"]
    page = client.get("/topics/big/messages/0/0")
    assert len(page.content) < 100_000
    assert 'href="/topics/big/messages/0/0/value"' in page.text
    answer = client.get("/topics/big/messages/0/0/value")
    assert answer.content == value
    assert answer.headers["content-type"] == "application/octet-stream"
    assert answer.headers["content-disposition"] == 'attachment; filename="big-0-0-value.bin"'
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert client.get("/topics/big/messages/0/1/value").status_code == 404


def test_one_record_leads_to_its_neighbours(filled: SparkLog, client: TestClient) -> None:
    assert filled.image.topics
    text = client.get(f"{PAGE}/1/17?format=hex").text
    for offset in (16, 18):
        assert f'href="{PAGE}/1/{offset}?format=hex"' in text
    assert f'href="{PAGE}/0/-1' not in client.get(f"{PAGE}/0/0").text


def test_schemas_and_masks(log: SparkLog) -> None:
    log.create_topic("u", 1)
    data = avro(USER, {"name": "Ann", "photo": None, "tags": ["4111"], "born": 1})
    log.append("u", pa.table({"key": ["4111"], "value": pa.array([data], pa.binary())}))
    schemas = {"u-value": AvroDecoder(json.dumps(USER))}
    for masks, tag, key in (((), "4111", "4111"), ((MaskRule(regex="4[0-9]+"),), "***", "***")):
        rules = MessageRules(masks=masks, schemas=schemas)
        with TestClient(create_app(log, messages=rules)) as client:
            document = client.get("/api/v1/topics/u/messages").json()
            (one,) = document["messages"]
            assert json.loads(one["value"]["text"])["tags"] == [tag]
            assert one["key"]["text"] == key
            assert (document["subjects"], document["is_masked"]) == (["value"], bool(masks))
            for path in ("messages", "messages/0/0", "messages/0/0?format=hex", "messages/0/0/value"):
                answer = client.get(f"/topics/u/{path}")
                assert answer.status_code == 200
                assert not masks or (b"4111" not in answer.content and b"3431 3131" not in answer.content)


def test_without_rules_no_record_is_shown(filled: SparkLog) -> None:
    with TestClient(create_app(filled)) as client:
        for view in VIEWS:
            path = view.path.format(topic=TOPIC, partition=0, offset=0)
            assert client.get(path).status_code == 404
            assert client.get(f"/api/v1{path}").status_code == 404
        for path in ("messages/stream", "messages/export", "messages/0/0/value", "tail/stream"):
            assert client.get(f"/topics/{TOPIC}/{path}").status_code == 404
        assert "/messages" not in client.get(f"/topics/{TOPIC}").text
        assert "messages" not in client.get("/api/v1/openapi.json").text


def test_a_topics_page_leads_to_its_messages(filled: SparkLog, client: TestClient) -> None:
    assert len(filled.image.topic(TOPIC).partitions) == PARTITIONS
    text = client.get(f"/topics/{TOPIC}").text
    for path in ("messages", "tail"):
        assert f'href="/topics/{TOPIC}/{path}"' in text
        assert client.get(f"/topics/{TOPIC}/{path}").status_code == 200
