"""`sparklog doctor`: its checks of the environment and of a root."""

import json
import os
import stat
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from click.testing import Result

import sparklog
from sparklog.cli import doctor as checks
from sparklog.cli.doctor import check_root
from sparklog.client import SparkLog, root_checks
from sparklog.client.root_checks import (
    Finding,
    Status,
    check_incarnation,
    check_permissions,
    check_put_if_absent,
)
from sparklog.clock import ManualClock, SystemClock
from sparklog.errors import StorageError
from sparklog.format import kernels
from sparklog.maintenance import restore
from sparklog.metadata import MetadataLog, plan_abort_transactions
from sparklog.metadata.loading import write_incarnation
from sparklog.spark.interpreter import worker_python
from sparklog.storage import MemoryStore, filesystems, open_store
from sparklog.storage.base import StoreTraits
from tests.support.staged import begin, stage

# --- doctor ----------------------------------------------------------------------------------------


Run = Callable[..., Result]
OF_SPARK = {"JAVA_HOME", "PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON", "SPARK_HOME"}


def program(directory: Path, name: str, text: str) -> Path:
    path = directory / name
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return path


def environment(**changes: str) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if name not in OF_SPARK}
    return {**kept, **changes}


@pytest.mark.slow
def test_this_interpreter_is_fit_for_workers() -> None:
    found = checks.check_worker_python(environment(PYSPARK_PYTHON=worker_python()))
    assert found == Finding("PYSPARK_PYTHON", Status.OK, worker_python())
    here = str(Path(sys.executable).parent)  # whose python3 is not named: configure(builder) does that
    assert checks.check_worker_python(environment(PATH=here)).status is Status.OK


@pytest.mark.slow
@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    ("name", "check"), [("PYSPARK_PYTHON", "PYSPARK_PYTHON"), ("PYSPARK_DRIVER_PYTHON", "driver's Python")]
)
def test_an_interpreter_that_starts_slowly_is_a_warning(name: str, check: str, tmp_path: Path) -> None:
    def looked(**changes: str) -> Finding:
        findings = checks.check_interpreters(environment(**{name: sys.executable, **changes}))
        return next(one for one in findings if one.check == check)

    assert (looked().status, looked().fix) == (Status.WARN, f"export {name}={worker_python()}")
    assert "compiles pyspark anew" in looked().detail
    assert looked(**{name: worker_python()}) == Finding(check, Status.OK, worker_python())
    assert looked(SPARK_HOME=str(tmp_path)).status is Status.OK  # whose pyspark is in a zip only
    alone = program(tmp_path, "python3", f'exec {sys.executable} "$@"')
    assert looked(**{name: str(alone)}).status is Status.OK


@pytest.mark.slow
def test_a_driver_that_does_not_find_the_format_is_a_warning(tmp_path: Path) -> None:
    jupyter = program(tmp_path, "jupyter", "exit 1")
    found = checks.check_driver_python(environment(PYSPARK_DRIVER_PYTHON=str(jupyter)))
    assert (found.status, "not find the format by itself" in found.detail) == (Status.WARN, True)
    assert "sparklog.register(spark)" in found.fix
    assert "driver's Python" not in {one.check for one in checks.check_interpreters(environment())}


@pytest.mark.slow
def test_a_driver_that_does_not_run_beside_the_workers_is_refused(tmp_path: Path) -> None:
    """That the format is registered would not help."""
    newer = program(tmp_path, "python3", "echo 3.99")
    for named, says in (("/nowhere", "no such program"), (str(newer), "another Python version, 3.99")):
        found = checks.check_driver_python(environment(PYSPARK_DRIVER_PYTHON=named))
        assert (found.status, says in found.detail) == (Status.FAIL, True)
        assert found.fix == f"export PYSPARK_DRIVER_PYTHON={worker_python()}"


@pytest.mark.slow
def test_interpreter_without_sparklog_is_refused_when_named(tmp_path: Path) -> None:
    other = program(tmp_path, "python3", "exit 1")
    found = checks.check_worker_python(environment(PYSPARK_PYTHON=str(other)))
    assert found.status is Status.FAIL
    assert "cannot import sparklog" in found.detail
    assert worker_python() in found.fix
    assert checks.check_worker_python(environment(PATH=str(tmp_path))).status is Status.WARN
    assert checks.check_worker_python(environment(PYSPARK_PYTHON="/nowhere")).status is Status.FAIL


