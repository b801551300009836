"""The command as a process: exit codes, streams, signals, and what it costs to start."""

import os
import resource
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.broker_process import until

pytestmark = pytest.mark.slow

PROGRAM = [sys.executable, "-m", "sparklog"]


def start(root: Path, *arguments: str) -> subprocess.Popen[bytes]:
    environment = {**os.environ, "SPARKLOG_ROOT": str(root)}

    def hear_interrupts() -> None:
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # a test run in the background inherits "ignored"

    return subprocess.Popen(
        [*PROGRAM, *arguments],
        preexec_fn=hear_interrupts,
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )


def finish(root: Path, *arguments: str, stdin: bytes = b"") -> tuple[int, str, str]:
    with start(root, *arguments) as process:
        stdout, stderr = process.communicate(stdin, timeout=60)
    return process.returncode, stdout.decode(), stderr.decode()


def test_errors_go_to_stderr_with_their_exit_codes(root: Path) -> None:
    code, stdout, stderr = finish(root, "topics", "list")
    assert (code, stdout) == (1, "")
    assert stderr.startswith("Error: [SPARKLOG_ROOT_NOT_FOUND]")
    assert "Traceback" not in stderr
    code, stdout, stderr = finish(root, "topics", "lst")
    assert (code, stdout) == (2, "")
    assert "Did you mean 'list'?" in stderr
    code, _, stderr = finish(root, "--debug", "topics", "list")
    assert code == 1
    assert "Traceback" in stderr


def test_root_must_be_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SPARKLOG_ROOT", raising=False)
    result = subprocess.run([*PROGRAM, "topics", "list"], capture_output=True, text=True, check=False)
    assert result.returncode == 2
    assert "give --root DIR, or set SPARKLOG_ROOT=DIR" in result.stderr


def test_option_before_the_command_beats_the_environment(root: Path, tmp_path: Path) -> None:
    other = str(tmp_path / "other")
    assert finish(root, "--root", other, "topics", "create", "--topic", "t")[0] == 0
    assert finish(root, "topics", "list", "--names", "--root", other)[1] == "t\n"
    assert not root.exists()


def read_line(process: subprocess.Popen[bytes]) -> bytes:
    assert process.stdout is not None
    return process.stdout.readline()


def stop_reading(process: subprocess.Popen[bytes]) -> None:
    assert process.stdout is not None
    process.stdout.close()


def test_reader_that_leaves_is_a_normal_end(root: Path) -> None:
    finish(root, "produce", "--topic", "t", stdin=b"".join(b"%060d\n" % n for n in range(20_000)))
    with start(root, "consume", "--topic", "t") as process:
        assert read_line(process) == b"%060d\n" % 0
        stop_reading(process)
        assert process.wait(timeout=60) == 0
        assert process.stderr is not None
        assert process.stderr.read() == b""


def test_reader_that_leaves_is_noticed_while_idle(root: Path) -> None:
    finish(root, "produce", "--topic", "t", stdin=b"one\n")
    with start(root, "consume", "--topic", "t") as process:
        assert read_line(process) == b"one\n"
        stop_reading(process)
        assert process.wait(timeout=60) == 0


@pytest.mark.parametrize("unbuffered", ["", "1"])  # images of containers set it
def test_what_a_full_disk_did_not_take_is_not_committed(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, unbuffered: str
) -> None:
    """A limit of the file's size stands for the disk: it takes the first bytes of a write, and no more."""
    monkeypatch.setenv("PYTHONUNBUFFERED", unbuffered)
    finish(root, "produce", "--topic", "t", stdin=b"".join(b"%060d\n" % n for n in range(5_000)))
    words = [*PROGRAM, "--root", str(root), "consume", "--topic", "t", "--group", "g", "-e"]
    with (tmp_path / "out").open("wb") as out:
        result = subprocess.run(
            words,
            preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000)),
            stdout=out,
            stderr=subprocess.PIPE,
            check=False,
        )
    assert (result.returncode, b"Error: stdout: [Errno 27] File too large" in result.stderr) == (1, True)
    assert len(finish(root, "consume", "--topic", "t", "--group", "g", "-e")[1].splitlines()) == 5_000


@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_result_that_a_full_disk_did_not_take_is_a_failure(
    root: Path, monkeypatch: pytest.MonkeyPatch, unbuffered: str
) -> None:
    monkeypatch.setenv("PYTHONUNBUFFERED", unbuffered)
    finish(root, "topics", "create", "--topic", "t")
    with Path("/dev/full").open("wb") as full:
        words = [*PROGRAM, "--root", str(root), "topics", "list"]
        result = subprocess.run(words, stdout=full, stderr=subprocess.PIPE, check=False)
    assert (result.returncode, result.stderr) == (1, b"Error: stdout: [Errno 28] No space left on device\n")


@pytest.mark.parametrize("words", [["--help"], ["--version"], ["topics", "--help"]])
def test_help_that_a_full_disk_did_not_take_is_a_failure(words: list[str]) -> None:
    with Path("/dev/full").open("wb") as full:
        result = subprocess.run([*PROGRAM, *words], stdout=full, stderr=subprocess.PIPE, check=False)
    assert (result.returncode, result.stderr) == (1, b"Error: stdout: [Errno 28] No space left on device\n")


def test_closed_stdout_is_told_before_anything_is_done(root: Path) -> None:
    words = [*PROGRAM, "--root", str(root), "topics", "create", "--topic", "t"]
    result = subprocess.run(words, preexec_fn=lambda: os.close(1), stderr=subprocess.PIPE, check=False)
    assert (result.returncode, result.stderr) == (
        1,
        b"Error: stdout is closed. Open it, or send it to /dev/null.\n",
    )
    assert not root.exists()


