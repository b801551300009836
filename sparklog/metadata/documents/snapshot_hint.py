"""Where the newest snapshot is: a number in a small file.

Commits stay for a while, on some object stores for good, and there may be some 100,000 of them: listing all
of them takes a request per thousand, or a second in a directory. So whoever writes a snapshot also writes its
number here, and who opens the root lists from there on.

Invariants: a hint, nothing more: missing, old, or wrong, it costs a longer listing, and nothing else.
Sources: FORMAT.md#metadata-log.
"""

import logging

from sparklog.errors import NotFoundError, StorageError
from sparklog.metadata.documents.paths import SNAPSHOT_HINT
from sparklog.storage import Store

_log = logging.getLogger(__name__)
_MAX_BYTES = 21


def read_hint(store: Store) -> int | None:
    """The commit of the newest snapshot, as far as anybody has told."""
    try:
        text = store.read(SNAPSHOT_HINT, 0, _MAX_BYTES).strip()
    except NotFoundError:
        return None
    return int(text) if text.isdigit() and len(text) < _MAX_BYTES else None


def write_hint(store: Store, snapshot: int) -> None:
    """Tell that there is a snapshot of this commit; a failure is reported, and harmless."""
    try:
        store.put_hint(SNAPSHOT_HINT, f"{snapshot}\n".encode())
    except StorageError as error:
        _log.warning("cannot write %s: %s", SNAPSHOT_HINT, error)
