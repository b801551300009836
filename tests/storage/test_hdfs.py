"""WebHDFS's requests, and what its answers and lost answers mean, on a NameNode of this process."""

import email.utils
import getpass
import json
import time
import urllib.parse
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from sparklog.clock import ManualClock
from sparklog.errors import (
    AlreadyExistsError,
    InvalidRequestError,
    NotFoundError,
    RetriableError,
    SparklogError,
    StorageError,
)
from sparklog.storage import IndefinitePutError, object_probe, open_store
from sparklog.storage.hdfs import HdfsStore, parse_hdfs_options
from sparklog.storage.object_store import PART_BYTES
from sparklog.storage.rest_client import Answer
from sparklog.storage.root_rules import parse_allowed_roots, parse_hdfs_url, validate_allowed
from tests.storage.canned_server import Asked, Canned, CannedServer

LOST = Canned(502, b"a proxy's page")
BYTES = {"Content-Type": "application/octet-stream"}
BATCH = 2  # entries of a listing in one answer


def refused(status: int, exception: str, message: str = "said\n\tat java.Stack") -> Canned:
    content = {"RemoteException": {"exception": exception, "javaClassName": "j", "message": message}}
    return Canned(status, json.dumps(content).encode())


def said(content: Any) -> Canned:
    return Canned(200, json.dumps(content).encode())


class Namenode:
    """A NameNode and its DataNode, as far as the store needs them.

    Fields:
        before, after: return an answer in place of the request's effect, or of the answer to it.
    """

    def __init__(self, server: CannedServer) -> None:
        self.server = server
        self.files: dict[str, bytes] = {}
        self.directories = {"/"}
        self.before: Callable[[str, Asked], Canned | None] = lambda op, asked: None
        self.after: Callable[[str, Asked], Canned | None] = lambda op, asked: None
        server.answer = self.answer

    def answer(self, asked: Asked) -> Canned:
        op = asked.query.get("op", "")
        if op in {"CREATE", "OPEN"} and asked.path.startswith("/webhdfs"):
            target = asked.target.replace("/webhdfs/v1", "/data", 1)
            return Canned(307, b"", {"Location": self.server.endpoint_url + target})
        path = urllib.parse.unquote(asked.path.partition("/v1" if "/v1" in asked.path else "/data")[2])
        path = path.rstrip("/") or "/"
        return self.before(op, asked) or self.done(op, path, asked)

    def done(self, op: str, path: str, asked: Asked) -> Canned:
        answer: Canned = getattr(self, op.lower())(path, asked)
        return self.after(op, asked) or answer

    def create(self, path: str, asked: Asked) -> Canned:
        assert path not in self.files
        self.mkdirs(path.rpartition("/")[0], asked)
        self.files[path] = asked.body
        return Canned(201)

    def mkdirs(self, path: str, _: Asked) -> Canned:
        while path:
            self.directories.add(path)
            path = path.rpartition("/")[0]
        return said({"boolean": True})

    def rename(self, path: str, asked: Asked) -> Canned:
        target, options = asked.query["destination"], asked.query["renameoptions"]
        if path not in self.files or target.rpartition("/")[0] not in self.directories:
            return refused(404, "FileNotFoundException")
        if target in self.files and options != "OVERWRITE":
            return refused(403, "FileAlreadyExistsException")
        self.files[target] = self.files.pop(path)
        return Canned(headers=BYTES)

    def delete(self, path: str, _: Asked) -> Canned:
        return said({"boolean": self.files.pop(path, None) is not None})

    def open(self, path: str, asked: Asked) -> Canned:
        if path not in self.files:
            return refused(404, "FileNotFoundException")
        start = int(asked.query["offset"])
        length = int(asked.query.get("length", 1 << 40))
        return Canned(200, self.files[path][start : start + length], BYTES)

    def getfilestatus(self, path: str, _: Asked) -> Canned:
        if path not in self.files and path not in self.directories:
            return refused(404, "FileNotFoundException")
        return said({"FileStatus": self.status(path, "")})

    def liststatus_batch(self, path: str, asked: Asked) -> Canned:
        if path not in self.directories:
            return refused(404, "FileNotFoundException")
        inside = path.rstrip("/") + "/"
        under = [one for one in {*self.files, *self.directories} if one.startswith(inside) and one != inside]
        names = sorted({one[len(inside) :].partition("/")[0] for one in under} - {""})
        names = [name for name in names if name > asked.query.get("startAfter", "")]
        shown = [self.status(inside + name, name) for name in names[:BATCH]]
        left = len(names) - len(shown)
        return said(
            {
                "DirectoryListing": {
                    "partialListing": {"FileStatuses": {"FileStatus": shown}},
                    "remainingEntries": left,
                }
            }
        )

    def status(self, path: str, name: str) -> dict[str, Any]:
        kind = "FILE" if path in self.files else "DIRECTORY"
        size = len(self.files.get(path, b""))
        return {"pathSuffix": name, "type": kind, "length": size, "modificationTime": 1_795_874_400_500}

    def asked(self, op: str) -> list[Asked]:
        return [asked for asked in self.server.asked if asked.query.get("op") == op]


