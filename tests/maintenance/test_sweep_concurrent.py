"""Vacuums that retain nothing, beside writers, merging and readers: nothing is lost, doubled or mixed up."""

import threading
from collections.abc import Callable
from functools import partial

import pyarrow as pa
import pytest

import sparklog
from sparklog.client import SparkLog
from sparklog.errors import RetriableError
from sparklog.maintenance import MergeLimits, optimize, vacuum

WRITERS = 3
_AGAIN = {"MAINTENANCE_RUNNING", "STAGING_EXPIRED", "PUBLISH_CONTENDED"}


def insistently(work: Callable[[], object]) -> None:
    while True:
        try:
            work()
        except RetriableError as error:
            if error.code not in _AGAIN:
                raise
        else:
            return


class Users:
    """Threads, each with the root opened for itself."""

    def __init__(self, root: str, times: int) -> None:
        self._root, self._times = root, times
        self.failed: list[BaseException] = []
        self.removed: list[int] = []
        self.written: dict[int, int] = {}
        self._writers = [self._thread(partial(self._write, number=n)) for n in range(WRITERS)]
        self._others = [self._thread(body) for body in (self._keep, self._keep, self._read)]

    def run(self) -> None:
        for one in (*self._writers, *self._others):
            one.start()
        for one in (*self._writers, *self._others):
            one.join()

    def _thread(self, body: Callable[[SparkLog], None]) -> threading.Thread:
        def run() -> None:
            try:
                with sparklog.open(self._root, create=False) as own:
                    body(own)
            except BaseException as error:
                self.failed.append(error)

        return threading.Thread(target=run)

    @property
    def _are_writing(self) -> bool:
        return any(one.is_alive() for one in self._writers)

    def _write(self, own: SparkLog, number: int) -> None:
        """So many, and on until a vacuum has removed something beside them."""
        at = 0
        while at < self._times or not (sum(self.removed) or self.failed):
            rows = pa.table({"value": pa.array([b"%d-%d" % (number, at)], pa.binary())})
            insistently(lambda rows=rows: own.append("t", rows, partition=0))  # type: ignore[misc]
            if at % 7 == 0:
                own.close()  # the next append begins another segment
            at += 1
            self.written[number] = at

    def _keep(self, own: SparkLog) -> None:
        def remove() -> None:
            self.removed.append(vacuum(own.metadata, own.clock, retain_ms=0, force=True).dead.files)

        while self._are_writing:
            limits = MergeLimits(fan_in=None, shared_bytes=len(self.removed) % 2 << 20)
            insistently(lambda limits=limits: optimize(own.metadata, own.clock, limits=limits))  # type: ignore[misc]
            insistently(remove)

    def _read(self, own: SparkLog) -> None:
        seen: list[bytes] = []
        while self._are_writing:
            own.refresh(force=True)
            found = own.read("t", 0, 0)["value"].to_pylist()
            assert found[: len(seen)] == seen
            seen = found


@pytest.mark.parametrize(
    ("kind", "times"), [("directory", 60), pytest.param("s3", 12, marks=pytest.mark.slow)]
)
def test_beside_writers_and_readers(kind: str, times: int, request: pytest.FixtureRequest) -> None:
    root = str(request.getfixturevalue("s3_root" if kind == "s3" else "tmp_path")) + "/log"
    with sparklog.open(root) as log:
        log.create_topic("t", 1)
        users = Users(root, times)
        users.run()
        assert users.failed == []
        log.refresh(force=True)
        values = log.read("t", 0, 0)["value"].to_pylist()
    assert len(values) == sum(users.written.values())
    for number in range(WRITERS):
        own = [value for value in values if value.startswith(b"%d-" % number)]
        assert own == [b"%d-%d" % (number, at) for at in range(users.written[number])]
        assert len(own) >= times
