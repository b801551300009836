"""Requests to one bucket: retried where repeating is harmless, one attempt where it is not.

Invariants:
    - every request carries its MD5. Without it, a store may take a request whose sender died before the body
      for an empty object (SeaweedFS 4.48 does): a commit of no bytes, which can be neither read nor replaced.
      And many stores refuse to delete several objects without it; botocore now sends newer checksums instead;
    - a response is validated before it is returned: a malformed one is a failed attempt.
Not here: what all clients share (object_client.py); what objects mean (object_store.py).
Concurrency: any thread. After a fork the child creates its own client: connections cannot be shared.
Sources: docs/s3.md, ADR 0009.
"""

import base64
import functools
import hashlib
import logging
import re
import threading
import urllib.parse
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any

import botocore.loaders
import botocore.session
from botocore import UNSIGNED
from botocore import exceptions as boto
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError
from urllib3.exceptions import ConnectTimeoutError, HTTPError, NewConnectionError

from sparklog.clock import Clock
from sparklog.errors import AlreadyExistsError, NotFoundError, SparklogError, StorageError
from sparklog.storage.object_client import (
    Listed,
    ObjectClient,
    Outcome,
    Page,
    PageOrder,
    Upload,
    WrongAnswerError,
    as_directories,
    ask,
)
from sparklog.storage.object_options import hide
from sparklog.storage.s3_options import S3Options

# --- s3 answers --------------------------------------------------------------------------------------
#
# Validation of a store's responses.
#
# Invariants:
#     - bytes are returned only if the response names exactly their range; so a truncated body, a page made by
#       a proxy, and an error with status 200 are failures, not data;
#     - a response has every field that its callers read (`validate_answer`): none of them meets a KeyError.
# Not validated: ETags. Those of encrypted objects are not the MD5.
# Sources: RFC 9110, sections 14 and 15.5.17; S3's API reference.


_CONTENT_RANGE = re.compile(r"bytes (\d+)-(\d+)/(\d+)")


def read_range(answer: dict[str, Any], position: int, end: int | None) -> tuple[bytes, int]:
    """Return (bytes, the object's size) of a response whose body has been read.

    Raises:
        WrongAnswerError: they are not the bytes [position, end).
    """
    data: bytes = answer["Body"]
    match = _CONTENT_RANGE.fullmatch(str(answer.get("ContentRange", "")))
    if match is None:
        if not data and not position and answer.get("ETag"):  # some stores return no range of an empty object
            return b"", 0
        raise WrongAnswerError(f"{len(data)} bytes that are not the requested range")
    first, last, size = (int(text) for text in match.groups())
    expected_last = min(size if end is None else end, size) - 1
    if (first, last, len(data)) != (position, expected_last, last - first + 1):
        raise WrongAnswerError(f"{len(data)} bytes for {match[0]}, expected {position}-{expected_last}")
    return data, size


def size_of_range_error(error: ClientError, position: int) -> int:
    """Return the object's size from a range error past its end; 0 if the response has no size.

    Raises:
        WrongAnswerError: the range begins within the object.
    """
    headers = error.response.get("ResponseMetadata", {}).get("HTTPHeaders", {})
    text = str(headers.get("content-range", "")).rpartition("/")[2]
    size = int(text) if text.isascii() and text.isdecimal() else 0
    if size > position:
        raise WrongAnswerError(f"no bytes from {position} on, of an object of {size} bytes")
    return size


def validate_answer(operation: str, arguments: Mapping[str, Any], answer: Mapping[str, Any]) -> None:
    """Raise WrongAnswerError if the response lacks a field that its operation must return."""
    check = _CHECKS.get(operation)
    if check is not None:
        check(arguments, answer)


