"""A root of its own for one test."""

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import sparklog
from sparklog import failpoints
from sparklog.errors import InvalidRequestError

if TYPE_CHECKING:
    from sparklog.client import SparkLog


class Root:
    """A root that does not exist until something opens it; a path, too (`os.fspath`, `str`)."""

    def __init__(self, path: str) -> None:
        self.path = path
        self._opened: list[SparkLog] = []

    def __fspath__(self) -> str:
        """Return the path."""
        return self.path

    def __str__(self) -> str:
        """Return the path."""
        return self.path

    def open(self, **options: Any) -> "SparkLog":
        """Open it as `sparklog.open` does; it is closed after the test."""
        self._opened.append(sparklog.open(self.path, **options))
        return self._opened[-1]

    def close(self) -> None:
        """Close what `open` has opened."""
        while self._opened:
            self._opened.pop().close()

    @contextlib.contextmanager
    def failpoints(self, setting: str) -> Iterator[None]:
        """Let this process fail or pause where it writes: "put.linked:1:raise=EIO" (docs/failpoints.md).

        Raises: InvalidRequestError INVALID_OPTION: no such failpoint, or `kill`, which would end pytest.
        """
        for part in setting.split(","):
            if part.strip().count(":") < 2 or part.split(":")[2].strip() == "kill":
                raise InvalidRequestError(
                    "INVALID_OPTION",
                    f"{part.strip()!r}: found the action kill, expected raise or pause: it would end pytest",
                    fix=f"Start a process of its own, with {failpoints.VARIABLE} in its environment",
                )
        failpoints.arm(setting)
        try:
            yield
        finally:
            failpoints.disarm()
