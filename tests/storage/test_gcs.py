"""Google's requests, answers and credentials, without Google."""

import base64
import datetime as dt
import hashlib
import json
import urllib.parse
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import google.auth
import google.auth.compute_engine._metadata
import google.auth.exceptions
import pytest

from sparklog.clock import ManualClock, SystemClock
from sparklog.errors import (
    AlreadyExistsError,
    InvalidRequestError,
    NotFoundError,
    SparklogError,
    StorageError,
)
from sparklog.storage import IndefinitePutError, object_probe
from sparklog.storage.gcs import MAX_COMPOSED, TOKEN_LIFETIME_MS, GcsStore, parse_gcs_options
from sparklog.storage.rest_client import Request
from tests.storage.canned_server import Asked, Canned, CannedServer

CREATED = Canned(200, b'{"generation": "17"}')


@pytest.fixture
def server() -> Iterator[CannedServer]:
    with CannedServer() as running:
        yield running


@pytest.fixture
def make(server: CannedServer) -> Callable[..., GcsStore]:
    def make(**options: Any) -> GcsStore:
        given = {"endpoint_url": server.endpoint_url, **options}
        store = GcsStore("gs://b/root", parse_gcs_options(given), ManualClock())
        object_probe.passed.add(store.client.identity)
        return store

    return make


def error(status: int, message: str = "said") -> Canned:
    content = {"error": {"code": status, "message": message, "errors": [{"reason": "aReason"}]}}
    return Canned(status, json.dumps(content).encode())


def test_a_conditional_put_is_one_request_with_its_md5(
    server: CannedServer, make: Callable[..., GcsStore]
) -> None:
    server.answer = lambda _: CREATED
    make(project="payer").put_if_absent("a b/ä", b"data")
    (asked,) = server.asked
    assert (asked.method, asked.path) == ("POST", "/upload/storage/v1/b/b/o")
    assert asked.query["ifGenerationMatch"] == "0"
    assert asked.query["uploadType"] == "multipart"
    assert asked.query["userProject"] == "payer"
    assert "authorization" not in asked.headers
    _, metadata, content, end = asked.body.split(b"--" + asked.headers["content-type"].split('"')[1].encode())
    md5 = base64.b64encode(hashlib.md5(b"data").digest()).decode()
    assert json.loads(metadata.partition(b"\r\n\r\n")[2]) == {"name": "root/a b/ä", "md5Hash": md5}
    assert content.partition(b"\r\n\r\n")[2] == b"data\r\n"
    assert end == b"--\r\n"


def test_a_replaced_object_has_no_condition(server: CannedServer, make: Callable[..., GcsStore]) -> None:
    server.answer = lambda _: CREATED
    make().put_hint("a", b"x")
    assert "ifGenerationMatch" not in server.asked[0].query


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        (error(412), AlreadyExistsError),
        (error(404, "The specified bucket does not exist."), "BUCKET_MISSING"),
        (error(404, "Not Found"), "BUCKET_MISSING"),
        (error(401), "STORAGE_REFUSED"),
        (error(403), "STORAGE_REFUSED"),
        (error(400), "STORAGE_FAILED"),
        (error(409), IndefinitePutError),
        (error(429), IndefinitePutError),
        (error(503), IndefinitePutError),
        (Canned(200, b"{}"), IndefinitePutError),
        (Canned(200, b"<html>"), IndefinitePutError),
        (Canned(404, b"<html>"), IndefinitePutError),
        (Canned(404, b'{"error": "Not Found", "path": "/upload"}'), IndefinitePutError),
        (Canned(404, b'{"error": {"code": "NoRoute", "message": "said"}}'), IndefinitePutError),
        (Canned(412, b"<html>"), IndefinitePutError),
        *((Canned(status, b"<html>"), IndefinitePutError) for status in (401, 403, 416, 501)),
        *((Canned(status, b"[" * 100_000), IndefinitePutError) for status in (200, 404)),
    ],
)
def test_what_an_answer_to_a_put_means(
    server: CannedServer, make: Callable[..., GcsStore], answer: Canned, expected: Any
) -> None:
    server.answer = lambda _: answer
    with pytest.raises(StorageError if isinstance(expected, str) else expected) as raised:
        make().put_if_absent("a", b"x")
    assert len(server.asked) == 1
    assert not isinstance(expected, str) or raised.value.code == expected


