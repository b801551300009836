"""Answers that make no sense end in an error with a code, after so many requests: never in a loop."""

import contextlib
from collections.abc import Callable, Iterator
from datetime import UTC, datetime

import pytest

import sparklog
from sparklog.errors import SparklogError, StorageError
from sparklog.maintenance.sweep import vacuum
from sparklog.storage.object_client import MAX_EMPTY_PAGES, PageOrder, WrongAnswerError
from sparklog.storage.object_store import PART_BYTES
from sparklog.storage.s3 import S3Store
from tests.storage.small_s3 import (
    Answer,
    Asked,
    Odd,
    SmallS3,
    entry,
    listing,
    refusal,
    upload_entry,
    uploads,
)

pytestmark = pytest.mark.slow

Call = Callable[[S3Store], object]
MOST_REQUESTS = 1200  # `retry_timeout` at two seconds a try, and pages that are empty
# Of each, whatever was asked for: what has no place in S3's protocol.
NONSENSE = {
    "a page of something else": Answer(body="<html><body>Log in, please</body></html>"),
    "no XML": Answer(body="Log in, please"),
    "half of the XML": Answer(body="<ListBucketResult><IsTruncated>fal"),
    "nothing": Answer(),
    "another list": Answer(body="[]", headers={"Content-Type": "application/json"}),
    "a length that is too large": Answer(body="<a/>", length=100),
    "an empty success": Answer(204),
    "bytes that are no text": Answer(body=b"\xff\xfe\x00\x01<a>"),
    "a redirection to nowhere": Answer(301, headers={"Location": "http://127.0.0.1:1/"}),
    "an error without a name": Answer(400, "<Error></Error>"),
    "an error that is no XML": Answer(403, "Forbidden by the gateway"),
    "a status of nobody": Answer(299, "<a/>"),
    "a date that is none": Answer(headers={"Date": "yesterday"}),
}
LISTINGS = {
    "truncated without a token": listing(truncated="true"),
    "not said whether truncated": listing(entry("root/a"), truncated=""),
    "the same page forever": listing(entry("root/a") + entry("root/b"), token="more"),
    "empty pages forever": listing(token="more"),
    "a key twice": listing(entry("root/a") + entry("root/a")),
    "keys in no order": listing(entry("root/b") + entry("root/c") + entry("root/a")),
    "a key of another root": listing(entry("other/a")),
    "no key": listing("<Contents><Size>1</Size></Contents>"),
    "no size": listing(entry("root/a", size=None)),
    "a negative size": listing(entry("root/a", size=-1)),
    "a size that is no number": listing(entry("root/a", size="large")),
    "no date": listing(entry("root/a", date=None)),
    "a date that is none": listing(entry("root/a", date="yesterday")),
    "a date before all time": listing(entry("root/a", date="0000-00-00T00:00:00Z")),
    "an empty directory's name": listing("<CommonPrefixes></CommonPrefixes>"),
    "a directory of another root": listing("<CommonPrefixes><Prefix>x/</Prefix></CommonPrefixes>"),
}
LISTING_CALLS: dict[str, Call] = {
    "list": lambda store: store.list("", recursive=True),
    "walk": lambda store: list(store.walk(lambda _: True)),
    "top_names": lambda store: store.top_names(10),
    "sweep_temporary": lambda store: store.sweep_temporary(older_than_ms=0),
    "delete_directory": lambda store: store.delete_directory("a"),
}
UPLOADS = {
    "truncated without markers": Answer(
        body="<ListMultipartUploadsResult><IsTruncated>true</IsTruncated></ListMultipartUploadsResult>"
    ),
    "the same page forever": uploads(upload_entry("root/a", "1"), markers=("root/a", "1")),
    "empty pages forever": uploads(markers=("root/a", "1")),
    "no id": uploads("<Upload><Key>root/a</Key></Upload>"),
    "no date": uploads("<Upload><Key>root/a</Key><UploadId>1</UploadId></Upload>"),
    "a date that is none": uploads(upload_entry("root/a", "1", date="yesterday")),
}
RANGES = {
    "another range": Answer(206, b"0", {"Content-Range": "bytes 5-5/10"}),
    "more bytes than the range": Answer(206, b"012", {"Content-Range": "bytes 0-1/10"}),
    "a range that ends before it begins": Answer(206, b"", {"Content-Range": "bytes 5-4/10"}),
    "a range without a size": Answer(206, b"0", {"Content-Range": "bytes 0-0/*"}),
    "the whole object": Answer(200, b"0123456789"),
    "no bytes, though there are some": Answer(416, "", {"Content-Range": "bytes */10"}),
}


