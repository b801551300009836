"""What the data source API of older Sparks lacks, and what happens instead.

Spark 4.0 is the first whose Python data sources can stream. What it and 4.1 lack is replaced where that can
be done, and left out where not; nothing fails for it. `sparklog doctor` names what is missing.

Not here: the replacements (data_source_api.py, stream_reader.py).
Sources: pyspark.sql.datasource of Spark 4.0 to 4.3.
"""

from dataclasses import dataclass

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
