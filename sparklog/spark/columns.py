"""The columns that the sink takes, checked before anything is written.

Kafka's sink's columns (key, value, topic, headers, partition) and an optional timestamp. Other
columns are left alone, as Kafka's sink does, so that rows read from a topic can be written again; but for
those that Spark's users would take for one of these.
Source: Spark's KafkaWriter.
"""

from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
    VariantType,
)

from sparklog.client import refuse_internal
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
        InvalidRequestError: a column is missing, is there twice, has the wrong type, or is named as one of
            the sink's but for its capitals; the topic is an internal one.
    """
    names = schema.fieldNames()
    skipped = set()
    if options.topic is not None:
        refuse_internal(options.topic)  # better here than in every task
        skipped.add("topic")
    if not options.include_headers:
        skipped.add("headers")
    wanted = [name for name in _ALLOWED if name not in skipped]
    for name in wanted:
        _check_name(name, names)
    if "value" not in names:
        raise InvalidRequestError(
            "INVALID_COLUMN",
            f"the required column value is missing; the columns are {', '.join(names) or 'none'}",
            fix="select something as value, for example to_json(struct(*)) AS value",
        )
    if options.topic is None and "topic" not in names:
        raise InvalidRequestError(
            "INVALID_COLUMN",
            f"there is neither an option topic nor a column topic; the columns are {', '.join(names)}",
            fix='set .option("topic", "...") or add the column topic',
        )
    found = {field.name: field.dataType for field in schema.fields}
    for name in wanted:
        if name in found and not any(_same_type(found[name], one) for one in _ALLOWED[name]):
            expected = " or ".join(one.simpleString() for one in _ALLOWED[name])
            raise InvalidRequestError(
                "INVALID_COLUMN",
                f"column {name} is {found[name].simpleString()}, expected {expected}",
                fix=_how_to_convert(name, found[name]),
            )
    return [name for name in wanted if name in found]


def _check_name(name: str, names: list[str]) -> None:
    """Spark takes `Key` for `key`; left out like any other column, it would be lost without a word."""
    if names.count(name) > 1:
        raise InvalidRequestError(
            "INVALID_COLUMN",
            f"column {name} is there {names.count(name)} times; the columns are {', '.join(names)}",
            fix=f"select the one that is meant, and rename or drop the others named {name}",
        )
    alike = [other for other in names if other.lower() == name]
    if alike and name not in alike:
        raise InvalidRequestError(
            "INVALID_COLUMN",
            f"found column {alike[0]}, expected it in lower case, as {name}: it would not be written",
            fix=f"rename it to {name}, or to something else if it is not meant to be written",
        )


def _how_to_convert(name: str, found: DataType) -> str:
    if name == "headers":
        return (
            "make it an array of structs with the fields key and value, for example "
            "array(struct('name' AS key, CAST('text' AS BINARY) AS value)) AS headers"
        )
    if isinstance(found, ArrayType | MapType | StructType | VariantType):
        return f"write it as text, for example to_json({name}) AS {name}"
    # TIMESTAMP alone is one without a zone where spark.sql.timestampType says so.
    wanted = "TIMESTAMP_LTZ" if name == "timestamp" else _ALLOWED[name][0].simpleString().upper()
    return f"cast the column, for example CAST({name} AS {wanted}) AS {name}"


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
