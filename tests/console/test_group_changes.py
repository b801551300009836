"""Moving and deleting groups of a root without brokers: every way to say where to, and what is refused."""

from collections.abc import Iterator, Mapping

import pytest
from starlette.testclient import TestClient

from sparklog.client import SparkLog
from sparklog.client.group_expiry import refuse_served_root
from sparklog.console.group_changes import MODES
from sparklog.errors import InvalidRequestError
from sparklog.wording import plain
from tests.console.change_client import change, confirm, preview, refused, submit, writing_client
from tests.console.conftest import HOSTILE, NOW_MS, rows
from tests.support.cluster_root import ClusterRoot
from tests.support.told import Told

RESET = "/group/reset?group=etl"
BEFORE = {("orders", 0): 4, ("orders", 1): 6, ("users", 0): 2}


@pytest.fixture
def writing(log: SparkLog) -> Iterator[TestClient]:
    """Ten records, a second apart, in each partition; of orders-0 the first two are gone."""
    log.create_topic("orders", partitions=2)
    log.create_topic("users", partitions=1)
    for at in BEFORE:
        log.append(at[0], rows(10), partition=at[1])
    log.commit_offsets("etl", BEFORE)
    with writing_client(log) as client:
        change(client, "/topics/orders/delete-records", {"partition": 0, "offset": 2})
        yield client


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({}, {("orders", 0): 2, ("orders", 1): 0, ("users", 0): 0}),
        ({"to": "earliest"}, {("orders", 0): 2, ("orders", 1): 0, ("users", 0): 0}),
        ({"to": "latest"}, dict.fromkeys(BEFORE, 10)),
        ({"to": "latest", "topic": "orders"}, {**BEFORE, ("orders", 0): 10, ("orders", 1): 10}),
        ({"to": "latest", "topic": "orders", "partition": "1, 1"}, {**BEFORE, ("orders", 1): 10}),
        ({"to": "offset", "value": 5}, dict.fromkeys(BEFORE, 5)),
        ({"to": "offset", "value": 1}, {("orders", 0): 2, ("orders", 1): 1, ("users", 0): 1}),
        ({"to": "shift-by", "value": -3}, {("orders", 0): 2, ("orders", 1): 3, ("users", 0): 0}),
        ({"to": "shift-by", "value": "3"}, {("orders", 0): 7, ("orders", 1): 9, ("users", 0): 5}),
        ({"to": "datetime", "value": NOW_MS - 1500}, dict.fromkeys(BEFORE, 8)),
        ({"to": "datetime", "value": "2100-01-01T00:00"}, dict.fromkeys(BEFORE, 10)),
        (
            {"to": "by-duration", "value": 1, "unit": "days"},
            {("orders", 0): 2, ("orders", 1): 0, ("users", 0): 0},
        ),
        ({"to": "by-duration", "value": 0}, dict.fromkeys(BEFORE, 9)),
        ({"to": "file", "csv": "orders,1,3\nusers,0,99\n"}, {**BEFORE, ("orders", 1): 3, ("users", 0): 10}),
    ],
    ids=str,
)
def test_a_group_is_moved(
    fields: Mapping[str, object],
    expected: Mapping[tuple[str, int], int],
    log: SparkLog,
    writing: TestClient,
) -> None:
    shown = preview(writing, RESET, fields)
    assert log.committed_offsets("etl") == BEFORE
    moved = {at: offset for at, offset in expected.items() if BEFORE[at] != offset}
    found = {one["what"]: (int(one["before"]), int(one["after"])) for one in shown["rows"]}
    assert found == {
        f"{topic}-{number}": (BEFORE[topic, number], to) for (topic, number), to in moved.items()
    }
    assert confirm(writing, shown)["page"] == "/group?group=etl"
    assert log.committed_offsets("etl") == expected


def test_all_ways_are_tried_here() -> None:
    assert set(MODES) == {
        *("earliest", "latest", "current", "offset", "shift-by", "datetime", "by-duration", "file")
    }


def test_where_it_is_moves_nothing(writing: TestClient) -> None:
    shown = preview(writing, RESET, {"to": "current"})
    assert (shown["confirm"], shown["rows"]) == (None, [])
    assert shown["notes"] == ["3 partitions stay as they are."]


def test_what_is_not_as_asked_for_is_noted(writing: TestClient) -> None:
    notes = preview(writing, RESET, {"to": "offset", "value": 1})["notes"]
    assert notes == ["orders-0: offset 1 is lower than the log start; taken is 2."]
    (row,) = preview(writing, RESET, {"to": "latest", "topic": "users"})["rows"]
    assert row["note"] == "skips 8 offsets"


