"""One process of a machine at a time, for what two would do in vain.

A courtesy (storage/holding.py): on a store that cannot hold names, and between machines, both go on, and the
commits that are fenced by what they replace let one of them through.
After a crash: the kernel has released the name.
"""

import contextlib
import os
from collections.abc import Iterator

from sparklog.errors import RetriableError
from sparklog.metadata import MetadataLog

HOLD = "maintenance.lock"  # a command, or a step of a round
ROUND = "maintenance-round.lock"  # a round, or rounds for as long as somebody watches


@contextlib.contextmanager
def alone(metadata: MetadataLog, name: str = HOLD) -> Iterator[None]:
    """Hold the name for as long as the context lasts.

    Raises:
        RetriableError: MAINTENANCE_RUNNING, another process of this machine has it.
    """
    held = metadata.store.hold(name, f"process {os.getpid()}".encode())
    if held.holder is not None:
        raise RetriableError(
            "MAINTENANCE_RUNNING",
            f"{metadata.store.url}: found {held.holder.decode(errors='replace')} maintaining this root, "
            "expected nobody",
            fix="wait until it ends, and run this again if anything is left; or stop it: nothing is lost",
        )
    try:
        yield
    finally:
        held.release()