def without_reader_of_stderr(root: Path, *arguments: str, stdin: bytes = b"") -> int:
    """The exit code of a command whose notes nobody can read."""
    reading, writing = os.pipe()
    os.close(reading)
    try:
        words = [*PROGRAM, "--root", str(root), *arguments]
        return subprocess.run(words, input=stdin, stdout=subprocess.DEVNULL, stderr=writing).returncode
    finally:
        os.close(writing)


def test_produce_writes_all_of_its_input_though_nobody_reads_its_notes(root: Path) -> None:
    """The first warning comes after the first batch, and from within the append."""
    finish(root, "topics", "create", "--topic", "t", "--config", "retention.ms=1")
    lines = b"".join(b"%0100d\n" % n for n in range(30_000))
    assert without_reader_of_stderr(root, "produce", "--topic", "t", "-K:", stdin=lines) == 0
    assert finish(root, "offsets", "get", "--topic", "t")[1] == "t:0:30000\n"


def test_failure_stays_one_though_nobody_reads_of_it(root: Path) -> None:
    finish(root, "topics", "create", "--topic", "t", "--config", "max.message.bytes=200")
    assert without_reader_of_stderr(root, "produce", "--topic", "t", stdin=b"x" * 5_000) == 1
    assert without_reader_of_stderr(root, "topics", "delete", "--topic", "u", "--output", "json") == 1


def test_interrupt_ends_a_follow_and_commits_the_group(root: Path) -> None:
    finish(root, "produce", "--topic", "t", stdin=b"one\n")
    with start(root, "consume", "--topic", "t", "--group", "g") as process:
        assert read_line(process) == b"one\n"
        finish(root, "produce", "--topic", "t", stdin=b"two\n")
        assert read_line(process) == b"two\n"
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=60) == 0
    # At least once: the interrupt may fall between printing the last step and noting it; never further back.
    assert finish(root, "consume", "--topic", "t", "--group", "g", "-e")[1] in ("", "two\n")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_consume_between_two_records(root: Path, number: signal.Signals) -> None:
    """Also while its reader is slow: no record is cut, and the group has exactly what was printed."""
    finish(root, "produce", "--topic", "t", stdin=b"".join(b"%060d\n" % n for n in range(50_000)))
    with start(root, "consume", "--topic", "t", "--group", "g") as process:
        first = read_line(process)
        process.send_signal(number)
        assert process.stdout is not None
        printed = (first + process.stdout.read()).splitlines(keepends=True)
        assert process.wait(timeout=60) == 0
    assert 0 < len(printed) < 50_000
    assert printed == [b"%060d\n" % n for n in range(len(printed))]
    row = finish(root, "groups", "describe", "--group", "g")[1].splitlines()[1]
    assert row.split()[3] == str(len(printed))


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_produce_after_whole_lines(root: Path, number: signal.Signals) -> None:
    with start(root, "produce", "--topic", "t") as process:
        assert process.stdin is not None
        process.stdin.write(b"one\ntwo\nthr")
        process.stdin.flush()
        until(lambda: finish(root, "consume", "--topic", "t", "-e")[1] == "one\ntwo\n")
        process.send_signal(number)
        assert process.wait(timeout=60) == 1
        assert process.stderr is not None
        assert process.stderr.read() == b"2 records acknowledged by topic t.\nAborted!\n"
    assert finish(root, "consume", "--topic", "t", "-e")[1] == "one\ntwo\n"


def test_produce_acknowledges_while_the_pipe_stays_open(root: Path) -> None:
    with start(root, "produce", "--topic", "t") as process:
        assert process.stdin is not None
        process.stdin.write(b"one\ntwo\n")
        process.stdin.flush()
        code, shown = 1, ""
        while code:  # the root or the topic is not there yet
            code, shown, _ = finish(root, "consume", "--topic", "t", "-c", "2")
        assert shown == "one\ntwo\n"
        assert process.poll() is None
        _, stderr = process.communicate(b"three", timeout=60)
        assert process.returncode == 0
        assert stderr == b"3 records acknowledged by topic t.\n"


HELP = (
    ["--help"],
    ["topics", "create", "--help"],
    ["consume", "--help"],
    ["offsets", "get", "--help"],
    ["root", "alter", "--help"],
    ["mirror", "--help"],
    ["--version"],
)


@pytest.mark.parametrize("arguments", HELP)
def test_help_imports_nothing_heavy(arguments: list[str]) -> None:
    code = (
        "import sys\n"
        "from sparklog.cli.main import cli\n"
        f"code = cli({arguments!r}, standalone_mode=False)\n"
        "heavy = {'numpy', 'pyarrow', 'confluent_kafka', 'rich', 'msgspec', 'pandas'} & set(sys.modules)\n"
        "sys.exit(f'imported {heavy}' if heavy else 0)\n"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr


@pytest.mark.parametrize(
    ("arguments", "needless"),
    [
        (["topics", "list"], {"pyarrow", "sparklog.client.appender", "sparklog.maintenance"}),
        (["groups", "list"], {"sparklog.maintenance.compaction", "sparklog.maintenance.merging", "rich"}),
    ],
)
def test_lists_import_only_what_they_read_with(root: Path, arguments: list[str], needless: set[str]) -> None:
    finish(root, "produce", "t", stdin=b"x\n")
    code = (
        "import sys\n"
        "from sparklog.cli.main import cli\n"
        f"cli(['--root', {str(root)!r}, *{arguments!r}], standalone_mode=False)\n"
        f"found = {needless!r} & set(sys.modules)\n"
        "sys.exit(f'imported {found}' if found else 0)\n"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
