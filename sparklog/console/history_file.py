"""Samples of the lag of groups in a SQLite file, so that a restart goes on where it was.

    lag(at_ms, group_name, topic, partition, committed, log_end)

One row for each partition of a group and sample. Anything that speaks SQL may read the file meanwhile.
Invariants: a file belongs to one root. It keeps KEEP_MS, and MAX_ROWS rows; the oldest samples go first. What
    cannot be written is missing in the file alone: samples in memory go on.
Concurrency: one lock. Consoles of the same root may share a file; samples of the same time are stored once.
After a crash: whole samples are there or not (a transaction each); the write-ahead log is replayed by SQLite.
"""

import itertools
import logging
import sqlite3
import threading
from pathlib import Path
from typing import Final

from sparklog.client.groups import TopicPartition
from sparklog.client.lag import HOUR_MS, LagHistory, Sample
from sparklog.errors import InvalidRequestError

KEEP_MS: Final = 24 * HOUR_MS
MAX_ROWS: Final = 5_000_000  # some 400 MB
_WAIT_SECONDS: Final = 5.0  # for another process that writes
_MAKE: Final = """
    CREATE TABLE IF NOT EXISTS lag (
        at_ms INTEGER, group_name TEXT, topic TEXT, partition INTEGER, committed INTEGER, log_end INTEGER,
        PRIMARY KEY (at_ms, group_name, topic, partition)
    ) WITHOUT ROWID;
    CREATE TABLE IF NOT EXISTS root (cluster_id TEXT PRIMARY KEY);
"""
_log = logging.getLogger("sparklog.console")


class HistoryFile:
    """An open file."""

    def __init__(self, path: Path, cluster_id: str) -> None:
        """Open or make a file.

        Raises:
            InvalidRequestError: INVALID_OPTION: it is of another root, or no such file.
        """
        self._path = path
        self._lock = threading.Lock()
        self._has_failed = False
        try:
            self._connection = sqlite3.connect(
                path, timeout=_WAIT_SECONDS, isolation_level=None, check_same_thread=False
            )
        except sqlite3.Error as error:
            raise _wrong(path, str(error)) from None
        try:
            self._connection.execute("PRAGMA journal_mode=WAL")
            self._connection.execute("PRAGMA synchronous=NORMAL")  # a power cut may take the last samples
            self._connection.executescript(_MAKE)
            self._connection.execute("INSERT OR IGNORE INTO root VALUES (?)", (cluster_id,))
            (others,) = self._connection.execute(
                "SELECT count(*) FROM root WHERE cluster_id <> ?", (cluster_id,)
            ).fetchone()
            if others:
                self._connection.execute("DELETE FROM root WHERE cluster_id = ?", (cluster_id,))
                raise _wrong(path, "a file of another root")
            (self._rows,) = self._connection.execute("SELECT count(*) FROM lag").fetchone()
        except sqlite3.Error as error:
            self._connection.close()
            raise _wrong(path, str(error)) from None
        except InvalidRequestError:
            self._connection.close()
            raise

    def close(self) -> None:
        """Close it; later samples are not stored."""
        with self._lock:
            self._connection.close()

    def restore(self, history: LagHistory, now_ms: int) -> None:
        """Put the samples of the last hour into an empty history."""
        query = "SELECT * FROM lag WHERE at_ms BETWEEN ? AND ? ORDER BY at_ms"
        with self._lock:
            rows = self._connection.execute(query, (now_ms - HOUR_MS, now_ms))
            for at_ms, of_sample in itertools.groupby(rows, key=lambda row: row[0]):
                sample: dict[str, dict[TopicPartition, tuple[int, int]]] = {}
                for _, group, topic, partition, committed, log_end in of_sample:
                    sample.setdefault(group, {})[topic, partition] = (committed, log_end)
                history.put(at_ms, sample)

    def add(self, at_ms: int, sample: Sample) -> None:
        """Store a sample. A failure is logged once, until the next success."""
        rows = [
            (at_ms, group, topic, partition, *numbers)
            for group, offsets in sample.items()
            for (topic, partition), numbers in offsets.items()
        ]
        try:
            with self._lock:
                self._store(at_ms, rows)
            self._has_failed = False
        except sqlite3.Error as error:
            if not self._has_failed:
                _log.warning("the lag of groups cannot be stored in %s: %s", self._path, error)
            self._has_failed = True

    def _store(self, at_ms: int, rows: list[tuple[int, str, str, int, int, int]]) -> None:
        run = self._connection.execute
        run("BEGIN IMMEDIATE")
        try:
            insert = "INSERT OR IGNORE INTO lag VALUES (?, ?, ?, ?, ?, ?)"
            added = self._connection.executemany(insert, rows).rowcount
            gone = run("DELETE FROM lag WHERE at_ms < ?", (at_ms - KEEP_MS,)).rowcount
            count = self._rows + added - gone
            while count > MAX_ROWS:
                oldest = run("DELETE FROM lag WHERE at_ms = (SELECT min(at_ms) FROM lag)").rowcount
                count = count - oldest if oldest else 0
            run("COMMIT")
            self._rows = count
        except BaseException:
            run("ROLLBACK")
            raise


def _wrong(path: Path, found: str) -> InvalidRequestError:
    return InvalidRequestError(
        "INVALID_OPTION",
        f"history file {path}: found {found}, expected a SQLite file of this root, or none",
        fix="name another file; one that is not there is made",
    )
