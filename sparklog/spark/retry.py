"""fetchOffset.numRetries and .retryIntervalMs: patience of a plan with a storage that is busy.

Not here: the store's own patience with one request (storage/), which every try has anew.
"""

from collections.abc import Callable
from typing import TypeVar

from sparklog.clock import Clock
from sparklog.errors import RetriableError, StorageError
from sparklog.spark.options import SourceOptions

T = TypeVar("T")


def retrying(options: SourceOptions, clock: Clock, call: Callable[[], T]) -> T:
    """Call again after a RetriableError, or while the store does not answer, as often and as patiently as
    the options say. What is called changes nothing that a second call would be misled by.
    """
    for _ in range(options.retries):
        try:
            return call()
        except RetriableError:
            pass
        except StorageError as error:
            if error.code != "STORE_UNAVAILABLE":
                raise
        clock.sleep_ms(options.retry_interval_ms)
    return call()