@pytest.fixture
def namenode() -> Iterator[Namenode]:
    with CannedServer() as running:
        yield Namenode(running)


@pytest.fixture
def make(namenode: Namenode) -> Callable[..., HdfsStore]:
    def make(**options: Any) -> HdfsStore:
        given = {"endpoint_url": namenode.server.endpoint_url, "user": "etl", **options}
        store = HdfsStore("hdfs://nn:8020/root", parse_hdfs_options(given), ManualClock())
        object_probe.passed.add(store.client.identity)
        return store

    return make


def once(op: str, answer: Canned = LOST) -> Callable[[str, Asked], Canned | None]:
    """Answer so to the first request of this kind."""
    left = [answer]
    return lambda found, _: left.pop() if found == op and left else None


def test_a_put_is_a_closed_temporary_file_renamed_without_overwriting(
    namenode: Namenode, make: Callable[..., HdfsStore]
) -> None:
    make().put_if_absent("a b/ä%", b"data")
    assert namenode.files == {"/root/a b/ä%": b"data"}
    first, sent = namenode.asked("CREATE")
    assert (first.body, sent.body) == (b"", b"data")
    assert first.path.startswith("/webhdfs/v1/root/.tmp/")
    assert first.query["user.name"] == "etl"
    assert (first.query["overwrite"], first.query["createflag"]) == ("false", "CREATE,SYNC_BLOCK")
    renames = namenode.asked("RENAME")
    assert {asked.query["renameoptions"] for asked in renames} == {"NONE"}
    assert renames[-1].query["destination"] == "/root/a b/ä%"


def test_a_taken_name_keeps_its_content_and_leaves_no_temporary_file(
    namenode: Namenode, make: Callable[..., HdfsStore]
) -> None:
    store = make()
    store.put_if_absent("a", b"first")
    with pytest.raises(AlreadyExistsError):
        store.put_if_absent("a", b"second")
    assert namenode.files == {"/root/a": b"first"}
    store.put_hint("a", b"hint")
    assert namenode.files == {"/root/a": b"hint"}


def test_a_lost_answer_to_a_rename_that_happened_is_indefinite(
    namenode: Namenode, make: Callable[..., HdfsStore]
) -> None:
    store = make()
    store.put_if_absent("before", b"")
    namenode.server.asked.clear()
    namenode.after = once("RENAME")
    with pytest.raises(IndefinitePutError, match="no definite answer"):
        store.put_if_absent("a", b"ours")
    assert len(namenode.asked("RENAME")) == 1
    assert namenode.files["/root/a"] == b"ours"


