"""The commands of maintenance: expire, compact, optimize, vacuum, maintain."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import sparklog
from sparklog.cli.doctor import check_root
from sparklog.client import SparkLog
from sparklog.client.root_checks import Status
from sparklog.clock import SystemClock
from sparklog.errors import StorageError
from sparklog.maintenance import ROUND, alone
from sparklog.storage import Store
from sparklog.storage.local import LocalStore
from tests.cli.conftest import Run
from tests.support.broker_process import until
from tests.support.rights import closed, read_only

# --- maintain --------------------------------------------------------------------------------------


MAINTAIN = [sys.executable, "-m", "sparklog", "maintain"]


@pytest.fixture
def log(root: Path) -> Iterator[SparkLog]:
    with sparklog.open(root) as log:
        log.create_topic("t", 1)
        yield log


def fill(log: SparkLog, count: int, size: int = 1) -> None:
    for number in range(count):
        log.append("t", pa.table({"value": [f"{number}".encode() * size]}), partition=0)


def extent_count(log: SparkLog) -> int:
    return len(log.refresh().partition("t", 0).extents)


@pytest.fixture
def watch(root: Path) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Start it as a process."""
    started: list[subprocess.Popen[str]] = []

    def start(*arguments: str) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [*MAINTAIN, *arguments],
            env={**os.environ, "SPARKLOG_ROOT": str(root)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL) and None,
        )
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate()


def test_a_round_tells_what_it_did(log: SparkLog, run: Run) -> None:
    fill(log, 3)
    assert run("maintain").stdout == "Nothing is due.\n"
    told = run("maintain", "--min-input-files", "3").stdout
    assert "optimize  done" in told
    assert "merged_extents=3" in told
    assert "Extents: 3 -> 1" in told
    assert extent_count(log) == 1


def test_as_json(log: SparkLog, run_json: Callable[..., Any]) -> None:
    fill(log, 2)
    found = run_json("maintain", "t", "--min-input-files", "2", "--dry-run")
    assert set(found) == {"dry_run", "steps", "before", "after", "duration_ms", "is_stopped"}
    assert found["dry_run"] is True
    outcomes = {one["step"]: one["outcome"] for one in found["steps"]}
    assert outcomes.pop("optimize") == "due"
    assert set(outcomes.values()) == {"nothing"}
    assert set(found["steps"][0]) == {
        "step",
        "outcome",
        "figures",
        "message",
        "skipped",
        "duration_ms",
    }
    assert found["before"] == found["after"] == {"extents": 2, "bytes": found["before"]["bytes"]}


def test_a_damaged_partition_is_named_and_the_others_are_merged(log: SparkLog, run: Run, root: Path) -> None:
    fill(log, 3)
    log.close()
    (segment,) = root.glob("segments/*/*.log")
    data = bytearray(segment.read_bytes())
    data[-1] ^= 1
    segment.write_bytes(data)
    log.create_topic("u", 1)
    with sparklog.open(root) as other:
        for number in range(3):
            other.append("u", pa.table({"value": [f"{number}"]}))
    told = run("maintain", "--min-input-files", "3", exit_code=1)
    assert "optimize  done" in told.stdout
    assert "t-0 is skipped: [SPARKLOG_CORRUPT_BATCH]" in told.stderr
    assert (extent_count(log), len(log.refresh().partition("u", 0).extents)) == (3, 1)
    data[-1] ^= 1
    segment.write_bytes(data)  # restored, and asked for by hand
    assert "optimize  done" in run("maintain", "--min-input-files", "3").stdout
    assert extent_count(log) == 1


@pytest.mark.slow
def test_watching_leaves_a_damaged_partition_out(
    log: SparkLog, root: Path, watch: Callable[..., subprocess.Popen[str]]
) -> None:
    fill(log, 4)
    log.close()
    (segment,) = root.glob("segments/*/*.log")
    damaged = bytearray(segment.read_bytes())
    damaged[-1] ^= 1
    segment.write_bytes(damaged)
    log.create_topic("u", 1)
    process = watch("--watch", "--interval", "10ms", "--min-input-files", "4")
    assert process.stdout is not None
    with sparklog.open(root) as other:
        for _ in range(2):
            for number in range(4):
                other.append("u", pa.table({"value": [f"{number}"]}))
            assert process.stdout.readline().startswith("optimize: merged_extents=")
    process.send_signal(signal.SIGTERM)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 0
    assert errors.count("t-0 is skipped") == 1
    assert extent_count(log) == 4


