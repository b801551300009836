"""The broker's own log files: one per kind, rolled at midnight (UTC), as text or JSON.

Kinds, after Kafka's: server (everything else), request (every request: off by default), controller
(elections, brokers that join, leave or are fenced), state-change (state changes of this broker, and of
brokers, topics, partitions and replicas), log-cleaner (maintenance). Each line is in one of them only.
Without a directory all of them go to stderr.
Invariants: names that clients choose can neither start a line nor make it long, in tracebacks too. In
    server.log the number of equal messages per second is limited; the other files only have committed
    changes. A file that cannot be written or rolled affects neither the other files nor the broker.
Not here: the messages.
Sources: Kafka's log4j.properties.
"""

import contextlib
import datetime as dt
import itertools
import json
import logging
import logging.handlers
import sys
from collections import Counter
from pathlib import Path
from typing import Any

from sparklog.clock import Clock, SystemClock
from sparklog.errors import InvalidRequestError
from sparklog_server.settings.broker import LogSettings

KINDS = {
    "server": ("sparklog_server", "sparklog"),
    "request": ("sparklog_server.request",),
    "controller": ("sparklog_server.controller",),
    "state-change": ("sparklog_server.state_change",),
    "log-cleaner": ("sparklog_server.log_cleaner",),
    "authorizer": ("kafka.authorizer.logger",),
}
_VERDICTS_PER_SECOND = 1_000
_LIBRARIES = ("asyncio", "uvicorn")  # logged in server.log from WARNING on
_FORMAT = "[%(asctime)s] %(levelname)s %(message)s (%(name)s)"
_LONGEST = 4_000  # characters of a message
_LONGEST_TRACEBACK = 16_000
_CONTROLS = {number: repr(chr(number))[1:-1] for number in (*range(32), *range(127, 160), 0x2028, 0x2029)}


class TextFormatter(logging.Formatter):
    """Formats a message as one line; the lines of a traceback follow, indented."""

    def __init__(self) -> None:
        super().__init__(_FORMAT)

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - logging's name
        """Return the line, without control characters."""
        record.message = _brief(record.message).translate(_CONTROLS)
        return super().formatMessage(record)

    def formatException(self, ei: Any) -> str:  # noqa: N802 - logging's name
        """Return the indented traceback, without control characters: an error may quote a client."""
        lines = _brief_traceback(super().formatException(ei)).split("\n")
        return "\n".join(f"  {line.translate(_CONTROLS)}" for line in lines)


