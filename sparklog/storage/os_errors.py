"""The operating system's errors, as ours: what was refused, and what to do about it.

Not here: errors of fsync, which are always fatal and raised where they happen.
"""

import errno

from sparklog.errors import AlreadyExistsError, FatalStorageError, NotFoundError, StorageError
from sparklog.storage.base import IndefinitePutError

_FULL = {errno.ENOSPC, errno.EDQUOT}
_REFUSED = {errno.EROFS, errno.EACCES, errno.EPERM}
_FREE_SPACE = (
    "Free space or raise the quota, then try again. What frees space has a reserve on a full disk: delete a "
    "topic, or give it a shorter retention (sparklog topics), then `sparklog maintain`, or `sparklog vacuum "
    "--retain 0 --force` if nothing else writes to the root"
)
_TOO_MANY = {errno.EMFILE, errno.ENFILE}
# vfat and exfat answer EPERM to link(2), as a file system without hard links should.
_LINK_REFUSED = {errno.EPERM}
_NO_LINKS = {errno.EOPNOTSUPP, errno.EMLINK, errno.EXDEV, errno.ENOSYS}
MISSING = {errno.ENOENT, errno.ENOTDIR}


def is_full(error: OSError) -> bool:
    """The disk, or the quota, is full: a later attempt with fresh bytes is safe."""
    return error.errno in _FULL


def storage_error(action: str, path: str, error: OSError) -> StorageError:
    """The StorageError that tells `action path` failed because of `error`."""
    found = f"{path}: cannot {action}: {error.strerror or error} (errno {error.errno})"
    code = error.errno
    if code in _FULL:
        return StorageError("STORAGE_FULL", found, fix=_FREE_SPACE)
    if code in _NO_LINKS or (action == "link" and code in _LINK_REFUSED):
        return StorageError(
            "STORAGE_UNSUPPORTED",
            found,
            fix="Use a file system with hard links and durable directories (ext4, xfs, ...)",
        )
    if code in _REFUSED:
        return StorageError(
            "STORAGE_REFUSED",
            found,
            fix="Make the directory writable for this user, and the mount read-write",
        )
    if code in MISSING:
        return NotFoundError(
            "FILE_NOT_FOUND", found, fix="Check the path, and that nobody deletes files of this root"
        )
    if code == errno.EEXIST:
        return AlreadyExistsError("FILE_EXISTS", found, fix="Use another name")
    if code == errno.EFBIG:
        return StorageError(
            "FILE_TOO_LARGE", found, fix="Raise the file size limit (ulimit -f), or lower segment.bytes"
        )
    if code in _TOO_MANY:
        return StorageError("TOO_MANY_OPEN_FILES", found, fix="Raise the open files limit (ulimit -n)")
    if code == errno.ELOOP:
        return StorageError(
            "STORAGE_REFUSED",
            f"{found}, expected a regular file of the root's own",
            fix="Remove it, and find out who put it there: symbolic links and pipes are not followed",
        )
    return StorageError("STORAGE_FAILED", found, fix="Check the disk and the kernel log, then try again")


def fatal_error(action: str, path: str, error: OSError) -> FatalStorageError:
    """Durability is unknown: the kernel may have dropped the pages, and a second try would lie."""
    return FatalStorageError(
        "DURABILITY_UNKNOWN",
        f"{path}: {action} failed: {error.strerror or error} (errno {error.errno})",
        fix="Stop this process, check the disk, and start again; nothing unacknowledged is lost by that",
    )


def indefinite_error(path: str, cause: OSError, error: OSError) -> IndefinitePutError:
    """Nobody can tell what came of a link that failed: the look at it failed, too."""
    return IndefinitePutError(
        "PUT_INDEFINITE",
        f"{path}: link failed ({cause.strerror}), and looking up what became of it too ({error.strerror})",
        fix="Repeat the same put",
    )
