"""A new root tries each request that is made later, and a store that cannot hold one is refused at once."""

from collections.abc import Iterator

import pytest

import sparklog
from sparklog.cli.doctor import check_root
from sparklog.errors import StorageError
from sparklog.maintenance.sweep import vacuum
from sparklog.storage.s3 import S3Store
from sparklog.storage.s3_probe import TRIED_REQUESTS
from tests.storage.small_s3 import Answer, Asked, SmallS3, listing, refusal

MAINTENANCE = {
    "put_object",
    "get_object",
    "list_objects_v2",
    "list_multipart_uploads",
    "create_multipart_upload",
    "upload_part",
    "complete_multipart_upload",
    "abort_multipart_upload",
    "delete_object",
    "delete_objects",
}


@pytest.fixture
def small() -> Iterator[SmallS3]:
    with SmallS3() as running:
        yield running


def test_several_objects_are_deleted_where_the_md5_is_asked_for(small: SmallS3) -> None:
    small.objects = {f"root/segments/a/{number}.log": b"x" for number in range(3)}
    small.store().delete_many(["segments/a/0.log", "segments/a/2.log"])
    assert list(small.objects) == ["root/segments/a/1.log"]


def test_each_request_is_tried_and_nothing_is_left(small: SmallS3) -> None:
    store = small.store()
    store.try_requests()
    assert set(small.counts) == MAINTENANCE
    assert small.counts.total() == TRIED_REQUESTS
    assert (small.objects, small.uploads) == ({}, {})


def test_a_real_store_passes(s3_root: str) -> None:
    with sparklog.open(s3_root) as log:
        assert isinstance(log.store, S3Store)
        log.store.try_requests()
        assert log.store.list(".tmp-not", recursive=True) == []


@pytest.mark.parametrize("operation", sorted(MAINTENANCE))
@pytest.mark.parametrize(
    ("refused", "code"),
    [
        (refusal(400, "MissingContentMD5"), "STORAGE_UNSUPPORTED"),
        (refusal(501, "NotImplemented"), "STORAGE_UNSUPPORTED"),
        (refusal(403, "AccessDenied"), "STORAGE_REFUSED"),
    ],
)
def test_a_store_that_refuses_one_gets_no_root(
    small: SmallS3, operation: str, refused: Answer, code: str
) -> None:
    small.odd = lambda asked: refused if asked.operation == operation and _is_tried(asked) else None
    with pytest.raises(StorageError, match=code):
        sparklog.open("s3://bucket/root", storage_options=small.storage_options)
    small.odd = lambda _: None
    assert [key for key in small.objects if ".tmp/" not in key] == []


def _is_tried(asked: Asked) -> bool:
    """Not what comes before: is there a root, and what else is there?"""
    return asked.operation not in {"get_object", "list_objects_v2"} or ".tmp" in str((asked.key, asked.query))


IGNORED = {
    "list_objects_v2": ("after a name", listing()),
    "delete_objects": ("several objects", Answer(body="<DeleteResult></DeleteResult>")),
    "get_object": ("a part of an object", Answer(206, b"9", {"Content-Range": "bytes 2-2/3"})),
}


@pytest.mark.parametrize("operation", IGNORED)
def test_a_store_that_answers_and_does_something_else_is_refused(small: SmallS3, operation: str) -> None:
    purpose, answer = IGNORED[operation]

    def odd(asked: Asked) -> Answer | None:
        is_it = asked.operation == operation and ("start-after" in asked.query or operation[:4] != "list")
        return answer if is_it else None

    small.odd = odd
    with pytest.raises(StorageError, match=r"STORAGE_UNSUPPORTED|STORE_ANSWER_WRONG") as caught:
        small.store().try_requests()
    assert purpose in str(caught.value) or "STORE_ANSWER_WRONG" in str(caught.value)
    small.odd = lambda _: None


def test_a_store_that_knows_no_condition_for_uploads_can_hold_a_root(small: SmallS3) -> None:
    def odd(asked: Asked) -> Answer | None:
        is_conditional = asked.operation == "complete_multipart_upload" and "if-none-match" in asked.headers
        return refusal(400, "InvalidArgument") if is_conditional else None

    small.odd = odd
    small.store().try_requests()
    assert (small.objects, small.uploads) == ({}, {})


def test_vacuum_and_the_doctor(small: SmallS3, monkeypatch: pytest.MonkeyPatch) -> None:
    """Vacuum removes what is dead where the MD5 is asked for; the doctor names a store that refuses."""
    options = small.storage_options
    for name, value in (("KEY", "key"), ("SECRET", "secret"), ("ENDPOINT_URL", "endpoint_url")):
        monkeypatch.setenv(f"FSSPEC_S3_{name}", options[value])
    with sparklog.open("s3://bucket/root", storage_options=options) as log:
        log.create_topic("t", 1)
        dead = f"root/segments/{'0' * 32}/00000000.log"
        small.objects[dead] = b"of a task that failed"
        log.create_topic("u", 1)
        report = vacuum(log.metadata, log.clock, retain_ms=0, force=True)
        assert report.dead.files == 1
    assert dead not in small.objects
    assert _finding("requests") == ("OK", "")
    small.odd = lambda asked: (
        refusal(400, "MissingContentMD5") if asked.operation == "delete_objects" else None
    )
    status, detail = _finding("requests")
    assert status == "FAIL"
    assert "STORAGE_UNSUPPORTED" in detail
    assert "MissingContentMD5" in detail


def _finding(name: str) -> tuple[str, str]:
    (found,) = [one for one in check_root("s3://bucket/root", deep=False) if one.check == name]
    return found.status.name, "" if found.status.name == "OK" else found.detail
