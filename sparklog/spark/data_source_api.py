"""Spark's classes for Python data sources, for every version from 4.0 on.

Missing classes are replaced here (features.py lists what a version lacks); no other module checks versions.
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
        """Spark 4.0 passes Arrow batches to every DataSourceArrowWriter, also in a stream
        (pyspark/sql/worker/write_into_data_source.py).
        """

    STREAM_WRITER_MAY_GET_ROWS = True  # Spark 4.0 does not document that it passes batches

CAN_PUSH_FILTERS = hasattr(datasource, "Filter")
CAN_LIMIT_READS = hasattr(datasource.DataSourceStreamReader, "getDefaultReadLimit")

__all__ = ["CAN_LIMIT_READS", "CAN_PUSH_FILTERS", "STREAM_WRITER_MAY_GET_ROWS", "StreamWriterBase"]


# --- plain errors ------------------------------------------------------------------------------------
#
# Shortens the tracebacks of SparklogErrors that users see.
#
# Spark prints the whole traceback of an exception in its Python workers, and of its causes. A SparklogError
# has the problem and the fix in its message; 30 lines of internal calls would hide it. So each method that
# Spark calls raises it again, from None. Any other exception is a bug here, and keeps its traceback.
# Concurrency: no state.


C = TypeVar("C", bound=type)


def plain_errors(cls: C) -> C:
    """Class decorator: shorten the errors of the class's own public methods."""
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
