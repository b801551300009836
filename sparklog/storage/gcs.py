"""A store in a bucket of Google Cloud Storage, over its JSON API.

put_if_absent is an upload with ifGenerationMatch=0: in one request, with its MD5, one attempt. A large object
is composed of parts, objects under .tmp/, with the same condition. A part may be put again after a lost
answer, and several are sent at a time; a resumable upload allows neither. What a killed writer leaves is
swept.

How late a put may land (ADR 0008): Google's requests have no date, but their tokens expire. A token that
lives longer than an hour is refused for puts. A store that takes any token (an emulator) has no bound.
Invariants: tokens, keys and session addresses appear in no message.
Concurrency: any thread; a token is refreshed by one of them.
Sources: Cloud Storage's JSON API: objects, resumable uploads, request preconditions; docs/object-stores.md.
"""

import base64
import contextlib
import dataclasses
import datetime as dt
import functools
import hashlib
import json
import secrets
import threading
import urllib.parse
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, ClassVar

import google.auth
import google.auth.credentials
import google.auth.exceptions
import google.auth.transport
from google.auth import compute_engine
from google.oauth2 import credentials as oauth2
from google.oauth2 import service_account

from sparklog.clock import Clock, SystemClock
from sparklog.errors import AlreadyExistsError, InvalidRequestError, NotFoundError, StorageError
from sparklog.storage.base import TEMPORARY_DIRECTORY
from sparklog.storage.object_client import Listed, Outcome, Page, Upload, WrongAnswerError
from sparklog.storage.object_options import ObjectOptions, from_environment, invalid
from sparklog.storage.object_probe import try_requests
from sparklog.storage.object_store import PARTS, ObjectStore
from sparklog.storage.rest_client import (
    Answer,
    AnswerError,
    CredentialsError,
    Request,
    RestClient,
    by_status,
    connect,
    no_answer_code,
    parse_int,
    parse_json,
    to_ms,
    validate_empty,
)
from sparklog.storage.root_rules import parse_gs_url

# --- options -----------------------------------------------------------------------------------------


_ENVIRONMENT = {
    "FSSPEC_GS_TOKEN": "token",
    "FSSPEC_GCS_TOKEN": "token",
    "FSSPEC_GS_ENDPOINT_URL": "endpoint_url",
    "FSSPEC_GCS_ENDPOINT_URL": "endpoint_url",
    "STORAGE_EMULATOR_HOST": "endpoint_url",
    "SPARKLOG_CACHE_DIR": "cache_dir",
}
_DEFAULT, _CLOUD, _ANON = "google_default", "cloud", "anon"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class GcsOptions(ObjectOptions):
    """How to reach Google Cloud Storage. See ObjectOptions.

    Fields:
        token: as gcsfs has it: "google_default" (Application Default Credentials), "cloud" (the machine's
            service account), "anon", the path of a key file, or its JSON.
        project: who pays for requests (userProject); None: the bucket's owner.
    """

    store: ClassVar[str] = "a gs://"
    secret_fields: ClassVar[tuple[str, ...]] = ("token",)

    token: str | None = dataclasses.field(default=None, repr=False)
    project: str | None = None

    @property
    def secrets(self) -> tuple[str, ...]:
        """Only JSON is secret; a path and the names of sources are not."""
        return (self.token,) if self.token and self.token.lstrip().startswith("{") else ()

    @property
    def is_anonymous(self) -> bool:
        """True if no credentials are sent: also to an emulator, unless they are given."""
        return self.token == _ANON or (self.token is None and (self.endpoint_url or "").startswith("http://"))


def parse_gcs_options(
    given: Mapping[str, Any] | None, environment: Mapping[str, str] | None = None
) -> GcsOptions:
    """Parse the options of a gs:// root, in gcsfs's format.

    Raises:
        InvalidRequestError: an unknown or malformed option. Values are never quoted.
    """
    values = from_environment(_ENVIRONMENT, environment)
    if "://" not in values.get("endpoint_url", "://"):
        values["endpoint_url"] = f"http://{values['endpoint_url']}"  # as Google's libraries read it
    values.update({name: value for name, value in (given or {}).items() if value is not None})
    if isinstance(values.get("token"), Mapping):
        values["token"] = json.dumps(dict(values["token"]))
    return GcsOptions.of(values)