@pytest.mark.slow
def test_interpreter_that_finds_sparklog_and_not_what_it_needs_is_refused(tmp_path: Path) -> None:
    """As with PYTHONPATH naming a clone: `import sparklog` itself imports nothing else."""
    (tmp_path / "pyarrow.py").write_text("raise ModuleNotFoundError(\"No module named 'pyarrow'\")")
    path = os.pathsep.join([str(tmp_path), *sys.path])
    found = checks.check_worker_python(environment(PYSPARK_PYTHON=sys.executable, PYTHONPATH=path))
    assert (found.status, "No module named 'pyarrow'" in found.detail) == (Status.FAIL, True)


@pytest.mark.slow
def test_interpreter_of_another_version_is_refused(tmp_path: Path) -> None:
    other = program(tmp_path, "python3", "echo 3.99")
    found = checks.check_worker_python(environment(PYSPARK_PYTHON=str(other)))
    assert (found.status, "another Python version, 3.99" in found.detail) == (Status.FAIL, True)


def test_compiled_loops_that_cannot_be_used_are_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    assert checks.check_kernels() == Finding("compiled loops", Status.OK, "usable")
    monkeypatch.setattr(kernels, "VERSION", kernels.VERSION + 1)
    found = checks.check_kernels()
    assert (found.status, "built from other sources" in found.detail) == (Status.FAIL, True)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("script", "detail"),
    [
        ("exit 1", "cannot run"),
        ("echo 'openjdk version \"11.0.2\"' >&2", 'version "11.0.2"'),
        (
            '[ "$1" = --add-modules ] && exit 1; echo \'openjdk version "17.0.1"\' >&2',
            "without jdk.incubator.vector",
        ),
    ],
)
def test_java_that_spark_cannot_use_is_refused(tmp_path: Path, script: str, detail: str) -> None:
    (tmp_path / "bin").mkdir()
    program(tmp_path / "bin", "java", script)
    found = checks.check_java(environment(JAVA_HOME=str(tmp_path)))
    assert found.status is Status.FAIL
    assert detail in found.detail
    assert "openjdk-17" in found.fix


@pytest.mark.slow
def test_java_of_this_machine_is_fit() -> None:
    assert checks.check_java(os.environ).status is Status.OK


@pytest.mark.slow
def test_other_spark_home_is_a_warning(tmp_path: Path) -> None:
    findings = {f.check: f for f in checks.check_environment(environment(SPARK_HOME=str(tmp_path)))}
    assert findings["pyspark"].status is Status.WARN
    assert "another Spark" in findings["pyspark"].detail


def test_storage_that_lets_two_win_is_refused() -> None:
    class Careless(MemoryStore):
        def put_if_absent(self, name: str, data: bytes, **_: Any) -> None:
            pass

    found = check_put_if_absent(Careless("careless"))
    assert found.status is Status.FAIL
    assert "4 of 4 racing writers created the same name" in found.detail


def test_read_only_root_is_named() -> None:
    class ReadOnly(MemoryStore):
        def put_if_absent(self, name: str, data: bytes, **_: Any) -> None:
            raise StorageError("STORAGE_FAILED", f"{name}: read-only", fix="mount it writable")

    found = check_put_if_absent(ReadOnly("read-only"))
    assert (found.check, found.status) == ("writable", Status.FAIL)


def test_good_root_leaves_no_trace_of_the_probe(run: Run, root: Path) -> None:
    run("produce", "--topic", "t", stdin="a\nb\n")
    before = sorted(path for path in root.rglob("*") if path.is_file())
    findings = list(check_root(str(root), deep=True))
    assert {found.status for found in findings} == {Status.OK}
    assert findings[-1].detail == "1 extents read, 2 records, all checksums right"
    assert sorted(path for path in root.rglob("*") if path.is_file()) == before


@pytest.mark.parametrize("writable", [".", "_metadata"])
def test_a_root_that_everybody_may_write_to_is_a_warning(tmp_path: Path, writable: str) -> None:
    (tmp_path / "_metadata").mkdir(mode=0o755)
    (tmp_path / "loop").symlink_to(tmp_path / "nowhere")
    assert check_permissions(tmp_path).status is Status.OK
    path = tmp_path / writable
    path.chmod(0o777)
    found = check_permissions(tmp_path)
    assert found.status is Status.WARN
    assert str(path) in found.detail
    assert "umask" in found.fix


