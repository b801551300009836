"""Which file systems a root is opened on, and what is said about the others."""

import errno
import logging
import multiprocessing
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

import sparklog
from sparklog.errors import InvalidRequestError, StorageError
from sparklog.storage import filesystems, open_store
from sparklog.storage.filesystems import Mount, Trust, judge, mount_of
from sparklog.storage.local_files import storage_error
from tests.support.told import Told

ROOT = "27 1 0:1 / / rw,relatime - ext4 /dev/vda rw"
SFTP_SERVERS = (
    "/usr/lib/openssh/sftp-server",
    "/usr/libexec/openssh/sftp-server",
    "/usr/lib/ssh/sftp-server",
)
RACERS, COMMITS = 4, 15


def mounted(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, *lines: str) -> None:
    """Let these be the mounts."""
    table = tmp_path / "mountinfo"
    table.write_text("".join(f"{line}\n" for line in lines))
    monkeypatch.setattr(filesystems, "MOUNTINFO", str(table))
    monkeypatch.setattr(filesystems, "logged_mounts", set())


def line(path: Path, kind: str, options: str = "rw", device: str = "") -> str:
    """A mount, of the device that the directory really is on if no other is named."""
    number = os.stat(path if path.exists() else path.parent).st_dev
    device = device or f"{os.major(number)}:{os.minor(number)}"
    escaped = str(path).replace(" ", "\\040")
    return f"99 27 {device} / {escaped} rw,relatime shared:5 - {kind} host:/export {options}"


@pytest.mark.parametrize("kind", ["ext4", "xfs", "btrfs", "zfs", "tmpfs", "overlay", "f2fs", "bcachefs"])
def test_local_file_systems_are_trusted(kind: str) -> None:
    assert judge(Mount(kind=kind)) == (Trust.TRUSTED, "")


@pytest.mark.parametrize("kind", ["ceph", "lustre", "gpfs", "gfs2", "ocfs2", "brandnewfs", "vfat", ""])
def test_what_may_well_do_is_untried(kind: str) -> None:
    trust, why = judge(Mount(kind=kind))
    assert (trust, bool(why)) == (Trust.UNTRIED, True)


@pytest.mark.parametrize(
    "kind",
    [
        "nfs", "nfs4", "cifs", "smb3", "9p", "virtiofs", "drvfs", "fakeowner", "vboxsf", "beegfs",
        "fuse", "fuseblk", "fuse.sshfs", "fuse.grpcfuse",
    ],
)  # fmt: skip
def test_what_caches_names_is_unsafe(kind: str) -> None:
    trust, why = judge(Mount(kind=kind))
    assert (trust, bool(why)) == (Trust.UNSAFE, True)


@pytest.mark.parametrize("kind", ["nfs", "nfs4"])
def test_nfs_must_cache_neither_names_nor_attributes(kind: str) -> None:
    def trust(options: str) -> Trust:
        return judge(Mount(kind=kind, options=frozenset(options.split(","))))[0]

    assert trust("rw,lookupcache=none,noac") is Trust.UNTRIED
    assert trust("rw,acregmin=0,acregmax=0,acdirmin=0,acdirmax=0,lookupcache=none") is Trust.UNTRIED
    assert trust("rw,lookupcache=none") is Trust.UNSAFE
    assert trust("rw,noac") is Trust.UNSAFE
    assert trust("rw,acregmin=0,acdirmin=0,lookupcache=none") is Trust.UNSAFE