def _validate_listing(arguments: Mapping[str, Any], answer: Mapping[str, Any]) -> None:
    _validate_truncation(answer, "NextContinuationToken")
    prefix = arguments.get("Prefix", "")
    after = "" if "ContinuationToken" in arguments else arguments.get("StartAfter", "")
    for entry in answer.get("Contents", ()):
        key, size = entry.get("Key"), entry.get("Size")
        if not isinstance(key, str) or not key.startswith(prefix):
            raise WrongAnswerError(f"a listing of {prefix!r} with the key {key!r}")
        if after and key <= after and as_directories(key) <= as_directories(after):
            raise WrongAnswerError(f"a listing that starts after {after!r} with the key {key!r}")
        if not isinstance(size, int) or size < 0 or not isinstance(entry.get("LastModified"), datetime):
            raise WrongAnswerError(f"a listing without a size or a date of the key {key!r}")
    for entry in answer.get("CommonPrefixes", ()):
        directory = entry.get("Prefix")
        if not isinstance(directory, str) or not directory.startswith(prefix):
            raise WrongAnswerError(f"a listing of {prefix!r} with the directory {directory!r}")


def _validate_uploads(_arguments: Mapping[str, Any], answer: Mapping[str, Any]) -> None:
    _validate_truncation(answer, "NextKeyMarker", "NextUploadIdMarker")
    for entry in answer.get("Uploads", ()):
        if not (entry.get("Key") and entry.get("UploadId") and isinstance(entry.get("Initiated"), datetime)):
            raise WrongAnswerError("a listing of uploads with an entry without key, id or date")


def _validate_truncation(answer: Mapping[str, Any], *tokens: str) -> None:
    """Reject a listing without IsTruncated: a login page in XHTML would be an empty listing otherwise."""
    if not isinstance(answer.get("IsTruncated"), bool):
        raise WrongAnswerError("a listing without IsTruncated")
    if answer["IsTruncated"]:
        for token in tokens:
            if not answer.get(token):
                raise WrongAnswerError(f"an incomplete listing without {token}")


def _requires(field: str) -> Callable[[Mapping[str, Any], Mapping[str, Any]], None]:
    def check(_arguments: Mapping[str, Any], answer: Mapping[str, Any]) -> None:
        if not answer.get(field):
            raise WrongAnswerError(f"a response without {field}, which every S3 returns")

    return check


_CHECKS: dict[str, Callable[[Mapping[str, Any], Mapping[str, Any]], None]] = {
    "put_object": _requires("ETag"),
    "upload_part": _requires("ETag"),
    "create_multipart_upload": _requires("UploadId"),
    "complete_multipart_upload": _requires("ETag"),
    "list_objects_v2": _validate_listing,
    "list_multipart_uploads": _validate_uploads,
}


# --- s3 errors ---------------------------------------------------------------------------------------
#
# Responses of S3 and errors of botocore, as outcomes, and their mapping to our errors.
#
# Invariants: everything unknown is BUSY; a message never holds credentials.
# Sources: S3's list of error codes; botocore.exceptions; urllib3.connectionpool.


_BY_CODE = {
    "NoSuchKey": Outcome.MISSING,
    "NoSuchUpload": Outcome.MISSING,
    "PreconditionFailed": Outcome.TAKEN,
    "ConditionalRequestConflict": Outcome.CONFLICT,
    "OperationAborted": Outcome.CONFLICT,
    "InvalidRange": Outcome.RANGE,
    "RequestTimeout": Outcome.BUSY,
    "SlowDown": Outcome.BUSY,
    "InternalError": Outcome.BUSY,
    "IncompleteBody": Outcome.BUSY,
}
_MAX_TEXT = 500
_BY_STATUS = {
    409: Outcome.CONFLICT,
    412: Outcome.TAKEN,
    416: Outcome.RANGE,
    408: Outcome.BUSY,
    429: Outcome.BUSY,
    501: Outcome.REFUSED,
}
_UNSENT = (boto.EndpointConnectionError, boto.ConnectTimeoutError)
_CREDENTIALS = (
    boto.NoCredentialsError,
    boto.PartialCredentialsError,
    boto.CredentialRetrievalError,
    boto.ProfileNotFound,
    boto.TokenRetrievalError,
    boto.UnauthorizedSSOTokenError,
    boto.NoAuthTokenError,
)
_BAD_CALL = (boto.ParamValidationError, boto.InvalidEndpointConfigurationError, boto.InvalidRegionError)


