"""Temporary files of a local store: how they are named, and those that killed puts left behind.

Invariants: a put whose file goes fails with an error that says so, and changes nothing; a name that was
    linked and not synced is durable before its second link goes, since one link means durable.
Not here: making them, and what they are for (local.py).
Concurrency: any number of processes; files may go meanwhile.
"""

import binascii
import contextlib
import os
import secrets

from sparklog.failpoints import failpoint
from sparklog.storage.local_tree import list_files


def put_key(name: str) -> str:
    """Starts the names of temporary files aimed at `name`. A collision would abort a stranger's put, once."""
    return f"{binascii.crc32(name.encode()):08x}-{len(name)}"


def has_two_links(fd: int) -> bool:
    """Of a put's file, right after its link: does this file system count links?"""
    with contextlib.suppress(OSError):
        return os.fstat(fd).st_nlink > 1
    return False


def sweep_temporary_files(directory: str, limit_ns: int, *, dry_run: bool) -> int:
    """Remove those that were last changed at `limit_ns` or before; returns how many, or how many it would."""
    removed = 0
    for stored in list_files(directory, "", recursive=False):
        path = f"{directory}/{stored.name}"
        failpoint("sweep.temporary")
        with contextlib.suppress(FileNotFoundError):
            if os.stat(path).st_mtime_ns <= limit_ns:
                if not dry_run:
                    _remove(directory, path)
                removed += 1
    return removed


def _remove(directory: str, path: str) -> None:
    # Its put may go on any moment, and must not link it after we have looked at the links.
    aside = f"{directory}/swept.{os.getpid()}.{secrets.token_hex(8)}"
    os.rename(path, aside)
    if os.stat(aside).st_nlink > 1:  # its put was stopped between two steps
        os.sync()  # with one link, the name has to be durable, wherever it is
    os.unlink(aside)
