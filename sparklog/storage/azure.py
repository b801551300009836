"""A store in a container of Azure Blob Storage or Data Lake Storage Gen2, over the Blob service's REST API.

put_if_absent is Put Blob with If-None-Match: *, with its MD5, one attempt. Large objects are blocks and a Put
Block List with the same condition. Blocks that are never listed vanish by themselves after a week: nothing is
to be swept. An account with a hierarchical namespace has directories, which listings leave out.

How late a put may land (ADR 0008): the service refuses requests with a shared key whose date is more than 15
minutes old; whether it does so for other credentials is tested. Nothing is assumed of SAS tokens.
Invariants: keys, signatures and tokens appear in no message.
Concurrency: any thread.
Sources: Azure Storage's REST API: Put Blob, Put Block List, List Blobs, Authorize with Shared Key,
    conditional headers; docs/object-stores.md.
"""

import base64
import dataclasses
import datetime as dt
import email.utils
import functools
import hashlib
import hmac
import re
import secrets
import threading
import urllib.parse
import xml.etree.ElementTree as ET
from collections.abc import Callable, Iterator, Mapping
from typing import Any, ClassVar
from xml.sax.saxutils import escape

from azure.core.exceptions import AzureError, ServiceRequestError
from azure.identity import ClientSecretCredential, DefaultAzureCredential

from sparklog.clock import Clock, SystemClock
from sparklog.errors import InvalidRequestError, NotFoundError
from sparklog.storage.base import TEMPORARY_DIRECTORY
from sparklog.storage.object_client import Listed, Outcome, Page, Upload, WrongAnswerError
from sparklog.storage.object_options import ObjectOptions, from_environment, invalid
from sparklog.storage.object_probe import try_requests
from sparklog.storage.object_store import ObjectStore
from sparklog.storage.rest_client import (
    Answer,
    AnswerError,
    Request,
    RestClient,
    by_status,
    no_answer_code,
    parse_int,
    to_ms,
    validate_empty,
)
from sparklog.storage.root_rules import AzurePlace, parse_azure_url

# --- options -----------------------------------------------------------------------------------------


_ENVIRONMENT = {
    **{
        f"FSSPEC_{scheme}_{name.upper()}": name
        for scheme in ("AZ", "ABFS", "ABFSS")
        for name in ("account_name", "account_key", "connection_string", "sas_token", "tenant_id")
    },
    "AZURE_STORAGE_ACCOUNT_NAME": "account_name",
    "AZURE_STORAGE_ACCOUNT_KEY": "account_key",
    "AZURE_STORAGE_CONNECTION_STRING": "connection_string",
    "AZURE_STORAGE_SAS_TOKEN": "sas_token",
    "AZURE_STORAGE_TENANT_ID": "tenant_id",
    "AZURE_STORAGE_CLIENT_ID": "client_id",
    "AZURE_STORAGE_CLIENT_SECRET": "client_secret",
    "SPARKLOG_CACHE_DIR": "cache_dir",
}
_CREDENTIALS = ("account_key", "connection_string", "sas_token", "client_secret")
_CONNECTION = {
    "accountname": "account_name",
    "accountkey": "account_key",
    "sharedaccesssignature": "sas_token",
    "blobendpoint": "endpoint_url",
}
_DOMAIN = "core.windows.net"
_ACCOUNT = re.compile(r"[a-z0-9]{3,24}")


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class AzureOptions(ObjectOptions):
    """How to reach Azure Storage, as adlfs has it. See ObjectOptions.

    Fields:
        account_name: of the storage account, if the URL has none.
        account_key, sas_token, connection_string: credentials.
        tenant_id, client_id, client_secret: of a service principal.
        anon: send no credentials. Without any of these: DefaultAzureCredential.
    """

    store: ClassVar[str] = "an abfss:// or az://"
    secret_fields: ClassVar[tuple[str, ...]] = _CREDENTIALS

    account_name: str | None = None
    account_key: str | None = dataclasses.field(default=None, repr=False)
    sas_token: str | None = dataclasses.field(default=None, repr=False)
    connection_string: str | None = dataclasses.field(default=None, repr=False)
    tenant_id: str | None = None
    client_id: str | None = None
    client_secret: str | None = dataclasses.field(default=None, repr=False)
    anon: bool = False

    @property
    def secrets(self) -> tuple[str, ...]:
        """Also the signature of a SAS token, as a server may quote it."""
        given = [value for name in self.secret_fields if (value := getattr(self, name))]
        query = (self.sas_token or "").strip().lstrip("?")
        signatures = [part[4:] for part in query.split("&") if part.startswith("sig=")]
        return (*given, *signatures, *map(urllib.parse.unquote, signatures))


