"""Azure's requests, answers and credentials, without Azure."""

import base64
import hashlib
import hmac
from collections.abc import Callable, Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from sparklog.clock import ManualClock
from sparklog.errors import (
    AlreadyExistsError,
    InvalidRequestError,
    NotFoundError,
    RetriableError,
    StorageError,
)
from sparklog.storage import IndefinitePutError, azure, object_probe
from sparklog.storage.azure import PUT_LIFETIME_MS, AzureStore, parse_azure_options
from sparklog.storage.rest_client import Request
from tests.storage.canned_server import Canned, CannedServer

KEY = base64.b64encode(b"a key of no account").decode()
CREATED = Canned(201, headers={"ETag": '"0x1"'})


@pytest.fixture
def server() -> Iterator[CannedServer]:
    with CannedServer() as running:
        yield running


@pytest.fixture
def make(server: CannedServer) -> Callable[..., AzureStore]:
    def make(**options: Any) -> AzureStore:
        given = {"endpoint_url": f"{server.endpoint_url}/acct", "account_name": "acct", **options}
        if not set(options) & {"sas_token", "anon", "client_secret", "credential"}:
            given.setdefault("account_key", KEY)
        store = AzureStore("az://c/root", parse_azure_options(given), ManualClock())
        object_probe.passed.add(store.client.identity)
        return store

    return make


def error(status: int, code: str) -> Canned:
    text = f'<?xml version="1.0"?><Error><Code>{code}</Code><Message>said\nRequestId:1</Message></Error>'
    return Canned(status, text.encode(), {"x-ms-error-code": code})


def test_a_conditional_put_is_one_signed_request(
    server: CannedServer, make: Callable[..., AzureStore]
) -> None:
    server.answer = lambda _: CREATED
    make().put_if_absent("a b/ä", b"data")
    (asked,) = server.asked
    assert (asked.method, asked.target, asked.body) == ("PUT", "/acct/c/root/a%20b/%C3%A4", b"data")
    assert asked.headers["if-none-match"] == "*"
    assert asked.headers["x-ms-blob-type"] == "BlockBlob"
    md5 = base64.b64encode(hashlib.md5(b"data").digest()).decode()
    lines = [
        *("PUT", "", "", "4", md5, "application/octet-stream", "", "", "", "*", "", ""),
        *("x-ms-blob-type:BlockBlob", f"x-ms-date:{asked.headers['x-ms-date']}", "x-ms-version:2021-12-02"),
        "/acct/acct/c/root/a%20b/%C3%A4",
    ]
    text = "\n".join(lines).encode()
    signature = base64.b64encode(hmac.new(base64.b64decode(KEY), text, hashlib.sha256).digest()).decode()
    assert asked.headers["authorization"] == f"SharedKey acct:{signature}"


def test_a_query_is_signed_too(server: CannedServer, make: Callable[..., AzureStore]) -> None:
    server.answer = lambda _: listing()
    make().list("d")
    (asked,) = server.asked
    date = asked.headers["x-ms-date"]
    lines = ["GET", *[""] * 11, f"x-ms-date:{date}", "x-ms-version:2021-12-02", "/acct/acct/c"]
    lines += ["comp:list", "delimiter:/", "maxresults:5000", "prefix:root/d/", "restype:container"]
    signature = hmac.new(base64.b64decode(KEY), "\n".join(lines).encode(), hashlib.sha256).digest()
    assert asked.headers["authorization"] == f"SharedKey acct:{base64.b64encode(signature).decode()}"


def test_a_sas_token_is_added_and_hidden(server: CannedServer, make: Callable[..., AzureStore]) -> None:
    quoting = error(403, "AuthorizationFailure")
    server.answer = lambda _: replace(quoting, data=quoting.data.replace(b"said", b"hu+sh= and hu%2Bsh%3D"))
    store = make(sas_token="?sv=2022&sig=hu%2Bsh%3D")
    with pytest.raises(StorageError, match="STORAGE_REFUSED") as raised:
        store.read("a")
    assert server.asked[0].query == {"sv": "2022", "sig": "hu+sh="}
    assert "authorization" not in server.asked[0].headers
    assert "hu+sh" not in str(raised.value)
    assert "hu%2Bsh" not in str(raised.value)
    assert "hu%2Bsh" not in repr(store.client.options)
    assert store.put_lifetime_ms() is None


class Credential:
    def __init__(self, *given: object, **_: object) -> None:
        self.given = given

    def get_token(self, scope: str) -> Any:
        assert scope == "https://storage.azure.com/.default"

        class Token:
            token = f"token of {self.given}"

        return Token()


