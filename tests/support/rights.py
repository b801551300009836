"""Permissions of files that stop this process. Tests may run as root, whom they do not stop otherwise."""

import contextlib
import ctypes
import os
from collections.abc import Iterator
from pathlib import Path

_VERSION_3 = 0x20080522
_PASSES = 1 << 1 | 1 << 2  # CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH


class _Header(ctypes.Structure):
    _fields_ = (("version", ctypes.c_uint32), ("pid", ctypes.c_int))


class _Sets(ctypes.Structure):
    """32 of the 64 capabilities; see capget(2)."""

    _fields_ = (
        ("effective", ctypes.c_uint32),
        ("permitted", ctypes.c_uint32),
        ("inheritable", ctypes.c_uint32),
    )


@contextlib.contextmanager
def obeying_permissions() -> Iterator[None]:
    """Permissions bind this thread, and those that it starts, within the block. The user stays the same:
    Python may be installed where no other user may read.
    """
    library = ctypes.CDLL(None, use_errno=True)
    header, sets = _Header(_VERSION_3, 0), (_Sets * 2)()

    def call(name: str) -> None:
        if getattr(library, name)(ctypes.byref(header), sets):
            code = ctypes.get_errno()
            raise OSError(code, os.strerror(code))

    call("capget")
    before = sets[0].effective
    sets[0].effective = before & ~_PASSES
    call("capset")
    try:
        yield
    finally:
        sets[0].effective = before
        call("capset")


@contextlib.contextmanager
def closed(path: Path, mode: int = 0) -> Iterator[None]:
    """The directory has only these rights within the block."""
    before = path.stat().st_mode
    path.chmod(mode)
    try:
        yield
    finally:
        path.chmod(before)


@contextlib.contextmanager
def read_only(directory: Path) -> Iterator[None]:
    """No file can be created or removed in it, or below it, within the block."""
    with contextlib.ExitStack() as stack:
        for path in [path for path in (*directory.rglob("*"), directory) if path.is_dir()]:
            stack.enter_context(closed(path, 0o500))
        yield
