"""fetchOffset.numRetries and .retryIntervalMs: a plan is tried again, whatever part met a busy store."""

from collections.abc import Callable

import pytest

import sparklog
from sparklog.client import SparkLog
from sparklog.clock import ManualClock
from sparklog.errors import RetriableError, SparklogError, StorageError
from sparklog.metadata import MetadataLog
from tests.spark.planning import append, batch_reader, planner, read

BUSY = [
    StorageError("STORE_UNAVAILABLE", "SlowDown", fix="try again"),
    RetriableError("READ_OVERTAKEN", "merged again and again", fix="read again"),
]
BROKEN = StorageError("STORAGE_FAILED", "input/output error", fix="look at the disk")


@pytest.fixture
def log(root: str) -> SparkLog:
    opened = sparklog.open(root, create=True)
    opened.create_topic("t", partitions=1)
    append(opened, 0, 100)
    return opened


@pytest.fixture
def fail(monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[int]]:
    """fail(owner, name, errors): its first calls raise these; the calls are counted."""

    def arrange(owner: type, name: str, errors: list[SparklogError]) -> list[int]:
        original, left, calls = getattr(owner, name), iter(errors), [0]

        def flaky(*args: object, **options: object) -> object:
            calls[0] += 1
            error = next(left, None)
            if error is not None:
                raise error
            return original(*args, **options)

        monkeypatch.setattr(owner, name, flaky)
        return calls

    return arrange


def options(retries: int) -> dict[str, str]:
    return {"fetchOffset.numRetries": str(retries), "fetchOffset.retryIntervalMs": "7"}


@pytest.fixture
def opened(log: SparkLog, root: str) -> str:
    """The root, which this process knows: what is asked from now on is asked of the storage."""
    planner(root).initial_offset()
    return root


@pytest.mark.parametrize("error", BUSY)
def test_opening_is_tried_again(opened: str, fail: Callable[..., list[int]], error: SparklogError) -> None:
    clock = ManualClock()
    before = clock.monotonic_ms()
    fail(MetadataLog, "refresh", [error, error])
    plan = planner(opened, clock, **options(2))
    start = plan.initial_offset()
    assert clock.monotonic_ms() - before == 14
    assert read(plan.input_partitions(start, plan.latest_offset(start, limited=True))) == [("t", 0, 0, 100)]


def test_so_is_what_comes_later(opened: str, fail: Callable[..., list[int]]) -> None:
    given = {"startingTimestamp": "0", "fetchOffset.numRetries": "2", "fetchOffset.retryIntervalMs": "0"}
    fail(SparkLog, "offset_for_time", [BUSY[0], BUSY[0]])
    assert read(batch_reader(opened, **given).partitions()) == [("t", 0, 0, 100)]
    fail(SparkLog, "offset_for_time", [BUSY[0]])
    planner(opened, **given).initial_offset()


def test_it_ends(opened: str, fail: Callable[..., list[int]]) -> None:
    calls = fail(MetadataLog, "refresh", BUSY[:1] * 10)
    with pytest.raises(StorageError, match="STORE_UNAVAILABLE"):
        planner(opened, **options(3)).initial_offset()
    assert calls == [4]


def test_what_does_not_pass_by_itself_is_not_tried_again(opened: str, fail: Callable[..., list[int]]) -> None:
    calls = fail(MetadataLog, "refresh", [BROKEN])
    with pytest.raises(StorageError, match="STORAGE_FAILED"):
        planner(opened, **options(3)).initial_offset()
    assert calls == [1]
