"""Spark's classes for Python data sources, whatever its version from 4.0 on.

What a version lacks (features.py) is replaced by what it has instead; nobody else asks for versions.
"""

import functools
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, TypeVar

from pyspark.sql import datasource

from sparklog.errors import SparklogError

if TYPE_CHECKING or hasattr(datasource, "DataSourceStreamArrowWriter"):
    from pyspark.sql.datasource import DataSourceStreamArrowWriter as StreamWriterBase

    STREAM_WRITER_MAY_GET_ROWS = False
else:

    class StreamWriterBase(datasource.DataSourceStreamWriter, datasource.DataSourceArrowWriter):
        """Spark 4.0 has no class for it, but hands Arrow batches to whatever is a DataSourceArrowWriter,
        in a stream as well (pyspark/sql/worker/write_into_data_source.py).
        """

    STREAM_WRITER_MAY_GET_ROWS = True  # that is nowhere promised

CAN_PUSH_FILTERS = hasattr(datasource, "Filter")
CAN_LIMIT_READS = hasattr(datasource.DataSourceStreamReader, "getDefaultReadLimit")

__all__ = ["CAN_LIMIT_READS", "CAN_PUSH_FILTERS", "STREAM_WRITER_MAY_GET_ROWS", "StreamWriterBase"]


# --- plain errors ------------------------------------------------------------------------------------
#
# Errors as Spark's user sees them: one frame of ours above the message, not the way it came from inside.
#
# Spark prints the whole traceback of what its Python workers raise, and what that was raised from. A
# SparklogError says itself what is wrong and what to do; 30 lines of our own calls above it hide that. So
# each method that Spark calls raises it anew, from None. Any other exception is a fault of ours, and keeps
# its traceback.
# Concurrency: no state.


C = TypeVar("C", bound=type)


def plain_errors(cls: C) -> C:
    """Class decorator for what Spark calls: of the class's own public methods."""
    for name, member in list(vars(cls).items()):
        if callable(member) and not name.startswith("_"):
            setattr(cls, name, _plainly(member))
    return cls


def _plainly(method: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(method)
    def call(*args: Any, **kwargs: Any) -> Any:
        try:
            result = method(*args, **kwargs)
        except SparklogError as error:
            raise error.with_traceback(None) from None
        return _rest(result) if isinstance(result, Iterator) else result

    return call


def _rest(results: Iterator[Any]) -> Iterator[Any]:
    try:
        yield from results
    except SparklogError as error:
        raise error.with_traceback(None) from None