def parse_azure_options(
    given: Mapping[str, Any] | None, environment: Mapping[str, str] | None = None
) -> AzureOptions:
    """Parse the options of an Azure root. A given credential replaces those of the environment.

    Raises:
        InvalidRequestError: an unknown or malformed option. Values are never quoted.
    """
    chosen = {name: value for name, value in (given or {}).items() if value is not None}
    values = from_environment(_ENVIRONMENT, environment)
    if any(name in chosen for name in (*_CREDENTIALS, "anon", "client_id")):
        values = {
            name: value
            for name, value in values.items()
            if name not in {*_CREDENTIALS, "client_id", "tenant_id"}
        }
    if (text := {**values, **chosen}.get("connection_string")) is not None:
        values.update(_parts_of(text))  # of one account: beats what single variables say
    values.update(chosen)
    values.pop("connection_string", None)
    options = AzureOptions.of(values)
    if options.account_key is not None:
        try:
            base64.b64decode(options.account_key, validate=True)
        except ValueError:
            raise invalid(AzureOptions, "account_key", "expected base64") from None
    if options.sas_token is not None and "sig" not in _sas(options.sas_token):
        # Otherwise the default chain would be asked for somebody else's token.
        raise invalid(AzureOptions, "sas_token", "found no signature, expected sv=...&sig=...")
    return options


def _sas(token: str) -> dict[str, str]:
    """Parse a SAS token. A plus sign is itself: the signature is base64."""
    return dict(urllib.parse.parse_qsl(token.strip().lstrip("?").replace("+", "%2B")))


def _parts_of(text: object) -> dict[str, str]:
    """Parse a connection string."""
    if not isinstance(text, str):
        raise invalid(AzureOptions, "connection_string", f"found a {type(text).__name__}, expected text")
    parts: dict[str, str] = {}
    for part in filter(None, text.split(";")):
        name, equals, value = part.partition("=")
        if not equals:
            raise invalid(AzureOptions, "connection_string", "expected parts of the form Name=value")
        parts[name.strip().lower()] = value.strip()
    found = {_CONNECTION[name]: value for name, value in parts.items() if name in _CONNECTION}
    if "endpoint_url" not in found and "accountname" in parts and "endpointsuffix" in parts:
        if _ACCOUNT.fullmatch(parts["accountname"]) is None:
            raise invalid(AzureOptions, "connection_string", "AccountName is not that of a storage account")
        protocol = parts.get("defaultendpointsprotocol", "https")
        found["endpoint_url"] = f"{protocol}://{parts['accountname']}.blob.{parts['endpointsuffix']}"
    return found


# --- client ------------------------------------------------------------------------------------------


_VERSION = "2021-12-02"
_SCOPE = "https://storage.azure.com/.default"
_TAKEN = {"BlobAlreadyExists", "ConditionNotMet"}
_MISSING = {"BlobNotFound", "ResourceNotFound", "InvalidBlockList"}
_RANGE = {"InvalidRange"}
_BUCKET = {"ContainerNotFound", "ContainerBeingDeleted", "ContainerDisabled"}
# With status 409, and not because of another request.
_FOREVER = {"SnapshotsPresent", "PublicAccessNotPermitted"}
_BUSY = {"ServerBusy", "OperationTimedOut", "InternalError", "RequestTimeout"}
_SIGNED_HEADERS = (
    "content-encoding",
    "content-language",
    "content-length",
    "content-md5",
    "content-type",
    "",  # the date, which is in x-ms-date
    "if-modified-since",
    "if-match",
    "if-none-match",
    "if-unmodified-since",
    "range",
)