def test_a_rename_that_did_not_happen_cannot_happen_any_more_when_it_is_repeated(
    namenode: Namenode, make: Callable[..., HdfsStore]
) -> None:
    store = make()
    store.put_if_absent("before", b"")
    namenode.server.asked.clear()
    namenode.before = once("RENAME")
    store.put_if_absent("a", b"ours")
    lost, done = namenode.asked("RENAME")
    assert lost.path != done.path
    assert namenode.rename(urllib.parse.unquote(lost.path[len("/webhdfs/v1") :]), lost).status == 404
    assert namenode.files == {"/root/before": b"", "/root/a": b"ours"}


@pytest.mark.parametrize("when", ["before", "after"])
def test_after_a_lost_answer_to_a_write_another_file_is_written(
    namenode: Namenode, make: Callable[..., HdfsStore], when: str
) -> None:
    store = make()
    store.exists("ready")
    setattr(namenode, when, once("CREATE"))
    store.put_if_absent("a", b"ours")
    assert namenode.files.pop("/root/a") == b"ours"
    assert all(name.startswith("/root/.tmp/") for name in namenode.files)
    assert len({asked.path for asked in namenode.asked("CREATE") if asked.body}) == 2


def test_a_large_file_is_compared_with_what_a_lost_rename_has_made(
    namenode: Namenode, make: Callable[..., HdfsStore]
) -> None:
    store, content = make(), b"0123456789" * (PART_BYTES // 5)
    store.put_if_absent("before", b"")
    namenode.after = once("RENAME")
    with store.append_file("large") as file:
        file.write(content)
        file.sync()
    assert namenode.files["/root/large"] == content
    with store.append_file("before") as file:
        file.write(content)
        with pytest.raises(AlreadyExistsError):
            file.sync()
    assert set(namenode.files) == {"/root/before", "/root/large"}


def test_a_put_that_was_aborted_after_its_guard_fails(
    namenode: Namenode, make: Callable[..., HdfsStore]
) -> None:
    store = make()
    store.put_if_absent("b", b"")

    def abort() -> bool:
        store.abort_puts("a")
        return True

    with pytest.raises(RetriableError, match="overtaken"):
        store.put_if_absent("a", b"late", guard=abort)
    store.put_if_absent("c", b"", guard=abort)
    assert set(namenode.files) == {"/root/b", "/root/c"}
    assert store.put_lifetime_ms() == 0


def test_a_rename_that_was_delivered_twice_is_not_reported_as_refused(
    namenode: Namenode, make: Callable[..., HdfsStore]
) -> None:
    """The second one finds no temporary file, and its answer is the one that arrives."""
    store, once_only = make(), namenode.rename
    store.put_if_absent("before", b"")

    def twice(path: str, asked: Asked) -> Canned:
        once_only(path, asked)
        return once_only(path, asked)

    namenode.rename = twice  # type: ignore[method-assign]
    with pytest.raises(AlreadyExistsError):
        store.put_if_absent("a", b"ours")
    assert namenode.files["/root/a"] == b"ours"
    content = b"0123456789" * (PART_BYTES // 5)
    with store.append_file("large") as file:
        file.write(content)
        file.sync()
    assert namenode.files["/root/large"] == content


@pytest.mark.parametrize(
    ("answer", "loses_more", "expected"),
    [
        (refused(403, "IOException", "No namenode available"), False, AlreadyExistsError),
        (refused(403, "IOException", "No namenode available"), True, IndefinitePutError),
        (refused(404, "FileNotFoundException"), True, IndefinitePutError),
        (Canned(200, b"<html>log in</html>"), False, IndefinitePutError),
        (Canned(200, b"<html>log in</html>"), True, IndefinitePutError),
        (Canned(200, b"", {"Content-Type": "text/html"}), False, IndefinitePutError),
        (said({"boolean": True}), False, AlreadyExistsError),
        (said({"boolean": True}), True, IndefinitePutError),
        (Canned(401, b"<html>"), False, AlreadyExistsError),
        (Canned(401, b"<html>"), True, IndefinitePutError),
        (Canned(403, b"<html>"), True, IndefinitePutError),
        (Canned(416, b"<html>"), False, AlreadyExistsError),
        (Canned(501, b"<html>"), False, AlreadyExistsError),
    ],
)
def test_no_answer_to_a_rename_that_happened_denies_it(
    namenode: Namenode,
    make: Callable[..., HdfsStore],
    answer: Canned,
    loses_more: bool,
    expected: type[StorageError],
) -> None:
    store = make(retry_timeout=1)
    store.put_if_absent("before", b"")
    namenode.after = lambda op, _: {"RENAME": answer, "DELETE": LOST if loses_more else None}.get(op)
    with pytest.raises(expected):
        store.put_if_absent("a", b"ours")
    assert namenode.files["/root/a"] == b"ours"


def test_a_guard_that_refuses_leaves_nothing(namenode: Namenode, make: Callable[..., HdfsStore]) -> None:
    with pytest.raises(SparklogError, match="PUT_REFUSED"):
        make().put_if_absent("a", b"x", guard=lambda: False)
    assert namenode.files == {}
    assert namenode.asked("RENAME") == []


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        (refused(403, "FileAlreadyExistsException"), AlreadyExistsError),
        (refused(403, "AccessControlException"), "STORAGE_REFUSED"),
        (refused(403, "NSQuotaExceededException"), "STORAGE_REFUSED"),
        (refused(403, "IOException", "must both be directories"), "STORAGE_REFUSED"),
        (refused(401, "SecurityException"), "STORAGE_REFUSED"),
        (Canned(401, b"<html>"), "STORAGE_REFUSED"),
        (refused(403, "StandbyException"), "STORE_UNAVAILABLE"),
        (refused(403, "SafeModeException"), "STORE_UNAVAILABLE"),
        (refused(500, "RuntimeException"), "STORE_UNAVAILABLE"),
        (said({"boolean": True}), "STORAGE_UNSUPPORTED"),
        (Canned(404, b"<html>"), "STORE_UNAVAILABLE"),
    ],
)
def test_what_an_answer_to_a_rename_means(
    namenode: Namenode, make: Callable[..., HdfsStore], answer: Canned, expected: Any
) -> None:
    store = make(retry_timeout=1)
    store.exists("ready")
    namenode.before = lambda op, _: answer if op == "RENAME" else None
    with pytest.raises(StorageError if isinstance(expected, str) else expected) as raised:
        store.put_if_absent("a", b"x")
    assert not isinstance(raised.value, IndefinitePutError)
    assert not isinstance(expected, str) or raised.value.code == expected
    assert "java.Stack" not in str(raised.value)
    assert namenode.files == {}


