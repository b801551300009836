"""One of the two processes that race an fsspec file system (fsspec_store.race).

For each line of standard input, the path of a file, it asks whether the file exists, and answers "ready". At
the next line, when both have asked, it creates the file, and answers "created", "taken" (and the winner's
content was complete), "torn" (it was not), "replaced" (after both have tried it is another's), or "error: "
and what happened.
Not here: a file system that asks, and then creates within microseconds: thirty files seldom show that.
"""

import contextlib
import importlib
import sys
from collections.abc import Mapping
from typing import Any

import fsspec

from sparklog.storage.fsspec_store import (
    create_exclusively,
    is_conflict,
    make_file_system,
    parse_fsspec_options,
)


def run(task: Mapping[str, Any]) -> None:
    """Answer until standard input ends."""
    register(str(task["module"]), str(task["class"]))
    try:
        fs, _ = make_file_system(str(task["url"]), parse_fsspec_options(task["options"]))
    except Exception as error:  # noqa: BLE001 - the parent reports it
        _say(f"error: {type(error).__name__}")
        return
    _say("ready")
    number, size = int(task["number"]), int(task["bytes"])
    contents = [bytes([65 + racer]) * size for racer in range(2)]
    while line := sys.stdin.readline():
        path = line.rstrip("\n")
        with contextlib.suppress(Exception):
            fs.exists(path)  # no; a file system that remembers that must not believe it later
        _say("ready")
        sys.stdin.readline()
        _say(attempt(fs, path, contents, number))


def attempt(fs: Any, path: str, contents: list[bytes], number: int) -> str:
    """Create one file, and look at what is there if somebody else has."""
    with contextlib.suppress(Exception):  # object stores have no directories
        fs.makedirs(path.rpartition("/")[0], exist_ok=True)
    try:
        create_exclusively(fs, path, contents[number])
    except FileExistsError:
        pass
    except Exception as error:  # noqa: BLE001 - of any library
        if not is_conflict(error):
            return f"error: {type(error).__name__}"
    else:
        return "created" if _is_refused(fs, path, contents[number]) else "replaced"
    fs.invalidate_cache()
    found = fs.cat_file(path)
    if found == contents[number]:
        return "created"  # an answer was lost, and the file system has tried again
    return "taken" if found == contents[1 - number] else "torn"


def _is_refused(fs: Any, path: str, data: bytes) -> bool:
    """True if the file cannot be created a second time."""
    try:
        create_exclusively(fs, path, data)
    except FileExistsError:
        return True
    except Exception as error:  # noqa: BLE001 - of any library
        return is_conflict(error)
    return False


def register(module: str, name: str) -> None:
    """Make a class that the parent has registered known here, too."""
    found = importlib.import_module(module)
    for part in name.split("."):
        found = getattr(found, part)
    protocols = found.protocol if isinstance(found.protocol, tuple) else (found.protocol,)
    for protocol in protocols:
        fsspec.register_implementation(protocol, found, clobber=True)


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()