class AzureClient(RestClient):
    """A container, accessed with given options."""

    failures: ClassVar[tuple[type[Exception], ...]] = (*RestClient.failures, AzureError)
    page_size: ClassVar[int] = 5000
    starts_after: ClassVar[bool] = False
    place: ClassVar[str] = "container"
    refusal_fix: ClassVar[str] = (
        "Give credentials that may read, write, list and delete blobs of the container (Storage Blob Data "
        "Contributor): the storage options account_key, sas_token, connection_string, or tenant_id, "
        "client_id and client_secret; or log in for DefaultAzureCredential"
    )

    def __init__(self, place: AzurePlace, options: AzureOptions, clock: Clock) -> None:
        self.container = place.container
        self.options = options
        self.account, endpoint = _account_and_endpoint(place, options)
        self._sas = _sas(options.sas_token or "")
        self._credential: Any = None
        super().__init__(endpoint, options, clock)

    def after_fork_in_child(self) -> None:
        super().after_fork_in_child()
        self._credential_lock = threading.Lock()
        self._credential = None

    @property
    def identity(self) -> str:
        return f"{self.endpoint}/{self.container}"

    # --- blobs ---------------------------------------------------------------------------------------

    def create(self, key: str, data: bytes, guard: Callable[[], bool] | None) -> None:
        _validate_created(self.send_conditional(self._put_request(key, data, {"if-none-match": "*"}), guard))

    def put(self, url: str, key: str, data: bytes) -> None:
        request = self._put_request(key, data, {})

        def attempt() -> None:
            _validate_created(self.send(request))

        self._repeat("put_object", url, attempt)

    def _put_request(self, key: str, data: bytes, condition: Mapping[str, str]) -> Request:
        headers = {
            "x-ms-blob-type": "BlockBlob",
            "content-type": "application/octet-stream",
            "content-md5": _md5_of(data),
            **condition,
        }
        return Request(name="put_object", method="PUT", path=self._blob(key), headers=headers, body=data)

    def get(self, url: str, key: str, position: int, end: int | None) -> tuple[bytes, int]:
        shown = f"bytes={position}-{'' if end is None else end - 1}"
        request = Request(name="get_object", method="GET", path=self._blob(key), headers={"range": shown})
        return self.get_range(url, request, position, end)

    def listed(
        self,
        url: str,
        prefix: str,
        *,
        by_directory: bool = False,
        start_after: str | None = None,
        page_size: int | None = None,
        within_ms: int = 0,
    ) -> Iterator[Page]:
        query = {
            "restype": "container",
            "comp": "list",
            "prefix": prefix,
            "maxresults": str(page_size or self.page_size),
        }
        if by_directory:
            query["delimiter"] = "/"
        request = Request(name="list_objects", method="GET", path=f"/{self.container}", query=query)
        parse = functools.partial(_parse_page, prefix=prefix, start_after=start_after)
        return self.pages(url, request, "marker", parse, within_ms)

    def delete(self, url: str, key: str) -> None:
        request = Request(name="delete_object", method="DELETE", path=self._blob(key))
        try:
            self._repeat(request.name, url, lambda: validate_empty(self.send(request)))
        except NotFoundError:
            return

    # --- uploads in parts ----------------------------------------------------------------------------

    def begin_upload(self, url: str, key: str) -> Upload:
        return Upload(url=url, key=key, state=secrets.token_hex(8))

    def put_part(self, upload: Upload, number: int, position: int, data: bytearray, *, is_last: bool) -> None:  # noqa: ARG002 - for stores whose uploads have an order
        # All ids of a blob have the same length, at most 64 bytes.
        block = base64.b64encode(f"{upload.state}-{number:08}".encode()).decode()
        request = Request(
            name="put_part",
            method="PUT",
            path=self._blob(upload.key),
            query={"comp": "block", "blockid": block},
            headers={"content-md5": _md5_of(data)},
            body=data,
        )
        self._repeat(request.name, upload.url, lambda: _validate_part(self.send(request)))
        upload.tokens[number] = block

    def complete_upload(self, upload: Upload) -> None:
        blocks = "".join(f"<Latest>{escape(block)}</Latest>" for _, block in sorted(upload.tokens.items()))
        body = f'<?xml version="1.0" encoding="utf-8"?><BlockList>{blocks}</BlockList>'.encode()
        request = Request(
            name="complete_upload",
            method="PUT",
            path=self._blob(upload.key),
            query={"comp": "blocklist"},
            headers={
                "if-none-match": "*",
                "content-type": "application/xml",
                "content-md5": _md5_of(body),
                "x-ms-blob-content-type": "application/octet-stream",
            },
            body=body,
        )
        self._repeat(request.name, upload.url, lambda: _validate_created(self.send(request)))

    def abort_upload(self, upload: Upload) -> None:
        """No-op: the service drops blocks that were never listed."""

    # --- credentials ---------------------------------------------------------------------------------

    def sign(self, request: Request) -> tuple[Mapping[str, str], Mapping[str, str]]:
        headers = {
            "x-ms-version": _VERSION,
            "x-ms-date": email.utils.formatdate(self.now_ms() / 1000, usegmt=True),
            **request.headers,
        }
        query = dict(request.query)
        options = self.options
        if request.body is not None:
            headers["content-length"] = str(len(request.body))
        if options.anon:
            return query, headers
        if options.account_key is not None:
            text = _text_to_sign(request.method, self.endpoint + request.path, self.account, query, headers)
            key = base64.b64decode(options.account_key)
            signature = base64.b64encode(hmac.new(key, text.encode(), hashlib.sha256).digest()).decode()
            headers["authorization"] = f"SharedKey {self.account}:{signature}"
            return query, headers
        if self._sas:
            return {**query, **self._sas}, headers
        headers["authorization"] = f"Bearer {self._token()}"
        return query, headers

    def forget_token(self) -> bool:
        with self._credential_lock:
            self._credential = None  # it caches
        return self.options.account_key is None and not self._sas and not self.options.anon

    def _token(self) -> str:
        if self.endpoint.startswith("http://") and self.options.client_secret is None:
            raise invalid(
                AzureOptions,
                "endpoint_url",
                "found http://, expected https:// or a given credential: a token of the default chain is not "
                "sent in the clear",
            )
        with self._credential_lock:
            if self._credential is None:
                self._credential = _credential(self.options)
            return str(self._credential.get_token(_SCOPE).token)  # it caches

    def refuses_old_date(self, prefix: str, date_s: float) -> bool | None:
        """Return whether a request of that date is refused; None if the answer does not decide it."""
        request = Request(
            name="get_object",
            method="GET",
            path=self._blob(f"{prefix}{TEMPORARY_DIRECTORY}/old"),
            headers={"range": "bytes=0-0", "x-ms-date": email.utils.formatdate(date_s, usegmt=True)},
        )
        try:
            self.send(request)
        except AnswerError as error:
            if error.code == "AuthenticationFailed":
                return True
            return False if self.outcome_of(error) in {Outcome.MISSING, Outcome.RANGE} else None
        except AzureClient.failures:
            return None
        return False

    # --- errors --------------------------------------------------------------------------------------

    def parse_error(self, answer: Answer) -> AnswerError:
        code = answer.headers.get("x-ms-error-code", "")
        try:
            root = ET.fromstring(answer.data.lstrip(b"\xef\xbb\xbf"))  # noqa: S314 - expat bounds expansion
            code = code or (root.findtext("Code") or "" if root.tag == "Error" else "")
            message = (root.findtext("Message") or "").partition("\n")[0]
        except ET.ParseError:
            message = no_answer_code(answer)
        return AnswerError(answer, code, message)

    def outcome_of_answer(self, error: AnswerError) -> Outcome:
        known = {
            **dict.fromkeys(_TAKEN, Outcome.TAKEN),
            **dict.fromkeys(_MISSING, Outcome.MISSING),
            **dict.fromkeys(_RANGE, Outcome.RANGE),
            **dict.fromkeys((*_BUCKET, *_FOREVER), Outcome.REFUSED),
            **dict.fromkeys(_BUSY, Outcome.BUSY),
        }
        # A private container answers it whatever is in it.
        if self.options.anon and error.code == "ResourceNotFound":
            return Outcome.REFUSED
        found = known.get(error.code)
        if found is not None:
            return found
        if error.answer.status == 412:  # of no known code: a lease, say
            return Outcome.REFUSED
        return by_status(error.answer.status, is_stores=bool(error.code))

    def outcome_of(self, error: Exception) -> Outcome:
        if isinstance(error, AzureError):  # of credentials: nothing was sent to the store
            return Outcome.UNSENT if isinstance(error, ServiceRequestError) else Outcome.REFUSED
        return super().outcome_of(error)

    def is_bucket_missing(self, error: Exception) -> bool:
        return isinstance(error, AnswerError) and error.code in _BUCKET

    def _blob(self, key: str) -> str:
        return f"/{self.container}/{urllib.parse.quote(key)}"