def test_tokens_of_a_service_principal_and_of_the_default_chain(
    server: CannedServer, make: Callable[..., AzureStore], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(azure, "ClientSecretCredential", Credential)
    monkeypatch.setattr(azure, "DefaultAzureCredential", Credential)
    server.answer = lambda _: CREATED
    make(tenant_id="t", client_id="i", client_secret="s").put_if_absent("a", b"")
    shown = [asked.headers["authorization"] for asked in server.asked]
    assert shown == ["Bearer token of ('t', 'i', 's')"]
    with pytest.raises(InvalidRequestError, match="not sent in the clear"):
        make(credential=None).put_if_absent("b", b"")
    assert len(server.asked) == 1
    store = AzureStore("az://c/root", parse_azure_options({"account_name": "acct"}))
    _, headers = store.client.sign(Request(name="get_object", method="GET", path="/"))
    assert headers["authorization"] == "Bearer token of ()"
    with pytest.raises(InvalidRequestError, match="expected tenant_id and client_id"):
        make(client_secret="s").put_if_absent("a", b"")


@pytest.mark.parametrize(
    ("status", "code", "expected"),
    [
        (409, "BlobAlreadyExists", AlreadyExistsError),
        (412, "ConditionNotMet", AlreadyExistsError),
        (404, "ContainerNotFound", "BUCKET_MISSING"),
        (403, "AuthenticationFailed", "STORAGE_REFUSED"),
        (412, "LeaseIdMissing", "STORAGE_FAILED"),
        (400, "InvalidHeaderValue", "STORAGE_FAILED"),
        (409, "BlobImmutableDueToPolicy", IndefinitePutError),
        (503, "ServerBusy", IndefinitePutError),
        (500, "OperationTimedOut", IndefinitePutError),
        (429, "TooManyRequests", IndefinitePutError),
    ],
)
def test_what_an_answer_to_a_put_means(
    server: CannedServer, make: Callable[..., AzureStore], status: int, code: str, expected: Any
) -> None:
    server.answer = lambda _: error(status, code)
    kind = StorageError if isinstance(expected, str) else expected
    with pytest.raises(kind) as raised:
        make().put_if_absent("a", b"x")
    assert len(server.asked) == 1
    assert not isinstance(expected, str) or raised.value.code == expected


@pytest.mark.parametrize(
    "page",
    [
        Canned(201, b"welcome", {"ETag": "x"}),
        Canned(404, b"<html>not here</html>"),
        Canned(200, b"welcome"),
        Canned(307),
    ],
)
def test_what_no_store_has_said_is_no_answer(
    server: CannedServer, make: Callable[..., AzureStore], page: Canned
) -> None:
    server.answer = lambda _: page
    with pytest.raises(IndefinitePutError):
        make().put_if_absent("a", b"x")
    with pytest.raises(StorageError, match=r"STORE_UNAVAILABLE|STORE_ANSWER_WRONG") as raised:
        make().read("a")
    assert not isinstance(raised.value, NotFoundError)


@pytest.mark.parametrize("status", [401, 403, 412, 416, 501])
def test_a_refusal_that_is_not_the_stores_leaves_a_put_open(
    server: CannedServer, make: Callable[..., AzureStore], status: int
) -> None:
    """Something in between may have passed the request on."""
    server.answer = lambda _: Canned(status, b"<html>")
    with pytest.raises(IndefinitePutError):
        make().put_if_absent("a", b"x")
    assert len(server.asked) == 1
    with pytest.raises(StorageError):
        make(retry_timeout=0.01).read("a")


def blob(name: str, *, size: str = "3", more: str = "", attributes: str = "") -> str:
    date = "<Last-Modified>Sat, 28 Nov 2026 14:00:00 GMT</Last-Modified>"
    properties = f"{date}<Content-Length>{size}</Content-Length>{more}"
    return f"<Blob><Name{attributes}>{name}</Name><Properties>{properties}</Properties></Blob>"


def listing(*blobs: str, marker: str = "") -> Canned:
    content = f"<Blobs>{''.join(blobs)}</Blobs><NextMarker>{marker}</NextMarker>"
    text = f"<EnumerationResults>{content}</EnumerationResults>"
    return Canned(200, b"\xef\xbb\xbf" + text.encode())


def test_listings_have_pages_and_no_directories(
    server: CannedServer, make: Callable[..., AzureStore]
) -> None:
    directory = "<ResourceType>directory</ResourceType>"
    pages = {
        "": listing(blob("root/a"), blob("root/d", more=directory), marker="next"),
        "next": listing(blob("root/e%20f", attributes=' Encoded="true"'), blob("root/g")),
    }
    server.answer = lambda asked: pages[asked.query.get("marker", "")]
    found = make().list("", recursive=True)
    assert [(file.name, file.size) for file in found] == [("a", 3), ("e f", 3), ("g", 3)]
    assert found[0].modified_ms == 1_795_874_400_000
    assert [file.name for file in make().list("", recursive=True, start_after="a")] == ["e f", "g"]


@pytest.mark.parametrize(
    "page",
    [
        Canned(200, b"<html></html>"),
        Canned(200, b"no xml"),
        Canned(200, b"<EnumerationResults><Blobs/></EnumerationResults>"),
        listing(blob("elsewhere/a")),
        listing(blob("root/a", size="-1")),
        listing("<Blob></Blob>"),
        listing(blob("root/b"), blob("root/a")),
    ],
)
def test_a_listing_that_cannot_be_one(
    server: CannedServer, make: Callable[..., AzureStore], page: Canned
) -> None:
    server.answer = lambda _: page
    with pytest.raises(StorageError, match="STORE_ANSWER_WRONG"):
        make(retry_timeout=1).list("", recursive=True)


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        (error(403, "AuthenticationFailed"), PUT_LIFETIME_MS),
        (error(404, "BlobNotFound"), None),
        (error(503, "ServerBusy"), None),
    ],
)
def test_how_late_a_put_may_land(
    server: CannedServer, make: Callable[..., AzureStore], answer: Canned, expected: int | None
) -> None:
    server.answer = lambda _: answer
    assert make().put_lifetime_ms() == expected
    (asked,) = server.asked
    assert asked.path == "/acct/c/root/.tmp/old"


