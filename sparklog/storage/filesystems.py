"""The guarantees of the file system under a directory, checked when a root is opened.

A root needs four guarantees: a link fails if the name exists, fsync makes bytes and names durable, an
existing name is found, and a missing name is missing for all processes. Local file systems keep all four.
Those that reach another machine or program through a cache of names do not keep the last: a publisher may
take a number that is in use for free, and lose what it acknowledges.

The type comes from /proc/self/mountinfo and not from statfs, because it distinguishes FUSE programs, shows
the options of NFS, and names types that have no number of their own.
    trusted   local ones
    untried   cluster file systems with coherent client caches, NFS that caches no names, and unknown types:
              users of a new or rare local one must not be locked out. Logged once
    unsafe    those that cache names: refused, unless the user allows it (ADR 0016)
Not here: object stores.
Concurrency: pure, except for the set of mounts that were logged.
Sources: proc(5), nfs(5), FORMAT.md#layout-of-a-root.
"""

import enum
import logging
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sparklog.errors import InvalidRequestError, shown

OPTION = "allow_unsafe_filesystem"
VARIABLE = "SPARKLOG_ALLOW_UNSAFE_FILESYSTEM"
_log = logging.getLogger("sparklog.storage")
MOUNTINFO = "/proc/self/mountinfo"
_ESCAPE = re.compile(r"\\([0-7]{3})")
_BOOLEANS = {"true": True, "false": False}

_LOCAL = (
    "bcachefs btrfs erofs ext2 ext3 ext4 f2fs iso9660 jfs nilfs2 overlay ramfs reiserfs rootfs squashfs "
    "tmpfs ubifs xfs zfs"
)
_CLUSTER = "ceph gfs2 gpfs lustre ocfs2"
_NO_LINKS = "exfat msdos vfat"
_NAMES_CACHED = "it caches names, also missing ones"
_SHARED_FOLDER = "it shares a folder of another system, with caches on both sides"
_UNSAFE = {
    "9p": _SHARED_FOLDER,
    "afs": _NAMES_CACHED,
    "beegfs": "it caches the names of directories, and has hard links within one directory only",
    "cifs": _NAMES_CACHED,
    "coda": _NAMES_CACHED,
    "drvfs": _SHARED_FOLDER,
    "fakeowner": _SHARED_FOLDER,
    "nfs": "it caches names, also missing ones, unless it is mounted with lookupcache=none,noac",
    "nfs4": "it caches names, also missing ones, unless it is mounted with lookupcache=none,noac",
    "osxfs": _SHARED_FOLDER,
    "prl_fs": _SHARED_FOLDER,
    "smb3": _NAMES_CACHED,
    "smbfs": _NAMES_CACHED,
    "vboxsf": _SHARED_FOLDER,
    "virtiofs": _SHARED_FOLDER,
    "vmhgfs": _SHARED_FOLDER,
}
_FUSE = "its caches and its fsync depend on the FUSE program"


class Trust(enum.Enum):
    """How far the guarantees of a file system are known."""

    TRUSTED = "trusted"
    UNTRIED = "untried"
    UNSAFE = "unsafe"


@dataclass(frozen=True, slots=True, kw_only=True)
class Mount:
    """The mount that holds a path.

    Fields:
        kind: the kernel's name of the type; empty if unknown.
        point: the directory where it is mounted.
        options: of the mount and of the file system.
    """

    kind: str
    point: str = "/"
    options: frozenset[str] = frozenset()


def mount_of(path: str) -> Mount:
    """Return the mount of a path, or of its nearest parent that exists."""
    real = os.path.realpath(path)
    device = _device(real)  # before mountinfo is read: it triggers an automounter
    try:
        with open(MOUNTINFO, encoding="utf-8", errors="surrogateescape") as file:
            lines = file.read().splitlines()
    except OSError:
        return Mount(kind="")
    found, best = Mount(kind=""), (False, 0)
    for line in lines:
        left, _, right = line.partition(" - ")
        fields, (kind, _, rest) = left.split(" "), (*right.split(" ", 2), "", "", "")[:3]
        if len(fields) < 6:
            continue
        point = _ESCAPE.sub(lambda match: chr(int(match.group(1), 8)), fields[4])
        if real != point and not real.startswith(point.rstrip("/") + "/"):
            continue
        # A later mount hides an earlier one. The device rules out mounts that are hidden by one above them.
        # Some file systems (btrfs) have other devices than their mount says, so a different device excludes
        # nothing.
        rank = (fields[2] == device, len(point))
        if rank >= best:
            best = rank
            options = frozenset((*fields[5].split(","), *rest.rsplit(" ", 1)[-1].split(",")))
            found = Mount(kind=kind, point=point, options=options)
    return found


