"""The broker's own log files: one per kind, rolled at midnight (UTC), as text or JSON.

Kinds, after Kafka's: server (everything else), request (every request: off by default), controller
(who is elected, which brokers come and go, what is decided about them), state-change (states of this broker,
and of brokers, topics, partitions and replicas as they change), log-cleaner (maintenance). A line is in one
of them: none is repeated in server.log.
Without a directory all of them go to stderr.
Not here: what is logged.
Sources: Kafka's log4j.properties.
"""

import datetime as dt
import json
import logging
import logging.handlers
import sys
from collections import Counter
from pathlib import Path

from sparklog.clock import Clock, SystemClock
from sparklog_server.settings.logs import LogSettings

KINDS = {
    "server": ("sparklog_server", "sparklog"),
    "request": ("sparklog_server.request",),
    "controller": ("sparklog_server.controller",),
    "state-change": ("sparklog_server.state_change",),
    "log-cleaner": ("sparklog_server.log_cleaner",),
}
_FORMAT = "[%(asctime)s] %(levelname)s %(message)s (%(name)s)"


class JsonFormatter(logging.Formatter):
    """One JSON object per line."""

    def format(self, record: logging.LogRecord) -> str:
        fields = {
            "time": dt.datetime.fromtimestamp(record.created, dt.UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            fields["exception"] = self.formatException(record.exc_info)
        return json.dumps(fields, ensure_ascii=False)


class Throttle(logging.Filter):
    """Lets through so many lines a second of each kind; clients must not be able to fill the disk."""

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
    """Set the loggers up; returns their handlers, for `close_logs`."""
    formatter: logging.Formatter = (
        JsonFormatter() if settings.logs_format == "json" else logging.Formatter(_FORMAT)
    )
    directory = Path(settings.logs_dir) if settings.logs_dir else None
    if directory is not None:
        directory.mkdir(parents=True, exist_ok=True)
    to_stderr = logging.StreamHandler(sys.stderr)
    handlers: list[logging.Handler] = []
    for kind, names in KINDS.items():
        handler: logging.Handler = to_stderr
        if directory is not None:
            handler = logging.handlers.TimedRotatingFileHandler(
                directory / f"{kind}.log",
                when="midnight",
                utc=True,
                backupCount=settings.logs_keep_days,
                encoding="utf-8",
                delay=True,
            )
        handler.setFormatter(formatter)
        handlers.append(handler)
        for name in names:
            logger = logging.getLogger(name)
            logger.handlers[:] = [handler]
            logger.propagate = False
            logger.setLevel(settings.logs_level)
    network = logging.getLogger("sparklog_server.network")
    network.filters[:] = [Throttle(SystemClock())]
    request_level = logging.DEBUG if settings.logs_requests else logging.WARNING
    logging.getLogger("sparklog_server.request").setLevel(request_level)
    return handlers


def close_logs(handlers: list[logging.Handler]) -> None:
    """Flush and detach: the loggers are as if they had never been set up."""
    for names in KINDS.values():
        for name in names:
            logger = logging.getLogger(name)
            logger.handlers.clear()
            logger.propagate = True
            logger.setLevel(logging.NOTSET)
    logging.getLogger("sparklog_server.network").filters.clear()
    for handler in handlers:
        handler.close()