@pytest.mark.parametrize(("op", "status"), [("RENAME", 200), ("CREATE", 200), ("CREATE", 204)])
def test_success_of_a_proxy_is_none(
    namenode: Namenode, make: Callable[..., HdfsStore], op: str, status: int
) -> None:
    store = make(retry_timeout=1)
    store.put_if_absent("before", b"")
    namenode.before = lambda found, _: Canned(status) if found == op else None
    with pytest.raises(StorageError, match="STORE_UNAVAILABLE"):
        store.put_if_absent("a", b"ours")
    assert set(namenode.files) == {"/root/before"}
    namenode.before = lambda found, _: Canned(200) if found == "OPEN" else None
    with pytest.raises(StorageError, match="STORE_ANSWER_WRONG"):
        store.exists("a")


def test_an_answer_that_is_nested_too_deeply(namenode: Namenode, make: Callable[..., HdfsStore]) -> None:
    store = make(retry_timeout=1)
    namenode.before = lambda op, _: Canned(200 if op == "LISTSTATUS_BATCH" else 404, b"[" * 100_000)
    with pytest.raises(StorageError, match="STORE_ANSWER_WRONG"):
        store.list("")
    with pytest.raises(StorageError, match="STORE_UNAVAILABLE"):
        store.read("a")


def test_a_process_without_a_name_says_so(
    namenode: Namenode, make: Callable[..., HdfsStore], monkeypatch: pytest.MonkeyPatch
) -> None:
    def nobody() -> str:
        raise KeyError("getpwuid(): uid not found: 1000780000")

    monkeypatch.setattr(getpass, "getuser", nobody)
    with pytest.raises(InvalidRequestError, match="the user of this process has no name"):
        make(user=None)
    assert not make(user=None, token="hush").exists("a")
    assert namenode.asked("OPEN")[0].query["delegation"] == "hush"


