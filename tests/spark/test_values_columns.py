"""The columns that the sink takes, and what it says of those that it does not."""

import logging
import re
from pathlib import Path

import pytest
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
    TimestampNTZType,
    TimestampType,
    VariantType,
)

from sparklog.errors import InvalidRequestError
from sparklog.spark.options import SinkOptions, parse_sink_options
from sparklog.spark.stream_writer import check_columns
from sparklog.spark.values import sql_schema
from tests.support.told import Told

HEADERS = ArrayType(StructType([StructField("key", StringType()), StructField("value", BinaryType())]))


def sink(**options: str) -> SinkOptions:
    return parse_sink_options({"path": "/log", **options}, streaming=False)


def columns(*named: tuple[str, DataType]) -> StructType:
    return StructType([StructField(name, kind) for name, kind in named])


WHOLE = columns(
    ("offset", LongType()),
    ("timestamp", TimestampType()),
    ("partition", IntegerType()),
    ("headers", HEADERS),
    ("value", BinaryType()),
    ("key", StringType()),
    ("topic", StringType()),
)


def test_the_page_has_the_columns_of_both_sides() -> None:
    page = (Path(__file__).resolve().parents[2] / "docs" / "options.md").read_text()
    source, sink_ = page.split("| column of the ")[1:]
    read, written = (
        set(re.findall(r"`(\w+)`", "".join(re.findall(r"^\| (`.*?) \|", text, re.MULTILINE))))
        for text in (source, sink_)
    )
    assert read == set(re.findall(r"(?:^|, )(\w+)", sql_schema(include_headers=False))) | {"headers"}
    assert written == set(check_columns(WHOLE, sink()))


def refused(schema: StructType, options: SinkOptions) -> str:
    with pytest.raises(InvalidRequestError) as caught:
        check_columns(schema, options)
    assert caught.value.code == "INVALID_COLUMN"
    return str(caught.value)


def test_all_that_the_sink_knows_are_written_in_a_fixed_order_and_others_are_left_alone() -> None:
    expected = ["key", "value", "topic", "headers", "partition", "timestamp"]
    assert check_columns(WHOLE, sink()) == expected
    assert check_columns(WHOLE, sink(topic="t", includeHeaders="false")) == [
        name for name in expected if name not in {"topic", "headers"}
    ]


@pytest.mark.parametrize("name", ["Key", "KEY", "Value", "Partition", "Timestamp", "Headers"])
def test_a_name_in_capitals_is_refused_since_its_values_would_be_lost(name: str) -> None:
    """Spark's users may write either; Kafka's sink would leave it out without a word."""
    others = [("value", StringType())] if name != "Value" else [("key", StringType())]
    text = refused(columns((name, StringType()), *others), sink(topic="t"))
    assert f"found column {name}, expected it in lower case" in text
    assert f"rename it to {name.lower()}" in text


def test_capitals_do_not_matter_where_nothing_is_lost() -> None:
    schema = columns(
        ("key", StringType()), ("KEY", LongType()), ("value", StringType()), ("Topic", LongType())
    )
    assert check_columns(schema, sink(topic="t")) == ["key", "value"], "a key is there, and a topic is named"


def test_columns_that_nobody_knows_are_named_with_what_may_be_meant(told: Told) -> None:
    """Kafka's sink leaves them out silently, and every record is without its key."""
    names = ["value", "keys", "header", "partition_id", "price"]
    schema = columns(*((name, StringType()) for name in names))
    for _ in range(2):  # for each micro-batch
        assert check_columns(schema, sink(topic="t")) == ["value"]
    (message,) = told("sparklog.spark")
    assert message.startswith(
        "the sink does not write the columns keys (did you mean key?), header (did you mean headers?), "
        "partition_id (did you mean partition?), price: it takes key, value, topic, headers, partition, "
    )
    assert told.records("sparklog.spark")[0].levelno == logging.WARNING


def test_many_unknown_columns_make_a_short_warning(told: Told) -> None:
    schema = columns(("value", StringType()), *((f"c{n}", LongType()) for n in range(500)))
    check_columns(schema, sink(topic="t"))
    (message,) = told("sparklog.spark")
    assert "c8, c9 and 490 more: it takes" in message


def test_what_is_there_already_is_not_what_is_meant(told: Told) -> None:
    check_columns(columns(("value", StringType()), ("values", StringType())), sink(topic="t"))
    (message,) = told("sparklog.spark")
    assert "the columns values: it takes" in message


def test_rows_of_a_topic_are_written_to_another_without_a_warning(told: Told) -> None:
    source = columns(
        *((field.name, field.dataType) for field in WHOLE.fields), ("timestampType", IntegerType())
    )
    check_columns(source, sink(topic="t", includeHeaders="false"))
    check_columns(columns(("value", StringType()), ("Topic", StringType())), sink(topic="t"))
    assert told("sparklog.spark") == []


def test_a_column_that_is_there_twice_is_refused() -> None:
    schema = columns(("value", StringType()), ("key", StringType()), ("value", BinaryType()))
    assert "column value exists 2 times; the columns are value, key, value" in refused(
        schema, sink(topic="t")
    )


def test_what_is_not_written_may_be_of_any_type() -> None:
    schema = columns(("value", StringType()), ("topic", LongType()), ("headers", StringType()))
    assert check_columns(schema, sink(topic="t", includeHeaders="false")) == ["value"]


@pytest.mark.parametrize(
    ("name", "kind", "fix"),
    [
        ("key", LongType(), r"CAST(key AS STRING) AS key"),
        ("value", columns(("a", LongType())), "to_json(value) AS value"),
        ("value", ArrayType(StringType()), "to_json(value) AS value"),
        ("value", MapType(StringType(), StringType()), "to_json(value) AS value"),
        ("value", VariantType(), "to_json(value) AS value"),
        ("partition", LongType(), "CAST(partition AS INT) AS partition"),
        ("timestamp", StringType(), "CAST(timestamp AS TIMESTAMP_LTZ) AS timestamp"),
        ("timestamp", TimestampNTZType(), "CAST(timestamp AS TIMESTAMP_LTZ) AS timestamp"),
        (
            "headers",
            MapType(StringType(), StringType()),
            "array(struct('name' AS key, CAST('text' AS BINARY)",
        ),
        ("headers", ArrayType(columns(("k", StringType()), ("v", BinaryType()))), "fields key and value"),
    ],
)
def test_the_advice_for_a_wrong_type_can_be_followed(name: str, kind: DataType, fix: str) -> None:
    schema = columns((name, kind)) if name == "value" else columns(("value", StringType()), (name, kind))
    text = refused(schema, sink(topic="t"))
    assert f"column {name} is {kind.simpleString()}, expected " in text
    assert fix in text
