"""Durations in logarithmic buckets: bounded memory, one list increment per value.

Quantiles cover the last one to two windows, so that a dashboard shows what is happening now, not the
average since the start; `count` and `total` are since the start.
Invariants: the memory never grows; a quantile is at most 1/16 (6 %) above the true value, and never
    above the largest value seen in the window.
Not here: whose durations (metrics.py), when a window ends (`Metrics.tick`).
Concurrency: one writing thread; reading at the same time may miss the newest value.
"""

import math
from collections.abc import Sequence

STEPS_PER_OCTAVE = 16  # linear within an octave, as HdrHistogram
OCTAVES = 36  # 2^-10 ms (1 us) .. 2^26 ms (18 hours)
LOWEST_EXPONENT = -10
BUCKETS = STEPS_PER_OCTAVE * OCTAVES


class Histogram:
    """Durations (or any positive numbers) of one kind."""

    __slots__ = ("_current", "_current_max", "_previous", "_previous_max", "count", "total")

    def __init__(self) -> None:
        self.count = 0
        self.total = 0.0
        self._current = [0] * BUCKETS
        self._previous = [0] * BUCKETS
        self._current_max = 0.0
        self._previous_max = 0.0

    def record(self, value: float) -> None:
        """Count one value; what is not positive counts as the smallest."""
        self.count += 1
        if value > 0.0:
            self.total += value
            self._current_max = max(self._current_max, value)
            mantissa, exponent = math.frexp(value)  # 0.5 <= mantissa < 1
            octave = exponent - 1 - LOWEST_EXPONENT
            if octave < 0:
                index = 0
            elif octave >= OCTAVES or value == math.inf:
                index = BUCKETS - 1
            else:
                index = octave * STEPS_PER_OCTAVE + int((mantissa - 0.5) * (2 * STEPS_PER_OCTAVE))
        else:
            index = 0
        self._current[index] += 1

    def rotate(self) -> None:
        """End a window: what is older than the one just ended no longer shows in quantiles."""
        self._previous, self._current = self._current, [0] * BUCKETS
        self._previous_max, self._current_max = self._current_max, 0.0

    def quantiles(self, wanted: Sequence[float]) -> list[float]:
        """The value below which each share of the recent values lies; 0 if there were none."""
        counts = [a + b for a, b in zip(self._current, self._previous, strict=True)]
        seen = sum(counts)
        largest = max(self._current_max, self._previous_max)
        return [_quantile(counts, seen, share, largest) for share in wanted]


def _quantile(counts: Sequence[int], seen: int, share: float, largest: float) -> float:
    if not seen:
        return 0.0
    rank = min(max(math.ceil(share * seen), 1), seen)
    below = 0
    for index, count in enumerate(counts):
        below += count
        if below >= rank:
            return min(_upper_edge(index), largest)
    raise AssertionError("the counts add up to `seen`")


def _upper_edge(index: int) -> float:
    octave, step = divmod(index, STEPS_PER_OCTAVE)
    return math.ldexp(1.0 + (step + 1) / STEPS_PER_OCTAVE, octave + LOWEST_EXPONENT)
