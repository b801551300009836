"""Large objects of an S3 store, under a name that somebody else uses too: a clone of this very process.

A virtual machine, a container or a function that is resumed twice from one image has the same writer twice,
with the same names ahead of it.
"""

import copy
import os
from collections.abc import Iterator
from typing import Any

import pytest

from sparklog.clock import ManualClock
from sparklog.errors import AlreadyExistsError, StorageError
from sparklog.storage.object_store import PART_BYTES, ObjectAppendFile
from sparklog.storage.s3 import S3Store
from sparklog.storage.s3_options import parse_storage_options
from tests.seaweed import SeaweedServer
from tests.storage import s3_proxy as faults
from tests.storage.s3_proxy import Fault, FaultyProxy, Request

LARGE = 2 * PART_BYTES + 1


@pytest.fixture
def proxy(s3_server: SeaweedServer) -> Iterator[FaultyProxy]:
    with FaultyProxy(s3_server.endpoint_url) as running:
        yield running


@pytest.fixture
def store(s3_root: str, proxy: FaultyProxy, s3_server: SeaweedServer) -> S3Store:
    given = {**s3_server.storage_options, "endpoint_url": proxy.endpoint_url}
    return S3Store(s3_root, parse_storage_options(given), ManualClock())


def is_completion(request: Request) -> bool:
    return request.method == "POST" and "uploadId" in request.query


def completions(proxy: FaultyProxy) -> list[Request]:
    return [request for request in proxy.requests if is_completion(request)]


def written(store: S3Store, data: bytes) -> ObjectAppendFile:
    file = store.append_file("segments/w/0.log")
    file.write(data)
    return file


def content(store: S3Store) -> bytes:
    return store.read("segments/w/0.log")


def cloned(file: ObjectAppendFile) -> ObjectAppendFile:
    """As after a second resume of the machine: the same memory, and it goes its own way."""
    clone = copy.copy(file)
    for name, value in vars(file).items():
        if isinstance(value, bytearray | list):
            setattr(clone, name, copy.copy(value))
    return clone


@pytest.mark.parametrize(("size", "more"), [(100, 0), (100, 1), (PART_BYTES, 0), (LARGE, 0), (LARGE, 1)])
def test_clones_do_not_overwrite_each_other(store: S3Store, size: int, more: int) -> None:
    ours, theirs = os.urandom(size), os.urandom(size + more)
    with written(store, ours) as file, written(store, theirs) as clone:
        file.sync()
        with pytest.raises(AlreadyExistsError, match="exists, expected no such file"):
            clone.sync()
    assert content(store) == ours


@pytest.mark.parametrize("fault", ["RESET_BEFORE", "RESET_AFTER", "TWICE"])
def test_a_clones_object_is_not_ours_when_the_answer_is_lost(
    store: S3Store, proxy: FaultyProxy, fault: str
) -> None:
    ours, theirs = os.urandom(LARGE), os.urandom(LARGE)
    with written(store, ours) as file, written(store, theirs) as clone:
        file.sync()
        proxy.once(getattr(faults, fault), is_completion)
        with pytest.raises(AlreadyExistsError):
            clone.sync()
    assert len(proxy.faults) == 1
    assert content(store) == ours


@pytest.mark.parametrize("first", ["original", "clone"])
@pytest.mark.parametrize("answer", [None, (404, "NoSuchUpload")], ids=["the server's", "as AWS"])
def test_clones_that_share_an_upload(
    store: S3Store, proxy: FaultyProxy, first: str, answer: tuple[int, str] | None
) -> None:
    """They were made between two parts: one of them has the object, and the other an error."""
    original = written(store, bytes(LARGE))
    clone = cloned(original)
    tails = {"original": os.urandom(PART_BYTES), "clone": os.urandom(PART_BYTES)}
    original.write(tails["original"])
    clone.write(tails["clone"])
    winner, loser = (original, clone) if first == "original" else (clone, original)
    winner.sync()
    if answer is not None:
        proxy.once(Fault(forward=0, answer=answer), is_completion)
    with pytest.raises(StorageError):
        loser.sync()
    loser.close()
    assert content(store) == bytes(LARGE) + tails[first]


def test_a_large_object_is_sent_with_a_condition(store: S3Store, proxy: FaultyProxy) -> None:
    with written(store, bytes(LARGE)) as file:
        file.sync()
    assert [request.headers.get("if-none-match") for request in completions(proxy)] == ["*"]
    assert not [request for request in proxy.requests if request.method == "GET"]  # nothing to compare


@pytest.mark.parametrize("size", [100, LARGE])
@pytest.mark.parametrize("fault", ["ERROR_AFTER", "RESET_AFTER", "TWICE"])
def test_what_we_finished_ourselves_is_ours(
    store: S3Store, proxy: FaultyProxy, size: int, fault: str
) -> None:
    data = os.urandom(size)
    proxy.once(
        getattr(faults, fault), lambda request: is_completion(request) or "if-none-match" in request.headers
    )
    with written(store, data) as file:
        file.sync()
    assert len(proxy.faults) == 1
    assert content(store) == data


def test_a_store_that_knows_no_condition_for_large_objects(store: S3Store, proxy: FaultyProxy) -> None:
    def unknown(request: Request) -> Fault | None:
        conditional = is_completion(request) and "if-none-match" in request.headers
        return Fault(forward=0, answer=(501, "NotImplemented")) if conditional else None

    proxy.fault = unknown
    for name in ("a", "b"):
        with store.append_file(name) as file:
            file.write(bytes(LARGE))
            file.sync()
        assert store.read(name) == bytes(LARGE)
    assert [request.headers.get("if-none-match") for request in completions(proxy)] == ["*", None, None]


def test_a_conflict_that_ends_the_upload_is_an_error(store: S3Store, proxy: FaultyProxy) -> None:
    """AWS does so when two requests for a name come at once: the parts are gone."""
    answers = [(404, "NoSuchUpload"), (409, "ConditionalRequestConflict")]

    def conflict(request: Request) -> Fault | None:
        return Fault(forward=0, answer=answers.pop()) if is_completion(request) and answers else None

    proxy.fault = conflict
    with written(store, bytes(LARGE)) as file, pytest.raises(StorageError, match="not found"):
        file.sync()
    assert not answers
    assert not store.exists("segments/w/0.log")


def refused(code: str) -> Any:
    return lambda request: Fault(forward=0, answer=(403, code)) if is_completion(request) else None


def test_a_denial_is_told(store: S3Store, proxy: FaultyProxy) -> None:
    proxy.fault = refused("AccessDenied")
    with written(store, bytes(LARGE)) as file, pytest.raises(StorageError, match="STORAGE_REFUSED"):
        file.sync()
    assert len(completions(proxy)) == 1
