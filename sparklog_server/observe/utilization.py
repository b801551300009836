"""How idle the event loop and the storage threads are, over the last minute, as Kafka reports it.

Measured, not estimated: the processor time of the loop's thread, and the time that storage calls took.
Invariants: at most WINDOW_SAMPLES samples are kept; a share is between 0 and 1.
Not here: who takes the samples (http/endpoint.py, once a second).
Concurrency: `sample` on the event loop's thread only, since it asks for the time of the calling thread.
Sources: Kafka SocketServer (NetworkProcessorAvgIdlePercent), KafkaRequestHandlerPool.
"""

import collections
import dataclasses
import time
from collections.abc import Callable

WINDOW_SAMPLES = 60


@dataclasses.dataclass(frozen=True, slots=True)
class Sample:
    """Seconds since some beginning."""

    wall: float
    loop_busy: float
    storage_busy: float


class Utilization:
    """The last samples."""

    def __init__(self, storage_threads: Callable[[], int]) -> None:
        """`storage_threads`: how many there are now."""
        self._storage_threads = storage_threads
        self._samples: collections.deque[Sample] = collections.deque(maxlen=WINDOW_SAMPLES)

    def sample(self, storage_busy_ms: float) -> None:
        """Look at the clocks."""
        self.add(Sample(time.perf_counter(), time.thread_time(), storage_busy_ms / 1000))

    def add(self, sample: Sample) -> None:
        self._samples.append(sample)

    @property
    def loop_idle(self) -> float:
        """The share of time that the event loop's thread had nothing to do."""
        return self._idle(lambda sample: sample.loop_busy, 1)

    @property
    def storage_idle(self) -> float:
        """The share of the storage threads' time in which they waited for work."""
        return self._idle(lambda sample: sample.storage_busy, self._storage_threads())

    def _idle(self, busy: Callable[[Sample], float], threads: int) -> float:
        if len(self._samples) < 2:
            return 1.0
        first, last = self._samples[0], self._samples[-1]
        elapsed = (last.wall - first.wall) * threads
        if elapsed <= 0:
            return 1.0
        return min(max(1.0 - (busy(last) - busy(first)) / elapsed, 0.0), 1.0)