@pytest.mark.parametrize("wrong", ["5", "5 minutesx", "-1s", "", "m"])
def test_an_interval_is_a_duration(root: Path, run: Run, wrong: str) -> None:
    assert "such as 7d" in run("maintain", "--interval", wrong, exit_code=2).stderr


def test_watching_is_no_dry_run(root: Path, run: Run) -> None:
    assert "--watch excludes --dry-run" in run("maintain", "--watch", "--dry-run", exit_code=2).stderr


def test_watching_all_the_time_is_refused(root: Path, run: Run) -> None:
    assert "longer than nothing" in run("maintain", "--watch", "--interval", "0s", exit_code=2).stderr


def test_one_at_a_time(log: SparkLog, run: Run) -> None:
    with alone(log.metadata, ROUND):
        assert "MAINTENANCE_RUNNING" in run("maintain", exit_code=1).stderr
        assert run("maintain", "--dry-run").stdout == "Nothing is due.\n"  # only looks


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_watching_goes_on_until_a_signal(
    log: SparkLog, watch: Callable[..., subprocess.Popen[str]], number: signal.Signals
) -> None:
    process = watch("--watch", "--interval", "10ms", "--min-input-files", "4")
    assert process.stdout is not None
    for _ in range(2):
        fill(log, 4)
        assert process.stdout.readline().startswith("optimize: merged_extents=")
    assert extent_count(log) < 4
    process.send_signal(number)
    _, errors = process.communicate(timeout=60)
    assert (process.returncode, errors) == (0, "")


@pytest.mark.slow
def test_a_signal_ends_a_round_that_rests(log: SparkLog, watch: Callable[..., subprocess.Popen[str]]) -> None:
    """Of a rate so low that the first step rests for hours."""
    fill(log, 8, size=1000)
    process = watch("--min-input-files", "4", "--max-bytes-per-second", "1", "--max-bytes", "1")
    until(lambda: list(Path(log.url.removeprefix("file://")).glob("segments/*/*.log"))[1:])
    process.send_signal(signal.SIGTERM)
    out, errors = process.communicate(timeout=60)
    assert process.returncode == 0, errors
    assert "cut" in out
    assert "Stopped" in errors
    assert extent_count(log) == 8


# --- maintenance words -----------------------------------------------------------------------------


@pytest.fixture
def topics(root: Path) -> Iterator[SparkLog]:
    with sparklog.open(root) as log:
        for name in ("orders-eu", "orders-us", "people"):
            log.create_topic(name, 1)
            for _ in range(2):
                log.append(name, pa.table({"value": ["x"]}))
        log.commit_offsets("g", {("people", 0): 1})
        yield log


@pytest.mark.usefixtures("topics")
@pytest.mark.parametrize(
    ("words", "meant"),
    [
        (["*"], ["orders-eu", "orders-us", "people"]),
        (["orders-*"], ["orders-eu", "orders-us"]),
        (["orders-??"], ["orders-eu", "orders-us"]),
        (["people", "*-eu", "orders-eu"], ["people", "orders-eu"]),
        (["people,orders-us"], ["people", "orders-us"]),
        (["__*"], ["__consumer_offsets"]),
        ([], ["__consumer_offsets", "orders-eu", "orders-us", "people"]),
    ],
)
def test_names_lists_and_patterns(run_json: Callable[..., Any], words: list[str], meant: list[str]) -> None:
    found = run_json("optimize", *words, "--dry-run")["topics"]
    assert sorted(one["topic"] for one in found) == sorted(meant)


@pytest.mark.usefixtures("topics")
@pytest.mark.parametrize("command", ["optimize", "compact", "expire", "maintain"])
def test_what_means_none_is_refused(run: Run, command: str) -> None:
    refused = run(command, "nothing-*", exit_code=2).stderr
    assert "found no topic for 'nothing-*'" in refused
    assert "sparklog topics list" in refused
    assert "expected names of topics" in run(command, ",", exit_code=2).stderr
    assert "did you mean 'people'" in run(command, "peple", exit_code=1).stderr


def test_a_pattern_is_acted_on(topics: SparkLog, run: Run) -> None:
    run("optimize", "orders-*")
    assert [
        len(topics.refresh().partition(name, 0).extents) for name in ("orders-eu", "orders-us", "people")
    ] == [
        1,
        1,
        2,
    ]
    run("maintain", "*", "--min-input-files", "2")
    assert len(topics.refresh().partition("people", 0).extents) == 1


