"""Publishers that stall while old commits are removed: no number is taken twice."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import pytest

from sparklog.errors import AlreadyExistsError, RetriableError, StorageError
from sparklog.metadata import Action, Image, MetadataLog, SetConfigs
from sparklog.metadata import cleaning as cleaning_module
from sparklog.metadata.cleaning import commit_was_cleaned
from sparklog.metadata.documents.properties import (
    commit_name,
    commit_of,
)
from sparklog.storage import IndefinitePutError, LocalStore, MemoryStore
from sparklog.storage.base import TEMPORARY_DIRECTORY
from sparklog.storage.local import is_reserve
from tests.metadata.cleaned_logs import commits, opened, publish


class StalledStore(LocalStore):
    """Runs `meanwhile` once, at one step of the next put of a commit."""

    def __init__(self, root: Path, step: str, meanwhile: Callable[[], None]) -> None:
        super().__init__(root)
        self.step = step
        self.meanwhile: Callable[[], None] | None = meanwhile

    def at_step(self, point: str, name: str) -> None:
        if point == self.step and commit_of(name) is not None and self.meanwhile is not None:
            meanwhile, self.meanwhile = self.meanwhile, None
            meanwhile()


def publishing(log: MetadataLog, count: int) -> None:
    publish(log, count)


@pytest.mark.parametrize("stalled_at", [0, 1, 2, 7, 15])
@pytest.mark.parametrize("step", ["temporary_synced", "guard_passed", "linked"])
def test_publisher_that_stalled_through_the_cleaning(local: LocalStore, stalled_at: int, step: str) -> None:
    others = opened(local)
    publish(others, stalled_at)
    store = StalledStore(Path(local.root), step, lambda: None)
    stalled = opened(store)
    store.meanwhile = lambda: publishing(others, 40 - stalled_at)
    result = stalled.publish(lambda image: [SetConfigs(configs={"stalled": "x"})])
    assert others.refresh() == stalled.refresh()
    assert others.image.configs["stalled"] == "x"  # acknowledged, and there
    if step == "linked":
        assert result.commit == stalled_at
    else:
        assert result.commit >= 40
        if stalled_at:
            assert stalled_at not in commits(local)  # the number is never used again
    assert opened(local).image == others.image


def test_open_put_whose_number_was_cleaned(memory: MemoryStore) -> None:
    """No answer, then a stall: whether it happened can no longer be found out, and the caller is told so."""
    others = opened(memory)
    publish(others, 5)
    slow = opened(memory)
    calls: list[str] = []

    def hook(operation: str, name: str) -> None:
        if operation == "put_if_absent" and name == commit_name(5):
            calls.append(name)
            if len(calls) == 1:
                memory.hook = None
                publish(others, 40)
                raise IndefinitePutError("PUT_INDEFINITE", "no answer", fix="repeat")

    memory.hook = hook
    with pytest.raises(StorageError, match="cleaned before its UUID could be read") as raised:
        slow.publish(lambda image: [SetConfigs(configs={"slow": "x"})])
    assert raised.value.code == "PUBLISH_UNRESOLVED"
    memory.hook = None
    assert publish(slow) == 45  # and the log is of use again


def test_open_put_that_a_sweep_stops_is_repeated(memory: MemoryStore) -> None:
    log = opened(memory)
    errors: list[Exception] = [
        IndefinitePutError("PUT_INDEFINITE", "no answer", fix="repeat"),
        RetriableError("PUT_ABORTED", "swept", fix="repeat"),
    ]

    def hook(operation: str, name: str) -> None:
        if operation == "put_if_absent" and errors:
            raise errors.pop(0)

    memory.hook = hook
    assert publish(log) == 0


def test_publisher_that_planned_long_ago(local: LocalStore) -> None:
    """Stalled before its put began, so that no temporary file was there to be aborted."""
    others = opened(local)
    publish(others, 5)
    slow = opened(local)
    plans: list[int] = []

    def plan(image: Image) -> list[Action]:
        plans.append(image.commit)
        if len(plans) == 1:
            publish(others, 40)
        return [SetConfigs(configs={"slow": "x"})]

    assert slow.publish(plan).commit == 45
    assert plans == [4, 44]
    assert others.refresh().configs["slow"] == "x"


def test_publisher_whose_last_commit_goes_before_it_is_made_sure_of(local: LocalStore) -> None:
    """
    1. A publisher finds the commits of others, plans behind the last of them, and is suspended.
    2. Others publish on, and a cleaner removes that commit.
    3. The publisher goes on: it makes sure that the commit is durable. It is gone, which is no error.
    """
    others = opened(local)

    class Suspended(LocalStore):
        is_suspended = False

        def sync_name(self, name: str) -> None:
            if not self.is_suspended:
                self.is_suspended = True
                publish(others, 40)
            super().sync_name(name)

    store = Suspended(Path(local.root))
    log = opened(store)
    publish(log)
    store.is_suspended = False
    publish(others, 3)
    assert publish(log) == 44
    assert store.is_suspended
    assert 3 not in commits(local)


class Stopped(Exception):
    """The process is not scheduled any more."""


def stopped_puts(root: str, numbers: Sequence[int]) -> list[tuple[int, Path]]:
    """Three publishers of each commit, stopped before they link: which one, and their temporary files."""
    found: list[tuple[int, Path]] = []

    class Stopping(LocalStore):
        def at_step(self, point: str, name: str) -> None:
            if point == "guard_passed":
                paths = Path(root, TEMPORARY_DIRECTORY).iterdir()
                (temporary,) = (path for path in paths if not is_reserve(path.name))
                found.append((number, temporary))
                raise Stopped

    for number in numbers:
        for _ in range(3):
            with pytest.raises(Stopped):
                Stopping(Path(root)).put_if_absent(commit_name(number), b"")
    return found


def test_number_stays_taken_at_every_moment_of_the_cleaning(local: LocalStore) -> None:
    """Publishers of every old number, started at every moment, wake up at every later moment: none succeeds.

    The moments are between any two of the cleaner's steps. A publisher is the temporary file that the store
    made for its put, there if its guard has let it pass, and its end is a link.
    """

    log = opened(local, now_ms=0)
    numbers = range(1, 20)
    publishers = stopped_puts(local.root, numbers)
    publish(log, 30)
    real_abort, real_delete = local.abort_puts, local.delete
    outcomes: list[str] = []

    def start_all() -> None:
        passing = {number for number in numbers if not commit_was_cleaned(local, number - 1)}
        for number, path in publishers:
            if number in passing:
                path.touch()

    def wake(sample: int) -> None:
        for number, path in publishers[:: max(1, len(publishers) // sample)]:
            target = f"{local.root}/{commit_name(number)}"
            try:
                os.link(path, target)
            except FileExistsError:
                outcomes.append("exists")
            except FileNotFoundError:
                outcomes.append("aborted")
            else:
                pytest.fail(f"commit {number} was created again")

    class Stepping:
        """The store, with publishers starting and waking between any two steps."""

        def __getattr__(self, name: str) -> object:
            return getattr(local, name)

        def abort_puts(self, name: str) -> None:
            start_all()
            real_abort(name)
            wake(20)
            start_all()

        def delete(self, name: str) -> None:
            start_all()
            real_delete(name)
            wake(20)
            start_all()

    cleaning_module.clean_metadata(
        Stepping(),  # type: ignore[arg-type]
        log.image,
        grace_ms=-(1 << 60),
        snapshots_kept=2,
        now_ms=0,
    )
    wake(10**9)
    assert "aborted" in outcomes
    assert "exists" in outcomes
    assert commits(local) == [0, *range(19, 30)]
    local.sweep_temporary(older_than_ms=0)


def test_guard_and_abort_are_both_needed(local: LocalStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """Take either away, and the stalled publisher's commit is lost: the tests above can fail."""
    for broken in ("abort", "guard"):
        root = Path(local.root) / broken
        root.mkdir()
        store = LocalStore(root)
        others = opened(store)
        publish(others, 5)
        with monkeypatch.context() as patch:
            if broken == "abort":
                patch.setattr(LocalStore, "abort_puts", lambda self, name: None)
                step = "guard_passed"
            else:
                step = "temporary_synced"
                patch.setattr("sparklog.metadata.following.commit_was_cleaned", lambda store, commit: False)
                patch.setattr(LocalStore, "abort_puts", lambda self, name: None)
            stalled_store = StalledStore(root, step, lambda: None)
            stalled = opened(stalled_store)
            stalled_store.meanwhile = partial(publishing, others, 40)
            assert stalled.publish(lambda image: [SetConfigs(configs={"stalled": "x"})]).commit == 5
        assert "stalled" not in opened(store).image.configs  # acknowledged, and lost


