"""What commands print on a terminal: a pseudo-terminal of 80 columns here."""

import fcntl
import os
import signal
import struct
import subprocess
import sys
import termios

import pytest

from tests.cli.conftest import Run

pytestmark = pytest.mark.slow

BOLD, PLAIN = "\x1b[1m", "\x1b[0m"


def on_terminal(
    *arguments: str, columns: int = 80, lines: int | None = None, **environment: str
) -> list[str]:
    """The lines that a command prints; where they are longer than the terminal, it wraps them.

    Args:
        lines: so many are read, and then the command is interrupted; None: all.
    """
    ours, theirs = os.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    kept = {key: value for key, value in os.environ.items() if key not in {"COLUMNS", "NO_COLOR"}}
    try:
        with subprocess.Popen(
            [sys.executable, "-m", "sparklog", *arguments],
            stdin=subprocess.DEVNULL,
            stdout=theirs,
            env={**kept, "TERM": "xterm", **environment},
        ) as process:
            os.close(theirs)
            printed = b""
            while found := _read(ours):
                printed += found
                if lines is not None and printed.count(b"\n") >= lines:
                    process.send_signal(signal.SIGINT)
                    lines = None
            assert process.wait(timeout=60) == 0
    finally:
        os.close(ours)
    return printed.decode().replace("\r\n", "\n").splitlines()


def _read(terminal: int) -> bytes:
    try:
        return os.read(terminal, 65536)
    except OSError:  # the command has gone, and everything it printed has been read
        return b""


@pytest.fixture
def group(run: Run) -> str:
    run("produce", "--topic", "flights", stdin="x\n" * 86_254)
    run("consume", "--topic", "flights", "--group", "demo-delays", "-c", "86000")
    return "demo-delays"


@pytest.mark.parametrize("columns", [80, 40])
def test_a_group_is_one_line_for_each_partition(group: str, columns: int) -> None:
    heading, row = on_terminal("groups", "describe", "--group", group, columns=columns)
    names = "GROUP        TOPIC    PARTITION  CURRENT-OFFSET  LOG-END-OFFSET  LAG  LAG-SECONDS"
    assert heading == f"{BOLD}{names}{PLAIN}"
    assert row.startswith("demo-delays  flights          0           86000           86254  254  ")


def test_a_record_does_not_drive_the_terminal(run: Run) -> None:
    run("produce", "--topic", "t", "-K:", stdin=b"k\x1b[2J:v\xff\ttab\n")
    assert on_terminal("consume", "--topic", "t", "-e", "-f", r"%k %s\n") == [r"k\u001b[2J v\xff" + "\ttab"]
    assert on_terminal("consume", "--topic", "t", "-e", "-x", "-f", r"%k %s\n") == ["6b1b5b324a 76ff09746162"]


def test_no_colour_where_none_is_wanted(run: Run) -> None:
    run("topics", "create", "--topic", "events", "--partitions", "12")
    plain = ["TOPIC   PARTITIONS  RECORDS  SIZE", "events          12        0   0 B"]
    assert on_terminal("topics", "list", NO_COLOR="1") == plain
    assert on_terminal("topics", "list", TERM="dumb") == plain
    assert on_terminal("topics", "list") == [f"{BOLD}{plain[0]}{PLAIN}", plain[1]]
