"""The columns that the sink takes, checked before anything is written.

Kafka's sink's columns (key, value, topic, headers, partition) and an optional timestamp. Other
columns are not written, as with Kafka's sink. The source's own are left out silently, so that rows read from
a topic can be written again. The rest is a warning, and a name that differs in capitals only is an error.
Source: Spark's KafkaWriter.
"""

import difflib

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
from sparklog.spark.notices import Notices
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
_OF_THE_SOURCE = ("offset", "timestampType")
_NAMED = 10


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
    _warn_of_unknown(names, wanted, options)
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


def _warn_of_unknown(names: list[str], wanted: list[str], options: SinkOptions) -> None:
    """Name the columns that are not written, and what may be meant: `keys` for `key` loses every key."""
    by_option = [name for name in _ALLOWED if name not in wanted]
    known = {*wanted, *_OF_THE_SOURCE}
    unknown = [name for name in names if name not in known and name.lower() not in by_option]
    if not unknown:
        return
    missing = [name for name in wanted if name not in names]
    said = []
    for name in unknown[:_NAMED]:
        nearest = difflib.get_close_matches(name.lower(), missing, n=1, cutoff=0.6)
        said.append(f"{name} (did you mean {nearest[0]}?)" if nearest else name)
    more = f" and {len(unknown) - _NAMED} more" if len(unknown) > _NAMED else ""
    Notices({"root": options.root, "topic": options.topic or ""}).warn(
        f"the sink does not write the columns {', '.join(said)}{more}: it takes {', '.join(_ALLOWED)}. "
        "Rename them, put them into value, or drop them"
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