# --- credentials -------------------------------------------------------------------------------------


_SCOPE = "https://www.googleapis.com/auth/devstorage.read_write"
TOKEN_LIFETIME_MS = 60 * 60_000
_LEEWAY_S = 300


class _Transport(google.auth.transport.Request):
    """Requests of google-auth, over the client's connections."""

    def __init__(self, client: "GcsClient") -> None:
        self._client = client

    def __call__(
        self,
        url: str,
        method: str = "GET",
        body: Any = None,
        headers: Mapping[str, str] | None = None,
        timeout: float | None = None,
        **_: Any,
    ) -> Any:
        try:
            response = self._client.plain_request(method, url, body, headers, timeout)
        except GcsClient.failures as error:
            raise google.auth.exceptions.TransportError(str(error)) from error  # type: ignore[no-untyped-call]
        # Not as a dict: google-auth asks for content-type, and the metadata server sends Content-Type.
        return _Response(response.status, response.headers, response.data)


@dataclasses.dataclass(frozen=True, slots=True)
class _Response:
    status: int
    headers: Mapping[str, str]
    data: bytes


def _credentials(options: GcsOptions) -> Any:
    """Return google-auth's credentials; makes no request, or only to this machine.

    Raises:
        InvalidRequestError: a malformed token. GoogleAuthError: there are none.
    """
    token = options.token or _DEFAULT
    if token == _DEFAULT:
        return google.auth.default(scopes=[_SCOPE])[0]
    if token == _CLOUD:
        return compute_engine.Credentials(scopes=[_SCOPE])  # type: ignore[no-untyped-call]
    try:
        if token.lstrip().startswith("{"):
            content = json.loads(token)
        else:
            with open(token, encoding="utf-8") as file:
                content = json.load(file)
    except OSError as error:
        raise invalid(
            GcsOptions, "token", f"found no such file, nor google_default, cloud or anon: {error.strerror}"
        ) from None
    except ValueError:
        raise invalid(GcsOptions, "token", "the key file is not JSON") from None
    try:
        # Other types name programs and addresses to ask for a token: only the default chain follows those.
        loads: dict[str, Any] = {
            "service_account": service_account.Credentials.from_service_account_info,
            "authorized_user": oauth2.Credentials.from_authorized_user_info,
        }
        if content.get("type") not in loads:
            raise invalid(GcsOptions, "token", f"expected a key file of type {' or '.join(loads)}")
        return loads[content["type"]](content, scopes=[_SCOPE])
    except (ValueError, AttributeError, google.auth.exceptions.GoogleAuthError) as error:
        raise invalid(
            GcsOptions, "token", f"the key file has no usable credentials ({type(error).__name__})"
        ) from None


# --- client ------------------------------------------------------------------------------------------


_GOOGLE = "https://storage.googleapis.com"
_TAKEN = 412
MAX_COMPOSED = 32  # objects in one request
_LIST_FIELDS = "kind,nextPageToken,prefixes,items(name,size,updated)"