def test_the_guard_of_a_put_is_asked_after_signing(
    server: CannedServer, make: Callable[..., AzureStore], monkeypatch: pytest.MonkeyPatch
) -> None:
    store, order = make(), list[str]()
    real = store.client.sign

    def sign(request: Request) -> Any:
        order.append("sign")
        return real(request)

    def guard() -> bool:
        order.append("guard")
        return False

    monkeypatch.setattr(store.client, "sign", sign)
    with pytest.raises(RetriableError, match="PUT_REFUSED"):
        store.put_if_absent("a", b"", guard=guard)
    assert order == ["sign", "guard"]
    assert server.asked == []


def test_a_connection_string() -> None:
    text = f"DefaultEndpointsProtocol=https;AccountName=acct;AccountKey={KEY};EndpointSuffix=core.windows.net"
    options = parse_azure_options({"connection_string": text})
    assert (options.account_name, options.account_key) == ("acct", KEY)
    assert options.endpoint_url == "https://acct.blob.core.windows.net"
    assert KEY not in repr(options)
    with pytest.raises(InvalidRequestError, match="parts of the form Name=value") as raised:
        parse_azure_options({"connection_string": "hush"})
    assert "hush" not in str(raised.value)


def test_a_connection_string_keeps_its_account() -> None:
    text = f"AccountName=acct;AccountKey={KEY}"
    environment = {"AZURE_STORAGE_ACCOUNT_NAME": "other"}
    assert parse_azure_options({"connection_string": text}, environment).account_name == "acct"
    given = {"connection_string": text, "account_name": "chosen"}
    assert parse_azure_options(given, environment).account_name == "chosen"


def test_a_given_credential_replaces_those_of_the_environment() -> None:
    environment = {"AZURE_STORAGE_ACCOUNT_KEY": KEY, "AZURE_STORAGE_ACCOUNT_NAME": "acct"}
    assert parse_azure_options({}, environment).account_key == KEY
    options = parse_azure_options({"sas_token": "sv=1&sig=s"}, environment)
    assert (options.account_key, options.account_name, options.sas_token) == (None, "acct", "sv=1&sig=s")


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ({"account_key": "schlüssel-hush"}, "account_key: expected base64"),
        ({"sas_token": "hush"}, "sas_token: found no signature"),
        ({"sas_token": ""}, "sas_token: found no signature"),
        ({"endpoint_url": "https://h/?sig=hush"}, "endpoint_url: found a query"),
        (
            {"connection_string": "AccountName=evil.test/hush;AccountKey=aaaa;EndpointSuffix=x.test"},
            "AccountName is not that of a storage account",
        ),
    ],
)
def test_credentials_that_are_none(given: dict[str, str], problem: str) -> None:
    with pytest.raises(InvalidRequestError, match=problem) as raised:
        parse_azure_options(given)
    assert "hush" not in str(raised.value)


def test_a_tenant_that_is_none(make: Callable[..., AzureStore]) -> None:
    with pytest.raises(InvalidRequestError, match="tenant_id: expected the id or the domain"):
        make(tenant_id="a b", client_id="i", client_secret="s").read("a")


def test_a_sas_token_as_it_is_copied(server: CannedServer, make: Callable[..., AzureStore]) -> None:
    server.answer = lambda _: CREATED
    store = make(sas_token="?sv=2022&sig=a+b/c=\n")
    store.put_if_absent("a", b"")
    assert server.asked[0].query == {"sv": "2022", "sig": "a+b/c="}
    assert store.client.describe(OSError("sig a+b/c= is wrong")) == "sig *** is wrong"