def test_the_time_of_a_namenode_that_sends_two_dates(
    make: Callable[..., HdfsStore], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both are GMT, wherever this process is: the age of a file decides whether it is removed."""
    store, date = make(), email.utils.formatdate(2_000_000_000, usegmt=True)
    with monkeypatch.context() as patch:
        patch.setenv("TZ", "America/New_York")
        time.tzset()
        store.client.note_time(f"{date}, {date}")
    time.tzset()
    assert store.storage_now_ms(store.client.now_ms()) == 2_000_000_000_000


def test_kerberos_is_refused_with_the_reason(namenode: Namenode, make: Callable[..., HdfsStore]) -> None:
    with pytest.raises(InvalidRequestError, match="has no Kerberos: give a delegation token"):
        parse_hdfs_options({"kerberos": "true"})
    namenode.before = lambda op, _: Canned(401, b"<html>", {"WWW-Authenticate": "Negotiate"})
    with pytest.raises(StorageError, match="Where the answer is 401, Kerberos is on") as raised:
        make().list("")
    assert raised.value.code == "STORAGE_REFUSED"


def test_a_delegation_token_replaces_the_user_and_is_in_no_message(
    namenode: Namenode, make: Callable[..., HdfsStore]
) -> None:
    store = make(token="hush", retry_timeout=1)
    with pytest.raises(NotFoundError):
        store.read("a")
    assert namenode.asked("OPEN")[0].query["delegation"] == "hush"
    assert all("user.name" not in asked.query for asked in namenode.server.asked)
    namenode.before = lambda op, _: refused(403, "AccessControlException", "token hush")
    with pytest.raises(StorageError) as raised:
        store.read("a")
    for text in (str(raised.value), repr(store.client.options), repr(store)):
        assert "hush" not in text


def test_ranges(namenode: Namenode, make: Callable[..., HdfsStore]) -> None:
    store = make(retry_timeout=1)
    store.put_if_absent("a", b"0123456789")
    assert store.read("a", 2, 3) == b"234"
    assert store.read("a", 0, 4) == b"0123"
    assert store.read("a", 8, 5) == b"89"
    assert store.read("a", 10, 1) == b""
    with store.open_read("a") as file:
        assert file.size == 10
    for wrong in (Canned(200, b"2", BYTES), Canned(200, b"2345", BYTES), Canned(200, b"<p>")):
        namenode.before = lambda op, _, wrong=wrong: wrong if op == "OPEN" else None  # type: ignore[misc]
        with pytest.raises(StorageError, match="STORE_ANSWER_WRONG"):
            store.read("a", 2, 3)


@pytest.mark.parametrize("target", ["", "file:///etc/passwd", "/relative", "http://[::1"])
def test_a_redirection_that_is_none(namenode: Namenode, make: Callable[..., HdfsStore], target: str) -> None:
    namenode.server.answer = lambda _: Canned(307, b"", {"Location": target})
    with pytest.raises(StorageError, match="STORE_ANSWER_WRONG"):
        make(retry_timeout=1).read("a")


def test_listings_ascend_through_batches_and_directories(
    namenode: Namenode, make: Callable[..., HdfsStore]
) -> None:
    store = make()
    names = ["a", "d-x", "d/1", "d/2", "d/3", "d/s/4", "e", "f", "g"]
    for name in names:
        store.put_if_absent(name, b"")
    assert [file.name for file in store.list("", recursive=True)] == sorted(names)
    assert [file.name for file in store.list("")] == ["a", "d-x", "e", "f", "g"]
    namenode.server.asked.clear()
    assert [file.name for file in store.list("", start_after="e")] == ["f", "g"]
    assert [asked.query["startAfter"] for asked in namenode.asked("LISTSTATUS_BATCH")] == ["e"]
    assert [file.name for file in store.list("d", start_after="d/2")] == ["d/3"]
    assert sorted(file.name for portion in store.walk(lambda _: True) for file in portion) == sorted(names)


def test_a_walk_goes_on_after_a_directory_that_is_closed(
    namenode: Namenode, make: Callable[..., HdfsStore]
) -> None:
    store, noted = make(), dict[str, str]()
    for name in ("a/x", "b/x", "c/x"):
        store.put_if_absent(name, b"")
    namenode.before = lambda _, asked: (
        refused(403, "AccessControlException") if asked.path.endswith("/b") else None
    )
    with pytest.raises(StorageError, match="STORAGE_REFUSED"):
        list(store.walk(lambda _: True))
    found = store.walk(lambda _: True, lambda directory, error: noted.update({directory: error.code}))
    assert sorted(file.name for portion in found for file in portion) == ["a/x", "c/x"]
    assert noted == {"b": "STORAGE_REFUSED"}


@pytest.mark.parametrize(
    "content",
    [
        {},
        [],
        {
            "DirectoryListing": {
                "partialListing": {"FileStatuses": {"FileStatus": [{}]}},
                "remainingEntries": 0,
            }
        },
        {
            "DirectoryListing": {
                "partialListing": {
                    "FileStatuses": {
                        "FileStatus": [
                            {"pathSuffix": "a/b", "length": 1, "modificationTime": 1, "type": "FILE"}
                        ]
                    }
                },
                "remainingEntries": 0,
            }
        },
        {"DirectoryListing": {"partialListing": {"FileStatuses": {"FileStatus": []}}, "remainingEntries": 3}},
    ],
)
def test_a_listing_that_cannot_be_one(
    namenode: Namenode, make: Callable[..., HdfsStore], content: Any
) -> None:
    namenode.before = lambda op, _: said(content)
    with pytest.raises(StorageError, match="STORE_ANSWER_WRONG"):
        make(retry_timeout=1).list("", recursive=True)


def test_a_directory_may_be_named_as_another_one_begins(
    namenode: Namenode, make: Callable[..., HdfsStore]
) -> None:
    store = make()
    for name in ("a/1", "a-b/1", "b/1", "c/1", "c-d/1", "f"):
        store.put_if_absent(name, b"")
    assert [file.name for file in store.list("")] == ["f"]
    assert store.top_names(3) == [".tmp/", "a/", "a-b/"]


def test_urls() -> None:
    assert parse_hdfs_url("hdfs://NN:8020/a/b/").url == "hdfs://nn:8020/a/b"
    assert parse_hdfs_url("hdfs://nn:8020/a").endpoint == "http://nn:9870"
    assert parse_hdfs_url("webhdfs://nn:5000/a").endpoint == "http://nn:5000"
    assert parse_hdfs_url("swebhdfs://nn/a").endpoint == "https://nn:9871"
    for wrong in ("hdfs:///a", "hdfs://user@nn/a", "webhdfs://nn:99999/a", "webhdfs://nn/a?op=DELETE"):
        with pytest.raises(InvalidRequestError, match="not of the form hdfs://host:port/path"):
            open_store(wrong)
    allowed = (parse_allowed_roots("hdfs://nn:8020/logs"),)
    validate_allowed("hdfs://NN:8020/logs/a", allowed)
    with pytest.raises(InvalidRequestError, match="ROOT_NOT_ALLOWED"):
        validate_allowed("webhdfs://nn:8020/logs/a", allowed)


def test_no_token_goes_on_in_the_clear(
    make: Callable[..., HdfsStore], monkeypatch: pytest.MonkeyPatch
) -> None:
    store = make(token="hush", retry_timeout=1)
    monkeypatch.setattr(store.client, "endpoint", "https://nn:9871")
    answer = Answer(status=307, headers={"location": "http://dn:9864/data"}, data=b"")
    monkeypatch.setattr(store.client, "send", lambda request, guard=None: answer)
    with pytest.raises(StorageError, match="a redirection to no https address"):
        store.read("a")
