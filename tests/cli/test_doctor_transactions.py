"""What `sparklog doctor` says of transactions: those that nobody ends, and what they have staged."""

import json
import stat
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from click.testing import Result

import sparklog
from sparklog.cli import doctor as transaction_checks
from sparklog.cli.doctor import Finding, Status, check_root
from sparklog.client import SparkLog
from sparklog.clock import ManualClock, SystemClock
from sparklog.metadata import plan_abort_transactions
from tests.support.staged import begin, stage

Run = Callable[..., Result]
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
    read = transaction_checks.read_staged

    def after_an_abort(*arguments: object) -> object:
        log.metadata.publish(lambda image: plan_abort_transactions(image, ["app"], now_ms=log.clock.now_ms()))
        (root / segment).unlink()
        return read(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(transaction_checks, "read_staged", after_an_abort)
    found = looked(root, deep=True)["staged"]
    assert (found.status, found.detail.startswith("0 extents of 0 transactions")) == (Status.OK, True)