# --- compact ---------------------------------------------------------------------------------------


@pytest.fixture
def table(run: Run, root: Path) -> None:
    """A compacted topic with what is superseded, deleted, and without a key; and one that keeps all."""
    run("topics", "create", "--topic", "plain")
    run("topics", "create", "--topic", "t")
    with sparklog.open(root, create=False) as log:
        for keys, values in (
            ([b"a", b"b", None], [b"1", b"1", b"x"]),
            ([b"a", b"b"], [b"2", None]),
        ):
            log.append("t", pa.table({"key": keys, "value": pa.array(values, pa.binary())}))
        log.alter_topic("t", {"cleanup.policy": "compact"})


@pytest.mark.usefixtures("table")
def test_a_dry_run_shows_and_a_run_compacts(run: Run) -> None:
    header, line = run("compact", "--dry-run").stdout.splitlines()
    assert header.split() == ["TOPIC", "PARTITIONS", "DIRTY", "CLEAN"]
    assert line.split()[:2] == ["t", "1"]
    assert run("compact", "--due").stdout != "Nothing to compact.\n"
    done = run("compact", "t")
    assert done.stderr == ""
    assert "Nothing to compact." in run("compact").stdout
    assert run("consume", "--topic", "t", "--exit-at-end").stdout.splitlines()[0] == "2"


@pytest.mark.usefixtures("table")
def test_records_without_a_key_are_told(run: Run) -> None:
    done = run("compact")
    header, line = done.stdout.splitlines()
    assert header.split()[4:9] == ["RECORDS", "SUPERSEDED", "KEYLESS", "TOMBSTONES-GONE", "KEPT"]
    assert done.stderr == "1 record had no key, and is gone.\n"
    assert "5" in line.split()


@pytest.mark.usefixtures("table")
def test_json(run_json: Callable[..., Any]) -> None:
    told = run_json("compact", "--dry-run")
    assert (told["dry_run"], [one["topic"] for one in told["topics"]]) == (True, ["t"])
    (one,) = run_json("compact")["topics"]
    assert (one["superseded"], one["keyless"], one["tombstones_kept"], one["left_out"]) == (2, 1, 1, 0)
    assert one["bytes_after"] < one["bytes_before"] == one["dirty_bytes"]


@pytest.mark.usefixtures("table")
def test_a_topic_that_is_not_compacted(run: Run) -> None:
    refused = run("compact", "plain", exit_code=1)
    assert "NOT_COMPACTED" in refused.stderr
    assert "--config cleanup.policy=compact" in refused.stderr


@pytest.mark.usefixtures("table")
def test_why_nothing_is_due(run: Run, run_json: Callable[..., Any], root: Path) -> None:
    def told(*words: str) -> tuple[str, str]:
        (one,) = run_json("compact", "t", *words)["topics"]
        return one["outcome"], one["reason"]

    assert told("--dry-run") == ("due", "")
    assert told() == ("compacted", "")
    assert told() == ("nothing_due", "nothing was written since the last compaction")
    assert "t: nothing was written since the last compaction." in run("compact").stderr
    run("topics", "alter", "--topic", "t", "--config", "min.compaction.lag.ms=1000000")
    with sparklog.open(root, create=False) as log:
        log.append("t", pa.table({"key": ["z"], "value": ["z"]}))
    assert told() == ("nothing_due", "what is not compacted is younger than min.compaction.lag.ms")
    assert "newest extent" in told("--due")[1]
    run("topics", "alter", "--topic", "t", "--config", "min.compaction.lag.ms=0")
    run("topics", "alter", "--topic", "t", "--config", "min.cleanable.dirty.ratio=0.99")
    with sparklog.open(root, create=False) as log:
        log.append("t", pa.table({"key": ["z"], "value": ["z"]}))
    outcome, reason = told("--due")
    assert (outcome, reason[:12]) == ("nothing_due", "dirty ratio ")
    assert reason.endswith(", of 0.99 (min.cleanable.dirty.ratio)")
    run("topics", "create", "--topic", "empty", "--config", "cleanup.policy=compact")
    assert run_json("compact", "empty")["topics"][0]["reason"] == "no records"


