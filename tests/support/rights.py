"""A user whom permissions of files stop: root, as whom tests may run, passes them all."""

import contextlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

USER = 61003  # that nobody has


@contextlib.contextmanager
def unprivileged_directory() -> Iterator[Path]:
    """A directory of a user without privileges, who the process is until the end."""
    directory = Path(tempfile.mkdtemp(prefix="sparklog-rights-"))
    is_root = os.geteuid() == 0
    if is_root:
        os.chown(directory, USER, USER)
        os.seteuid(USER)
    try:
        yield directory
    finally:
        if is_root:
            os.seteuid(0)
        else:
            for path, _, _ in os.walk(directory):
                Path(path).chmod(0o700)
        shutil.rmtree(directory)


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
