"""What is seen of tables in Spark's catalog, and said of them."""

import pytest

from sparklog.errors import InvalidRequestError
from sparklog.spark.datasource import SparklogDataSource
from sparklog.spark.options import parse_source_options

TABLE = {"provider": "sparklog", "owner": "me"}


@pytest.mark.parametrize(
    ("more", "named"),
    [
        ({"option.subscribe": "t", "subscribe": "t"}, "subscribe"),
        ({"location": "file:/r", "path": "file:/r"}, "location, path"),
    ],
)
def test_a_table_with_options_is_refused(more: dict[str, str], named: str) -> None:
    with pytest.raises(InvalidRequestError, match=rf"cannot have options \({named}\).*WITH \(path") as caught:
        SparklogDataSource(TABLE | more).schema()
    assert caught.value.code == "UNSUPPORTED_TABLE"


def test_a_table_without_any_and_a_query_are_not() -> None:
    assert SparklogDataSource(TABLE | {"team": "orders"}).schema().startswith("key")
    assert SparklogDataSource({"path": "/r", "subscribe": "t"}).schema().startswith("key")


def test_without_a_root_the_message_tells_of_tables() -> None:
    with pytest.raises(InvalidRequestError, match="a table in Spark's catalog keeps no options") as caught:
        parse_source_options({}, streaming=False)
    assert caught.value.code == "MISSING_OPTION"
