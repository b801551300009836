"""fetchOffset.numRetries and .retryIntervalMs: patience with a storage that is busy."""

from collections.abc import Callable
from typing import TypeVar

from sparklog.clock import Clock
from sparklog.errors import RetriableError
from sparklog.spark.options import SourceOptions

T = TypeVar("T")


def retrying(options: SourceOptions, clock: Clock, call: Callable[[], T]) -> T:
    """Call again after a RetriableError, as often and as patiently as the options say."""
    for _ in range(options.retries):
        try:
            return call()
        except RetriableError:
            clock.sleep_ms(options.retry_interval_ms)
    return call()