@pytest.mark.parametrize(
    ("answer", "code"),
    [
        (Canned(404, b"No such object: b/root/a"), "FILE_NOT_FOUND"),
        (Canned(404, b"Not Found", {"X-GUploader-UploadID": "x"}), "FILE_NOT_FOUND"),
        (Canned(404, b"The specified bucket does not exist."), "BUCKET_MISSING"),
        (Canned(404, b"<html>"), "STORE_UNAVAILABLE"),
        (Canned(404, b'{"error": "Not Found", "path": "/storage"}'), "STORE_UNAVAILABLE"),
        (Canned(404, b'{"error": {"code": "NoRoute", "message": "said"}}'), "STORE_UNAVAILABLE"),
    ],
)
def test_whose_404_a_download_has(
    server: CannedServer, make: Callable[..., GcsStore], answer: Canned, code: str
) -> None:
    server.answer = lambda _: answer
    with pytest.raises(SparklogError) as raised:
        make(retry_timeout=1).read("a")
    assert raised.value.code == code


def test_a_404_of_unknown_origin_is_asked_for_again_as_metadata(
    server: CannedServer, make: Callable[..., GcsStore]
) -> None:
    server.answer = lambda asked: Canned(404, b"Not Found") if "alt" in asked.query else error(404)
    with pytest.raises(NotFoundError):
        make().read("a")
    assert [asked.query.get("alt") for asked in server.asked] == ["media", None]


def test_ranges(server: CannedServer, make: Callable[..., GcsStore]) -> None:
    server.answer = lambda _: Canned(206, b"cd", {"Content-Range": "bytes 2-3/10"})
    assert make().read("a", 2, 2) == b"cd"
    assert server.asked[0].headers["range"] == "bytes=2-3"
    assert server.asked[0].target == "/storage/v1/b/b/o/root%2Fa?alt=media"
    for wrong in ("bytes 3-4/10", "bytes 2-4/10", ""):
        server.answer = lambda _, shown=wrong: Canned(206, b"cd", {"Content-Range": shown})  # type: ignore[misc]
        with pytest.raises(StorageError, match="STORE_ANSWER_WRONG"):
            make(retry_timeout=1).read("a", 2, 2)
    server.answer = lambda _: Canned(416, b"", {"Content-Range": "bytes */10"})
    assert make().read("a", 99) == b""
    server.answer = lambda _: Canned(416, b"", {"Content-Range": f"bytes */{'9' * 5000}"})
    with pytest.raises(StorageError, match="STORE_ANSWER_WRONG"):
        make(retry_timeout=1).read("a", 5)
    server.answer = lambda _: Canned(416, b"<html>")
    with pytest.raises(StorageError, match="STORE_ANSWER_WRONG"):
        make(retry_timeout=1).exists("a")


def item(name: str, size: str = "3") -> dict[str, str]:
    return {"name": name, "size": size, "updated": "2026-11-28T14:00:00.500Z"}


def listing(*items: dict[str, str], **more: Any) -> Canned:
    return Canned(200, json.dumps({"kind": "storage#objects", "items": items, **more}).encode())


def test_listings_have_pages_and_begin_after_a_name(
    server: CannedServer, make: Callable[..., GcsStore]
) -> None:
    pages = {
        "": listing(item("root/a"), nextPageToken="next", prefixes=["root/d/"]),
        "next": listing(item("root/e")),
    }
    server.answer = lambda asked: pages[asked.query.get("pageToken", "")]
    found = make().list("", start_after="a")
    assert [(file.name, file.size, file.modified_ms) for file in found] == [("e", 3, 1_795_874_400_500)]
    assert server.asked[0].query["startOffset"] == "root/a"
    assert make().top_names(5) == ["a", "d/", "e"]


