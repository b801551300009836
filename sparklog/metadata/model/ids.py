"""Identifiers: 22 url-safe characters of 16 random bytes, as Kafka writes its UUIDs.

Invariants: never starts with '-', so that it can be given to a command line as it is.
Sources: Kafka Uuid.randomUuid.
"""

import base64
import re
import uuid

_PATTERN = re.compile(r"[A-Za-z0-9_-]{22}")


def new_id() -> str:
    """A fresh identifier for a cluster, a topic or a commit."""
    while True:
        text = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode()[:22]
        if not text.startswith("-"):
            return text


def is_id(text: str) -> bool:
    """Has `text` the form of an identifier?"""
    return _PATTERN.fullmatch(text) is not None
