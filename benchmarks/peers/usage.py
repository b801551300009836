"""CPU seconds, peak memory and bytes written of trees of processes, children included, while something runs.

A thread looks five times a second: what a process that ends does after the last look is not counted.
Memory is the largest sum of resident sets seen (pages that processes share count for each of them).
"""

import contextlib
import threading
from collections.abc import Sequence
from types import TracebackType
from typing import Self

import psutil

INTERVAL_SECONDS = 0.2
MB = 1_000_000
Seen = dict[tuple[int, float], tuple[float, int]]  # (pid, start) -> CPU seconds, bytes written


class Usage:
    """with Usage({"broker": [pid], "spark": [pid]}) as usage: ...; usage.row()"""

    def __init__(self, groups: dict[str, Sequence[int]]) -> None:
        self._groups = groups
        self._before: dict[str, Seen] = {}
        self._seen: dict[str, Seen] = {name: {} for name in groups}
        self.peak_bytes = dict.fromkeys(groups, 0)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> Self:
        self._look()
        self._before = {name: dict(seen) for name, seen in self._seen.items()}
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        self._thread.join()
        self._look()

    def cpu_seconds(self, group: str) -> float:
        return sum(self._grown(group, 0))

    def written_bytes(self, group: str) -> float:
        return sum(self._grown(group, 1))

    def row(self) -> dict[str, float]:
        """CPU, memory and writes: of each group, and the sums of CPU and writes."""
        cpu = {name: self.cpu_seconds(name) for name in self._groups}
        row = {f"{name}_cpu_s": round(seconds, 2) for name, seconds in cpu.items()}
        row["cpu_s"] = round(sum(cpu.values()), 2)
        row |= {f"{name}_rss_mb": round(size / MB) for name, size in self.peak_bytes.items()}
        row["written_mb"] = round(sum(map(self.written_bytes, self._groups)) / MB, 1)
        return row

    def _grown(self, group: str, column: int) -> list[float]:
        before = self._before[group]
        return [
            values[column] - before.get(process, (0.0, 0))[column]
            for process, values in self._seen[group].items()
        ]

    def _watch(self) -> None:
        while not self._stop.wait(INTERVAL_SECONDS):
            self._look()

    def _look(self) -> None:
        for name, pids in self._groups.items():
            resident = 0
            for process in _trees(pids):
                with contextlib.suppress(psutil.Error), process.oneshot():
                    times = process.cpu_times()
                    key = (process.pid, process.create_time())
                    self._seen[name][key] = (times.user + times.system, process.io_counters().write_bytes)
                    resident += process.memory_info().rss
            self.peak_bytes[name] = max(self.peak_bytes[name], resident)


def _trees(pids: Sequence[int]) -> list[psutil.Process]:
    found = []
    for pid in pids:
        with contextlib.suppress(psutil.Error):
            root = psutil.Process(pid)
            found += [root, *root.children(recursive=True)]
    return found
