"""Log files per kind, rolling, JSON."""

import errno
import json
import logging
import logging.handlers
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import pytest

from sparklog.clock import ManualClock
from sparklog.errors import InvalidRequestError
from sparklog_server.runtime.log_files import KINDS, RolledFile, Throttle, close_logs, configure_logs
from sparklog_server.settings.config import ServerConfig

SAID_BY = {kind: names[0] for kind, names in KINDS.items()}


@pytest.fixture
def configured(tmp_path: Path) -> Iterator[Path]:
    handlers = configure_logs(
        ServerConfig.parse({"sparklog.logs.dir": str(tmp_path / "logs"), "sparklog.logs.format": "json"}).logs
    )
    yield tmp_path / "logs"
    close_logs(handlers)


def lines(path: Path) -> list[dict[str, str]]:
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def test_each_kind_has_its_file(configured: Path) -> None:
    for kind, logger in SAID_BY.items():
        logging.getLogger(f"{logger}.part").warning("of %s", kind)
    for kind in KINDS:
        (line,) = lines(configured / f"{kind}.log")
        assert (line["message"], line["level"]) == (f"of {kind}", "WARNING")
        assert line["time"].endswith("+00:00")


def test_requests_are_not_logged_unless_asked_for(configured: Path) -> None:
    logging.getLogger("sparklog_server.request").debug("a request")
    assert lines(configured / "request.log") == []
    handlers = configure_logs(
        ServerConfig.parse({"sparklog.logs.dir": str(configured), "sparklog.logs.requests": "true"}).logs
    )
    logging.getLogger("sparklog_server.request").debug("a request")
    close_logs(handlers)
    assert "DEBUG a request (sparklog_server.request)" in (configured / "request.log").read_text()


def test_exceptions_are_part_of_the_line(configured: Path) -> None:
    try:
        {}["why"]  # type: ignore[index]
    except KeyError:
        logging.getLogger("sparklog_server").exception("it failed")
    (line,) = lines(configured / "server.log")
    assert "KeyError: 'why'" in line["exception"]


def test_files_are_rolled_at_midnight_and_some_are_kept(tmp_path: Path) -> None:
    handlers = configure_logs(
        ServerConfig.parse({"sparklog.logs.dir": str(tmp_path), "sparklog.logs.keep.days": "2"}).logs
    )
    try:
        for handler in handlers:
            assert isinstance(handler, logging.handlers.TimedRotatingFileHandler)
            assert (handler.when, handler.utc, handler.backupCount) == ("MIDNIGHT", True, 2)
    finally:
        close_logs(handlers)


def test_without_a_directory_everything_goes_to_stderr(capsys: pytest.CaptureFixture[str]) -> None:
    handlers = configure_logs(ServerConfig.parse({}).logs)
    logging.getLogger("sparklog_server.controller").info("changed")
    close_logs(handlers)
    assert "INFO changed (sparklog_server.controller)" in capsys.readouterr().err


@pytest.mark.parametrize("level", ["DEBUG", "ERROR"])
def test_nothing_of_them_is_left_when_they_are_closed(level: str, tmp_path: Path) -> None:
    """Who runs a broker in a process of theirs, as tests do, finds loggers that nobody has set up."""

    def found() -> list[tuple[object, ...]]:
        loggers = [
            logging.getLogger(name) for names in KINDS.values() for name in (*names, f"{names[0]}.network")
        ]
        return [(one.level, one.propagate, *one.handlers, *one.filters) for one in loggers]

    configs = {
        "sparklog.logs.dir": str(tmp_path),
        "sparklog.logs.level": level,
        "sparklog.logs.requests": "true",
    }
    handlers = configure_logs(ServerConfig.parse(configs).logs)
    untouched = [(logging.NOTSET, True)] * len(found())
    assert found() != untouched
    close_logs(handlers)
    assert found() == untouched


def test_lines_that_clients_cause_are_limited() -> None:
    clock = ManualClock()
    throttle = Throttle(clock, lines_per_second=3)

    def said(message: str) -> list[str]:
        records = [logging.LogRecord("x", logging.WARNING, "", 0, message, (), None) for _ in range(10)]
        return [record.getMessage() for record in records if throttle.filter(record)]

    last = "%s closed (more like it in this second are not logged)"
    assert said("%s closed") == ["%s closed", "%s closed", last]
    assert len(said("another")) == 3
    assert said("%s closed") == []
    clock.advance_ms(1000)
    assert len(said("%s closed")) == 3


FORGED = "x\n[2026-01-01 00:00:00,000] CRITICAL all is lost (sparklog_server)\x1b[2K\u2028\x85"


@pytest.mark.parametrize("form", ["text", "json"])
def test_what_clients_call_themselves_is_no_line_of_its_own(form: str, tmp_path: Path) -> None:
    configs = {"sparklog.logs.dir": str(tmp_path), "sparklog.logs.format": form}
    handlers = configure_logs(ServerConfig.parse(configs).logs)
    logging.getLogger("sparklog_server.fetch").warning("topic %s", FORGED)
    logging.getLogger("sparklog_server.fetch").warning("client %s", "y" * 30_000)
    close_logs(handlers)
    first, second = (tmp_path / "server.log").read_text().rstrip("\n").split("\n")
    assert "CRITICAL all is lost" in first
    assert "\x1b" not in first
    assert len(second) < 5_000


def fail(says: str) -> None:
    raise ValueError(says)