def _account_and_endpoint(place: AzurePlace, options: AzureOptions) -> tuple[str, str]:
    """Raises InvalidRequestError: no account is named, or two."""
    account = place.account or (options.account_name or "").lower()
    if place.account and options.account_name and options.account_name.lower() != place.account:
        raise invalid(
            AzureOptions,
            "account_name",
            f"found {options.account_name!r}, but the root is in account {place.account!r}",
        )
    if options.endpoint_url:
        return account or options.endpoint_url.rstrip("/").rpartition("/")[2], options.endpoint_url
    if not account:
        raise InvalidRequestError(
            "INVALID_OPTION",
            f"{place.url}: found no storage account",
            fix="Write abfss://container@account.dfs.core.windows.net/prefix, or give the storage option "
            "account_name or connection_string",
        )
    if _ACCOUNT.fullmatch(account) is None:
        raise invalid(AzureOptions, "account_name", "expected 3 to 24 lower case letters and digits")
    return account, f"https://{account}.blob.{place.domain or _DOMAIN}"


def _credential(options: AzureOptions) -> Any:
    if options.client_secret is not None:
        if not (options.tenant_id and options.client_id):
            raise invalid(AzureOptions, "client_secret", "expected tenant_id and client_id with it")
        try:
            return ClientSecretCredential(options.tenant_id, options.client_id, options.client_secret)
        except ValueError:
            raise invalid(AzureOptions, "tenant_id", "expected the id or the domain of a tenant") from None
    return DefaultAzureCredential(managed_identity_client_id=options.client_id)