def test_what_was_shown_is_committed_though_the_log_goes_on(log: SparkLog, writing: TestClient) -> None:
    shown = preview(writing, RESET, {"to": "latest", "topic": "users"})
    log.append("users", rows(5))
    confirm(writing, shown)
    assert log.committed_offsets("etl")["users", 0] == 10


@pytest.mark.parametrize(
    "fields",
    [
        {"to": "sideways"},
        {"to": "earliest", "value": "5"},
        {"to": "offset"},
        {"to": "offset", "value": "-1"},
        {"to": "shift-by", "value": "x"},
        {"to": "datetime", "value": "yesterday"},
        {"to": "datetime"},
        {"to": "by-duration", "value": 5, "unit": "months"},
        {"to": "by-duration", "value": 10**8, "unit": "days"},
        {"to": "file", "csv": "orders,1"},
        {"to": "file", "csv": "orders,1,3", "topic": "orders"},
        {"to": "file"},
        {"to": "latest", "partition": "0"},
        {"to": "latest", "topic": "nope"},
        {"to": "latest", "topic": "orders", "partition": "9"},
        {"to": "latest", "topic": "orders", "partition": "x"},
    ],
    ids=str,
)
def test_an_illegal_reset_is_refused(fields: Mapping[str, object], writing: TestClient) -> None:
    status, code = refused(writing, RESET, fields)
    assert (status, code) in {
        (400, "INVALID_OPTION"),
        (400, "INVALID_PARTITION_FILE"),
        (404, "TOPIC_MISSING"),
        (404, "PARTITION_MISSING"),
    }


def test_a_group_that_has_committed_since_is_not_moved(log: SparkLog, writing: TestClient) -> None:
    for path, fields in ((RESET, {"to": "earliest"}), ("/group/delete?group=etl", {"name": "etl"})):
        shown = preview(writing, path, fields)
        log.commit_offsets("etl", {("users", 0): log.committed_offsets("etl")["users", 0] + 1})
        assert refused(writing, "/confirm", {"confirm": shown["confirm"]}) == (409, "PREVIEW_OUTDATED")
    assert log.committed_offsets("etl") == {**BEFORE, ("users", 0): 4}


def test_a_group_is_deleted(log: SparkLog, writing: TestClient) -> None:
    assert refused(writing, "/group/delete?group=etl", {"name": "et"}) == (400, "INVALID_OPTION")
    assert submit(writing, "/group/delete?group=etl", {"name": "etl"}) == "/groups"
    assert log.groups() == []


def test_a_group_that_there_is_none_of(writing: TestClient) -> None:
    assert writing.get("/group/reset?group=nope").status_code == 404
    assert writing.get("/group/delete").status_code == 404
    assert refused(writing, "/group/delete?group=nope", {"name": "nope"}) == (404, "NOT_FOUND")
    assert refused(writing, "/group/reset", {}) == (400, "INVALID_OPTION")


def test_the_form_moves_a_group_with_a_foreign_name(
    log: SparkLog, writing: TestClient, told: Told, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "sparklog.console")
    told.forget()
    log.commit_offsets(HOSTILE, {("users", 0): 5})
    page = writing.get("/groups").text
    link = next(part for part in page.split('"') if part.startswith("/group?group=%3C"))
    path = link.replace("/group?", "/group/reset?")
    fields = {"to": "earliest", "value": "", "unit": "minutes", "topic": "", "partition": "", "csv": ""}
    assert submit(writing, path, fields) == link
    assert log.committed_offsets(HOSTILE) == {("users", 0): 0}
    for name in (HOSTILE.strip(), plain(HOSTILE.strip())):
        assert submit(writing, path.replace("reset", "delete"), {"name": name}) == "/groups"
        assert log.groups() == ["etl"]
        log.commit_offsets(HOSTILE, {("users", 0): 5})
    assert not [one for one in told("sparklog.console") if "\x1b" in one or "\n" in one]
    assert len(told("sparklog.console")) == 3


def test_brokers_that_are_all_fenced_know_the_members(log: SparkLog, writing: TestClient) -> None:
    """As `sparklog groups`: where a broker is registered, only its coordinator makes the change."""
    shown = preview(writing, RESET, {"to": "earliest"})
    cluster = ClusterRoot(log)
    cluster.fence(1)
    cluster.fence(2)
    cluster.fence(3)
    with pytest.raises(InvalidRequestError, match="BROKER_COORDINATES"):
        refuse_served_root(log, force=False)
    assert refused(writing, "/confirm", {"confirm": shown["confirm"]}) == (409, "PREVIEW_OUTDATED")
    assert refused(writing, RESET, {"to": "earliest"}) == (400, "NO_BROKER_RUNS")
    assert log.committed_offsets("etl") == BEFORE
