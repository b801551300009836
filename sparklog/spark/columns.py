"""The columns that the sink takes, checked before anything is written.

Kafka's sink's columns (key, value, topic, headers, partition) and an optional timestamp. Other
columns are left alone, as Kafka's sink does, so that rows read from a topic can be written again.
Source: Spark's KafkaWriter.
"""

from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from sparklog.errors import InvalidRequestError
from sparklog.spark.options import SinkOptions

_HEADERS = ArrayType(StructType([StructField("key", StringType()), StructField("value", BinaryType())]))
_ALLOWED: dict[str, tuple[DataType, ...]] = {
    "key": (StringType(), BinaryType()),
    "value": (StringType(), BinaryType()),
    "topic": (StringType(),),
    "headers": (_HEADERS,),
    "partition": (IntegerType(),),
    "timestamp": (TimestampType(), LongType()),
}


def check_columns(schema: StructType, options: SinkOptions) -> list[str]:
    """Which of the columns to write, in a fixed order.

    Raises:
        InvalidRequestError: a column is missing or has the wrong type.
    """
    found = {field.name: field.dataType for field in schema.fields}
    if "value" not in found:
        raise InvalidRequestError(
            "INVALID_COLUMN",
            f"the required column value is missing; the columns are {', '.join(found) or 'none'}",
            fix="select something as value, for example to_json(struct(*)) AS value",
        )
    if options.topic is None and "topic" not in found:
        raise InvalidRequestError(
            "INVALID_COLUMN",
            f"there is neither an option topic nor a column topic; the columns are {', '.join(found)}",
            fix='set .option("topic", "...") or add the column topic',
        )
    for name, allowed in _ALLOWED.items():
        if name in found and not any(_same_type(found[name], wanted) for wanted in allowed):
            expected = " or ".join(wanted.simpleString() for wanted in allowed)
            raise InvalidRequestError(
                "INVALID_COLUMN",
                f"column {name} is {found[name].simpleString()}, expected {expected}",
                fix=f"cast the column, for example CAST({name} AS {allowed[0].simpleString().upper()})",
            )
    skipped = set()
    if options.topic is not None:
        skipped.add("topic")
    if not options.include_headers:
        skipped.add("headers")
    return [name for name in _ALLOWED if name in found and name not in skipped]


def _same_type(found: DataType, wanted: DataType) -> bool:
    """Equal but for nullability and collation."""
    match found, wanted:
        case (ArrayType(), ArrayType()):
            return _same_type(found.elementType, wanted.elementType)
        case (StructType(), StructType()):
            return [f.name for f in found.fields] == [f.name for f in wanted.fields] and all(
                _same_type(a.dataType, b.dataType) for a, b in zip(found.fields, wanted.fields, strict=True)
            )
        case _:
            return type(found) is type(wanted)
