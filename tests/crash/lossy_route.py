"""A way to an S3 server on which requests and answers get lost, and some requests arrive late.

Of a hundred requests three meet with one of LOSSES. What is late arrives within a second, whatever has become
of its sender meanwhile.
Concurrency: the proxy asks with its lock held, from its connections' threads.
"""

import random
import threading
from typing import Self

from tests.storage.s3_proxy import (
    CLOSE_AFTER,
    ERROR_AFTER,
    LATE_EFFECT,
    RESET_AFTER,
    RESET_BEFORE,
    SLOW_DOWN,
    Fault,
    FaultyProxy,
    Request,
)

LOSSES = (RESET_BEFORE, RESET_AFTER, CLOSE_AFTER, ERROR_AFTER, SLOW_DOWN, LATE_EFFECT)
SHARE = 0.03
MOST_LATE_SECONDS = 1.0


class LossyRoute:
    """Makes `proxy` lossy while it is entered; the same losses for the same seed, by number of request."""

    def __init__(self, proxy: FaultyProxy, seed: int) -> None:
        self._proxy = proxy
        self._dice = random.Random(seed)
        self._late: list[threading.Timer] = []

    def __enter__(self) -> Self:
        self._proxy.fault = self._fate
        return self

    def __exit__(self, *_: object) -> None:
        self._proxy.fault = lambda _: None
        for timer in self._late:
            timer.join()

    def _fate(self, _: Request) -> Fault | None:
        if self._dice.random() >= SHARE:
            return None
        fault = self._dice.choice(LOSSES)
        if fault.later:
            timer = threading.Timer(self._dice.uniform(0, MOST_LATE_SECONDS), self._proxy.land)
            self._late.append(timer)
            timer.start()
        return fault
