"""An S3 store with MemoryStore's hook, so that the tests of the layers above can run on either."""

from collections.abc import Callable, Sequence
from typing import Any

from sparklog.storage.base import BytesLike
from sparklog.storage.object_store import ObjectAppendFile, ObjectReadFile
from sparklog.storage.s3 import S3Store


class HookedS3Store(S3Store):
    """`hook(operation, name)` is called before every operation; what it raises goes to the caller."""

    hook: Callable[[str, str], None] | None = None

    def crash(self) -> None:
        """Nothing to forget: an object that was not synced is not there."""

    def put_if_absent(self, name: str, data: bytes, *, guard: Callable[[], bool] | None = None) -> None:
        self._call("put_if_absent", name)
        super().put_if_absent(name, data, guard=guard)
        self._call("put_if_absent:done", name)

    def put_hint(self, name: str, data: BytesLike) -> None:
        self._call("put_hint", name)
        super().put_hint(name, data)

    def exists(self, name: str) -> bool:
        self._call("exists", name)
        return super().exists(name)

    def list(self, prefix: str, **keywords: Any) -> list[Any]:
        self._call("list", prefix)
        return super().list(prefix, **keywords)

    def read_many(self, names: Sequence[str], *, max_bytes: int) -> Any:
        for name in names:
            self._call("open_read", name)
        return super().read_many(names, max_bytes=max_bytes)

    def delete(self, name: str) -> None:
        self._call("delete", name)
        super().delete(name)

    def open_read(self, name: str) -> ObjectReadFile:
        self._call("open_read", name)
        return super().open_read(name)

    def append_file(self, name: str, *, mapped: bool = False) -> ObjectAppendFile:
        self._call("append_file", name)
        file = super().append_file(name, mapped=mapped)
        real_write, real_sync = file.write, file.sync

        def write(*chunks: BytesLike) -> int:
            self._call("write", name)
            return real_write(*chunks)

        def sync() -> None:
            self._call("sync", name)
            real_sync()

        file.write, file.sync = write, sync  # type: ignore[method-assign]
        return file

    def _call(self, operation: str, name: str) -> None:
        if self.hook is not None:
            self.hook(operation, name)
