"""Changes of topics: what their previews show, and that confirming does it."""

from collections.abc import Iterator, Mapping
from typing import Any

import pytest
from starlette.testclient import TestClient

from sparklog.client import SparkLog
from tests.console.change_client import change, confirm, preview, refused, submit, writing_client
from tests.console.conftest import HOSTILE, NOW_MS, rows

SETTINGS = "/topics/orders/settings"


@pytest.fixture
def writing(log: SparkLog) -> Iterator[TestClient]:
    log.create_topic("orders", partitions=2, configs={"retention.ms": "60000", "segment.ms": "5000000"})
    with writing_client(log) as client:
        yield client


def before_and_after(shown: Any) -> dict[str, tuple[str | None, str | None]]:
    return {one["what"]: (one["before"], one["after"]) for one in shown["rows"]}


# --- settings ----------------------------------------------------------------------------------------


def test_a_preview_of_settings_shows_values_with_their_sources(log: SparkLog, writing: TestClient) -> None:
    log.alter_root({"segment.ms": "7000000"})
    shown = preview(
        writing,
        SETTINGS,
        {"retention.ms": "120000", "segment.ms": None, "cleanup.policy": "compact", "partitions": 3},
    )
    assert before_and_after(shown) == {
        "retention.ms": ("60000 = 1 min (topic)", "120000 = 2 min (topic)"),
        "segment.ms": ("5000000 = 5,000 s (topic)", "7000000 = 7,000 s (root)"),
        "cleanup.policy": ("delete (default)", "compact (topic)"),
        "partitions": ("2", "3"),
    }
    assert (shown["row_count"], shown["is_loss"]) == (4, False)
    assert any("Keys hash" in note for note in shown["notes"])
    assert confirm(writing, shown)["page"] == "/topics/orders"
    topic = log.refresh(force=True).topic("orders")
    assert topic.configs == {"retention.ms": "120000", "cleanup.policy": "compact"}
    assert len(topic.partitions) == 3


def test_a_shorter_retention_says_how_many_records_go(log: SparkLog, writing: TestClient) -> None:
    log.append("orders", rows(10, time_ms=NOW_MS - 30_000), partition=0)
    log.append("orders", rows(10, time_ms=NOW_MS), partition=1)
    shown = preview(writing, SETTINGS, {"retention.ms": 15_000})
    assert shown["is_loss"]
    assert "would remove 10 records" in " ".join(shown["notes"])
    longer = preview(writing, SETTINGS, {"retention.ms": 90_000})
    assert not longer["is_loss"]
    assert "No record goes" in " ".join(longer["notes"])
    assert preview(writing, SETTINGS, {"segment.ms": 6_000_000})["notes"] == []


def test_only_what_is_given_is_changed(log: SparkLog, writing: TestClient) -> None:
    change(writing, SETTINGS, {"cleanup.policy": ""})  # Kafka's empty policy keeps everything
    assert log.refresh(force=True).topic("orders").configs == {
        "retention.ms": "60000",
        "segment.ms": "5000000",
        "cleanup.policy": "",
    }


def test_an_empty_field_of_the_form_unsets(log: SparkLog, writing: TestClient) -> None:
    page = submit(writing, SETTINGS, {"retention.ms": "", "segment.ms": " 9000000 ", "partitions": "2"})
    assert page == "/topics/orders"
    assert log.refresh(force=True).topic("orders").configs == {"segment.ms": "9000000"}


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"retention.ms": "x"}, "INVALID_CONFIG_VALUE"),
        ({"retention.ms": -5}, "CONFIG_OUT_OF_BOUNDS"),
        ({"retention.mss": 5}, "INVALID_OPTION"),
        ({"partitions": 1}, "INVALID_PARTITION_COUNT"),
        ({"partitions": 0}, "INVALID_OPTION"),
    ],
)
def test_illegal_settings_are_refused(fields: Mapping[str, object], code: str, writing: TestClient) -> None:
    assert refused(writing, SETTINGS, fields) == (400, code)


def test_the_offsets_topic_keeps_its_policy(log: SparkLog, writing: TestClient) -> None:
    log.commit_offsets("etl", {("orders", 0): 0})
    path = "/topics/__consumer_offsets/settings"
    assert refused(writing, path, {"cleanup.policy": "delete"}) == (400, "INVALID_CONFIG_VALUE")
    assert refused(writing, path, {"partitions": 60}) == (400, "INVALID_PARTITION_COUNT")


def test_settings_that_changed_meanwhile_are_shown_again(log: SparkLog, writing: TestClient) -> None:
    shown = preview(writing, SETTINGS, {"retention.ms": 5})
    log.alter_topic("orders", {"segment.ms": "6000000"})
    assert refused(writing, "/confirm", {"confirm": shown["confirm"]}) == (409, "PREVIEW_OUTDATED")
    assert log.refresh(force=True).topic("orders").configs["retention.ms"] == "60000"