def _text_to_sign(
    method: str, target: str, account: str, query: Mapping[str, str], headers: Mapping[str, str]
) -> str:
    """Return what a shared key signs."""
    known = {name.lower(): value for name, value in headers.items()}
    if known.get("content-length") == "0":
        known["content-length"] = ""
    lines = [method, *(known.get(name, "") for name in _SIGNED_HEADERS)]
    lines += [f"{name}:{known[name]}" for name in sorted(known) if name.startswith("x-ms-")]
    lines.append(f"/{account}{urllib.parse.urlsplit(target).path}")
    lines += [f"{name.lower()}:{query[name]}" for name in sorted(query, key=str.lower)]
    return "\n".join(lines)


def _md5_of(data: bytes | bytearray) -> str:
    return base64.b64encode(hashlib.md5(data, usedforsecurity=False).digest()).decode()


def _validate_created(answer: Answer) -> None:
    if answer.status != 201 or "etag" not in answer.headers or answer.data:
        raise WrongAnswerError("no answer 201 with an ETag and without a body, which every put returns")


def _validate_part(answer: Answer) -> None:
    if answer.status != 201:
        raise WrongAnswerError(f"an answer {answer.status}, expected 201")


def _parse_page(answer: Answer, prefix: str, start_after: str | None) -> tuple[Page, str]:
    """Return (page, marker of the next). Raises WrongAnswerError."""
    try:
        root = ET.fromstring(answer.data.lstrip(b"\xef\xbb\xbf"))  # noqa: S314 - expat bounds expansion
    except ET.ParseError as error:
        raise WrongAnswerError(f"an unreadable listing: {error}") from None
    blobs = root.find("Blobs")
    if root.tag != "EnumerationResults" or blobs is None or root.find("NextMarker") is None:
        raise WrongAnswerError("no listing, or without NextMarker")
    objects = [
        Listed(name, parse_int(blob.findtext("Properties/Content-Length") or "", "a size"), _time_ms(blob))
        for blob in blobs.findall("Blob")
        if not _is_directory(blob) and (name := _name_of(blob)) is not None
    ]
    directories = [_name_of(found) for found in blobs.findall("BlobPrefix")]
    for name in (*directories, *(listed.key for listed in objects)):
        if not name.startswith(prefix):
            raise WrongAnswerError(f"a listing of {prefix!r} with the name {name!r}")
    if start_after is not None:
        objects = [listed for listed in objects if listed.key > start_after]
    marker = root.findtext("NextMarker") or ""
    return Page(objects=objects, directories=directories, is_last=not marker), marker


