"""fsspec file systems over a directory: one that keeps the promise of commits, and some that break it."""

import os
import secrets
import time
from typing import Any

from fsspec.implementations.local import LocalFileSystem


class LinkingFileSystem(LocalFileSystem):  # type: ignore[misc]  # untyped
    """Creates files exclusively, and with their content, as sparklog does in a directory."""

    protocol: Any = "linking"

    @classmethod
    def _strip_protocol(cls, path: Any) -> Any:
        text = os.fspath(path)
        return super()._strip_protocol(text.partition("://")[2] if "://" in text else text)

    def pipe_file(self, path: Any, value: bytes, mode: str = "overwrite", **_: Any) -> None:
        temporary = os.path.join(os.path.dirname(path), f".{secrets.token_hex(8)}~")
        with open(temporary, "wb") as file:
            file.write(value)
        try:
            self._name(temporary, path, mode)
        finally:
            if os.path.exists(temporary):
                os.unlink(temporary)

    def _name(self, temporary: str, path: str, mode: str) -> None:
        (os.link if mode == "create" else os.replace)(temporary, path)


class LastWins(LinkingFileSystem):
    """Knows no exclusive creation: it ignores the mode."""

    protocol = "lastwins"

    def _name(self, temporary: str, path: str, mode: str) -> None:
        os.replace(temporary, path)


class AsksFirst(LinkingFileSystem):
    """Asks whether the file exists, and then writes."""

    protocol = "asksfirst"

    def _name(self, temporary: str, path: str, mode: str) -> None:
        if mode == "create" and os.path.exists(path):
            raise FileExistsError(path)
        time.sleep(0.002)
        os.replace(temporary, path)


class RemembersMissing(LinkingFileSystem):
    """Asks whether the file exists, and keeps the answer."""

    protocol = "remembersmissing"

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._answers: dict[str, bool] = {}

    def exists(self, path: str, **_: Any) -> bool:
        return self._answers.setdefault(path, os.path.exists(path))

    def _name(self, temporary: str, path: str, mode: str) -> None:
        if mode == "create" and self.exists(path):
            raise FileExistsError(path)
        self._answers[path] = True
        os.replace(temporary, path)


class ShowsTorn(LocalFileSystem):  # type: ignore[misc]  # untyped
    """Creates exclusively, and then writes."""

    protocol = "showstorn"
    _strip_protocol = LinkingFileSystem._strip_protocol

    def pipe_file(self, path: Any, value: bytes, mode: str = "overwrite", **_: Any) -> None:
        with open(path, "xb" if mode == "create" else "wb") as file:
            file.write(value[:10])
            file.flush()
            time.sleep(0.002)
            file.write(value[10:])


class CannotCreate(LinkingFileSystem):
    """Says that it has no exclusive creation."""

    protocol = "cannotcreate"

    def pipe_file(self, path: Any, value: bytes, mode: str = "overwrite", **_: Any) -> None:
        if mode == "create":
            raise NotImplementedError("exclusive mode")
        super().pipe_file(path, value)


BROKEN = {
    LastWins: "an existing file was replaced",
    AsksFirst: "created the same file|an existing file was replaced",
    RemembersMissing: "created the same file|an existing file was replaced",
    ShowsTorn: "visible before its content is complete",
    CannotCreate: "exclusive creation, .* NotImplementedError",
}
