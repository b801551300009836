"""Reading whole files by opening them, for stores where opening costs no request.

Not here: a remote store's way, several requests at once (s3.py).
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence

from sparklog.errors import NotFoundError
from sparklog.storage.base import ReadFile


class WholeFiles(ABC):
    """`read` and `read_many` of a Store, made of its `open_read`."""

    @abstractmethod
    def open_read(self, name: str) -> ReadFile:
        """See Store."""

    def try_requests(self) -> None:  # noqa: B027 - nothing to try: filesystems.py has judged it
        """See Store."""

    def release_reserve(self) -> bool:
        """See Store."""
        return False

    def restore_reserve(self) -> None:  # noqa: B027 - nothing to keep, but on a disk
        """See Store."""

    def read(self, name: str, position: int = 0, size: int | None = None) -> bytes:
        """See Store."""
        with self.open_read(name) as file:
            return file.read(position, size)

    def read_many(self, names: Sequence[str], *, max_bytes: int) -> list[bytes | None]:
        """See Store."""
        return [self._read_if_there(name, max_bytes) for name in names]

    def _read_if_there(self, name: str, max_bytes: int) -> bytes | None:
        try:
            return self.read(name, 0, max_bytes)
        except NotFoundError:
            return None