def test_a_missing_topic_has_no_forms(writing: TestClient) -> None:
    for path in ("settings", "produce", "delete", "delete-records"):
        assert writing.get(f"/topics/nope/{path}").status_code == 404
        assert writing.post(f"/topics/nope/{path}", data={"name": "x"}).status_code == 404
        assert refused(writing, f"/topics/nope/{path}", {}) == (404, "TOPIC_MISSING")


# --- create and delete -------------------------------------------------------------------------------


def test_a_topic_is_created(log: SparkLog, writing: TestClient) -> None:
    page = submit(
        writing, "/create-topic", {"name": " new ", "partitions": "3", "retention.ms": "5", "segment.ms": ""}
    )
    assert page == "/topics/new"
    topic = log.refresh(force=True).topic("new")
    assert (len(topic.partitions), topic.configs) == (3, {"retention.ms": "5"})


def test_a_new_topic_has_as_many_partitions_as_the_root_says(log: SparkLog, writing: TestClient) -> None:
    log.alter_root({"num.partitions": "4"})
    shown = preview(writing, "/create-topic", {"name": "new"})
    assert before_and_after(shown) == {"topic": (None, "new"), "partitions": (None, "4")}
    confirm(writing, shown)
    assert log.partition_count("new") == 4


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({}, "INVALID_OPTION"),
        ({"name": "orders"}, "TOPIC_EXISTS"),
        ({"name": HOSTILE}, "INVALID_TOPIC_NAME"),
        ({"name": "../x"}, "INVALID_TOPIC_NAME"),
        ({"name": "new", "retention.ms": ""}, "INVALID_CONFIG_VALUE"),
        ({"name": "new", "partitions": 10**9}, "INVALID_PARTITION_COUNT"),
    ],
)
def test_illegal_topics_are_refused(fields: Mapping[str, object], code: str, writing: TestClient) -> None:
    assert refused(writing, "/create-topic", fields) == (400, code)


def test_a_topic_that_someone_else_created_stays(log: SparkLog, writing: TestClient) -> None:
    shown = preview(writing, "/create-topic", {"name": "new", "partitions": 3})
    log.create_topic("new", partitions=1)
    assert refused(writing, "/confirm", {"confirm": shown["confirm"]}) == (400, "TOPIC_EXISTS")
    assert log.partition_count("new") == 1


def test_deleting_a_topic_shows_what_is_lost(log: SparkLog, writing: TestClient) -> None:
    log.append("orders", rows(10))
    log.commit_offsets("etl", {("orders", 0): 5})
    shown = preview(writing, "/topics/orders/delete", {"name": "orders"})
    found = before_and_after(shown)
    assert shown["is_loss"]
    assert found["records"] == ("10", None)
    assert found["position of a group"] == ("etl", None)
    assert confirm(writing, shown)["page"] == "/topics"
    assert log.topics() == []
    assert log.groups() == []


def test_deleting_a_topic_needs_its_name(log: SparkLog, writing: TestClient) -> None:
    assert refused(writing, "/topics/orders/delete", {}) == (400, "INVALID_OPTION")
    assert refused(writing, "/topics/orders/delete", {"name": "order"}) == (400, "INVALID_OPTION")
    log.commit_offsets("etl", {("orders", 0): 5})
    path = "/topics/__consumer_offsets/delete"
    assert refused(writing, path, {"name": "__consumer_offsets"}) == (400, "INTERNAL_TOPIC")
    assert "/delete" not in writing.get("/topics/__consumer_offsets").text


def test_a_topic_that_was_made_anew_is_not_deleted(log: SparkLog, writing: TestClient) -> None:
    shown = preview(writing, "/topics/orders/delete", {"name": "orders"})
    log.delete_topic("orders")
    configs = {"retention.ms": "60000", "segment.ms": "5000000"}
    log.create_topic("orders", partitions=2, configs=configs)
    assert refused(writing, "/confirm", {"confirm": shown["confirm"]}) == (409, "PREVIEW_OUTDATED")
    assert log.topics() == ["orders"]


# --- records -----------------------------------------------------------------------------------------


def test_records_before_an_offset_are_deleted(log: SparkLog, writing: TestClient) -> None:
    log.append("orders", rows(10), partition=0)
    shown = preview(writing, "/topics/orders/delete-records", {"partition": 0, "offset": 4})
    assert before_and_after(shown) == {"orders-0 log start": ("0", "4")}
    assert (shown["button"], shown["is_loss"]) == ("Delete 4 records", True)
    confirm(writing, shown)
    assert log.log_start_offset("orders", 0) == 4
    assert preview(writing, "/topics/orders/delete-records", {"partition": 0, "offset": 4})["confirm"] is None