def _name_of(found: ET.Element) -> str:
    name = found.find("Name")
    if name is None or not name.text:
        raise WrongAnswerError("a listing with an entry without a name")
    return urllib.parse.unquote(name.text) if name.get("Encoded") == "true" else name.text


def _is_directory(blob: ET.Element) -> bool:
    """True for a directory of a hierarchical namespace."""
    return (
        blob.findtext("Properties/ResourceType") == "directory"
        or blob.findtext("Metadata/hdi_isfolder") == "true"
    )


def _time_ms(blob: ET.Element) -> int:
    try:
        found: dt.datetime = email.utils.parsedate_to_datetime(
            blob.findtext("Properties/Last-Modified") or ""
        )
    except (ValueError, TypeError):
        raise WrongAnswerError("a listing without a date") from None
    return to_ms(found.timestamp())


# --- store -------------------------------------------------------------------------------------------


# A request's date may be 15 minutes ahead of the store, and is valid for 15 minutes from then on.
PUT_LIFETIME_MS = 30 * 60_000
_OLD_S = 20 * 60
_refuses_old_dates: dict[tuple[str, bool], bool] = {}


class AzureStore(ObjectStore):
    """See Store."""

    client: AzureClient

    def __init__(self, url: str, options: AzureOptions, clock: Clock | None = None) -> None:
        place = parse_azure_url(url)
        client = AzureClient(place, options, clock or SystemClock())
        super().__init__(client, place.url, place.prefix, options)

    @property
    def fix_unconditional(self) -> str:
        return "Use a server that keeps If-None-Match, as Azure Blob Storage does"

    def try_requests(self) -> None:
        try_requests(self.client, self._prefix, self.url)

    def put_lifetime_ms(self) -> int | None:
        client = self.client
        if client.options.anon or (client.options.sas_token and not client.options.account_key):
            return None  # only signed requests have a date that is checked
        # Of a kind of credentials: a date that a key has signed is checked, another one perhaps not.
        kind = (client.identity, client.options.account_key is not None)
        if kind not in _refuses_old_dates:
            now_s = client.storage_now_ms(client.now_ms()) / 1000
            refuses = client.refuses_old_date(self._prefix, now_s - _OLD_S)
            if refuses is None:
                return None
            _refuses_old_dates[kind] = refuses
        return PUT_LIFETIME_MS if _refuses_old_dates[kind] else None