class GcsClient(RestClient):
    """A bucket, accessed with given options."""

    failures: ClassVar[tuple[type[Exception], ...]] = (
        *RestClient.failures,
        google.auth.exceptions.GoogleAuthError,
    )
    refusal_fix: ClassVar[str] = (
        "Give credentials that may read, write, list and delete objects of the bucket: Application Default "
        "Credentials (GOOGLE_APPLICATION_CREDENTIALS, gcloud auth application-default login), or the storage "
        "option token"
    )

    def __init__(self, bucket: str, options: GcsOptions, clock: Clock, parts_prefix: str = "") -> None:
        self.bucket = bucket
        self.parts_prefix = parts_prefix  # of the parts of large objects
        self.options = options
        self._credentials: Any = None
        super().__init__(options.endpoint_url or _GOOGLE, options, clock)

    def after_fork_in_child(self) -> None:
        super().after_fork_in_child()
        self._refreshing = threading.Lock()

    @property
    def identity(self) -> str:
        return f"{self.endpoint}/{self.bucket}"

    def plain_request(
        self, method: str, url: str, body: Any, headers: Mapping[str, str] | None, timeout: float | None
    ) -> Any:
        """Make a request to any address, for google-auth, by the proxy for that address."""
        limit = self.options.read_timeout if timeout is None else min(timeout, self.options.read_timeout)
        with connect(url, self.options) as http:
            return http.request(
                method,
                url,
                body=body,
                headers=dict(headers or {}),
                redirect=False,
                retries=False,
                timeout=limit,
            )

    # --- objects -------------------------------------------------------------------------------------

    def create(self, key: str, data: bytes, guard: Callable[[], bool] | None) -> None:
        request = self._upload_request(key, data, {"ifGenerationMatch": "0"})
        _validate_created(self.send_conditional(request, guard))

    def put(self, url: str, key: str, data: bytes) -> None:
        request = self._upload_request(key, data, {})

        def attempt() -> None:
            _validate_created(self.send(request))

        self._repeat("put_object", url, attempt)

    def _upload_request(self, key: str, data: bytes, condition: Mapping[str, str]) -> Request:
        digest = base64.b64encode(hashlib.md5(data, usedforsecurity=False).digest()).decode()
        boundary = f"sparklog-{secrets.token_hex(16)}"
        metadata = json.dumps({"name": key, "md5Hash": digest}).encode()
        body = b"".join(
            (
                f"--{boundary}\r\nContent-Type: application/json; charset=UTF-8\r\n\r\n".encode(),
                metadata,
                f"\r\n--{boundary}\r\nContent-Type: application/octet-stream\r\n\r\n".encode(),
                data,
                f"\r\n--{boundary}--\r\n".encode(),
            )
        )
        return Request(
            name="put_object",
            method="POST",
            path=f"/upload{self._objects}",
            query={"uploadType": "multipart", "fields": "generation", **condition},
            headers={"content-type": f'multipart/related; boundary="{boundary}"'},
            body=body,
        )

    def get(self, url: str, key: str, position: int, end: int | None) -> tuple[bytes, int]:
        request = Request(
            name="get_object",
            method="GET",
            path=self._object(key),
            query={"alt": "media"},
            headers={"range": f"bytes={position}-{'' if end is None else end - 1}"},
        )
        return self.get_range(url, request, position, end)

    def send(self, request: Request, guard: Callable[[], bool] | None = None) -> Answer:
        try:
            return super().send(request, guard)
        except AnswerError as error:
            # Not every server says whose 404 a download has; of the object's metadata it does.
            if error.answer.status == 404 and not error.code and request.name == "get_object":
                super().send(Request(name="head_object", method="GET", path=request.path))
            raise

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
        query = {"prefix": prefix, "maxResults": str(page_size or self.page_size), "fields": _LIST_FIELDS}
        if by_directory:
            query["delimiter"] = "/"
        if start_after is not None:
            query["startOffset"] = start_after  # inclusive
        request = Request(name="list_objects", method="GET", path=self._objects, query=query)
        parse = functools.partial(_parse_page, prefix=prefix, start_after=start_after)
        return self.pages(url, request, "pageToken", parse, within_ms)

    def delete(self, url: str, key: str) -> None:
        request = Request(name="delete_object", method="DELETE", path=self._object(key))
        try:
            self._repeat(request.name, url, lambda: validate_empty(self.send(request)))
        except NotFoundError:
            return

    # --- uploads in parts ----------------------------------------------------------------------------

    def begin_upload(self, url: str, key: str) -> Upload:
        return Upload(url=url, key=key, state=f"{self.parts_prefix}{secrets.token_hex(16)}")

    def put_part(self, upload: Upload, number: int, position: int, data: bytearray, *, is_last: bool) -> None:  # noqa: ARG002 - for stores whose uploads have an order
        key = f"{upload.state}-{number:06}"
        self.put(upload.url, key, bytes(data))
        upload.tokens[number] = key

    def complete_upload(self, upload: Upload) -> None:
        keys = [key for _, key in sorted(upload.tokens.items())]
        made = list(keys)
        while len(keys) > MAX_COMPOSED:  # in levels
            groups = [keys[at : at + MAX_COMPOSED] for at in range(0, len(keys), MAX_COMPOSED)]
            keys = [f"{upload.state}-{len(made)}-{number:06}" for number in range(len(groups))]
            made += keys
            for key, group in zip(keys, groups, strict=True):
                self._compose(upload.url, key, group, {})
        try:
            self._compose(upload.url, upload.key, keys, {"ifGenerationMatch": "0"})
        except AlreadyExistsError:
            self._remove_parts(upload.url, made)
            raise
        self._remove_parts(upload.url, made)

    def _compose(self, url: str, key: str, parts: list[str], condition: Mapping[str, str]) -> None:
        content = {
            "sourceObjects": [{"name": part} for part in parts],
            "destination": {"contentType": "application/octet-stream"},
        }
        request = Request(
            name="compose_object",
            method="POST",
            path=f"{self._object(key)}/compose",
            query={"fields": "generation", **condition},
            headers={"content-type": "application/json"},
            body=json.dumps(content).encode(),
        )
        self._repeat("compose_object", url, lambda: _validate_created(self.send(request)))

    def _remove_parts(self, url: str, keys: Sequence[str]) -> None:
        """Best effort: they are swept otherwise."""
        with contextlib.suppress(StorageError):
            self.delete_many(url, keys)

    def abort_upload(self, upload: Upload) -> None:
        self._remove_parts(upload.url, list(upload.tokens.values()))

    # --- credentials ---------------------------------------------------------------------------------

    def sign(self, request: Request) -> tuple[Mapping[str, str], Mapping[str, str]]:
        query, headers = dict(request.query), dict(request.headers)
        if self.options.project:
            query["userProject"] = self.options.project
        if not self.options.is_anonymous:
            headers.setdefault("authorization", f"Bearer {self._token(request)}")
        return query, headers

    def forget_token(self) -> bool:
        with self._refreshing:
            self._credentials = None  # the key file may be another one, too
        return not self.options.is_anonymous

    def _token(self, request: Request) -> str:
        with self._refreshing:
            if self._credentials is None:
                self._credentials = _credentials(self.options)
            if not self._credentials.valid:
                self._credentials.refresh(_Transport(self))
            expiry: dt.datetime | None = self._credentials.expiry
            token = self._credentials.token
        if not token or not isinstance(token, str):
            raise CredentialsError("an answer without an access token")
        if request.query.get("ifGenerationMatch") == "0":
            if expiry is None:
                raise CredentialsError("an access token without a lifetime, expected an hour at most")
            left_s = expiry.replace(tzinfo=dt.UTC).timestamp() - self.now_ms() / 1000
            if left_s > TOKEN_LIFETIME_MS / 1000 + _LEEWAY_S:
                raise InvalidRequestError(
                    "STORAGE_REFUSED",
                    f"gs://{self.bucket}: the access token is valid for {left_s / 3600:.1f} hours, expected "
                    "one at most: a put could land after its commit number was freed",
                    fix="Set the lifetime of impersonated credentials to 3600 seconds",
                )
        return token

    def has_checked_tokens(self, prefix: str) -> bool | None:
        """Return whether the store refuses a made-up token; None if the answer does not decide it."""
        request = Request(
            name="get_object",
            method="GET",
            path=self._object(f"{prefix}{TEMPORARY_DIRECTORY}/old"),
            query={"alt": "media"},
            headers={"authorization": "Bearer expired", "range": "bytes=0-0"},
        )
        try:
            self.send(request)
        except AnswerError as error:
            if error.answer.status == 401 and error.code:  # a proxy's 401, or a 403, says nothing of tokens
                return True
            return False if self.outcome_of(error) in {Outcome.MISSING, Outcome.RANGE} else None
        except GcsClient.failures:
            return None
        return False

    # --- errors --------------------------------------------------------------------------------------

    def parse_error(self, answer: Answer) -> AnswerError:
        with contextlib.suppress(ValueError, KeyError, TypeError, AttributeError, IndexError):
            error = parse_json(answer.data)["error"]
            if error["code"] == answer.status:  # many servers have an "error"; Google's names the status
                reasons = error.get("errors") or [{}]
                code = str(reasons[0].get("reason") or error.get("status") or "error")
                return AnswerError(answer, code, str(error.get("message", "")))
        text = no_answer_code(answer)
        # Downloads have plain texts.
        if text.startswith("No such object"):
            return AnswerError(answer, "notFound", text)
        if "bucket does not exist" in text:
            return AnswerError(answer, "notFound", text)
        is_stores = "x-guploader-uploadid" in answer.headers
        return AnswerError(answer, "error" if is_stores else "", text)

    def outcome_of_answer(self, error: AnswerError) -> Outcome:
        if self.is_bucket_missing(error):
            return Outcome.REFUSED
        if error.answer.status == _TAKEN and error.code:
            return Outcome.TAKEN
        return by_status(error.answer.status, is_stores=bool(error.code))

    def outcome_of(self, error: Exception) -> Outcome:
        if isinstance(error, google.auth.exceptions.TransportError):
            return Outcome.UNSENT
        if isinstance(error, google.auth.exceptions.GoogleAuthError):
            return Outcome.UNSENT if error.retryable else Outcome.REFUSED
        return super().outcome_of(error)

    def is_bucket_missing(self, error: Exception) -> bool:
        return (
            isinstance(error, AnswerError)
            and error.answer.status == 404
            and bool(error.code)
            # A put and a listing name no object that could be missing.
            and (error.request in {"put_object", "list_objects"} or "bucket does not exist" in str(error))
        )

    @property
    def _objects(self) -> str:
        return f"/storage/v1/b/{urllib.parse.quote(self.bucket, safe='')}/o"

    def _object(self, key: str) -> str:
        return f"{self._objects}/{urllib.parse.quote(key, safe='')}"


