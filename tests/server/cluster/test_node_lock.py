"""What a lock on this machine says of a process that served a root in an object store."""

import json
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from sparklog.errors import FencedError
from sparklog.metadata import RegisteredBroker
from sparklog.storage import MemoryStore
from sparklog.storage.base import StoreTraits
from sparklog.storage.filesystems import Trust
from sparklog_server.cluster import node_lock
from sparklog_server.cluster.node_lock import NodeLock
from tests.support.broker_process import BrokerProcess

pytestmark = pytest.mark.slow

HOLD = """
import sys, tempfile
tempfile.tempdir = sys.argv[1]
from sparklog.storage import MemoryStore
from sparklog.storage.base import StoreTraits
from sparklog_server.cluster.node_lock import NodeLock
store = MemoryStore("node", traits=StoreTraits(is_remote=True))
lock = NodeLock.acquire(store, 1, "localhost:9092", cluster_id="c")
lock.note("first")
print("held", flush=True)
sys.stdin.read()
lock.release()
"""


@pytest.fixture(autouse=True)
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Its directory for what is temporary."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def acquire(node_id: int = 1, cluster_id: str = "c") -> NodeLock:
    store = MemoryStore("node", traits=StoreTraits(is_remote=True))
    return NodeLock.acquire(store, node_id, "localhost:9093", cluster_id=cluster_id)


def registered(incarnation_id: str) -> RegisteredBroker:
    return RegisteredBroker(node_id=1, broker_epoch=7, incarnation_id=incarnation_id)


def run_another(machine: Path, *, kill: bool = True) -> None:
    """A process that joins as "first", and ends."""
    with subprocess.Popen(
        [sys.executable, "-c", HOLD, str(machine)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        with pytest.raises(FencedError, match=rf"DUPLICATE_BROKER.*process {holder.pid}, .*localhost:9092"):
            acquire()
        for other in (acquire(2), acquire(cluster_id="d")):
            assert not other.proves_death_of(registered("first"))
            other.release()
        if kill:
            holder.kill()


def lock_file(machine: Path) -> Path:
    (found,) = (one for one in machine.glob("sparklog-*/broker-*.lock") if one.stat().st_size)
    return found


def test_the_registration_of_a_process_that_was_killed_is_over(machine: Path) -> None:
    run_another(machine)
    lock = acquire()
    assert lock.proves_death_of(registered("first"))
    assert not lock.proves_death_of(registered("another's")), "it may live elsewhere"
    lock.note("second")
    assert json.loads(lock_file(machine).read_text())["incarnation"] == "second"
    lock.release()


def test_who_has_released_it_has_said_nothing(machine: Path) -> None:
    run_another(machine, kill=False)
    lock = acquire()
    assert not lock.proves_death_of(registered("first"))
    lock.release()


def test_a_copy_of_the_machine_knows_nothing(machine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run_another(machine)
    (machine / "boot").write_text("another run of the kernel\n")
    monkeypatch.setattr(node_lock, "BOOT_ID", machine / "boot")
    lock = acquire()
    assert not lock.proves_death_of(registered("first"))
    lock.release()


def test_nor_does_a_kernel_that_does_not_say_which_run_it_is(
    machine: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_another(machine)
    note = json.loads(lock_file(machine).read_text())
    lock_file(machine).write_text(json.dumps({**note, "boot": ""}))
    monkeypatch.setattr(node_lock, "BOOT_ID", machine / "missing")
    lock = acquire()
    assert not lock.proves_death_of(registered("first"))
    lock.release()


@pytest.mark.parametrize("note", [b"", b"{", b"[]", b"\xff", b"{}", b"1", b'{"incarnation": "first"}'])
def test_a_strange_note_says_nothing(machine: Path, note: bytes) -> None:
    run_another(machine)
    lock_file(machine).write_bytes(note)
    lock = acquire()
    assert not lock.proves_death_of(registered("first"))
    lock.release()


def test_a_directory_that_other_machines_may_see_proves_nothing(
    machine: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_another(machine)
    monkeypatch.setattr(node_lock, "judge", lambda _: (Trust.UNTRIED, ""))
    lock = acquire()
    assert not lock.proves_death_of(registered("first"))
    lock.release()


def test_without_a_directory_of_our_own_there_is_no_lock(machine: Path) -> None:
    run_another(machine)
    lock_file(machine).parent.chmod(0o777)  # somebody else might have put it there
    first, second = acquire(), acquire()
    assert not first.proves_death_of(registered("first"))
    second.note("second")
    first.release()


def test_a_broker_that_was_killed_is_back_at_once_on_an_object_store(s3_root: str, machine: Path) -> None:
    settings = {"broker.session.timeout.ms": "3600000", "node.id": "3"}
    broker = BrokerProcess(s3_root, settings, env={"TMPDIR": str(machine)})
    try:
        broker.kill()
        broker.start()  # and not when a session is over
        assert "broker 3 was not stopped: its registration is ended" in broker.errors()
    finally:
        broker.close()