def test_the_nearest_mount_counts(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    share = tmp_path / "a share"
    (share / "deep").mkdir(parents=True)
    mounted(
        monkeypatch, tmp_path, ROOT, line(share, "nfs4", "rw,noac"), line(tmp_path / "a shar", "cifs"), "torn"
    )
    found = mount_of(str(share / "deep" / "not there yet"))
    assert (found.kind, found.point) == ("nfs4", str(share))
    assert {"noac", "relatime"} <= found.options
    assert mount_of("/").kind == "ext4"


def test_a_device_that_no_mount_has_leaves_the_nearest(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Files of btrfs have a device of their own for each subvolume."""
    mounted(monkeypatch, tmp_path, ROOT, line(tmp_path, "btrfs", device="0:99"))
    assert mount_of(str(tmp_path)).kind == "btrfs"


def test_the_last_of_several_mounts_at_one_place_counts(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    mounted(monkeypatch, tmp_path, line(tmp_path, "cifs"), line(tmp_path, "xfs"))
    assert mount_of(str(tmp_path)).kind == "xfs"


def test_a_mount_that_another_one_hides_does_not_count(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "a").mkdir()
    mounted(monkeypatch, tmp_path, line(tmp_path / "a", "cifs", device="0:99"), line(tmp_path, "xfs"))
    assert mount_of(str(tmp_path / "a")).kind == "xfs"


def test_a_link_leads_to_where_the_root_is(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "share").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "share")
    mounted(monkeypatch, tmp_path, ROOT, line(tmp_path / "share", "virtiofs"))
    with pytest.raises(InvalidRequestError, match="virtiofs"):
        open_store(tmp_path / "link")


def test_an_unsafe_root_is_refused_before_it_is_made(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    mounted(monkeypatch, tmp_path, ROOT, line(tmp_path, "nfs4"))
    with pytest.raises(InvalidRequestError, match=r"found nfs4 mounted at .*lookupcache=none") as raised:
        sparklog.open(tmp_path / "root")
    assert raised.value.code == "UNSAFE_FILESYSTEM"
    for way in ("allow_unsafe_filesystem", "--allow-unsafe-filesystem", "SPARKLOG_ALLOW_UNSAFE_FILESYSTEM"):
        assert way in raised.value.fix
    assert not (tmp_path / "root").exists()


@pytest.mark.parametrize("allowed", [True, "true", "True"])
def test_an_unsafe_root_is_opened_for_who_says_so(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, told: Told, allowed: object
) -> None:
    mounted(monkeypatch, tmp_path, ROOT, line(tmp_path, "nfs4"))
    for _ in range(2):
        sparklog.open(tmp_path / "root", storage_options={"allow_unsafe_filesystem": allowed})
    (record,) = told.records("sparklog.storage")
    assert record.levelno == logging.WARNING
    assert "nfs4" in record.getMessage()
    assert "allowed by the user" in record.getMessage()


def test_the_environment_allows_it_too_and_the_option_wins(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    mounted(monkeypatch, tmp_path, ROOT, line(tmp_path, "fuse.sshfs"))
    monkeypatch.setenv("SPARKLOG_ALLOW_UNSAFE_FILESYSTEM", "true")
    open_store(tmp_path)
    with pytest.raises(InvalidRequestError, match="UNSAFE_FILESYSTEM"):
        open_store(tmp_path, storage_options={"allow_unsafe_filesystem": "false"})
    monkeypatch.setenv("SPARKLOG_ALLOW_UNSAFE_FILESYSTEM", "maybe")
    with pytest.raises(InvalidRequestError, match="expected true or false"):
        open_store(tmp_path)


def test_an_untried_root_is_opened_and_spoken_of_once(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, told: Told
) -> None:
    mounted(monkeypatch, tmp_path, ROOT, line(tmp_path, "ceph"))
    for _ in range(2):
        open_store(tmp_path)
    (record,) = told.records("sparklog.storage")
    assert record.levelno == logging.WARNING
    assert "untested" in record.getMessage()


def test_a_machine_that_does_not_tell_its_mounts_is_untried(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, told: Told
) -> None:
    mounted(monkeypatch, tmp_path)
    monkeypatch.setattr(filesystems, "MOUNTINFO", str(tmp_path / "none"))
    open_store(tmp_path)
    (message,) = told("sparklog.storage")
    assert "its type is unknown" in message


def test_other_options_of_a_directory_are_refused(tmp_path: Path) -> None:
    for options in ({"key": "k"}, {"key": "k", "allow_unsafe_filesystem": True}):
        with pytest.raises(InvalidRequestError, match="expected none but allow_unsafe_filesystem"):
            open_store(tmp_path, storage_options=options)
    with pytest.raises(InvalidRequestError, match="expected none:"):
        open_store("memory://x", storage_options={"allow_unsafe_filesystem": True})


def test_a_file_system_without_hard_links_is_told_as_what_it_is() -> None:
    refused = OSError(errno.EPERM, os.strerror(errno.EPERM))
    found: StorageError = storage_error("link", "/usb/root/a", refused)
    assert found.code == "STORAGE_UNSUPPORTED"
    assert "hard links" in found.fix
    assert storage_error("create", "/usb/root/a", refused).code == "STORAGE_REFUSED"


@pytest.mark.parametrize(
    ("action", "fix"), [("read", "read the file"), ("list", "read the file"), ("put", "directory writable")]
)
def test_the_fix_fits_what_was_refused(action: str, fix: str) -> None:
    refused = OSError(errno.EACCES, os.strerror(errno.EACCES))
    assert fix in storage_error(action, "/root/a", refused).fix


# --- real FUSE mounts: one machine, so nothing is cached that others change --------------------------


def sshfs_command(tmp_path: Path) -> list[str]:
    """sshfs without ssh: what it starts is the server itself."""
    server = next((path for path in SFTP_SERVERS if Path(path).exists()), None)
    if server is None:
        pytest.skip("needs OpenSSH's sftp-server")
    script = tmp_path / "ssh"
    script.write_text(f"#!/bin/sh\nexec {server}\n")
    script.chmod(0o755)
    return ["sshfs", "-o", f"ssh_command={script}", f"nobody@localhost:{tmp_path}/behind"]


@pytest.fixture(params=["bindfs", "sshfs"])
def fuse(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Path]:
    """A FUSE mount of a local directory."""
    program = str(request.param)
    if shutil.which(program) is None or not Path("/dev/fuse").exists():
        pytest.skip(f"needs {program} and /dev/fuse")
    (tmp_path / "behind").mkdir()
    (tmp_path / "fuse").mkdir()
    words = ["bindfs", str(tmp_path / "behind")] if program == "bindfs" else sshfs_command(tmp_path)
    done = subprocess.run(
        [*words, str(tmp_path / "fuse")], capture_output=True, text=True, check=False, timeout=30
    )
    if done.returncode:
        pytest.skip(f"{program} cannot mount here: {done.stderr.strip()}")
    yield tmp_path / "fuse"
    subprocess.run(["umount", "--lazy", str(tmp_path / "fuse")], check=True, timeout=30)


def publish_some(root: str, name: str) -> None:
    with sparklog.open(root, storage_options={"allow_unsafe_filesystem": True}) as log:
        for number in range(COMMITS):
            log.append("t", pa.table({"value": [f"{name}-{number}"]}))


@pytest.mark.slow
def test_a_fuse_mount_is_refused(fuse: Path) -> None:
    with pytest.raises(InvalidRequestError, match=r"UNSAFE_FILESYSTEM.*found fuse"):
        sparklog.open(fuse / "root")


@pytest.mark.slow
@pytest.mark.timeout(120)
def test_publishers_race_on_a_fuse_mount_that_is_allowed(fuse: Path) -> None:
    """Nothing is lost and nothing twice, as long as all of them use the one mount."""
    root, options = fuse / "root", {"allow_unsafe_filesystem": True}
    with sparklog.open(root, storage_options=options) as log:
        log.create_topic("t", partitions=1)
    context = multiprocessing.get_context("spawn")
    racers = [
        context.Process(target=publish_some, args=(str(root), f"p{number}")) for number in range(RACERS)
    ]
    for racer in racers:
        racer.start()
    for racer in racers:
        racer.join()
    assert [racer.exitcode for racer in racers] == [0] * RACERS
    for directory in (root, fuse.parent / "behind" / "root"):
        with sparklog.open(directory, create=False, storage_options=options) as log:
            values = [
                value for batch in log.read_batches("t", 0) for value in batch.column("value").to_pylist()
            ]
        assert sorted(values) == sorted(
            f"p{number}-{commit}".encode() for number in range(RACERS) for commit in range(COMMITS)
        )
