"""Does this store refuse requests that were signed long ago? Then a PUT cannot take effect late.

S3 refuses what was dated more than 15 minutes before, or after, its own time. So half an hour after it was
signed, a put will never happen any more. Each store is asked, by a request dated 20 minutes before its time.
Not here: what depends on it (metadata/cleaning.py).
Sources: RequestTimeTooSkewed in S3's list of error codes; SigV4.
"""

from datetime import UTC, datetime
from typing import Any

from botocore.auth import AUTH_TYPE_MAPS, SIGV4_TIMESTAMP, S3SigV4Auth

from sparklog.storage.names import TEMPORARY_DIRECTORY
from sparklog.storage.s3_client import FAILURES, S3Client
from sparklog.storage.s3_connection import connect
from sparklog.storage.s3_errors import Outcome, error_code, outcome_of

# The date of a request may be 15 minutes ahead of the store, and is good for 15 minutes from then on.
PUT_LIFETIME_MS = 30 * 60_000
_OLD_MS = 20 * 60_000
_REFUSALS = {"RequestTimeTooSkewed", "RequestExpired"}
_TAKEN = {Outcome.MISSING, Outcome.RANGE}
_SIGNATURE = "sparklog-s3v4-old"
_answers: dict[str, bool] = {}


def put_lifetime_ms(client: S3Client, prefix: str) -> int | None:
    """How long a signed put may still take effect; None when the store sets no bound, or does not say."""
    if client.options.anon:
        return None  # only signed requests have a date
    bucket = client.identity
    if bucket not in _answers:
        now_ms = client.storage_now_ms(client.now_ms())
        is_refused = _is_refused(client, f"{prefix}{TEMPORARY_DIRECTORY}/old", now_ms - _OLD_MS)
        if is_refused is None:
            return None
        _answers[bucket] = is_refused
    return PUT_LIFETIME_MS if _answers[bucket] else None


def _is_refused(client: S3Client, key: str, date_ms: int) -> bool | None:
    """None: that was not the answer. A store that is busy, or denies us for a while, is asked again."""
    signer = type("_DatedAuth", (_DatedAuth,), {"date": datetime.fromtimestamp(date_ms / 1000, UTC)})
    AUTH_TYPE_MAPS[_SIGNATURE] = signer
    old: Any = connect(client.bucket, client.options, signature_version=_SIGNATURE)
    try:
        old.get_object(Bucket=client.bucket, Key=key, Range="bytes=0-0")
    except FAILURES as error:
        if error_code(error) in _REFUSALS:
            return True
        return False if outcome_of(error) in _TAKEN else None
    return False


class _DatedAuth(S3SigV4Auth):  # type: ignore[misc]  # botocore has no types
    """SigV4 with a date of our choice; otherwise as its parent's add_auth."""

    date: datetime

    def add_auth(self, request: Any) -> None:
        request.context["timestamp"] = self.date.strftime(SIGV4_TIMESTAMP)
        self._modify_request_before_signing(request)
        text = self.string_to_sign(request, self.canonical_request(request))
        self._inject_signature_to_request(request, self.signature(text, request))