def test_a_root_is_not_empty_because_its_first_page_is(
    server: CannedServer, make: Callable[..., GcsStore]
) -> None:
    pages = {
        "": listing(nextPageToken="b"),
        "b": listing(item("root/"), nextPageToken="c"),
        "c": listing(item("root/a"), nextPageToken="d"),
        "d": listing(prefixes=["root/b/"]),
    }
    server.answer = lambda asked: pages[asked.query.get("pageToken", "")]
    assert make().top_names(5) == ["a", "b/"]
    server.asked.clear()
    assert make().top_names(1) == ["a"]
    assert len(server.asked) == 3


@pytest.mark.parametrize(
    "page",
    [
        Canned(200, b"{}"),
        Canned(200, b"[]"),
        Canned(200, b"<html>"),
        Canned(200, b'{"a":' * 100_000),
        listing(item("elsewhere/a")),
        listing(item("root/a", size="-1")),
        listing({"name": "root/a"}),
        listing(item("root/b"), item("root/a")),
        listing({**item("root/a"), "updated": "yesterday"}),
    ],
)
def test_a_listing_that_cannot_be_one(
    server: CannedServer, make: Callable[..., GcsStore], page: Canned
) -> None:
    server.answer = lambda _: page
    with pytest.raises(StorageError, match="STORE_ANSWER_WRONG"):
        make(retry_timeout=1).list("", recursive=True)


def test_many_parts_are_composed_in_levels(server: CannedServer, make: Callable[..., GcsStore]) -> None:
    parts = 2 * MAX_COMPOSED + 1
    server.answer = lambda asked: Canned(204) if asked.method == "DELETE" else CREATED
    client = make().client
    upload = client.begin_upload("u", "root/large")
    for number in range(1, parts + 1):
        client.put_part(upload, number, 0, bytearray(b"x"), is_last=number == parts)
    client.complete_upload(upload)
    composed = [asked for asked in server.asked if asked.path.endswith("/compose")]
    sizes = [len(json.loads(asked.body)["sourceObjects"]) for asked in composed]
    assert sizes == [MAX_COMPOSED, MAX_COMPOSED, 1, 3]
    assert [asked.query.get("ifGenerationMatch") for asked in composed] == [None, None, None, "0"]
    assert composed[-1].path == "/storage/v1/b/b/o/root%2Flarge/compose"
    removed = [asked.path for asked in server.asked if asked.method == "DELETE"]
    assert len(set(removed)) == parts + 3
    assert all("/o/root%2F.tmp%2Fpart-" in path for path in removed)


class Credentials:
    """As google-auth's."""

    def __init__(self, lifetime_s: float) -> None:
        self.lifetime_s = lifetime_s
        self.valid, self.token = False, ""
        self.expiry: dt.datetime | None = None
        self.refreshed = 0
        self.error: Exception | None = None

    def refresh(self, _: object) -> None:
        if self.error is not None:
            raise self.error
        self.refreshed += 1
        self.valid, self.token = True, f"token {self.refreshed}"
        now_s = ManualClock().now_ms() / 1000
        self.expiry = dt.datetime.fromtimestamp(now_s + self.lifetime_s, dt.UTC).replace(tzinfo=None)


@pytest.fixture
def credentials(monkeypatch: pytest.MonkeyPatch) -> Credentials:
    made = Credentials(3600)
    monkeypatch.setattr(google.auth, "default", lambda scopes: (made, "project"))
    return made


def test_a_token_is_refreshed_once_and_sent(
    server: CannedServer, make: Callable[..., GcsStore], credentials: Credentials
) -> None:
    server.answer = lambda _: CREATED
    store = make(token="google_default")
    store.put_if_absent("a", b"")
    store.put_if_absent("b", b"")
    assert [asked.headers["authorization"] for asked in server.asked] == ["Bearer token 1"] * 2
    credentials.valid = False
    store.put_if_absent("c", b"")
    assert server.asked[-1].headers["authorization"] == "Bearer token 2"