def outcome_of(error: Exception) -> Outcome:
    """Return the outcome of a request that raised `error`."""
    if isinstance(error, boto.ClientError):
        code, status = error_code(error), status_of(error)
        if code in _BY_CODE:
            return _BY_CODE[code]
        if status in _BY_STATUS:
            return _BY_STATUS[status]
        # 404 without one of these codes is a truncated answer, or not S3's: never "no such object".
        lost = status == 404 and not has_code(error)
        return Outcome.REFUSED if 300 <= status < 500 and not lost else Outcome.BUSY
    if isinstance(error, _UNSENT) or _never_reached_proxy(error):
        return Outcome.UNSENT
    if isinstance(error, (*_CREDENTIALS, *_BAD_CALL)):
        return Outcome.REFUSED
    return Outcome.BUSY


def _never_reached_proxy(error: Exception) -> bool:
    """True if there was no connection to the proxy, so that nothing was sent.

    The exception's name says so, wrongly: urllib3 raises it for any failure of a connection that is closed by
    then, and http.client closes it when the answer is lost. So this checks the cause.
    """
    if not isinstance(error, boto.ProxyConnectionError):
        return False
    cause = getattr(error.kwargs.get("error"), "original_error", None)
    return isinstance(cause, NewConnectionError | ConnectTimeoutError)


def error_code(error: Exception) -> str:
    """Return S3's name of an error, or ''."""
    response: dict[str, Any] = getattr(error, "response", None) or {}
    return str(response.get("Error", {}).get("Code", ""))


def has_code(error: Exception) -> bool:
    """True if an S3 answered. If there is no code, botocore puts the status in its place."""
    return error_code(error)[:1].isalpha()


def status_of(error: Exception) -> int:
    """Return the HTTP status, or 0."""
    response: dict[str, Any] = getattr(error, "response", None) or {}
    return int(response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))


def describe(error: Exception, options: S3Options) -> str:
    """Return the response in one line, without credentials."""
    text = str(error)
    if isinstance(error, boto.ClientError):
        said = error.response.get("Error", {}).get("Message", "")
        text = f"the store answered {status_of(error)} {error_code(error)}: {said}"
    text = hide(text, options)
    return text if len(text) <= _MAX_TEXT else f"{text[:_MAX_TEXT]}..."  # parsers quote whole responses


def storage_error(action: str, url: str, error: Exception, options: S3Options) -> StorageError:
    """Return the error for `action` on `url`, which failed permanently with `error`."""
    outcome, code = outcome_of(error), error_code(error)
    found = f"{url}: cannot {action.replace('_', ' ')}: {describe(error, options)}"
    if outcome is Outcome.MISSING:
        return NotFoundError(
            "FILE_NOT_FOUND", f"{url}: not found", fix="Check the name, and which process deletes objects"
        )
    if outcome is Outcome.TAKEN:
        return AlreadyExistsError(
            "FILE_EXISTS", f"{url}: exists, expected no such file", fix="Use another name"
        )
    if code == "NoSuchBucket":
        return StorageError(
            "BUCKET_MISSING", found, fix="Create the bucket, or correct its name and the endpoint_url"
        )
    if status_of(error) == 501:
        return StorageError(
            "STORAGE_UNSUPPORTED",
            found,
            fix="Use a store with conditional writes: AWS S3, MinIO, SeaweedFS 4.17 or newer, ...",
        )
    if code == "InvalidObjectState":
        return StorageError(
            "STORAGE_REFUSED",
            found,
            fix="Restore the object from the archive, and remove the lifecycle rule that archives the root",
        )
    if code in {"RequestTimeTooSkewed", "RequestExpired"}:
        return StorageError(
            "CLOCK_SKEWED", found, fix="Set this machine's clock (NTP): it is wrong by 15 minutes or more"
        )
    if isinstance(error, WrongAnswerError):
        return StorageError(
            "STORE_ANSWER_WRONG",
            found,
            fix="Check that the endpoint_url is an S3 store's, and check proxies in between; see docs/s3.md",
        )
    if outcome in {Outcome.UNSENT, Outcome.BUSY}:
        return StorageError(
            "STORE_UNAVAILABLE",
            f"{found} (retried until the timeout)",
            fix="Check the endpoint_url, the network and the store; raise retry_timeout to retry longer",
        )
    if isinstance(error, _CREDENTIALS):
        return StorageError(
            "STORAGE_REFUSED",
            found,
            fix="Give credentials: AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, AWS_PROFILE, or the storage "
            "options key and secret; or anon for a public bucket",
        )
    if status_of(error) in {401, 403}:
        return StorageError(
            "STORAGE_REFUSED",
            found,
            fix="Check the credentials, whether they have expired, and that they may read, write and list "
            "under this prefix",
        )
    return StorageError("STORAGE_FAILED", found, fix="Correct what the store's message names")


