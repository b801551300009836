"""A broker's root on a file system that caches names: refused, and served for who says so."""

import asyncio
import os
from pathlib import Path

import pytest

from sparklog.errors import InvalidRequestError
from sparklog.storage import filesystems
from sparklog_server import running
from sparklog_server.settings.config import ServerConfig


class OpenedError(Exception):
    """The root was opened."""


def test_the_setting_opens_an_unsafe_root(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def broker(*_: object) -> None:
        raise OpenedError

    number = tmp_path.stat().st_dev
    table = tmp_path / "mountinfo"
    table.write_text(f"9 1 {os.major(number)}:{os.minor(number)} / {tmp_path} rw - virtiofs share rw\n")
    monkeypatch.setattr(filesystems, "MOUNTINFO", str(table))
    monkeypatch.setattr(running, "Broker", broker)
    root = str(tmp_path / "root")
    with pytest.raises(InvalidRequestError, match="UNSAFE_FILESYSTEM"):
        asyncio.run(running.serve(ServerConfig.parse({"log.dirs": root})))
    with pytest.raises(OpenedError):
        asyncio.run(
            running.serve(ServerConfig.parse({"log.dirs": root, "sparklog.allow.unsafe.filesystem": "true"}))
        )