def _upload(store: S3Store) -> None:
    with store.append_file("segments/w/0.log") as file:
        file.write(bytes(2 * PART_BYTES + 1))
        file.sync()


# (call, what answers oddly): each request whose answer is read.
CALLS: dict[str, tuple[Call, str]] = {
    "list": (LISTING_CALLS["list"], "list_objects_v2"),
    "uploads": (lambda store: store.sweep_temporary(older_than_ms=0), "list_multipart_uploads"),
    "put": (lambda store: store.put_if_absent("a", b"x"), "put_object"),
    "begin an upload": (_upload, "create_multipart_upload"),
    "upload a part": (_upload, "upload_part"),
    "finish an upload": (_upload, "complete_multipart_upload"),
    "read": (lambda store: store.read("a", 0, 2), "get_object"),
}
# Other ways to the same requests.
ALSO: dict[str, tuple[Call, str]] = {
    **{name: (call, "list_objects_v2") for name, call in LISTING_CALLS.items()},
    "put_hint": (lambda store: store.put_hint("a", b"x"), "put_object"),
    "exists": (lambda store: store.exists("a"), "get_object"),
    "size": (lambda store: store.open_read("a").size, "get_object"),
    "read_many": (lambda store: store.read_many(["a", "b"], max_bytes=10), "get_object"),
}
# Nothing is read from the answers to these: they may do without an error, but not otherwise.
UNREAD: dict[str, tuple[Call, str]] = {
    "delete": (lambda store: store.delete("a"), "delete_object"),
    "delete_many": (lambda store: store.delete_many(["a", "b"]), "delete_objects"),
}


@pytest.fixture
def small() -> Iterator[SmallS3]:
    with SmallS3() as running:
        yield running


def _only(operation: str, answer: Answer, start: int = 0) -> Odd:
    """The answer to all requests of one kind, but for the first `start`."""
    seen = 0

    def odd(asked: Asked) -> Answer | None:
        nonlocal seen
        if asked.operation != operation:
            return None
        seen += 1
        return answer if seen > start else None

    return odd


def _fails(small: SmallS3, call: Call, odd: Odd) -> SparklogError:
    """The error of a call of a store that has been found to be one, before its answers became odd."""
    store = small.store()
    store.put_if_absent("ready", b"")
    small.objects["root/a"] = small.objects["root/b"] = b"0123456789"
    small.counts.clear()
    small.odd = odd
    with pytest.raises(SparklogError) as caught:
        call(store)
    assert small.counts.total() < MOST_REQUESTS
    assert len(str(caught.value)) < 1_500, "not the whole answer"
    return caught.value


# Ninety cases: each kind of answer to each request is one, and each that fails is another bug.
@pytest.mark.sampled(31)
@pytest.mark.parametrize("what", NONSENSE)
@pytest.mark.parametrize("name", CALLS)
def test_nonsense_is_an_error(small: SmallS3, name: str, what: str) -> None:
    call, operation = CALLS[name]
    assert _fails(small, call, _only(operation, NONSENSE[what])).code in {
        "STORE_ANSWER_WRONG",
        "STORE_UNAVAILABLE",
        "STORAGE_FAILED",
        "STORAGE_REFUSED",
        "PUT_INDEFINITE",
    }


@pytest.mark.parametrize("name", ALSO)
def test_nothing_is_no_answer_to_anybody(small: SmallS3, name: str) -> None:
    call, operation = ALSO[name]
    assert _fails(small, call, _only(operation, NONSENSE["nothing"])).code == "STORE_ANSWER_WRONG"


@pytest.mark.parametrize("what", NONSENSE)
@pytest.mark.parametrize("name", UNREAD)
def test_nonsense_is_no_other_kind_of_error(small: SmallS3, name: str, what: str) -> None:
    call, operation = UNREAD[name]
    store = small.store()
    small.odd = _only(operation, NONSENSE[what])
    with contextlib.suppress(StorageError):
        call(store)
    assert small.counts.total() < MOST_REQUESTS


@pytest.mark.sampled(8)
@pytest.mark.parametrize("what", LISTINGS)
@pytest.mark.parametrize("name", ["list", "walk"])
def test_a_listing_that_makes_no_sense(small: SmallS3, name: str, what: str) -> None:
    assert (
        _fails(small, LISTING_CALLS[name], _only("list_objects_v2", LISTINGS[what])).code
        == "STORE_ANSWER_WRONG"
    )


