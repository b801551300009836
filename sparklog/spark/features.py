"""What the data source API of older Sparks lacks, and what happens instead.

Spark 4.0 is the first whose Python data sources can stream. What it and 4.1 lack is replaced where that can
be done, and left out where not; nothing fails for it. `sparklog doctor` names what is missing.

Sources: pyspark.sql.datasource of Spark 4.0 to 4.3.
"""

import functools
import gc
import itertools
import logging
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from pyspark.sql import datasource

from sparklog.allocator import keep_freed_memory
from sparklog.errors import SparklogError

# --- data source api ---------------------------------------------------------------------------------
#
# Spark's classes for Python data sources, whatever its version from 4.0 on.
#
# What a version lacks is replaced by what it has instead; nobody else asks for versions.


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


# --- notices -----------------------------------------------------------------------------------------
#
# What a query's user is told without being stopped: once a query, with a time and a level.
#
# Spark parses a query's options again for every plan and every micro-batch, in several processes. A process
# tells each thing once for the same options: its memory holds no options, only their hash.
# Spark's own Python workers have no logging set up, and Python would print bare messages there: in them, and
# nowhere else, the logger `sparklog` gets a handler, which stands back as soon as somebody sets up another.
# Concurrency: Spark's workers are single-threaded; elsewhere a race tells a thing twice.


logger = logging.getLogger("sparklog.spark")
_MAX_REMEMBERED = 10_000
_told: set[tuple[int, str]] = set()


class Notices:
    """Where the parsing of one query's options puts what is worth saying."""

    def __init__(self, options: Mapping[str, str]) -> None:
        self._query = hash(frozenset(options.items()))

    def warn(self, text: str) -> None:
        """Log a warning, unless this process has done so for a query with these options."""
        told = (self._query, text)
        if told in _told:
            return
        if len(_told) >= _MAX_REMEMBERED:
            _told.clear()
        _told.add(told)
        logger.warning("%s", text)


def start_anew() -> None:
    """As a process that has told nothing yet."""
    _told.clear()


def log_with_time_and_level() -> None:
    """In a Python worker of Spark: give the logger `sparklog` a form; elsewhere that is the application's."""
    spec = getattr(sys.modules.get("__main__"), "__spec__", None)
    if spec is None or not str(spec.name).startswith("pyspark."):
        return
    package = logging.getLogger("sparklog")
    if not package.handlers:
        handler = logging.StreamHandler()
        handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
        handler.addFilter(lambda _: not logging.getLogger().handlers)
        package.addHandler(handler)


# --- workers -----------------------------------------------------------------------------------------
#
# Spark's Python workers go from task to task: what makes their next one cheap.
#
# Spark runs a full garbage collection after each task, and after each question to the driver's workers. It
# looks at everything that was ever imported: 90,000 objects, 20 to 30 ms, in two workers for each task of a
# micro-batch. What is there when the second task begins stays for the worker's life, so it is taken out of
# the collector's sight; a collection takes microseconds then. What tasks make is collected as before.


_turns = itertools.count(1)


def settle_in() -> None:
    """Call it where a task begins."""
    keep_freed_memory()
    if next(_turns) == 2:  # the first task has imported all that tasks need
        gc.freeze()


# --- features ----------------------------------------------------------------------------------------


# The oldest Spark that works at all.
MINIMUM_SPARK = (4, 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Feature:
    """Something of Spark's data source API.

    Fields:
        since: the first version of Spark with it.
        name: for people.
        without: what happens where Spark has it not.
    """

    since: tuple[int, int]
    name: str
    without: str


FILTER_PUSHDOWN = Feature(
    since=(4, 1),
    name="filter pushdown",
    without="the option filterPushdown has no effect: Spark filters what was read",
)
ADMISSION_CONTROL = Feature(
    since=(4, 2),
    name="admission control of streaming sources",
    without="maxOffsetsPerTrigger, maxBytesPerTrigger and minOffsetsPerTrigger do not bound the first "
    "micro-batch after a start; Trigger.AvailableNow runs one micro-batch with all there is, or, after a "
    "crash, only the one that was planned then; progress reports show no lag (set kafka.group.id, and "
    "`sparklog groups describe` shows it)",
)
UNIX_SOCKETS = Feature(
    since=(4, 1),
    name="Unix sockets between the JVM and Python",
    without="each hand-over of a task to a Python worker may wait 40 ms",
)
FILLED_COLUMNS = Feature(
    since=(4, 1),
    name="filling in of columns that an INSERT leaves out",
    without="SQL's INSERT, and writeTo, have to give all seven columns, NULL where there is nothing to say",
)
FEATURES = (FILTER_PUSHDOWN, UNIX_SOCKETS, FILLED_COLUMNS, ADMISSION_CONTROL)


def missing_features(version: tuple[int, ...]) -> list[Feature]:
    """What Spark of this version lacks.

    Args:
        version: such as (4, 1).
    """
    return [feature for feature in FEATURES if version[:2] < feature.since]