def test_aborted_put_is_not_an_error_of_the_store(local: LocalStore) -> None:
    local.put_if_absent(commit_name(0), b"x")
    store = StalledStore(Path(local.root), "guard_passed", lambda: local.abort_puts(commit_name(1)))
    with pytest.raises(RetriableError):
        store.put_if_absent(commit_name(1), b"x")
    with pytest.raises(AlreadyExistsError):
        store.put_if_absent(commit_name(0), b"x")


STOPPED_PUBLISHER = """
import os, signal, sys
from pathlib import Path
from sparklog.clock import SystemClock
from sparklog.metadata import MetadataLog, SetConfigs
from sparklog.storage import LocalStore

class Store(LocalStore):
    def at_step(self, point, name):
        if point == sys.argv[2] and "__cluster_metadata" in name:
            print("stopping", flush=True)
            os.kill(os.getpid(), signal.SIGSTOP)

log = MetadataLog.open(Store(Path(sys.argv[1])), SystemClock())
print(log.publish(lambda image: [SetConfigs(configs={"stopped": "x"})]).commit, flush=True)
"""


@pytest.mark.slow
@pytest.mark.parametrize("step", ["temporary_synced", "guard_passed"])
def test_process_stopped_through_the_cleaning(local: LocalStore, step: str) -> None:
    """The real thing: SIGSTOP inside the put, while the lock is held too; then SIGCONT."""
    others = opened(local)
    publish(others, 5)
    command = [sys.executable, "-c", STOPPED_PUBLISHER, local.root, step]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "stopping\n"
        os.waitid(os.P_PID, process.pid, os.WSTOPPED | os.WNOWAIT)
        publish(others, 40)
        process.send_signal(signal.SIGCONT)
        # It stops once more in its second put, which nobody overtakes.
        assert process.stdout.readline() == "stopping\n"
        os.waitid(os.P_PID, process.pid, os.WSTOPPED | os.WNOWAIT)
        process.send_signal(signal.SIGCONT)
        assert process.stdout.readline() == "45\n"
    assert others.refresh().configs["stopped"] == "x"
    assert 5 not in commits(local)
