"""Which of a bucket's lifecycle rules would take objects of a root away?

A rule that expires objects removes commits and segments like any others, and one that moves them to an
archive makes them unreadable for hours. Looked at when somebody asks (`sparklog doctor`): reading the rules
is a right that a root's users need not have.
Not here: rules for noncurrent versions, delete markers and unfinished uploads, which are harmless.
Sources: S3's GetBucketLifecycleConfiguration.
"""

from typing import Any

from sparklog.errors import StorageError
from sparklog.storage.s3 import S3Store
from sparklog.storage.s3_errors import error_code

_NO_RULES = "NoSuchLifecycleConfiguration"
_ARCHIVES = {"GLACIER", "DEEP_ARCHIVE"}  # what is in GLACIER_IR can be read at once


def harmful_rules(store: S3Store) -> list[str]:
    """A line for each enabled rule that removes or archives objects under the root.

    Raises:
        StorageError: the store does not say.
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
    archives = {one.get("StorageClass") for one in rule.get("Transitions", ())} & _ARCHIVES
    return f"moves objects to {'/'.join(sorted(archives))}" if archives else ""


def _may_match(rule: dict[str, Any], prefix: str) -> bool:
    """Does the rule look at objects under the prefix? They have no tags, and any size."""
    chosen = rule.get("Filter", {})
    both = chosen.get("And", {})
    if "Tag" in chosen or both.get("Tags"):
        return False
    start = rule.get("Prefix") or chosen.get("Prefix") or both.get("Prefix") or ""
    return bool(prefix.startswith(start) or start.startswith(prefix))