@pytest.mark.usefixtures("table")
def test_a_pattern_means_the_topics_that_are_compacted(run: Run, run_json: Callable[..., Any]) -> None:
    assert [one["topic"] for one in run_json("compact", "*", "--dry-run")["topics"]] == ["t"]
    assert "NOT_COMPACTED" in run("compact", "plain,t", exit_code=1).stderr


# --- expire ----------------------------------------------------------------------------------------


DAY_MS = 86_400_000


@pytest.fixture
def kept_for_a_day(root: Path) -> None:
    """A topic with a record of now, and one of 1970 before it."""
    with sparklog.open(root) as log:
        log.create_topic(
            "t", 1, {"retention.ms": str(DAY_MS), "message.timestamp.before.max.ms": str(1 << 60)}
        )
        for timestamp in (0, SystemClock().now_ms()):
            log.append("t", pa.table({"value": [b"x"], "timestamp": pa.array([timestamp], pa.int64())}))


@pytest.mark.usefixtures("kept_for_a_day")
def test_a_clock_that_is_ahead_of_the_storage_removes_nothing_early(
    run_json: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    real = SystemClock.now_ms
    monkeypatch.setattr(SystemClock, "now_ms", lambda self: real(self) + 365 * DAY_MS)
    for arguments in (("--dry-run",), ()):
        (one,) = run_json("expire", *arguments)["partitions"]
        assert (one["log_start_offset"], one["new_log_start_offset"], one["offsets"]) == (0, 1, 1)
    assert run_json("expire")["partitions"] == []


@pytest.mark.usefixtures("kept_for_a_day")
def test_a_root_that_takes_no_file_is_still_shown(
    run_json: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    def takes_none(_store: Store, _here_ms: int) -> int:
        raise StorageError("STORAGE_REFUSED", "read-only file system", fix="mount it for writing")

    monkeypatch.setattr(LocalStore, "storage_now_ms", takes_none)
    (one,) = run_json("expire", "--dry-run")["partitions"]
    assert one["offsets"] == 1
    assert run_json("compact", "--dry-run")["topics"] == []


# --- vacuum ----------------------------------------------------------------------------------------


WEEK_S = 7 * 86_400


@pytest.fixture
def garbage(run: Run, root: Path) -> Path:
    """A root with live data, and more than a week old; of what is in it, the file of a deleted topic."""
    run("topics", "create", "--topic", "gone")
    run("produce", "--topic", "gone", stdin="x\n" * 100)
    run("topics", "create", "--topic", "kept")
    run("produce", "--topic", "kept", stdin="a\nb\n")
    (garbage,) = [path for path in root.glob("segments/*/*.log") if path.stat().st_size > 100]
    run("topics", "delete", "--topic", "gone", "--yes")
    for path in root.rglob("*"):
        if path.is_file():
            os.utime(path, (path.stat().st_mtime - WEEK_S - 60,) * 2)
    return garbage


def test_a_dry_run_shows_and_a_run_removes(garbage: Path, run: Run, root: Path) -> None:
    shown = run("vacuum", "--dry-run")
    name = str(garbage.relative_to(root))
    size = garbage.stat().st_size
    assert [line.split() for line in shown.stdout.splitlines()][:2] == [
        ["FILE", "SIZE", "BORN"],
        [name, str(size), "B", name.split(".")[1]],
    ]
    assert ["would", "go", "1", str(size), "B"] in [line.split() for line in shown.stdout.splitlines()]
    assert garbage.exists()
    done = run("vacuum")
    assert ["removed", "1", str(size), "B"] in [line.split() for line in done.stdout.splitlines()]
    assert "FILE " not in done.stdout
    assert not garbage.exists()
    assert run("consume", "--topic", "kept", "--exit-at-end").stdout == "a\nb\n"
    assert ["removed", "0", "0", "B"] in [line.split() for line in run("vacuum").stdout.splitlines()]


def test_json_of_vacuum(garbage: Path, run_json: Callable[..., Any], root: Path) -> None:
    name, size = str(garbage.relative_to(root)), garbage.stat().st_size
    told = run_json("vacuum", "--dry-run", "--retain", "168h")
    assert told["dry_run"] is True
    assert told["retain_ms"] == WEEK_S * 1000
    assert (told["dead"], told["horizon_before"]) == ({"files": 1, "size_bytes": size}, -1)
    (named,) = told["named"]
    assert (named["name"], named["size_bytes"], named["born"]) == (name, size, int(name.split(".")[1]))
    assert run_json("vacuum") == {**told, "dry_run": False, "named": []}


def test_a_topic_that_may_not_be_swept_is_named(
    run: Run, unprivileged: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = unprivileged / "log"
    monkeypatch.setenv("SPARKLOG_ROOT", str(root))
    isolated = ("--config", "sparklog.segment.isolation=true")
    for topic in ("secret", "orders"):
        run("topics", "create", "--topic", topic, *isolated)
        run("produce", "--topic", topic, stdin="x\n")
        run("topics", "delete", "--topic", topic, "--yes")
    run("topics", "create", "--topic", "t")
    for path in [path for path in root.rglob("*") if path.is_file()]:
        os.utime(path, (path.stat().st_mtime - WEEK_S - 60,) * 2)
    with read_only(root / "isolated/secret"):
        done = run("vacuum", exit_code=1)
        assert "isolated/secret/ is closed to this process" in done.stderr
        assert "removed 1" in " ".join(done.stdout.split())
        (told,) = json.loads(run("vacuum", "--output", "json", exit_code=1).stdout)["refused"]
        assert told.startswith("[SPARKLOG_STORAGE_REFUSED] isolated/secret/")
    with closed(root / "isolated/secret"):
        (unused,) = [one for one in check_root(str(root), deep=False) if one.check == "unused files"]
        assert (unused.status, "isolated/secret/" in unused.detail) == (Status.WARN, True)
    run("vacuum")


@pytest.mark.parametrize("retain", ["0", "6d", "167h", "10000m", "604799s", "604799999ms"])
def test_less_than_a_week_needs_force(garbage: Path, run: Run, retain: str) -> None:
    found = run("vacuum", "--retain", retain, exit_code=2)
    assert "nobody can be asked without a terminal: give --yes" in found.stderr
    assert "STAGING_EXPIRED" in found.stderr
    assert garbage.exists()
    run("vacuum", "--retain", retain, "--dry-run")
    assert garbage.exists()
    run("vacuum", "--retain", retain, "--force")
    assert not garbage.exists()


@pytest.mark.parametrize("answer", ["y", "n"])
def test_on_a_terminal_it_asks(garbage: Path, run: Run, answer: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sparklog.cli.framework.sys", _Terminal)
    found = run("vacuum", "--retain", "0", stdin=f"{answer}\n", exit_code=0 if answer == "y" else 1)
    assert "Go on?" in found.stderr
    assert garbage.exists() is (answer == "n")


class _Terminal:
    class stdin:
        @staticmethod
        def isatty() -> bool:
            return True

    stderr = sys.stderr


@pytest.mark.parametrize("retain", ["", "7", "7 dayz", "-7 days", "-1d", "1.5d", "d", "7dd"])
def test_a_time_that_is_none(run: Run, retain: str) -> None:
    assert "such as 7d" in run("vacuum", f"--retain={retain}", exit_code=2).stderr


@pytest.mark.parametrize("words", [["events"], ["RETAIN", "168", "HOURS"], ["--retain", "168h", "events"]])
def test_it_is_for_a_whole_root(run: Run, words: list[str]) -> None:
    told = " ".join(run("vacuum", *words, exit_code=2).stderr.split())
    assert words[-1] in told
    assert "expected no topic" in told
    assert "--retain 168h" in told


def test_what_stays_is_told(garbage: Path, run: Run, root: Path) -> None:
    os.utime(garbage)  # it was written to just now, by somebody who has not committed
    later = garbage.with_name(f"00000009.{10**6}.log")
    (garbage.parent / "notes.txt").write_text("mine")
    found = run("vacuum", "--dry-run")
    assert ["other", "1", "4", "B"] in [line.split() for line in found.stdout.splitlines()]
    assert "their names" not in found.stdout
    assert "names are not sparklog's" in found.stderr
    later.touch()
    refused = run("vacuum", exit_code=1)
    assert "older copy" in refused.stderr
    assert garbage.exists()


@pytest.mark.parametrize(
    "retain", ["168h", "168 HOURS", "168 hours", "1 week", "7 Days", "10080 minutes", " 7 d "]
)
def test_times_as_sql_has_them(garbage: Path, run_json: Callable[..., Any], retain: str) -> None:
    assert run_json("vacuum", "--dry-run", "--retain", retain)["retain_ms"] == WEEK_S * 1000