@pytest.mark.parametrize("form", ["text", "json"])
def test_nor_in_what_an_error_says(form: str, tmp_path: Path) -> None:
    configs = {"sparklog.logs.dir": str(tmp_path), "sparklog.logs.format": form}
    handlers = configure_logs(ServerConfig.parse(configs).logs)
    for says in (FORGED, "y" * 1_000_000):
        try:
            fail(says)
        except ValueError:
            logging.getLogger("sparklog_server.fetch").exception("a bug")
    close_logs(handlers)
    text = (tmp_path / "server.log").read_text()
    begun = [line for line in text.split("\n") if line and not line.startswith("  ")]
    assert len(begun) == 2
    assert all("a bug" in line for line in begun)
    assert "CRITICAL all is lost" in text
    assert "\x1b" not in text
    assert len(text) < 40_000
    assert "1000" in text, "how long it was"


@contextmanager
def rolling(directory: Path) -> Iterator[RolledFile]:
    """The handler of server.log, which has a line, and rolls with its next one."""
    handlers = configure_logs(ServerConfig.parse({"sparklog.logs.dir": str(directory)}).logs)
    handler = handlers[list(KINDS).index("server")]
    assert isinstance(handler, RolledFile)
    say("yesterday")
    handler.rolloverAt -= 24 * 3600
    yield handler
    close_logs(handlers)


def say(text: str) -> None:
    logging.getLogger("sparklog_server").warning("%s", text)


def said_of(path: Path) -> list[str]:
    return [line.split(" ")[3] for line in path.read_text().splitlines()]


def test_a_day_is_kept_where_the_next_one_cannot_be_begun(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The disk is full when the file is rolled: a second try would put nothing in its place."""

    def full(source: str, destination: str) -> None:
        Path(source).rename(destination)
        raise OSError(errno.ENOSPC, "No space left on device")

    with rolling(tmp_path) as handler:
        handler.rotator = full
        for text in ("night", "today", "evening"):
            say(text)
    (day,) = tmp_path.glob("server.log.*")
    assert (said_of(day), said_of(tmp_path / "server.log")) == (["yesterday"], ["night", "today", "evening"])
    told = capsys.readouterr().err
    assert (told.count("No space left"), told.count("\n")) == (1, 1)


def test_a_file_that_may_not_be_renamed_is_written_on(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The file is ours, its directory is not: told once a night."""

    def refused(_source: str, _destination: str) -> None:
        raise PermissionError(errno.EACCES, "Permission denied")

    with rolling(tmp_path) as handler:
        handler.rotator = refused
        for _ in range(2):
            for _ in range(3):
                say("kept")
            handler.rolloverAt -= 24 * 3600
    assert said_of(tmp_path / "server.log") == ["yesterday", *["kept"] * 6]
    told = capsys.readouterr().err
    assert (told.count("cannot roll the file: PermissionError"), told.count("\n")) == (2, 2)


def test_lines_that_are_lost_are_told_of_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def full(_text: str) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    with rolling(tmp_path) as handler:
        say("today")
        file = handler.stream
        for _ in range(2):
            handler.stream = SimpleNamespace(write=full)  # type: ignore[assignment]
            for _ in range(3):
                say("lost")
            handler.stream = file
            say("kept")
    assert said_of(tmp_path / "server.log") == ["today", "kept", "kept"]
    told = capsys.readouterr().err
    assert (told.count("No space left"), told.count("\n")) == (2, 2)


def test_a_directory_that_is_gone_is_made_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with rolling(tmp_path / "logs"):
        shutil.rmtree(tmp_path / "logs")
        for number in range(3):
            say(f"line{number}")
    assert said_of(tmp_path / "logs" / "server.log") == ["line0", "line1", "line2"]
    assert capsys.readouterr().err == ""


def test_clients_cannot_fill_the_disk_whatever_they_do(tmp_path: Path) -> None:
    """500 refused commits of offsets, by a client with a long name, were 29 MB in two seconds."""
    handlers = configure_logs(ServerConfig.parse({"sparklog.logs.dir": str(tmp_path)}).logs)
    for part in ("coordinator", "fetch", "publish"):
        for _ in range(5_000):
            logging.getLogger(f"sparklog_server.{part}").info("%s refused", part)
    for number in range(100):
        logging.getLogger("sparklog_server.state_change").info("commit %d", number)
    close_logs(handlers)
    assert len((tmp_path / "server.log").read_text().splitlines()) < 5_000
    assert len((tmp_path / "state-change.log").read_text().splitlines()) == 100


def test_what_libraries_say_is_in_the_log(tmp_path: Path) -> None:
    handlers = configure_logs(ServerConfig.parse({"sparklog.logs.dir": str(tmp_path)}).logs)
    for name in ("asyncio", "uvicorn.error"):
        logging.getLogger(name).info("began")
        logging.getLogger(name).error("of %s", name)
    close_logs(handlers)
    told = (tmp_path / "server.log").read_text()
    assert [line.split(" ", 2)[2] for line in told.splitlines()] == [
        "ERROR of asyncio (asyncio)", "ERROR of uvicorn.error (uvicorn.error)"]  # fmt: skip


@pytest.mark.parametrize("taken", ["logs", "logs/server.log", "l\0gs"])
def test_a_directory_that_cannot_be_written_to_is_told_at_the_start(taken: str, tmp_path: Path) -> None:
    if taken == "logs":
        (tmp_path / taken).touch()
    elif "\0" not in taken:
        (tmp_path / taken).mkdir(parents=True)
    settings = ServerConfig.parse({"sparklog.logs.dir": f"{tmp_path}/{taken.partition('/')[0]}"}).logs
    with pytest.raises(InvalidRequestError, match=r"sparklog\.logs\.dir"):
        configure_logs(settings)