def on_nfs(monkeypatch: pytest.MonkeyPatch, root: Path) -> None:
    """Let the root's parent be an NFS mount."""
    number = root.parent.stat().st_dev
    table = root.parent / "mountinfo"
    table.write_text(
        f"9 1 {os.major(number)}:{os.minor(number)} / {root.parent} rw - nfs4 host:/export rw,noac\n"
    )
    monkeypatch.setattr(filesystems, "MOUNTINFO", str(table))


def test_the_file_system_of_a_root_is_told(run: Run, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run("produce", "--topic", "t", stdin="a\n")
    found = {found.check: found for found in check_root(str(root), deep=False)}
    assert (found["file system"].status, found["file system"].fix) == (Status.OK, "")
    on_nfs(monkeypatch, root)
    (refused,) = check_root(str(root), deep=False)
    assert (refused.check, refused.status) == ("root", Status.FAIL)
    assert "nfs4" in refused.detail
    assert "allow_unsafe_filesystem" in refused.fix
    monkeypatch.setenv("SPARKLOG_ALLOW_UNSAFE_FILESYSTEM", "true")
    found = {found.check: found for found in check_root(str(root), deep=False)}
    assert found["file system"].status is Status.WARN
    assert "nfs4" in found["file system"].detail
    assert "allowed by the user" in found["file system"].detail


def test_a_flag_allows_an_unsafe_file_system(run: Run, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPARKLOG_ALLOW_UNSAFE_FILESYSTEM", "false")  # restored after the test
    on_nfs(monkeypatch, root)
    assert "UNSAFE_FILESYSTEM" in run("topics", "create", "--topic", "t", exit_code=1).stderr
    run("--allow-unsafe-filesystem", "topics", "create", "--topic", "t")
    assert os.environ["SPARKLOG_ALLOW_UNSAFE_FILESYSTEM"] == "true"  # also for what a command starts


def test_leftovers_and_damage_are_found(run: Run, root: Path) -> None:
    run("produce", "--topic", "t", stdin="a\n")
    leftover = root / ".tmp" / "put.1.abc"
    leftover.parent.mkdir(exist_ok=True)
    leftover.write_bytes(b"12345")
    (segment,) = root.glob("segments/*/*.log")
    segment.chmod(stat.S_IRUSR | stat.S_IWUSR)
    data = bytearray(segment.read_bytes())
    data[-1] ^= 1
    segment.write_bytes(data)
    findings = {found.check: found for found in check_root(str(root), deep=True)}
    assert findings["temporary files"].detail.startswith("1 files of unfinished writes, 5 B")
    assert findings["segments"].status is Status.FAIL
    assert "CRC-32C" in findings["segments"].detail
    assert open_store(root).exists("meta.properties")


def test_what_nothing_refers_to_is_counted(run: Run, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run("produce", "--topic", "t", stdin="a\n")
    (live,) = root.glob("segments/*/*.log")
    live.with_name("00000007.0.log").write_bytes(b"x" * 2000)
    live.with_name("00000007.0.index").write_bytes(b"x" * 8)
    live.with_name("notes").write_bytes(b"x")

    def looked() -> Finding:
        return next(one for one in check_root(str(root), deep=False) if one.check == "unused files")

    size = live.stat().st_size
    told = f"2 files, 2.0 kB, that nothing refers to; in use: 1 files, {size} B"
    assert (looked().status, looked().detail) == (Status.OK, told)
    monkeypatch.setattr("sparklog.client.root_checks.MUCH_UNUSED_BYTES", 2007)
    assert looked().status is Status.WARN
    assert "sparklog vacuum" in looked().fix
    monkeypatch.setattr("sparklog.client.root_checks.USAGE_LIMIT_MS", 0)
    assert looked().detail.startswith("at least 0 files")


@pytest.mark.slow
def test_missing_root_fails_the_command(run: Run, root: Path) -> None:
    result = run("doctor", "--output", "json", exit_code=1)
    findings = json.loads(result.stdout)
    assert findings[-1]["check"] == "root"
    assert findings[-1]["status"] == "fail"
    assert set(findings[-1]) == {"check", "status", "detail", "fix"}
    assert "checks failed: root" in result.stderr
    assert not root.exists()


def test_deep_needs_a_root(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SPARKLOG_ROOT")
    assert "--deep reads a root" in run("doctor", "--deep", exit_code=2).stderr


def test_a_restore_that_was_interrupted_is_told() -> None:
    clock = ManualClock()
    store = MemoryStore("tests", clock=clock, traits=StoreTraits(is_remote=True))
    log = SparkLog(store, MetadataLog.open(store, clock, create=True), clock)
    log.create_topic("t", 1)
    assert list(check_incarnation(log)) == []
    write_incarnation(store, "R" * 22)
    (found,) = check_incarnation(log)
    assert (found.status, found.fix) == (
        Status.FAIL,
        "run `sparklog root restore` again: it was interrupted",
    )
    restore(log.metadata, clock)
    assert list(check_incarnation(log)) == []


# --- doctor transactions ---------------------------------------------------------------------------


HOUR_MS = 3_600_000


@pytest.fixture
def log(root: Path) -> Iterator[SparkLog]:
    clock = ManualClock(SystemClock().now_ms() - 4 * HOUR_MS)  # no time is older than the newest commit
    with sparklog.open(str(root), clock=clock) as log:
        log.create_topic("t", 2)
        yield log


def looked(root: Path, *, deep: bool = False) -> dict[str, Finding]:
    return {found.check: found for found in check_root(str(root), deep=deep)}


def damage(path: Path) -> None:
    path.chmod(stat.S_IRUSR | stat.S_IWUSR)
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)


def test_a_root_without_them_is_not_asked(log: SparkLog, root: Path) -> None:
    assert "transactions" not in looked(root)
    assert "staged" not in looked(root, deep=True)


def test_what_is_open_is_counted(log: SparkLog, root: Path) -> None:
    for name in ("a", "b"):
        begin(log, name)
    stage(log, 0, b"x", b"y", name="a", started_ms=SystemClock().now_ms())
    found = looked(root)["transactions"]
    size = log.refresh().transactions["a"].staged_bytes
    assert (found.status, found.detail) == (Status.OK, f"ids: 2; open: 1, 1 extents staged, {size} B")


def test_what_hangs_is_a_warning(log: SparkLog, root: Path, run: Run) -> None:
    long_ago_ms = SystemClock().now_ms() - 2 * HOUR_MS
    for number in range(6):
        begin(log, f"app-{number}", started_ms=long_ago_ms)
        stage(log, 0, b"x", name=f"app-{number}", started_ms=long_ago_ms)
    found = looked(root)["transactions"]
    assert found.status is Status.WARN
    assert "past their time-out: 6, such as 'app-0' (begun 2 h ago), 'app-1'" in found.detail
    assert "app-5" not in found.detail
    command = found.fix.split("`")[1]
    run(*command.split()[1:])
    assert looked(root)["transactions"].status is Status.OK


def test_what_is_staged_is_read(log: SparkLog, root: Path) -> None:
    begin(log)
    log.append("t", pa.table({"value": [b"before"]}), partition=0)
    for sequence in range(3):
        stage(log, sequence, b"%d" % sequence)
    found = looked(root, deep=True)
    assert found["segments"].detail == "1 extents read, 1 records, all checksums right"
    told = "3 extents of 1 transactions read, 3 records, all checksums right"
    assert (found["staged"].status, found["staged"].detail) == (Status.OK, told)


@pytest.mark.slow
@pytest.mark.parametrize("is_gone", [False, True])
def test_damage_in_what_is_staged_is_found(log: SparkLog, root: Path, run: Run, *, is_gone: bool) -> None:
    begin(log)
    stage(log, 0, b"good")
    segment = stage(log, 1, b"bad")
    if is_gone:
        (root / segment).unlink()
    else:
        damage(root / segment)
    found = looked(root, deep=True)
    assert found["segments"].status is Status.OK
    assert found["staged"].status is Status.FAIL
    assert found["staged"].detail.startswith("transactional id 'app': ")
    assert f"t-0 in {segment}" in found["staged"].detail
    assert ("SEGMENT_MISSING" if is_gone else "CRC-32C") in found["staged"].detail
    assert "sparklog transactions abort --transactional-id app" in found["staged"].fix
    result = run("doctor", "--deep", "--output", "json", exit_code=1)
    assert {one["check"]: one["status"] for one in json.loads(result.stdout)}["staged"] == "fail"


def test_what_was_aborted_and_removed_meanwhile_is_no_damage(
    log: SparkLog, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begin(log)
    segment = stage(log, 0, b"x")
    read = root_checks.read_staged

    def after_an_abort(*arguments: object) -> object:
        log.metadata.publish(lambda image: plan_abort_transactions(image, ["app"], now_ms=log.clock.now_ms()))
        (root / segment).unlink()
        return read(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(root_checks, "read_staged", after_an_abort)
    found = looked(root, deep=True)["staged"]
    assert (found.status, found.detail.startswith("0 extents of 0 transactions")) == (Status.OK, True)
