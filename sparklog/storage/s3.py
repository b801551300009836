"""A store in a bucket of S3, or of another store with its protocol and conditional writes.

put_if_absent is a PUT with If-None-Match: *. sweep_temporary aborts old multipart uploads of segments.

Not here: what all object stores do alike (object_store.py); s3fs, see docs/adr/0009.
Sources: S3's consistency model and conditional writes.
"""

from typing import Any

from sparklog.clock import Clock, SystemClock
from sparklog.errors import StorageError
from sparklog.storage.object_store import ObjectStore
from sparklog.storage.root_rules import parse_s3_url
from sparklog.storage.s3_client import S3Client, error_code
from sparklog.storage.s3_options import S3Options
from sparklog.storage.s3_probe import put_lifetime_ms, sweep_uploads, try_requests

__all__ = ["S3Store"]


class S3Store(ObjectStore):
    """See Store."""

    client: S3Client

    def __init__(self, url: str, options: S3Options, clock: Clock | None = None) -> None:
        bucket, prefix = parse_s3_url(url)
        client = S3Client(bucket, options, clock or SystemClock())
        super().__init__(client, f"s3://{bucket}/{prefix}".rstrip("/"), prefix, options)

    @property
    def fix_unconditional(self) -> str:
        return "Use a store with conditional writes: AWS S3, MinIO, SeaweedFS 4.17 or newer, ..."

    def try_requests(self) -> None:
        try_requests(self.client, self._prefix, self.url)

    def put_lifetime_ms(self) -> int | None:
        return put_lifetime_ms(self.client, self._prefix)

    def _sweep_uploads(self, began_by_ms: int, *, dry_run: bool) -> int:
        return sweep_uploads(self.client, self.url, self._prefix, began_by_ms / 1000, dry_run=dry_run)


# --- s3 rules ----------------------------------------------------------------------------------------
#
# Lifecycle rules of a bucket that would remove objects of a root.
#
# A rule that expires objects removes commits and segments like any others, and one that moves them to an
# archive makes them unreadable for hours. Only `sparklog doctor` checks this: reading the rules is a
# permission that a root's users need not have.
# Not here: rules for noncurrent versions, delete markers and unfinished uploads, which are harmless.
# Sources: S3's GetBucketLifecycleConfiguration.


_NO_RULES = "NoSuchLifecycleConfiguration"
_ARCHIVES = {"GLACIER", "DEEP_ARCHIVE"}  # objects in GLACIER_IR can be read immediately


def harmful_rules(store: S3Store) -> list[str]:
    """Return a line for each enabled rule that removes or archives objects under the root.

    Raises:
        StorageError: the store does not return the rules.
    """
    url, prefix = store.url, store.key_prefix
    try:
        answer = store.client.call("get_bucket_lifecycle_configuration", url)
    except StorageError as error:
        if isinstance(error.__cause__, Exception) and error_code(error.__cause__) == _NO_RULES:
            return []
        raise
    rules = [rule for rule in answer.get("Rules", ()) if rule.get("Status") == "Enabled"]
    found = [(rule, _harm(rule)) for rule in rules if _may_match(rule, prefix)]
    return [f"rule {rule.get('ID', '')!r} {harm}" for rule, harm in found if harm]


def _harm(rule: dict[str, Any]) -> str:
    expiration = rule.get("Expiration", {})
    if "Days" in expiration or "Date" in expiration:
        return "removes objects"
    archives = {transition.get("StorageClass") for transition in rule.get("Transitions", ())} & _ARCHIVES
    return f"moves objects to {'/'.join(sorted(archives))}" if archives else ""


def _may_match(rule: dict[str, Any], prefix: str) -> bool:
    """True if the rule covers objects under the prefix. They have no tags, and any size."""
    chosen = rule.get("Filter", {})
    both = chosen.get("And", {})
    if "Tag" in chosen or both.get("Tags"):
        return False
    start = rule.get("Prefix") or chosen.get("Prefix") or both.get("Prefix") or ""
    return bool(prefix.startswith(start) or start.startswith(prefix))
