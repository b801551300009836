"""What S3 and botocore answer, as outcomes, and what becomes of them as our errors.

    MISSING   no such object                     412 TAKEN      the name exists
    RANGE     the range lies past the end        409 CONFLICT   two requests at once: unknown who won
    UNSENT    no connection: nothing happened    BUSY           no or no useful answer: anything may be
    REFUSED   for good, until somebody acts

Invariants: BUSY is the answer to whatever is not known; a message never holds credentials.
Not here: who tries again (s3_client.py).
Sources: S3's list of error codes; botocore.exceptions; urllib3.connectionpool.
"""

import enum
from typing import Any

from botocore import exceptions as boto
from urllib3.exceptions import ConnectTimeoutError, NewConnectionError

from sparklog.errors import AlreadyExistsError, NotFoundError, StorageError
from sparklog.storage.s3_answers import WrongAnswerError
from sparklog.storage.s3_options import S3Options, hide


class Outcome(enum.Enum):
    """What an error says about the request."""

    MISSING = enum.auto()
    TAKEN = enum.auto()
    CONFLICT = enum.auto()
    RANGE = enum.auto()
    UNSENT = enum.auto()
    BUSY = enum.auto()
    REFUSED = enum.auto()


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
    """What `error`, raised by a request, says about it."""
    if isinstance(error, boto.ClientError):
        code, status = error_code(error), status_of(error)
        if code in _BY_CODE:
            return _BY_CODE[code]
        if status in _BY_STATUS:
            return _BY_STATUS[status]
        # 404 without one of these codes is an answer cut short, or no S3's: never "no such object".
        lost = status == 404 and not has_code(error)
        return Outcome.REFUSED if 300 <= status < 500 and not lost else Outcome.BUSY
    if isinstance(error, _UNSENT) or _never_reached_proxy(error):
        return Outcome.UNSENT
    if isinstance(error, (*_CREDENTIALS, *_BAD_CALL)):
        return Outcome.REFUSED
    return Outcome.BUSY


def _never_reached_proxy(error: Exception) -> bool:
    """Was there no connection to the proxy, so that nothing was sent?

    The exception's name says so, and is wrong: urllib3 calls whatever happens to a connection that is closed
    by now a failure to reach the proxy, and http.client closes it when the answer is lost. The cause tells.
    """
    if not isinstance(error, boto.ProxyConnectionError):
        return False
    cause = getattr(error.kwargs.get("error"), "original_error", None)
    return isinstance(cause, NewConnectionError | ConnectTimeoutError)


def error_code(error: Exception) -> str:
    """S3's name of an error, or ''."""
    response: dict[str, Any] = getattr(error, "response", None) or {}
    return str(response.get("Error", {}).get("Code", ""))


def has_code(error: Exception) -> bool:
    """Did an S3 answer? botocore puts the status in the place of a code that is not there."""
    return error_code(error)[:1].isalpha()


def status_of(error: Exception) -> int:
    """The HTTP status, or 0."""
    response: dict[str, Any] = getattr(error, "response", None) or {}
    return int(response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))


def describe(error: Exception, options: S3Options) -> str:
    """What was answered, in a line without credentials."""
    text = str(error)
    if isinstance(error, boto.ClientError):
        said = error.response.get("Error", {}).get("Message", "")
        text = f"the store answered {status_of(error)} {error_code(error)}: {said}"
    text = hide(text, options)
    return text if len(text) <= _MAX_TEXT else f"{text[:_MAX_TEXT]}..."  # a parser's error quotes the answer


def storage_error(action: str, url: str, error: Exception, options: S3Options) -> StorageError:
    """The error that tells that `action` on `url` failed for good because of `error`."""
    outcome, code = outcome_of(error), error_code(error)
    found = f"{url}: cannot {action.replace('_', ' ')}: {describe(error, options)}"
    if outcome is Outcome.MISSING:
        return NotFoundError(
            "FILE_NOT_FOUND", f"{url}: not found", fix="Check the name, and who deletes objects"
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
            fix="Restore the object from the archive, and let no lifecycle rule archive objects of the root",
        )
    if code in {"RequestTimeTooSkewed", "RequestExpired"}:
        return StorageError(
            "CLOCK_SKEWED", found, fix="Set this machine's clock (NTP): it is wrong by 15 minutes or more"
        )
    if isinstance(error, WrongAnswerError):
        return StorageError(
            "STORE_ANSWER_WRONG",
            found,
            fix="Check that the endpoint_url is that of an S3 store, and what stands between; see docs/s3.md",
        )
    if outcome in {Outcome.UNSENT, Outcome.BUSY}:
        return StorageError(
            "STORE_UNAVAILABLE",
            f"{found} (tried again, until the time was up)",
            fix="Check the endpoint_url, the network and the store; raise retry_timeout for more patience",
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
    return StorageError("STORAGE_FAILED", found, fix="See what the store says, and correct it")