# --- s3 connection -----------------------------------------------------------------------------------
#
# A botocore client for one bucket, made from our options.
#
# Invariants: one attempt per request, since `S3Client` decides on retries; every wait for the store has a
#     timeout.
# Not here: requests.
# Concurrency: a botocore client may be used by any thread, but not by a forked child.
# Sources: botocore.config.Config.


_AMAZON = (".amazonaws.com", ".amazonaws.com.cn", ".api.aws")


def connect(bucket: str, options: S3Options, *, signature_version: str | None = None) -> Any:
    """Return a client; makes no request.

    Raises:
        StorageError: botocore refuses an option, or the profile does not exist.
    """
    try:
        session = botocore.session.Session(profile=options.profile)
        session.register_component("data_loader", _loader(session.get_config_variable("data_path")))
        path_style = options.path_style
        if path_style is None:
            path_style = options.endpoint_url is not None
            client = _create(session, options, signature_version, path_style=path_style)
            # The endpoint may also come from AWS_ENDPOINT_URL or a configuration file. Stores other than
            # AWS seldom have a host name for each bucket.
            host = urllib.parse.urlsplit(client.meta.endpoint_url).hostname or ""
            if path_style or host.endswith(_AMAZON):
                return client
            path_style = True
        return _create(session, options, signature_version, path_style=path_style)
    except (BotoCoreError, ValueError) as error:
        raise storage_error("connect", f"s3://{bucket}", error, options) from error


@functools.cache
def _loader(data_path: str | None) -> Any:
    """Load botocore's description of S3 once per process: it takes most of the time of a new client."""
    return botocore.loaders.create_loader(data_path)


def _create(session: Any, options: S3Options, signature_version: str | None, *, path_style: bool) -> Any:
    return session.create_client(
        "s3",
        region_name=options.region or session.get_config_variable("region") or "us-east-1",
        endpoint_url=options.endpoint_url,
        use_ssl=options.use_ssl,
        verify=options.verify,
        aws_access_key_id=options.key,
        aws_secret_access_key=options.secret,
        aws_session_token=options.token,
        config=Config(
            retries={"total_max_attempts": 1, "mode": "standard"},
            connect_timeout=options.connect_timeout,
            read_timeout=options.read_timeout,
            max_pool_connections=options.max_concurrency,
            s3={"addressing_style": "path" if path_style else "auto"},
            signature_version=UNSIGNED if options.anon else signature_version,
            # Stores other than AWS do not support the newer checksums; our bytes carry their own.
            request_checksum_calculation="when_required",
            response_checksum_validation="when_required",
            user_agent_extra="sparklog",
        ),
    )


# --- s3 client ---------------------------------------------------------------------------------------


_log = logging.getLogger(__name__)
LIST_KEYS = 1000
_DELETE_KEYS = 1000
# botocore passes some errors on unmapped: a damaged TLS record in a body is urllib3's SSLError.
FAILURES = (BotoCoreError, ClientError, HTTPError, OSError)