@pytest.mark.parametrize("quoted", ["Authorization: {}", "{{'authorization': '{}'}}", "x" * 150 + " {}"])
def test_a_page_that_quotes_the_request_shows_no_credentials(
    server: CannedServer, make: Callable[..., AzureStore], monkeypatch: pytest.MonkeyPatch, quoted: str
) -> None:
    """Also cut off, so that the whole secret cannot be found in it."""
    secret = "hush" * 40
    token = SimpleNamespace(token=secret)
    monkeypatch.setattr(
        azure, "ClientSecretCredential", lambda *_: SimpleNamespace(get_token=lambda _: token)
    )
    server.answer = lambda asked: Canned(
        400, quoted.format(asked.headers.get("authorization") or asked.target.partition("?")[2]).encode()
    )
    of_token = {"tenant_id": "t", "client_id": "i", "client_secret": "s-e-c"}
    for credential in (of_token, {"sas_token": f"sv=1&sig={secret}"}):
        with pytest.raises(StorageError) as raised:
            make(retry_timeout=0.01, **credential).read("a")
        assert "***" in str(raised.value)
        assert "hushhush" not in str(raised.value)


def test_a_token_that_was_revoked_is_replaced_once(
    server: CannedServer, make: Callable[..., AzureStore], monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[str] = []

    def credential(*_: object) -> Any:
        made.append(f"token{len(made)}")
        token = SimpleNamespace(token=made[-1])
        return SimpleNamespace(get_token=lambda _: token)

    monkeypatch.setattr(azure, "ClientSecretCredential", credential)
    refused = error(401, "InvalidAuthenticationInfo")
    server.answer = lambda asked: refused if asked.headers["authorization"].endswith("0") else CREATED
    store = make(tenant_id="t", client_id="i", client_secret="s")
    store.put_if_absent("a", b"x")
    assert [asked.headers["authorization"] for asked in server.asked] == ["Bearer token0", "Bearer token1"]
    server.asked.clear()
    server.answer = lambda _: refused
    for options in ({"tenant_id": "t", "client_id": "i", "client_secret": "s"}, {}):
        with pytest.raises(StorageError, match="STORAGE_REFUSED"):
            make(**options).put_if_absent("b", b"x")
    assert len(server.asked) == 3


def test_dates_checked_for_a_key_are_not_therefore_checked_for_a_token(
    server: CannedServer, make: Callable[..., AzureStore], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(azure, "ClientSecretCredential", Credential)
    server.answer = lambda asked: (
        error(403, "AuthenticationFailed")
        if asked.headers["authorization"].startswith("SharedKey")
        else error(404, "BlobNotFound")
    )
    assert make().put_lifetime_ms() == PUT_LIFETIME_MS
    assert make(tenant_id="t", client_id="i", client_secret="s").put_lifetime_ms() is None


def test_a_private_container_is_not_empty_for_strangers(
    server: CannedServer, make: Callable[..., AzureStore]
) -> None:
    server.answer = lambda _: error(404, "ResourceNotFound")
    for use in (lambda: make(anon=True).exists("a"), lambda: make(anon=True).list("")):
        with pytest.raises(StorageError) as raised:
            use()
        assert not isinstance(raised.value, NotFoundError)
    assert not make().exists("a")


def test_a_blob_with_snapshots_is_not_asked_for_again(
    server: CannedServer, make: Callable[..., AzureStore]
) -> None:
    server.answer = lambda _: error(409, "SnapshotsPresent")
    with pytest.raises(StorageError, match="409 SnapshotsPresent"):
        make().delete("a")
    assert len(server.asked) == 1


@pytest.mark.parametrize(
    ("url", "given", "endpoint"),
    [
        ("abfss://c@acct.dfs.core.windows.net/x", {}, "https://acct.blob.core.windows.net"),
        ("abfss://c@acct.dfs.core.chinacloudapi.cn/x", {}, "https://acct.blob.core.chinacloudapi.cn"),
        ("az://c/x", {"account_name": "acct"}, "https://acct.blob.core.windows.net"),
    ],
)
def test_where_an_account_is(url: str, given: dict[str, str], endpoint: str) -> None:
    assert AzureStore(url, parse_azure_options(given)).client.endpoint == endpoint


@pytest.mark.parametrize(
    ("url", "given", "problem"),
    [
        ("az://c/x", {}, "found no storage account"),
        ("az://c/x", {"account_name": "evil.test#"}, "account_name: expected 3 to 24"),
        ("abfss://c@acct.dfs.core.windows.net/x", {"account_name": "other"}, "the root is in account 'acct'"),
    ],
)
def test_an_account_that_is_unknown_or_another(url: str, given: dict[str, str], problem: str) -> None:
    with pytest.raises(InvalidRequestError, match=problem):
        AzureStore(url, parse_azure_options(given))
