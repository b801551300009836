"""Features that older versions of Spark lack, and the consequences.

Spark 4.0 is the first version whose Python data sources can stream. Features that 4.0 and 4.1 lack are
replaced where possible, else left out; nothing fails. `sparklog doctor` lists the missing ones.

Not here: the replacements (data_source_api.py, stream_reader.py). Only newer versions have what pushdown.py
and limited_reader.py import.
Sources: pyspark.sql.datasource of Spark 4.0 to 4.3.
"""

from dataclasses import dataclass

# The oldest version of Spark that works.
MINIMUM_SPARK = (4, 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Feature:
    """A feature of Spark's data source API.

    Fields:
        since: the first version of Spark with it.
        name: for messages.
        without: the consequence of its absence.
    """

    since: tuple[int, int]
    name: str
    without: str


FILTER_PUSHDOWN = Feature(
    since=(4, 1),
    name="filter pushdown",
    without="the option filterPushdown has no effect: Spark filters after reading",
)
ADMISSION_CONTROL = Feature(
    since=(4, 2),
    name="admission control of streaming sources",
    without="maxOffsetsPerTrigger, maxBytesPerTrigger and minOffsetsPerTrigger do not bound the first "
    "micro-batch after a start; Trigger.AvailableNow runs one micro-batch with all records, or, after a "
    "crash, only the one that was planned before it; progress reports show no lag (set kafka.group.id, and "
    "`sparklog groups describe` shows it)",
)
UNIX_SOCKETS = Feature(
    since=(4, 1),
    name="Unix sockets between the JVM and Python",
    without="passing a task to a Python worker may take 40 ms longer",
)
FILLED_COLUMNS = Feature(
    since=(4, 1),
    name="default values for columns that an INSERT leaves out",
    without="SQL's INSERT, and writeTo, have to give all seven columns, NULL for a missing value",
)
FEATURES = (FILTER_PUSHDOWN, UNIX_SOCKETS, FILLED_COLUMNS, ADMISSION_CONTROL)


def missing_features(version: tuple[int, ...]) -> list[Feature]:
    """Return the features that this version of Spark lacks.

    Args:
        version: such as (4, 1).
    """
    return [feature for feature in FEATURES if version[:2] < feature.since]
