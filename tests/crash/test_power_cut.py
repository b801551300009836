"""Power cuts: an image is copied while a log on it is written; what was acknowledged is in the copy.

Of ext4, xfs and btrfs. The copy is what a disk holds at that moment: everything synced, and of the rest what
the kernel happened to write. The journal's timer is set to minutes, where there is one, so that nothing
becomes durable unless somebody asked for it; xfs writes its log every half minute, longer than a cut takes.
A cut comes while a writer is held at a failpoint, or stopped at a random moment; the copy counts only if
nothing was written to the image meanwhile. Needs the right to mount loop devices: skipped, with the reason,
without it, as are file systems without their mkfs. SPARKLOG_CHAOS_CUTS sets the number of cuts on ext4 (make
chaos: 40; half as many on the others), SPARKLOG_SEED repeats a run.
Tried: on ext4 it notices at once when data or commits are not synced, or the names of commits. A new
segment's name it cannot miss: ext4 makes it durable with the file. tests/storage looks for that sync itself.
"""

import gc
import os
import random
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

import sparklog
from sparklog.failpoints import FAILPOINTS
from tests.crash.matrix import Children, Matrix, cells, problems_of, replay_problems

CUTS = int(os.environ.get("SPARKLOG_CHAOS_CUTS", "6"))
SEED = int(os.environ.get("SPARKLOG_SEED", str(random.SystemRandom().randrange(1 << 31))))
WRITERS = ("embedded", "sink", "broker")
MAINTENANCE = tuple(name for name in FAILPOINTS if name.startswith(("merge.", "compact.", "vacuum.")))


@dataclass(frozen=True, slots=True, kw_only=True)
class FileSystem:
    """One to cut the power of.

    Args:
        options: of the mount.
        copy_options: of a copy's, beside the original, which has the same name.
        cuts: how many.
    """

    mkfs: tuple[str, ...]
    image_bytes: int
    options: str
    copy_options: str
    cuts: int


