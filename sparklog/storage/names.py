"""Names in a store: '/'-separated relative paths that cannot leave the root.

Invariants: a validated name has no empty, '.' or '..' part, no NUL, and never enters the store's own
temporary directory. Names are compared byte for byte.
Not here: topic names (metadata/model/topic_names.py), which are stricter.
Sources: FORMAT.md#layout-of-a-root.
"""

import functools
from collections.abc import Callable

from sparklog.errors import InvalidRequestError

# Unfinished puts live here, beside everything else under the root; no name may reach into it.
TEMPORARY_DIRECTORY = ".tmp"
# Linux limits: one part of a path, and a whole path (less room for the root itself).
MAX_PART_BYTES = 255
MAX_NAME_BYTES = 2048


@functools.lru_cache(maxsize=8192)
def validate_name(name: str) -> str:
    """Return `name`, or raise InvalidRequestError saying which rule it breaks."""
    reason = _why_illegal(name)
    if reason is not None:
        raise InvalidRequestError(
            "ILLEGAL_FILE_NAME",
            f"file name {name!r}: {reason}, expected a relative path such as 'segments/w1/0.log'",
            fix="Use a name made of plain parts separated by '/'",
        )
    return name


def validate_prefix(prefix: str) -> str:
    """A directory name, where the empty string is the root itself."""
    return prefix if prefix == "" else validate_name(prefix.rstrip("/"))


def first_left_out(name: str, enters: Callable[[str], bool]) -> str | None:
    """The first directory on the way to a file that a walk does not enter (Store.walk); None: no such."""
    end = name.find("/")
    while end >= 0:
        if not enters(name[:end]):
            return name[:end]
        end = name.find("/", end + 1)
    return None


def _why_illegal(name: str) -> str | None:
    if not name:
        return "it is empty"
    if "\0" in name:
        return "it contains a NUL character"
    try:
        encoded = name.encode()
    except UnicodeEncodeError:
        return "it is not valid Unicode"
    if len(encoded) > MAX_NAME_BYTES:
        return f"it is {len(encoded)} bytes long, at most {MAX_NAME_BYTES} are allowed"
    for part in name.split("/"):
        if part == "":
            return "it has an empty part or starts or ends with '/'"
        if part in {".", ".."}:
            return f"the part {part!r} could leave the root"
        if part == TEMPORARY_DIRECTORY:
            return f"the part {part!r} is reserved"
        if len(part.encode()) > MAX_PART_BYTES:
            return f"a part is longer than {MAX_PART_BYTES} bytes"
    return None