def _device(path: str) -> str:
    while True:
        try:
            device = os.stat(path).st_dev
        except OSError:
            if path == "/":
                return ""
            path = os.path.dirname(path)
        else:
            return f"{os.major(device)}:{os.minor(device)}"


def judge(mount: Mount) -> tuple[Trust, str]:
    """Return the trust in a file system, and the reason if it is not trusted."""
    kind = mount.kind
    if kind in _LOCAL.split():
        return Trust.TRUSTED, ""
    if kind.startswith("nfs") and "lookupcache=none" in mount.options and _has_no_attribute_cache(mount):
        return Trust.UNTRIED, "it caches no names as it is mounted, but is untested"
    if kind in _UNSAFE:
        return Trust.UNSAFE, _UNSAFE[kind]
    if kind == "fuse" or kind.startswith(("fuse.", "fuseblk")):
        return Trust.UNSAFE, _FUSE
    if kind in _CLUSTER.split():
        return Trust.UNTRIED, "its clients should keep their caches coherent, but it is untested"
    if kind in _NO_LINKS.split():
        return Trust.UNTRIED, "it has no hard links: a log on it can be read, not written"
    if not kind:
        return Trust.UNTRIED, "its type is unknown"
    return Trust.UNTRIED, "its type is not a known local file system"


def _has_no_attribute_cache(mount: Mount) -> bool:
    """The kernel shows noac as the options that it implies."""
    zero = {"acregmin=0", "acregmax=0", "acdirmin=0", "acdirmax=0"}
    return "noac" in mount.options or zero <= mount.options or "actimeo=0" in mount.options


def validate_filesystem(path: str, *, allow_unsafe: bool) -> None:
    """Refuse a root on a file system that could lose acknowledged commits; log untested ones once.

    Raises:
        InvalidRequestError: UNSAFE_FILESYSTEM.
    """
    mount = mount_of(path)
    trust, why = judge(mount)
    if trust is Trust.TRUSTED:
        return
    where = f"{mount.kind or 'a file system'} mounted at {mount.point}"
    if trust is Trust.UNSAFE and not allow_unsafe:
        raise InvalidRequestError(
            "UNSAFE_FILESYSTEM",
            f"root {path}: found {where}, expected a local file system: {why}; an acknowledged commit "
            "could be lost",
            fix="Use a local directory (in a container: a named volume), or s3://bucket/prefix; or, if no "
            f"other machine uses this root, allow it: storage option {OPTION} (Spark: "
            f".option('{OPTION}', 'true')), --allow-unsafe-filesystem on the command line, the broker's "
            f"sparklog.allow.unsafe.filesystem, or {VARIABLE}=true in the environment of every process; see "
            "docs/filesystems.md",
        )
    if (mount.kind, mount.point) not in logged_mounts:
        logged_mounts.add((mount.kind, mount.point))
        advice = "allowed by the user" if trust is Trust.UNSAFE else "see docs/filesystems.md"
        _log.warning("root %s: %s: %s (%s)", path, where, why, advice)


logged_mounts: set[tuple[str, str]] = set()


def allows_unsafe(options: Mapping[str, Any] | None, environment: Mapping[str, str]) -> bool:
    """Return the option of a directory, else the environment variable.

    Raises:
        InvalidRequestError: INVALID_OPTION.
    """
    if options and OPTION in options:
        return parse_flag(OPTION, options[OPTION])
    return parse_flag(VARIABLE, environment.get(VARIABLE, "") or "false")


def parse_flag(name: str, value: object) -> bool:
    """Parse a bool, or one of the words true and false."""
    if isinstance(value, bool):
        return value
    found = _BOOLEANS.get(str(value).strip().lower())
    if found is None:
        raise InvalidRequestError(
            "INVALID_OPTION",
            f"{name}: found {shown(name, value)}, expected true or false",
            fix=f"Correct {name}",
        )
    return found