def _validate_created(answer: Answer) -> None:
    try:
        generation = parse_json(answer.data)["generation"]
    except (ValueError, KeyError, TypeError):
        raise WrongAnswerError("an answer without a generation, which every put returns") from None
    if not str(generation).isdecimal():
        raise WrongAnswerError("an answer without a generation, which every put returns")


def _parse_page(answer: Answer, prefix: str, start_after: str | None) -> tuple[Page, str]:
    """Return (page, token of the next). Raises WrongAnswerError."""
    try:
        content = parse_json(answer.data)
        if content["kind"] != "storage#objects":
            raise WrongAnswerError("no listing")
        token = str(content.get("nextPageToken") or "")
        objects = [
            Listed(str(item["name"]), parse_int(str(item["size"]), "a size"), _time_ms(item["updated"]))
            for item in content.get("items", ())
        ]
        directories = [str(name) for name in content.get("prefixes", ())]
    except (ValueError, KeyError, TypeError) as error:
        raise WrongAnswerError(f"an unreadable listing: {type(error).__name__}") from None
    for name in (*directories, *(listed.key for listed in objects)):
        if not name.startswith(prefix):
            raise WrongAnswerError(f"a listing of {prefix!r} with the name {name!r}")
    if start_after is not None:
        objects = [listed for listed in objects if listed.key > start_after]
    return Page(objects=objects, directories=directories, is_last=not token), token


