"""Settings of topics and of the root: set_configs.

Invariants: a setting has a name, and its value is text.
Not here: the settings and their meaning (log/config.py).
"""

import re
from collections.abc import Collection, Mapping
from typing import Any

from sparklog.errors import InvalidRequestError, UnsupportedVersionError
from sparklog.metadata.model.action import ActionBase, refuse
from sparklog.metadata.model.draft import ImageDraft
from sparklog.metadata.model.image import Image

# --- features ----------------------------------------------------------------------------------------
#
# Features that a root needs: require_features, which keeps older software from misreading it.
#
# A format change that older software would misread gets a name. The commit that first uses it names the
# features that readers, and that writers, must support. Software that lacks a reader feature does not open
# the root; software that lacks a writer feature reads it, and publishes nothing. A root without a feature
# stays usable by all. (Delta's table features.)
#
# Writing means to publish, to write a snapshot, and to remove commits and segments: an older writer may not
# know what a file is needed for.
#
# Invariants: once needed, a feature stays needed.
# Not here: the version of a document (documents/document.py), which changes only where a document itself
#     could not be decoded.
# Sources: FORMAT.md#versions-and-features; adr/0034; Delta's protocol, table features.


# The supported features: scram (users.py); acls and quotas (access.py); share-groups (sharing.py);
# isolated-topics (isolation.py).
READER_FEATURES: frozenset[str] = frozenset({"acls", "isolated-topics", "quotas", "scram", "share-groups"})
WRITER_FEATURES: frozenset[str] = frozenset({"acls", "isolated-topics", "quotas"})
MAX_FEATURES = 100
_NAME = re.compile(r"[a-z][a-z0-9._-]{0,62}", re.ASCII)


class RequireFeatures(ActionBase, tag="require_features", frozen=True, kw_only=True):
    """From this commit on, readers, or writers, of the root must support these features."""

    readers: tuple[str, ...] = ()
    writers: tuple[str, ...] = ()


def require_features(draft: ImageDraft, action: RequireFeatures) -> None:
    """Apply: add them to the features that the root needs.

    Raises: UnsupportedVersionError UNSUPPORTED_METADATA for a reader feature that is not supported here.
    """
    readers, writers = draft.reader_features | {*action.readers}, draft.writer_features | {*action.writers}
    refuse(why_illegal_features(readers) or why_illegal_features(writers), "features")
    validate_readable(readers, draft.cluster_id)
    draft.reader_features, draft.writer_features = readers, writers


def why_illegal_features(names: Collection[str]) -> str | None:
    """Return why their number, or a name, is illegal, or None."""
    if len(names) > MAX_FEATURES:
        return f"{len(names)} features, expected at most {MAX_FEATURES}"
    for name in names:
        if not _NAME.fullmatch(name):
            return f"feature {name[:100]!r}, expected lower-case letters, digits, '.', '_' and '-'"
    return None


def validate_readable(readers: Collection[str], cluster_id: str) -> None:
    """Raise UnsupportedVersionError UNSUPPORTED_METADATA if a reader feature is not supported here."""
    _validate(readers, READER_FEATURES, f"cluster {cluster_id}: reading it needs")


def validate_writable(image: Image) -> None:
    """Raise UnsupportedVersionError UNSUPPORTED_METADATA if a writer feature is not supported here."""
    _validate(image.writer_features, WRITER_FEATURES, f"cluster {image.cluster_id}: writing to it needs")


def _validate(needed: Collection[str], known: Collection[str], what: str) -> None:
    if unknown := sorted(set(needed) - set(known)):
        raise UnsupportedVersionError(
            "UNSUPPORTED_METADATA",
            f"{what} the features {', '.join(unknown)}, which this sparklog does not support",
            fix="Upgrade sparklog on this machine",
        )


# --- settings ----------------------------------------------------------------------------------------

ISOLATION_KEY = "sparklog.segment.isolation"  # a setting of topics; declared in log/config.py


class SetConfigs(ActionBase, tag="set_configs", frozen=True, kw_only=True):
    """Settings of a topic, or of the root when topic_id is null; null deletes a setting."""

    configs: dict[str, str | None]
    topic_id: str | None = None

    @property
    def frees_space(self) -> bool:
        """Retention settings, and vacuum's note of lost commits."""
        return True

    @property
    def isolates(self) -> bool:
        """True if it isolates a topic, or all of the root."""
        return is_isolating(self.configs)


def why_illegal_configs(configs: Mapping[str, str | None]) -> str | None:
    """Settings have names."""
    return "a setting has an empty name" if "" in configs else None


def is_isolating(configs: Mapping[str, str | None]) -> bool:
    """True if these settings isolate a topic."""
    return (configs.get(ISOLATION_KEY) or "").strip().lower() == "true"


def set_configs(draft: ImageDraft, action: SetConfigs) -> None:
    """Apply: settings that are not named do not change."""
    refuse(why_illegal_configs(action.configs), "settings")
    configs = draft.configs if action.topic_id is None else draft.topic(action.topic_id).configs
    for key, value in action.configs.items():
        if value is None:
            configs.pop(key, None)
        else:
            configs[key] = value


def plan_set_configs(image: Image, name: str | None, configs: Mapping[str, str | None]) -> SetConfigs | None:
    """Set (text) or delete (None) settings of a topic or (name None) the root; None if none changes."""
    topic = None if name is None else image.topic(name)
    current = image.configs if topic is None else topic.configs
    validate_configs(configs)
    changed = {key: value for key, value in configs.items() if current.get(key) != value}
    if not changed:
        return None
    return SetConfigs(topic_id=None if topic is None else topic.topic_id, configs=changed)


def validate_configs(configs: Mapping[Any, Any]) -> None:
    """Raise InvalidRequestError INVALID_TOPIC_CONFIG for keys or values that are not text."""
    reason = why_illegal_configs(configs)
    if reason is None:
        for key, value in configs.items():
            if not isinstance(key, str) or not isinstance(value, str | None):
                reason = f"setting {key!r} is {type(value).__name__}, expected text"
    if reason is not None:
        raise InvalidRequestError(
            "INVALID_TOPIC_CONFIG", reason, fix="Give settings as text, for instance '604800000'"
        )