def test_only_records_that_were_shown_are_deleted(log: SparkLog, writing: TestClient) -> None:
    log.append("orders", rows(10), partition=0)
    log.append("orders", rows(5), partition=1)
    shown = preview(writing, "/topics/orders/delete-records", {"offset": -1})
    assert before_and_after(shown) == {
        "orders-0 log start": ("0", "10"),
        "orders-1 log start": ("0", "5"),
    }
    log.append("orders", rows(10), partition=0)
    confirm(writing, shown)
    assert (log.log_start_offset("orders", 0), log.log_end_offset("orders", 0)) == (10, 20)


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({}, "INVALID_OPTION"),
        ({"offset": 0}, "INVALID_OPTION"),
        ({"offset": -2, "partition": 0}, "INVALID_OPTION"),
        ({"offset": 99, "partition": 0}, "OFFSET_OUT_OF_RANGE"),
        ({"offset": 0, "partition": 9}, "PARTITION_MISSING"),
    ],
)
def test_illegal_deletions_are_refused(fields: Mapping[str, object], code: str, writing: TestClient) -> None:
    assert refused(writing, "/topics/orders/delete-records", fields)[1] == code


@pytest.mark.parametrize(
    ("fields", "key", "value"),
    [
        ({"key": "a", "value": "b\r\nc"}, b"a", b"b\nc"),
        ({"value": "b"}, None, b"b"),
        ({"value": ""}, None, b""),
        ({"key": "00 ff", "key_is": "hex", "value": "AP8=\n", "value_is": "base64"}, b"\0\xff", b"\0\xff"),
        ({"key": "a", "value": "", "value_is": "null"}, b"a", None),
        ({"key": "", "key_is": "null", "value": HOSTILE}, None, HOSTILE.encode()),
    ],
)
def test_a_record_is_written(
    fields: dict[str, str], key: bytes | None, value: bytes | None, log: SparkLog, writing: TestClient
) -> None:
    page = submit(writing, "/topics/orders/produce", {**fields, "headers": "trace: 1:2\nempty:\n"})
    number = int(page.split("/")[4])
    (found,) = log.read("orders", number, 0, include_headers=True).to_pylist()
    assert (found["key"], found["value"]) == (key, value)
    assert found["headers"] == [{"key": "trace", "value": b"1:2"}, {"key": "empty", "value": b""}]


def test_a_record_goes_where_its_preview_says(log: SparkLog, writing: TestClient) -> None:
    for key in map(str, range(8)):
        shown = preview(writing, "/topics/orders/produce", {"key": key, "value": "x"})
        (where,) = [one for one in shown["rows"] if one["what"] == "partition"]
        assert where["note"] == "by the key"
        assert confirm(writing, shown)["page"].startswith(f"/topics/orders/messages/{where['after']}/")
    by_key = log.append("orders", rows(8).select(["value"]).append_column("key", [list("01234567")]))
    assert {number: log.log_end_offset("orders", number) for number in range(2)} == {
        number: 2 * found.record_count for number, found in by_key.partitions.items()
    }
    shown = preview(writing, "/topics/orders/produce", {"partition": 1, "key": "0", "value": "x"})
    assert shown["rows"][0]["after"] == "1"


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"value": "x", "partition": 2}, "INVALID_OPTION"),
        ({"value": "xyz", "value_is": "hex"}, "INVALID_OPTION"),
        ({"value": "x", "value_is": "base64"}, "INVALID_OPTION"),
        ({"value": "x", "value_is": "null"}, "INVALID_OPTION"),
        ({"value": "x", "value_is": "xml"}, "INVALID_OPTION"),
        ({"value": "x", "headers": "no colon"}, "INVALID_OPTION"),
        ({"value": "x" * 1_100_000}, "RECORD_TOO_LARGE"),
    ],
)
def test_illegal_records_are_refused(fields: Mapping[str, object], code: str, writing: TestClient) -> None:
    assert refused(writing, "/topics/orders/produce", fields) == (400, code)


def test_internal_topics_get_no_records(log: SparkLog, writing: TestClient) -> None:
    log.commit_offsets("etl", {("orders", 0): 5})
    assert refused(writing, "/topics/__consumer_offsets/produce", {"value": "x"}) == (400, "INTERNAL_TOPIC")
    path = "/topics/__consumer_offsets/delete-records"
    assert refused(writing, path, {"offset": -1}) == (400, "INTERNAL_TOPIC")


def test_a_preview_of_a_hostile_record_is_text(writing: TestClient) -> None:
    page = writing.post("/topics/orders/produce", data={"key": HOSTILE, "value": HOSTILE * 100}).text
    assert "&lt;script&gt;alert(1)" in page
    assert "<script>alert" not in page
    assert "\x1b" not in page
    assert "\u202e" not in page