def test_a_token_that_was_revoked_is_replaced_once(
    server: CannedServer, make: Callable[..., GcsStore], monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[Credentials] = []

    def default(scopes: object) -> Any:
        made.append(Credentials(3600))
        made[-1].refreshed = 10 * len(made)
        return made[-1], "project"

    monkeypatch.setattr(google.auth, "default", default)
    server.answer = lambda asked: (
        error(401) if asked.headers["authorization"] == "Bearer token 11" else CREATED
    )
    store = make(token="google_default")
    store.put_if_absent("a", b"x")
    assert [asked.headers["authorization"][-2:] for asked in server.asked] == ["11", "21"]
    server.answer = lambda _: error(401)
    with pytest.raises(StorageError, match="STORAGE_REFUSED"):
        store.put_if_absent("b", b"x")
    assert len(server.asked) == 4


def test_no_put_has_a_token_that_outlives_its_commit_number(
    server: CannedServer, make: Callable[..., GcsStore], credentials: Credentials
) -> None:
    credentials.lifetime_s = 12 * 3600
    server.answer = lambda _: Canned(200, b"", {"ETag": "x"})
    store = make(token="google_default")
    with pytest.raises(InvalidRequestError, match=r"valid for 12\.0 hours, expected one at most"):
        store.put_if_absent("a", b"")
    assert server.asked == []
    assert store.read("a") == b""


@pytest.mark.parametrize("name", ["Content-Type", "content-type"])
def test_the_token_of_the_machine_comes_by_no_proxy_of_the_store(
    server: CannedServer, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """As on a machine of Google's; it may have a proxy for HTTPS, and would get that machine's token."""
    token = {"access_token": "machine's", "expires_in": 3600, "token_type": "Bearer"}
    account = {"email": "a@b", "scopes": ["s"], "aliases": ["default"]}

    def answer(asked: Asked) -> Canned:
        content = token if asked.path.endswith("/token") else account
        return Canned(
            200, json.dumps(content).encode(), {name: "application/json", "Metadata-Flavor": "Google"}
        )

    server.answer = answer
    host = server.endpoint_url.removeprefix("http://")
    monkeypatch.setattr(google.auth.compute_engine._metadata, "_GCE_METADATA_HOST", host)
    for variable in ("no_proxy", "NO_PROXY", "http_proxy", "HTTP_PROXY", "HTTPS_PROXY"):
        monkeypatch.delenv(variable, raising=False)
    with CannedServer() as proxy:
        monkeypatch.setenv("https_proxy", proxy.endpoint_url)
        client = GcsStore("gs://b/r", parse_gcs_options({"token": "cloud"}), SystemClock()).client
        _, headers = client.sign(Request(name="get_object", method="GET", path="/"))
        assert proxy.asked == []
    assert headers["authorization"] == "Bearer machine's"


@pytest.mark.parametrize("token", [None, "", "two\r\nlines: hush", "hüsh"])
def test_a_token_that_is_none_is_not_sent(
    server: CannedServer, make: Callable[..., GcsStore], credentials: Credentials, token: str | None
) -> None:
    credentials.valid, credentials.token = True, token  # type: ignore[assignment]
    credentials.expiry = dt.datetime.fromtimestamp(ManualClock().now_ms() / 1000, dt.UTC).replace(tzinfo=None)
    with pytest.raises(StorageError) as raised:
        make(token="google_default").put_if_absent("a", b"")
    assert raised.value.code == "STORAGE_REFUSED"
    assert "hush" not in str(raised.value)
    assert server.asked == []


def test_no_put_has_a_token_without_a_lifetime(
    server: CannedServer, make: Callable[..., GcsStore], credentials: Credentials
) -> None:
    credentials.valid, credentials.token = True, "eternal"
    server.answer = lambda _: Canned(200, b"", {"ETag": "x"})
    store = make(token="google_default")
    with pytest.raises(StorageError, match="without a lifetime"):
        store.put_if_absent("a", b"")
    assert store.read("a") == b""


@pytest.mark.parametrize(
    ("failure", "code"),
    [
        (ValueError("invalid literal: hush"), "STORAGE_REFUSED"),
        (AttributeError("'list' object has no attribute 'get'"), "STORAGE_REFUSED"),
        (google.auth.exceptions.TransportError("down"), "STORE_UNAVAILABLE"),  # type: ignore[no-untyped-call]
        (google.auth.exceptions.RefreshError("revoked"), "STORAGE_REFUSED"),  # type: ignore[no-untyped-call]
        (google.auth.exceptions.DefaultCredentialsError("none"), "STORAGE_REFUSED"),  # type: ignore[no-untyped-call]
    ],
)
def test_credentials_that_cannot_be_had(
    make: Callable[..., GcsStore], credentials: Credentials, failure: Exception, code: str
) -> None:
    credentials.error = failure
    with pytest.raises(StorageError) as raised:
        make(token="google_default", retry_timeout=1).put_if_absent("a", b"")
    assert raised.value.code == code
    assert "hush" not in str(raised.value)
    assert not isinstance(raised.value, IndefinitePutError)


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        (error(401), TOKEN_LIFETIME_MS + 300_000),
        (error(404, "No such object"), None),
        (error(503), None),
        (error(403, "rate limit exceeded"), None),
        (Canned(403, b"<html>"), None),
        (Canned(401, b"<html>"), None),
    ],
)
def test_how_late_a_put_may_land(
    server: CannedServer,
    make: Callable[..., GcsStore],
    credentials: Credentials,
    answer: Canned,
    expected: int | None,
) -> None:
    server.answer = lambda _: answer
    assert make(token="google_default").put_lifetime_ms() == expected
    assert server.asked[0].headers["authorization"] == "Bearer expired"
    assert make(token="anon").put_lifetime_ms() is None


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (None, "found no such file"),
        ("hush", "is not JSON"),
        ('{"type": "service_account", "private_key": "hush"}', "no usable credentials"),
        ('{"type": "authorized_user", "refresh_token": "hush"}', "no usable credentials"),
        (
            '{"type": "external_account", "credential_source": "hush"}',
            "expected a key file of type service_account",
        ),
        ("[1]", "no usable credentials"),
    ],
)
def test_a_key_file_that_is_none(
    make: Callable[..., GcsStore], tmp_path: Path, content: str | None, problem: str
) -> None:
    path = tmp_path / "key.json"
    if content is not None:
        path.write_text(content)
    with pytest.raises(InvalidRequestError, match=problem) as raised:
        make(token=str(path)).read("a")
    assert "hush" not in str(raised.value)


