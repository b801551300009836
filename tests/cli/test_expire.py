"""`sparklog expire`: what it removes, and by whose clock."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import sparklog
from sparklog.clock import SystemClock
from sparklog.errors import StorageError
from sparklog.storage import Store
from sparklog.storage.local import LocalStore

DAY_MS = 86_400_000


@pytest.fixture
def kept_for_a_day(root: Path) -> None:
    """A topic with a record of now, and one of 1970 before it."""
    with sparklog.open(root) as log:
        log.create_topic(
            "t", 1, {"retention.ms": str(DAY_MS), "message.timestamp.before.max.ms": str(1 << 60)}
        )
        for timestamp in (0, SystemClock().now_ms()):
            log.append("t", pa.table({"value": [b"x"], "timestamp": pa.array([timestamp], pa.int64())}))


@pytest.mark.usefixtures("kept_for_a_day")
def test_a_clock_that_is_ahead_of_the_storage_removes_nothing_early(
    run_json: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    real = SystemClock.now_ms
    monkeypatch.setattr(SystemClock, "now_ms", lambda self: real(self) + 365 * DAY_MS)
    for arguments in (("--dry-run",), ()):
        (one,) = run_json("expire", *arguments)["partitions"]
        assert (one["log_start_offset"], one["new_log_start_offset"], one["offsets"]) == (0, 1, 1)
    assert run_json("expire")["partitions"] == []


@pytest.mark.usefixtures("kept_for_a_day")
def test_a_root_that_takes_no_file_is_still_shown(
    run_json: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    def takes_none(_store: Store, _here_ms: int) -> int:
        raise StorageError("STORAGE_REFUSED", "read-only file system", fix="mount it for writing")

    monkeypatch.setattr(LocalStore, "storage_now_ms", takes_none)
    (one,) = run_json("expire", "--dry-run")["partitions"]
    assert one["offsets"] == 1
    assert run_json("compact", "--dry-run")["topics"] == []