def _time_ms(text: str) -> int:
    return to_ms(dt.datetime.fromisoformat(text).timestamp())


# --- store -------------------------------------------------------------------------------------------


_tokens_checked: dict[str, bool] = {}


class GcsStore(ObjectStore):
    """See Store."""

    client: GcsClient

    def __init__(self, url: str, options: GcsOptions, clock: Clock | None = None) -> None:
        bucket, prefix = parse_gs_url(url)
        parts = f"{prefix}/{PARTS}" if prefix else PARTS
        client = GcsClient(bucket, options, clock or SystemClock(), parts)
        super().__init__(client, f"gs://{bucket}/{prefix}".rstrip("/"), prefix, options)

    @property
    def fix_unconditional(self) -> str:
        return "Use a server that keeps ifGenerationMatch, as Google Cloud Storage does"

    def try_requests(self) -> None:
        try_requests(self.client, self._prefix, self.url)

    def put_lifetime_ms(self) -> int | None:
        if self.client.options.is_anonymous:
            return None
        identity = self.client.identity
        if identity not in _tokens_checked:
            checked = self.client.has_checked_tokens(self._prefix)
            if checked is None:
                return None
            _tokens_checked[identity] = checked
        return TOKEN_LIFETIME_MS + _LEEWAY_S * 1000 if _tokens_checked[identity] else None