def test_a_key_as_text_or_dict_is_hidden() -> None:
    for token in ({"private_key": "hush"}, '{"private_key": "hush"}'):
        options = parse_gcs_options({"token": token})
        assert options.token == '{"private_key": "hush"}'
        assert options.secrets == (options.token,)
        assert "hush" not in repr(options)


def test_where_the_emulator_is() -> None:
    for shown in ("127.0.0.1:4443", "http://127.0.0.1:4443"):
        options = parse_gcs_options({}, {"STORAGE_EMULATOR_HOST": shown})
        assert options.endpoint_url == "http://127.0.0.1:4443"
        assert options.is_anonymous
    assert not parse_gcs_options({}).is_anonymous
    assert not parse_gcs_options({"endpoint_url": "https://private.example"}).is_anonymous


def test_the_guard_of_a_put_is_asked_after_its_token_is_there(
    server: CannedServer, make: Callable[..., GcsStore], credentials: Credentials
) -> None:
    seen: list[int] = []

    def guard() -> bool:
        seen.append(credentials.refreshed)
        return False

    with pytest.raises(SparklogError, match="PUT_REFUSED"):
        make(token="google_default").put_if_absent("a", b"", guard=guard)
    assert seen == [1]
    assert server.asked == []


def test_a_refused_upload_of_the_probe_leaves_no_part(
    server: CannedServer, make: Callable[..., GcsStore]
) -> None:
    server.answer = lambda asked: error(403) if asked.path.endswith("/compose") else CREATED
    with pytest.raises(StorageError, match="STORAGE_REFUSED"):
        make().try_requests()
    (refused,) = [asked for asked in server.asked if asked.path.endswith("/compose")]
    (part,) = json.loads(refused.body)["sourceObjects"]
    deleted = [urllib.parse.unquote(asked.path) for asked in server.asked if asked.method == "DELETE"]
    assert any(path.endswith(part["name"]) for path in deleted)