FILE_SYSTEMS = {
    "ext4": FileSystem(
        mkfs=("mkfs.ext4", "-q", "-F"),
        image_bytes=48 << 20,
        options="loop,commit=300",
        copy_options="loop,commit=300",
        cuts=CUTS,
    ),
    "xfs": FileSystem(
        mkfs=("mkfs.xfs", "-q", "-f"),
        image_bytes=320 << 20,
        options="loop",
        copy_options="loop,nouuid",
        cuts=max(3, CUTS // 2),
    ),
    "btrfs": FileSystem(  # its clones are told apart since Linux 6.7
        mkfs=("mkfs.btrfs", "-q", "-f", "-m", "single"),
        image_bytes=160 << 20,
        options="loop,commit=300",
        copy_options="loop,commit=300",
        cuts=max(3, CUTS // 2),
    ),
}


def run(*words: str) -> str:
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    if done.returncode:
        raise OSError(f"{' '.join(words)}: {done.stderr.strip() or done.stdout.strip()}")
    return done.stdout.strip()


@contextmanager
def mounted(image: Path, directory: Path, options: str) -> Iterator[str]:
    """The image as a file system; the name of its loop device."""
    directory.mkdir()
    run("mount", "-o", options, str(image), str(directory))
    try:
        yield run("findmnt", "-n", "-o", "SOURCE", str(directory)).removeprefix("/dev/")
    finally:
        gc.collect()  # mapped files keep it busy
        run("umount", "--lazy", str(directory))  # whatever is still open; the kernel does the rest
        directory.rmdir()


@pytest.fixture(params=sorted(FILE_SYSTEMS))
def disk(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[Path, Path, str, FileSystem]]:
    """An image, where it is mounted, its device, and what it is."""
    kind = FILE_SYSTEMS[request.param]
    if shutil.which(kind.mkfs[0]) is None:
        pytest.skip(f"needs {kind.mkfs[0]}")
    memory = Path("/dev/shm")  # where there is one, copying is quick
    home = memory / f"sparklog-{os.getpid()}-{tmp_path.name}" if memory.is_dir() else tmp_path / "images"
    home.mkdir()
    try:
        image = home / "disk"
        with image.open("wb") as file:
            file.truncate(kind.image_bytes)
        try:
            run(*kind.mkfs, str(image))
            with mounted(image, tmp_path / "try", kind.options):
                pass
        except OSError as error:
            pytest.skip(f"this machine does not allow loop mounts of {request.param}: {error}")
        with mounted(image, tmp_path / "disk", kind.options) as device:
            yield image, tmp_path / "disk", device, kind
    finally:
        shutil.rmtree(home)


def sectors_written(device: str) -> str:
    return Path(f"/sys/block/{device}/stat").read_text().split()[6]


def copied(image: Path, device: str, number: int) -> Path:
    """The image as of one moment: copied again until nothing was written meanwhile."""
    copy = image.with_name(f"copy-{number}")  # the kernel may still use the one before
    while True:
        before = sectors_written(device)
        run("cp", "--sparse=always", str(image), str(copy))
        if sectors_written(device) == before:
            return copy


@pytest.mark.timeout(60 + 5 * CUTS)
def test_what_was_acknowledged_survives_a_power_cut(
    disk: tuple[Path, Path, str, FileSystem], tmp_path: Path, report: Callable[[str], None]
) -> None:
    report(f"SPARKLOG_SEED={SEED}")
    image, root, device, kind = disk
    dice = random.Random(SEED)
    points = [cell for cell in cells(remote=False) if cell[1]]
    dice.shuffle(points)
    children = Children({})
    held = 0
    try:
        with Matrix(children, str(root / "log"), tmp_path, SEED, remote=False) as matrix:
            for cut in range(kind.cuts):
                role, point = (
                    points[cut % len(points)],
                    (
                        dice.choice(WRITERS),
                        "segment.written",
                    ),  # the last acknowledgement, and nothing synced since
                    ("embedded", dice.choice(MAINTENANCE)),
                    (dice.choice(WRITERS), ""),
                )[cut % 4]
                go = tmp_path / f"cut-{cut}"
                fail = f"{point}:{dice.randint(1, 5)}:pause={go}" if point else ""
                writer = matrix.start(role, operations=20 if point else 1_000, fail=fail)
                held += hold(writer, Path(f"{go}.reached") if point else None, dice)
                acked = {name: matrix.acked(name) for name in WRITERS}
                copy = copied(image, device, cut)
                children.kill(writer)
                children.wait(writer)
                with (
                    mounted(copy, tmp_path / "copy", kind.copy_options) as copied_device,
                    sparklog.open(tmp_path / "copy/log", create=False) as log,
                ):
                    assert copied_device != device  # what we look at is the copy
                    problems = [
                        text
                        for name in WRITERS
                        for text in problems_of(log, name, acked[name], len(matrix.acked(name)) + 1)
                    ]
                    assert problems + replay_problems(log) == [], (cut, role, fail)
                copy.unlink()
                assert children.wait(matrix.start(role, operations=1)) == 0
            operations = sum(len(matrix.acked(name)) for name in WRITERS)
    finally:
        children.close()
    report(
        f"{kind.cuts} power cuts on {kind.mkfs[0].removeprefix('mkfs.')}, {held} of them in the middle of "
        f"something, {operations} operations: nothing lost"
    )
    assert held > kind.cuts // 2


def hold(pid: int, reached: Path | None, dice: random.Random) -> bool:
    """Wait until the writer is held; False if it ended before."""
    if reached is None:
        time.sleep(dice.uniform(0.02, 0.3))
        os.kill(pid, signal.SIGSTOP)
        while (state := state_of(pid)) not in {"T", "Z"}:
            os.sched_yield()
        return state == "T"
    while not reached.exists():
        if state_of(pid) == "Z":
            return False
        time.sleep(0.001)
    return True


def state_of(pid: int) -> str:
    """As in /proc: R, S, D, T (stopped), Z (ended)."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