class JsonFormatter(logging.Formatter):
    """One JSON object per line."""

    def format(self, record: logging.LogRecord) -> str:
        fields = {
            "time": dt.datetime.fromtimestamp(record.created, dt.UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname,
            "logger": record.name,
            "message": _brief(record.getMessage()),
        }
        if record.exc_info:
            fields["exception"] = _brief_traceback(self.formatException(record.exc_info))
        return json.dumps(fields, ensure_ascii=False)


def _brief(message: str) -> str:
    if len(message) <= _LONGEST:
        return message
    return f"{message[:_LONGEST]}... ({len(message)} characters)"


def _brief_traceback(text: str) -> str:
    """Shorten in the middle: keep the outermost call and the exception."""
    if len(text) <= _LONGEST_TRACEBACK:
        return text
    half = _LONGEST_TRACEBACK // 2
    return f"{text[:half]}\n... ({len(text)} characters)\n{text[-half:]}"


class RolledFile(logging.handlers.TimedRotatingFileHandler):
    """A file that is rolled at midnight.

    If the new file cannot be created (a full disk), logging's own handler rolls again with the next line, and
    so loses the previous day's file. If the directory is gone or read-only, it never writes again. It prints
    a traceback to stderr for each lost line. This one tries to roll once a day, and continues with the
    existing file.
    """

    _is_reported = _is_lost = False

    def doRollover(self) -> None:  # noqa: N802 - logging's name
        path = Path(self.baseFilename)
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.exists():
            try:
                super().doRollover()
            except OSError as error:
                self._report(f"cannot roll the file: {error!r}")
            else:
                return
        stream, self.stream = self.stream, None  # FileHandler.emit opens it again
        self.rolloverAt = self.computeRollover(self.rolloverAt)
        if stream is not None:
            stream.close()

    def emit(self, record: logging.LogRecord) -> None:
        self._is_lost = False
        super().emit(record)
        self._is_reported = self._is_lost

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802 - logging's name
        """Report a lost line to stderr, once until a line is written again."""
        self._is_lost = True
        if not self._is_reported:
            self._report(f"cannot write a line of {record.name}, later ones may be lost: {sys.exception()!r}")

    def _report(self, text: str) -> None:
        if sys.stderr is not None:
            with contextlib.suppress(OSError, ValueError):
                sys.stderr.write(f"sparklog-server: {self.baseFilename}: {text}\n")


class Throttle(logging.Filter):
    """Limits the lines per second of each message, so that clients cannot fill the disk."""

    def __init__(self, clock: Clock, lines_per_second: int = 20) -> None:
        super().__init__()
        self._clock = clock
        self._limit = lines_per_second
        self._second = -1
        self._seen: Counter[str] = Counter()

    def filter(self, record: logging.LogRecord) -> bool:
        second = self._clock.monotonic_ms() // 1000
        if second != self._second:
            self._second = second
            self._seen.clear()
        self._seen[record.msg] += 1
        if self._seen[record.msg] == self._limit:
            record.msg = f"{record.msg} (more like it in this second are not logged)"
            self._seen[record.msg] += 1
        return self._seen[record.msg] <= self._limit


def configure_logs(settings: LogSettings) -> list[logging.Handler]:
    """Set up the loggers; return their handlers, for `close_logs`.

    Raises:
        InvalidRequestError: the directory is not writable.
    """
    formatter = JsonFormatter() if settings.logs_format == "json" else TextFormatter()
    try:
        handlers = {kind: _handler(settings, kind) for kind in KINDS}
    except (OSError, ValueError) as error:  # ValueError: not a path
        raise InvalidRequestError(
            "INVALID_CONFIG_VALUE",
            f"sparklog.logs.dir: {error}",
            fix="use a directory that the broker can write to, or none, to log to stderr",
        ) from error
    handlers["server"].addFilter(Throttle(SystemClock()))
    handlers["authorizer"].addFilter(Throttle(SystemClock(), _VERDICTS_PER_SECOND))
    level = logging.getLevelNamesMapping()[settings.logs_level]
    for kind, names in KINDS.items():
        handlers[kind].setFormatter(formatter)
        for name in names:
            _direct(name, handlers[kind], level)
    for name in _LIBRARIES:
        _direct(name, handlers["server"], max(level, logging.WARNING))
    request_level = logging.DEBUG if settings.logs_requests else logging.WARNING
    logging.getLogger("sparklog_server.request").setLevel(request_level)
    return list(handlers.values())


def _handler(settings: LogSettings, kind: str) -> logging.Handler:
    if not settings.logs_dir:
        return logging.StreamHandler(sys.stderr)
    directory = Path(settings.logs_dir)
    directory.mkdir(parents=True, exist_ok=True)
    return RolledFile(
        directory / f"{kind}.log",
        when="midnight",
        utc=True,
        backupCount=settings.logs_keep_days,
        encoding="utf-8",
        errors="backslashreplace",
    )


def _direct(name: str, handler: logging.Handler, level: int) -> None:
    logger = logging.getLogger(name)
    logger.handlers[:] = [handler]
    logger.propagate = False
    logger.setLevel(level)


def close_logs(handlers: list[logging.Handler]) -> None:
    """Flush and remove the handlers, and reset the loggers."""
    for name in (*itertools.chain(*KINDS.values()), *_LIBRARIES):
        logger = logging.getLogger(name)
        logger.handlers.clear()
        logger.propagate = True
        logger.setLevel(logging.NOTSET)
    for handler in handlers:
        handler.close()
