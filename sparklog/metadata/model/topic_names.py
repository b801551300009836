"""Kafka's rules for topic names; they keep names safe in paths, and metrics unambiguous.

Sources: Kafka Topic.java (validate, hasCollision).
"""

import re

MAX_TOPIC_NAME_LENGTH = 249
_LEGAL = re.compile(r"[a-zA-Z0-9._-]+")
# Kafka's own (Topic.INTERNAL_TOPICS). Other names that begin with __ are users': Debezium's heartbeats, say.
INTERNAL_TOPICS = frozenset({"__consumer_offsets", "__transaction_state", "__share_group_state"})

METADATA_TOPIC = "__cluster_metadata"  # of Kafka's controllers; here a directory of the root
# In which Kafka keeps what is in the metadata log here; nobody else is to have records there.
NEVER_TOPICS = (INTERNAL_TOPICS - {"__consumer_offsets"}) | {METADATA_TOPIC}


def is_internal(name: str) -> bool:
    """Is the topic one of those in which brokers keep their own state?"""
    return name in INTERNAL_TOPICS


def why_illegal_topic_name(name: str) -> str | None:
    """The rule that `name` breaks, or None."""
    if not name:
        return "it is empty"
    if name in {".", ".."}:
        return "'.' and '..' are not allowed"
    if len(name) > MAX_TOPIC_NAME_LENGTH:
        return f"it has {len(name)} characters, at most {MAX_TOPIC_NAME_LENGTH} are allowed"
    if _LEGAL.fullmatch(name) is None:
        return "only ASCII letters, digits, '.', '_' and '-' are allowed"
    return None


def why_no_new_topic_name(name: str) -> str | None:
    """The rule that `name` breaks as that of a topic to be made, by whatever means; those that exist go on.

    A name that begins with '-' is an option to any command, one that begins with '.' is hidden from Spark and
    people, both in the directories of their segments.
    """
    reason = why_illegal_topic_name(name)
    if reason is None and name[0] in "-.":
        return f"it begins with {name[0]!r}, expected a letter, a digit or '_'"
    if reason is None and name in NEVER_TOPICS:
        return "it is internal, and nothing is ever kept in it here"
    return reason


def collision_key(name: str) -> str:
    """Names with equal keys would share their metrics, where '.' becomes '_'."""
    return name.replace(".", "_")
