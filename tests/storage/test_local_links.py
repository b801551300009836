"""Links of the local store: lost answers, conflicts, copies, aborts."""

import errno
import os
from pathlib import Path

import pytest

from sparklog.errors import (
    AlreadyExistsError,
    RetriableError,
    StorageError,
)
from sparklog.storage import IndefinitePutError, LocalStore
from tests.storage.local_faults import failing


def test_lost_answer_of_link_is_found_out(local: LocalStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """NFS retransmits: the second LINK says EEXIST, although the first one was ours (link(2))."""
    real = os.link

    def link(source: str, target: str) -> None:
        real(source, target)
        raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST))

    monkeypatch.setattr(os, "link", link)
    local.put_if_absent("a", b"mine")
    assert local.read("a") == b"mine"


def test_genuine_conflict_of_link(local: LocalStore) -> None:
    class Slow(LocalStore):
        def at_step(self, point: str, name: str) -> None:
            if point == "guard_passed":
                local.put_if_absent(name, b"theirs")

    slow = Slow(Path(local.root))
    with pytest.raises(AlreadyExistsError):
        slow.put_if_absent("a", b"mine")
    assert local.read("a") == b"theirs"


class Copied(LocalStore):
    """A store whose root is copied with hard links (cp -al) while a put is about to link."""

    def at_step(self, point: str, name: str) -> None:
        if point == "guard_passed":
            for path in (Path(self.root) / ".tmp").iterdir():
                os.link(path, Path(self.root).parent / "copy")
            self.meanwhile(name)

    def meanwhile(self, name: str) -> None:
        """What somebody else does, before our link."""


def test_a_copy_by_hard_links_makes_no_lost_race_a_success(local: LocalStore) -> None:
    """The temporary file has two names then, and neither is the one we wanted."""

    class Overtaken(Copied):
        def meanwhile(self, name: str) -> None:
            local.put_if_absent(name, b"theirs")

    with pytest.raises(AlreadyExistsError):
        Overtaken(Path(local.root)).put_if_absent("a", b"mine")
    assert local.read("a") == b"theirs"


def test_a_copy_by_hard_links_hides_no_abort(local: LocalStore) -> None:
    class Aborted(Copied):
        def meanwhile(self, name: str) -> None:
            local.abort_puts(name)

    with pytest.raises(RetriableError, match="stopped by a cleaner"):
        Aborted(Path(local.root)).put_if_absent("a", b"mine")
    assert not local.exists("a")


def test_an_error_after_the_link_of_another_is_a_lost_race(
    local: LocalStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever link says: what has the name now is not ours."""

    class Overtaken(Copied):
        def meanwhile(self, name: str) -> None:
            local.put_if_absent(name, b"theirs")
            failing(monkeypatch, "link", errno.EIO)

    with pytest.raises(AlreadyExistsError):
        Overtaken(Path(local.root)).put_if_absent("a", b"mine")


@pytest.mark.parametrize("code", [errno.EIO, errno.EEXIST])
def test_a_link_that_cannot_be_looked_up_is_indefinite(
    local: LocalStore, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    class Unlucky(LocalStore):
        def at_step(self, point: str, name: str) -> None:
            if point == "guard_passed":
                failing(monkeypatch, "link", code)
                failing(monkeypatch, "stat", errno.EIO, when="/a")

    with pytest.raises(IndefinitePutError, match="link failed"):
        Unlucky(Path(local.root)).put_if_absent("a", b"mine")


def test_unanswerable_link_is_indefinite(local: LocalStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """The name is there, and nobody can tell whose it is."""
    real = os.link

    def link(source: str, target: str) -> None:
        real(source, target)
        failing(monkeypatch, "fstat", errno.EIO, when="/.tmp/")
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(os, "link", link)
    with pytest.raises(IndefinitePutError, match="link failed"):
        local.put_if_absent("a", b"x")


def test_file_system_without_links_is_named(local: LocalStore, monkeypatch: pytest.MonkeyPatch) -> None:
    failing(monkeypatch, "link", errno.EOPNOTSUPP)
    with pytest.raises(StorageError, match="hard links") as raised:
        local.put_if_absent("a", b"x")
    assert raised.value.code == "STORAGE_UNSUPPORTED"


def test_aborted_put_creates_nothing(local: LocalStore) -> None:
    class Stalled(LocalStore):
        def at_step(self, point: str, name: str) -> None:
            if point == "guard_passed":
                local.abort_puts(name)

    with pytest.raises(RetriableError, match="stopped by a cleaner"):
        Stalled(Path(local.root)).put_if_absent("d/a", b"x")
    assert not local.exists("d/a")


def test_abort_spares_other_names(local: LocalStore) -> None:
    class Stalled(LocalStore):
        def at_step(self, point: str, name: str) -> None:
            if point == "guard_passed":
                local.abort_puts("d/b")

    Stalled(Path(local.root)).put_if_absent("d/a", b"x")
    assert local.exists("d/a")


def test_abort_after_the_link_changes_nothing(local: LocalStore) -> None:
    class Stalled(LocalStore):
        def at_step(self, point: str, name: str) -> None:
            if point == "linked":
                local.abort_puts(name)

    Stalled(Path(local.root)).put_if_absent("d/a", b"x")
    assert local.read("d/a") == b"x"