class S3Client(ObjectClient):
    """A bucket, accessed with given options."""

    failures = FAILURES

    def __init__(self, bucket: str, options: S3Options, clock: Clock) -> None:
        self.bucket = bucket
        self.options = options
        self._guard = threading.local()
        self._is_known_replica = False
        self._completes_unconditionally = False  # the store does not support the condition
        super().__init__(options, clock)

    def after_fork_in_child(self) -> None:
        super().after_fork_in_child()
        self._client: Any = None

    @property
    def identity(self) -> str:
        return f"{self._connected().meta.endpoint_url}/{self.bucket}"

    # --- requests ------------------------------------------------------------------------------------

    def call(self, operation: str, url: str, *, within_ms: int = 0, **arguments: Any) -> dict[str, Any]:
        """Make a request that may be repeated. Raises StorageError; NotFoundError for a missing object.

        Args:
            within_ms: the timeout, whatever the store does; 0: `retry_timeout`.
        """

        def attempt() -> dict[str, Any]:
            return self._attempt(operation, arguments)

        return self._within(
            within_ms,
            lambda most_ms: self._repeat(operation, url, attempt, most_ms),
            lambda late: self.storage_error(operation, url, late),
        )

    def pages(self, url: str, *, within_ms: int = 0, **arguments: Any) -> Iterator[dict[str, Any]]:
        """Yield the pages of list_objects_v2, in ascending order. Raises StorageError."""
        order = PageOrder()
        while True:
            answer = self.call("list_objects_v2", url, within_ms=within_ms, **arguments)
            names = [entry["Key"] for entry in answer.get("Contents", ())]
            directories = [entry["Prefix"] for entry in answer.get("CommonPrefixes", ())]
            try:
                order.add(names, directories)
            except WrongAnswerError as error:
                raise storage_error("list_objects_v2", url, error, self.options) from error
            yield answer
            if not answer["IsTruncated"]:
                return
            arguments["ContinuationToken"] = answer["NextContinuationToken"]

    def get(self, url: str, key: str, position: int, end: int | None) -> tuple[bytes, int]:
        # Always a range: then the response names its bytes, and an error page does not.
        asked = f"bytes={position}-{'' if end is None else end - 1}"

        def attempt() -> tuple[bytes, int]:
            try:
                return read_range(self._attempt("get_object", {"Key": key, "Range": asked}), position, end)
            except ClientError as error:
                if outcome_of(error) is Outcome.RANGE:
                    return b"", size_of_range_error(error, position)
                raise

        return self._repeat("get_object", url, attempt)

    def create(self, key: str, data: bytes, guard: Callable[[], bool] | None) -> None:
        arguments = {"Key": key, "Body": data, "IfNoneMatch": "*"}
        self._guard.ask = guard
        try:
            self._attempt("put_object", arguments)
        finally:
            self._guard.ask = None

    def put(self, url: str, key: str, data: bytes) -> None:
        self.call("put_object", url, Key=key, Body=data)

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
        arguments: dict[str, Any] = {"Prefix": prefix, "MaxKeys": page_size or LIST_KEYS}
        if by_directory:
            arguments["Delimiter"] = "/"
        if start_after is not None:
            arguments["StartAfter"] = start_after
        for answer in self.pages(url, within_ms=within_ms, **arguments):
            yield Page(
                objects=[
                    Listed(entry["Key"], int(entry["Size"]), round(entry["LastModified"].timestamp() * 1000))
                    for entry in answer.get("Contents", ())
                ],
                directories=[entry["Prefix"] for entry in answer.get("CommonPrefixes", ())],
                is_last=not answer["IsTruncated"],
            )

    def delete(self, url: str, key: str) -> None:
        self.call("delete_object", url, Key=key)

    def delete_many(self, url: str, keys: Sequence[str]) -> None:
        for first in range(0, len(keys), _DELETE_KEYS):
            objects = [{"Key": key} for key in keys[first : first + _DELETE_KEYS]]
            answer = self.call("delete_objects", url, Delete={"Objects": objects, "Quiet": True})
            for refused in answer.get("Errors", ()):
                if refused.get("Code") != "NoSuchKey":
                    raise _not_deleted(url, refused)

    # --- uploads in parts ----------------------------------------------------------------------------

    def begin_upload(self, url: str, key: str) -> Upload:
        created = self.call("create_multipart_upload", url, Key=key)
        return Upload(url=url, key=key, state=str(created["UploadId"]))

    def put_part(self, upload: Upload, number: int, position: int, data: bytearray, *, is_last: bool) -> None:  # noqa: ARG002 - for stores with other uploads
        answer = self.call(
            "upload_part",
            upload.url,
            Key=upload.key,
            UploadId=upload.state,
            PartNumber=number,
            Body=data,
        )
        upload.tokens[number] = answer["ETag"]

    def complete_upload(self, upload: Upload) -> None:
        parts = [{"PartNumber": number, "ETag": etag} for number, etag in sorted(upload.tokens.items())]
        self.complete_multipart(
            upload.url, {"Key": upload.key, "UploadId": upload.state, "MultipartUpload": {"Parts": parts}}
        )

    def complete_multipart(self, url: str, arguments: dict[str, Any]) -> None:
        """Finish a multipart upload unless the name is taken, if the store supports that condition.

        Raises: see ObjectClient.complete_upload.
        """
        if not self._completes_unconditionally:
            try:
                self.call("complete_multipart_upload", url, **arguments, IfNoneMatch="*")
            except StorageError as error:
                # Stores without support answer 501, or that an argument is illegal (400).
                if error.code not in {"STORAGE_UNSUPPORTED", "STORAGE_FAILED"}:
                    raise
                self._completes_unconditionally = True
            else:
                return
        self.call("complete_multipart_upload", url, **arguments)

    def abort_upload(self, upload: Upload) -> None:
        self.call("abort_multipart_upload", upload.url, Key=upload.key, UploadId=upload.state)

    # --- errors --------------------------------------------------------------------------------------

    def outcome_of(self, error: Exception) -> Outcome:
        return outcome_of(error)

    def describe(self, error: Exception) -> str:
        return describe(error, self.options)

    def storage_error(self, action: str, url: str, error: Exception) -> StorageError:
        return storage_error(action, url, error, self.options)

    # --- attempts ------------------------------------------------------------------------------------

    def _attempt(self, operation: str, arguments: dict[str, Any]) -> dict[str, Any]:
        client = self._connected()
        with self._permits:
            body = arguments.get("Body")
            self._count({operation: 1, "sent_bytes": len(body or b"")})
            if body is not None:
                arguments = {**arguments, "ContentMD5": _md5_of(body)}
            try:
                answer: dict[str, Any] = getattr(client, operation)(Bucket=self.bucket, **arguments)
                if operation == "get_object":  # the body is part of the request
                    answer["Body"] = answer["Body"].read()
                    self._count({"received_bytes": len(answer["Body"])})
                    if answer.get("ReplicationStatus") == "REPLICA":
                        self._warn_of_replica()
                validate_answer(operation, arguments, answer)
            except ClientError as error:
                if has_code(error):
                    self._note_answer(error.response)
                raise
            except (SparklogError, MemoryError, *FAILURES):
                raise
            except Exception as error:  # a size, a date, ... that botocore cannot parse
                raise WrongAnswerError(f"an unreadable response: {error!r}") from error
        self._note_answer(answer)
        return answer

    def _warn_of_replica(self) -> None:
        """Log once: replication copies in any order, and over objects that were put here."""
        if not self._is_known_replica:
            self._is_known_replica = True
            _log.warning(
                "s3://%s holds objects that were replicated from another bucket: until that ends it "
                "is not the log in order; do not read it as a log, and never publish to it; see docs/s3.md",
                self.bucket,
            )

    def _note_answer(self, answer: Any) -> None:
        self.note_time(answer.get("ResponseMetadata", {}).get("HTTPHeaders", {}).get("date"))

    def _connected(self) -> Any:
        with self._lock:
            if self._client is None:
                self._client = connect(self.bucket, self.options)
                self._client.meta.events.register("before-send.s3.PutObject", self._before_send)
                self._client.meta.events.register("before-call.s3.DeleteObjects", _with_md5)
            return self._client

    def _before_send(self, **_: Any) -> None:
        ask(getattr(self._guard, "ask", None))


def _with_md5(params: dict[str, Any], context: dict[str, Any], **_: Any) -> None:
    """Make botocore send the MD5, and not a newer checksum that some stores refuse."""
    context.pop("checksum", None)
    params["headers"]["Content-MD5"] = _md5_of(params["body"])


def _md5_of(body: bytes) -> str:
    """Return the Content-MD5, the one checksum that every store supports."""
    return base64.b64encode(hashlib.md5(body, usedforsecurity=False).digest()).decode()


def _not_deleted(url: str, refused: dict[str, Any]) -> StorageError:
    found = f"{url}: cannot delete {refused.get('Key')}: the store answered {refused.get('Code')}"
    if refused.get("Code") == "AccessDenied":
        return StorageError("STORAGE_REFUSED", found, fix="Allow s3:DeleteObject, or keep the files")
    return StorageError("STORAGE_FAILED", found, fix="Try again; the keys before it are deleted")
