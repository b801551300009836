"""An S3 store when things go wrong on the way: patient where that is harmless, honest where it is not."""

import logging
import os

import pytest

import sparklog.storage.object_probe
import sparklog.storage.s3_client
from sparklog.errors import AlreadyExistsError, NotFoundError, SparklogError, StorageError
from sparklog.log.segment_file import segment_name
from sparklog.storage import IndefinitePutError
from sparklog.storage.object_store import PART_BYTES
from tests.storage import s3_proxy as faults
from tests.storage.faulty_s3 import UNSURE, MakeStore, is_put
from tests.storage.s3_proxy import Fault, FaultyProxy, Request
from tests.support.told import Told

HARMLESS = [
    "SLOW_DOWN",
    "ERROR_BEFORE",
    "ERROR_AFTER",
    "RESET_BEFORE",
    "RESET_AFTER",
    "LATE_ANSWER",
    "CONFLICT",
    "TWICE",
    "ERROR_IN_200",
    "TRUNCATED",
]


@pytest.mark.parametrize("fault", HARMLESS)
def test_reading_is_repeated(make: MakeStore, proxy: FaultyProxy, fault: str) -> None:
    make().put_if_absent("a", b"0123456789" * 100)
    store = make(fault)
    proxy.times(2, getattr(faults, fault))
    assert store.read("a", 10, 500) == b"0123456789" * 50
    proxy.times(2, getattr(faults, fault))
    assert store.list("", start_after="Z")[0].name == "a"
    proxy.times(2, getattr(faults, fault))
    store.put_hint("h", b"hint")
    proxy.times(2, getattr(faults, fault))
    store.delete("a")
    with pytest.raises(NotFoundError):
        store.read("a")
    assert store.read("h") == b"hint"


@pytest.mark.parametrize(("fault", "took_effect"), UNSURE)
def test_a_conditional_put_is_tried_once_and_its_answer_is_not_guessed(
    make: MakeStore, proxy: FaultyProxy, fault: str, took_effect: bool
) -> None:
    store = make(fault)
    proxy.once(getattr(faults, fault), is_put)
    with pytest.raises(IndefinitePutError, match="no definite answer"):
        store.put_if_absent("a", b"ours")
    proxy.until_forwarded(1)
    assert len(proxy.requests) == 1
    if fault == "LATE_ANSWER":
        store = make()
    if took_effect:
        with pytest.raises(AlreadyExistsError):
            store.put_if_absent("a", b"ours")
    else:
        store.put_if_absent("a", b"ours")
    assert store.read("a") == b"ours"


def test_a_put_that_lands_late_changes_nothing(make: MakeStore, proxy: FaultyProxy) -> None:
    store = make()
    proxy.once(faults.LATE_EFFECT, is_put)
    with pytest.raises(IndefinitePutError):
        store.put_if_absent("a", b"first try")
    assert not store.exists("a")
    store.put_if_absent("a", b"first try")
    assert proxy.land() == [412]
    assert store.read("a") == b"first try"


def test_a_put_that_was_sent_twice_conflicts_with_itself(make: MakeStore, proxy: FaultyProxy) -> None:
    store = make()
    proxy.once(faults.TWICE, is_put)
    with pytest.raises(AlreadyExistsError):  # hence the UUID in every commit
        store.put_if_absent("a", b"ours")
    assert store.read("a") == b"ours"


def test_the_guard_is_asked_after_signing_and_before_sending(make: MakeStore, proxy: FaultyProxy) -> None:
    store = make()
    with pytest.raises(SparklogError, match="PUT_REFUSED"):
        store.put_if_absent("a", b"x", guard=lambda: False)
    assert proxy.requests == []


def test_a_replica_is_told_of_once(make: MakeStore, proxy: FaultyProxy, told: Told) -> None:
    store = make()
    store.put_if_absent("a", b"x")
    assert store.read("a") == b"x"
    assert told("sparklog.storage") == []
    proxy.fault = lambda _: Fault(header=("x-amz-replication-status", "REPLICA"))
    for _ in range(2):
        assert store.read("a") == b"x"
    (record,) = told.records("sparklog.storage")
    assert record.levelno == logging.WARNING
    assert "replicated" in record.getMessage()


def test_an_answer_without_an_etag_is_none(make: MakeStore, proxy: FaultyProxy) -> None:
    store = make()
    proxy.once(Fault(forward=0, answer=(204, "")), is_put)
    with pytest.raises(IndefinitePutError, match="without ETag"):
        store.put_if_absent("a", b"x")
    assert not store.exists("a")