@pytest.mark.parametrize("start", [1, 2, 3])
def test_pages_that_begin_again(small: SmallS3, start: int) -> None:
    small.objects = {f"root/{number:02}": b"" for number in range(20)}
    small.page = 3
    assert (
        _fails(
            small,
            LISTING_CALLS["list"],
            _only("list_objects_v2", listing(entry("root/00"), token="more"), start),
        ).code
        == "STORE_ANSWER_WRONG"
    )


def test_a_store_that_ignores_where_to_start(small: SmallS3) -> None:
    """A walk that leaves directories out would begin from the start, again and again."""
    small.objects = {f"root/left-out/{number:02}": b"" for number in range(20)}
    small.objects["root/z"] = b""
    small.page = 3

    def odd(asked: Asked) -> Answer | None:
        asked.query.pop("start-after", None)
        return None

    def call(store: S3Store) -> list[str]:
        portions = store.walk(lambda name: name != "left-out")
        return [file.name for portion in portions for file in portion]

    assert _fails(small, call, odd).code == "STORE_ANSWER_WRONG"
    small.odd = lambda _: None
    assert call(small.store()) == ["a", "b", "ready", "z"]


@pytest.mark.parametrize("what", UPLOADS)
def test_a_listing_of_uploads_that_makes_no_sense(small: SmallS3, what: str) -> None:
    assert (
        _fails(small, CALLS["uploads"][0], _only("list_multipart_uploads", UPLOADS[what])).code
        == "STORE_ANSWER_WRONG"
    )


@pytest.mark.parametrize("what", RANGES)
def test_a_range_that_was_not_asked_for(small: SmallS3, what: str) -> None:
    assert _fails(small, CALLS["read"][0], _only("get_object", RANGES[what])).code == "STORE_ANSWER_WRONG"


def test_a_segment_that_was_uploaded_in_part_is_given_up(small: SmallS3) -> None:
    assert _fails(small, _upload, _only("upload_part", Answer(), start=1)).code == "STORE_ANSWER_WRONG"
    assert small.uploads == {}


def test_a_listing_in_the_order_of_directories(small: SmallS3) -> None:
    """As SeaweedFS and others that keep directories give it."""
    store = small.store()
    small.objects["root/a/b"] = small.objects["root/a-b"] = b""
    small.odd = _only("list_objects_v2", listing(entry("root/a/b") + entry("root/a-b")))
    assert [file.name for file in store.list("", recursive=True)] == ["a-b", "a/b"]


def test_pages_of_either_order_and_of_none() -> None:
    PageOrder().add(["a", "a-b", "a/b", "b"])
    PageOrder().add(["a", "a/b", "a-b", "b"])
    for pages in ([["a/", "a-b/"], ["b/"], ["b-c/"]], [["a-b/", "a/"], ["b-c/"], ["b/"]]):
        order = PageOrder()
        for directories in pages:
            order.add(["a", "a-c"] if directories[0][0] == "a" else [], directories)
        with pytest.raises(WrongAnswerError):
            order.add([], ["a/"])
    order = PageOrder()
    order.add(["a", "a-b", "a/b"])
    with pytest.raises(WrongAnswerError, match="not in order"):
        order.add(["c/a", "c-a"])  # the other order
    order = PageOrder()
    for _ in range(MAX_EMPTY_PAGES):
        order.add([])
    with pytest.raises(WrongAnswerError, match="without a name"):
        order.add([])


def test_a_date_that_is_none_leaves_the_clock_alone(small: SmallS3) -> None:
    store = small.store()
    now = datetime(2026, 1, 1, tzinfo=UTC)
    here_ms = store.client.now_ms()
    small.odd = lambda _: Answer(
        404, refusal(404, "NoSuchKey").body, {"Date": f"{now:%a, %d %b %Y %H:%M:%S GMT}"}
    )
    assert not store.exists("a")
    expected = store.storage_now_ms(here_ms)
    assert expected == now.timestamp() * 1000
    small.odd = lambda _: Answer(404, refusal(404, "NoSuchKey").body, {"Date": "yesterday"})
    assert not store.exists("a")
    assert store.storage_now_ms(here_ms) == expected


@pytest.mark.parametrize("what", ["truncated without a token", "the same page forever", "no size"])
def test_opening_and_vacuum(small: SmallS3, what: str) -> None:
    options = {**small.storage_options, "retry_timeout": 0.1}
    with sparklog.open("s3://bucket/root", storage_options=options) as log:
        log.create_topic("t", 1)
        small.odd = _only("list_objects_v2", LISTINGS[what])
        with pytest.raises(StorageError, match="STORE_ANSWER_WRONG"):
            vacuum(log.metadata, log.clock)
    with pytest.raises(StorageError, match="STORE_ANSWER_WRONG"):
        sparklog.open("s3://bucket/root", storage_options=options)
