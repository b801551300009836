"""The storage refuses the directory of an isolated topic to this process.

A policy of the storage may close the directory of one topic to a process, by mistake or on purpose. Only that
topic suffers: the process publishes and maintains the others. All other errors of a storage, and those of
shared segments, concern all topics.

Invariants: nothing that was to be written to the directory counts as durable.
Not here: what fails with it (writer.py, the server's publish/group_commit.py, maintenance/).
Concurrency: pure functions.
Sources: adr/0044.
"""

import contextlib
from collections.abc import Iterator

from sparklog.errors import SparklogError, StorageError
from sparklog.metadata import ISOLATED, is_isolated


class RefusedTopicError(StorageError):
    """The storage refuses the directory of an isolated topic; other topics are not affected."""

    prefix: str = ""  # of the names of its segments

    def __reduce__(self) -> tuple[object, ...]:
        return (*super().__reduce__(), {"prefix": self.prefix})


def topic_prefix(name: str) -> str:
    """Return the prefix of the isolated topic to whose directory a name belongs; "" if to none.

    `isolated/` itself is that of all of them.
    """
    if not is_isolated(name):
        return ""
    return name[: name.find("/", len(ISOLATED) + 1) + 1] or name


def refused_topic(name: str, error: SparklogError) -> RefusedTopicError | None:
    """Return the error of the topic, for an error about `name`; None if more than one topic is concerned."""
    prefix = topic_prefix(name)
    if not prefix or error.code != "STORAGE_REFUSED":
        return None
    if isinstance(error, RefusedTopicError):
        return error
    refused = RefusedTopicError(
        "STORAGE_REFUSED",
        f"{prefix} is closed to this process: {error.message}",
        fix=f"give this process the rights on {prefix} (`sparklog grants` prints those of a principal)",
    )
    refused.prefix = prefix
    return refused


@contextlib.contextmanager
def naming_refused_topic(name: str) -> Iterator[None]:
    """Raise RefusedTopicError for an error about `name` that is one topic's; other errors unchanged."""
    try:
        yield
    except StorageError as error:
        refused = refused_topic(name, error)
        if refused is None or refused is error:
            raise
        raise refused from error