@pytest.mark.parametrize("fault", [*HARMLESS[:7], "ERROR_IN_200_AFTER"])
def test_an_append_file_is_finished_in_spite_of_faults(
    make: MakeStore, proxy: FaultyProxy, fault: str
) -> None:
    store = make(fault)
    with store.append_file("segments/w/0.log") as file:
        file.write(b"batch" * 100)
        proxy.times(2, getattr(faults, fault), is_put)
        file.sync()
    assert store.read("segments/w/0.log") == b"batch" * 100


def test_an_append_file_of_somebody_else_is_not_taken_for_ours(make: MakeStore, proxy: FaultyProxy) -> None:
    store = make()
    store.put_if_absent("a", b"theirs")
    proxy.once(faults.RESET_BEFORE, is_put)
    with store.append_file("a") as file:
        file.write(b"ours")
        with pytest.raises(AlreadyExistsError):
            file.sync()
    assert store.read("a") == b"theirs"


@pytest.mark.parametrize("fault", ["SLOW_DOWN", "ERROR_AFTER", "RESET_AFTER"])
def test_a_multipart_upload_in_spite_of_faults(make: MakeStore, proxy: FaultyProxy, fault: str) -> None:
    store = make(fault)
    content = os.urandom(PART_BYTES) * 3 + b"the end"
    kinds: set[str] = set()

    def first_of_its_kind(request: Request) -> Fault | None:
        kind = f"{request.method} {sorted(request.query)}"
        if request.method == "GET" or kind in kinds:
            return None
        kinds.add(kind)
        return chosen

    chosen: Fault = getattr(faults, fault)
    proxy.fault = first_of_its_kind
    name = segment_name("0" * 32, 7, 1)
    with store.append_file(name) as file:
        for start in range(0, len(content), 1 << 20):
            file.write(content[start : start + (1 << 20)])
        file.sync()
    assert len(kinds) == 3  # create, upload a part, complete
    assert store.read(name) == content
    proxy.fault = lambda _: None
    store.sweep_temporary(older_than_ms=-60_000, unfinished_older_than_ms=-60_000)
    assert store.sweep_temporary(older_than_ms=-60_000, unfinished_older_than_ms=-60_000) == 0


def test_an_upload_that_nobody_finished_is_swept(make: MakeStore) -> None:
    store = make()
    name = segment_name("0" * 32, 7, 1)
    file = store.append_file(name)
    file.write(bytes(2 * PART_BYTES))
    assert store.sweep_temporary(older_than_ms=-60_000) == 0
    assert store.sweep_temporary(older_than_ms=-60_000, unfinished_older_than_ms=-60_000) == 1
    with pytest.raises(StorageError):
        file.sync()
    file.close()
    assert not store.exists(name)


def test_what_a_killed_probe_left_is_swept(make: MakeStore) -> None:
    store = make()
    store.client.call("put_object", store.url, Key=f"{store.key_prefix}.tmp/probe-1", Body=b"")
    assert store.list("", recursive=True) == []
    assert store.sweep_temporary(older_than_ms=60_000) == 0
    assert store.sweep_temporary(older_than_ms=-60_000) == 1
    assert store.sweep_temporary(older_than_ms=-60_000) == 0


def test_an_upload_that_is_given_up_leaves_nothing(make: MakeStore) -> None:
    store = make()
    with store.append_file(segment_name("0" * 32, 7, 1)) as file:
        file.write(bytes(2 * PART_BYTES))
    assert store.sweep_temporary(older_than_ms=-60_000, unfinished_older_than_ms=-60_000) == 0
    assert store.list("segments") == []


@pytest.mark.parametrize("keys", [3, 4, 5, 9, 10, 11])
def test_a_list_of_more_than_a_page(make: MakeStore, monkeypatch: pytest.MonkeyPatch, keys: int) -> None:
    monkeypatch.setattr(sparklog.storage.s3_client, "LIST_KEYS", keys)
    store = make()
    names = [f"many/{number}" for number in range(10)]
    for name in names:
        store.put_hint(name, b"")
    store.put_hint("many/5/below", b"")
    before = store.requests.get("list_objects_v2", 0)
    assert [file.name for file in store.list("many", recursive=True)] == [
        *names[:6],
        "many/5/below",
        *names[6:],
    ]
    assert store.requests["list_objects_v2"] - before == -(-11 // keys)
    assert [file.name for file in store.list("many", start_after="many/4")] == names[5:]
    store.delete_directory("many")
    assert store.list("many", recursive=True) == []
