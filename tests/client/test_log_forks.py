"""A forked child goes on with the parent's handle, whatever the parent's other threads were at."""

import os
import signal
import threading
from collections.abc import Callable

import pyarrow as pa
import pytest

from sparklog.client import SparkLog
from sparklog.client.groups import OffsetTable

SECONDS = 20
pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore:This process.*fork:DeprecationWarning")]


def in_child(work: Callable[[], bool]) -> bool:
    """Is it true there? What hangs is ended."""
    child = os.fork()
    if child == 0:
        signal.alarm(SECONDS)
        status = 1
        try:
            status = 0 if work() else 1
        finally:
            os._exit(status)
    return os.waitpid(child, 0)[1] == 0


def test_while_committed_offsets_are_read(log: SparkLog, monkeypatch: pytest.MonkeyPatch) -> None:
    offsets = {("t", number): number for number in range(5)}
    log.commit_offsets("g", offsets)
    halfway, may_go_on = threading.Event(), threading.Event()
    apply = OffsetTable._apply

    def apply_slowly(table: OffsetTable, key: bytes, value: bytes, where: str) -> None:
        apply(table, key, value, where)
        halfway.set()
        assert may_go_on.wait(SECONDS)

    monkeypatch.setattr(OffsetTable, "_apply", apply_slowly)
    reader = threading.Thread(target=lambda: log.committed_offsets("g"))
    reader.start()
    try:
        assert halfway.wait(SECONDS)
        monkeypatch.undo()
        assert in_child(lambda: log.committed_offsets("g") == offsets)
    finally:
        may_go_on.set()
        reader.join()
    assert log.committed_offsets("g") == offsets


@pytest.mark.parametrize("holder", ["log", "notice"])
def test_while_another_thread_appends(log: SparkLog, holder: str) -> None:
    log.create_topic("t", 1, {"retention.ms": "1"})
    lock = log._writer_lock if holder == "log" else log._retention_notice._lock
    rows = pa.table({"value": ["old"], "timestamp": [1]})
    with lock:
        assert in_child(lambda: log.append("t", rows).record_count == 1)


def test_what_was_read_is_kept(log: SparkLog, monkeypatch: pytest.MonkeyPatch) -> None:
    log.commit_offsets("g", {("t", 0): 5})
    log.committed_offsets("g")
    monkeypatch.delattr(OffsetTable, "_apply")  # it is not read again
    assert in_child(lambda: log.committed_offsets("g") == {("t", 0): 5})
