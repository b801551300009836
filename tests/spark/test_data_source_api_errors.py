"""What stands above an error's message when Spark prints it."""

import importlib
import inspect
import pkgutil
import traceback
from collections.abc import Iterator

import pytest
from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceReader,
    DataSourceStreamReader,
)

import sparklog.spark
from sparklog.errors import InvalidRequestError, SparklogError
from sparklog.spark.data_source_api import StreamWriterBase, plain_errors
from sparklog.spark.datasource import SparklogDataSource
from sparklog.spark.features import ADMISSION_CONTROL, FILTER_PUSHDOWN
from sparklog.spark.rows import arrow_schema
from sparklog.spark.values import sql_schema
from tests.spark.conftest import MISSING

CALLED_BY_SPARK = (
    DataSource,
    DataSourceArrowWriter,
    DataSourceReader,
    DataSourceStreamReader,
    StreamWriterBase,
)
# What is only imported where Spark has it.
NEEDS = {"pushdown": FILTER_PUSHDOWN, "limited_reader": ADMISSION_CONTROL}


def refusal() -> SparklogError:
    return InvalidRequestError("INVALID_OPTION", "no", fix="say yes")


@plain_errors
class Source:
    """Fails in each way there is."""

    def raised_from_another(self) -> None:
        try:
            self._fault()
        except KeyError as error:
            raise refusal() from error

    def while_reading(self) -> Iterator[int]:
        yield 1
        self._deep(5)

    def a_fault_of_ours(self) -> None:
        self._deep(-1)

    def _deep(self, depth: int) -> None:
        if depth:
            self._deep(depth - 1) if depth > 0 else self._fault()
        raise refusal()

    def _fault(self) -> None:
        raise KeyError("ours")


def shown(error: BaseException) -> list[str]:
    """The functions above the message, without this test's own."""
    assert error.__cause__ is None
    assert error.__suppress_context__
    return [frame.name for frame in traceback.extract_tb(error.__traceback__)][1:]


def test_one_frame_and_no_cause() -> None:
    with pytest.raises(SparklogError) as caught:
        Source().raised_from_another()
    assert shown(caught.value) == ["call"]


def test_of_what_is_raised_while_rows_are_read_too() -> None:
    rows = Source().while_reading()
    assert next(rows) == 1
    with pytest.raises(SparklogError) as caught:
        next(rows)
    assert shown(caught.value) == ["_rest"]


def test_a_fault_of_ours_keeps_its_traceback() -> None:
    with pytest.raises(KeyError) as caught:
        Source().a_fault_of_ours()
    assert [f.name for f in traceback.extract_tb(caught.value.__traceback__)][-2:] == ["_deep", "_fault"]


def test_the_data_source_itself() -> None:
    assert sql_schema(include_headers=False)
    names = arrow_schema(include_headers=False).names
    source = SparklogDataSource({"path": "/x", "subscribe": "t", "startingOffsets": "{"})
    with pytest.raises(SparklogError, match="startingOffsets") as caught:
        source.streamReader(type("Schema", (), {"fieldNames": lambda _: names})())
    assert shown(caught.value) == ["call"]


def test_all_that_spark_calls_is_decorated() -> None:
    found = 0
    modules = [
        one.name
        for one in pkgutil.iter_modules(sparklog.spark.__path__)
        if NEEDS.get(one.name) not in MISSING
    ]
    for module in (importlib.import_module(f"sparklog.spark.{name}") for name in modules):
        for _, cls in inspect.getmembers(module, inspect.isclass):
            if cls.__module__ != module.__name__ or not issubclass(cls, CALLED_BY_SPARK):
                continue
            for name, member in vars(cls).items():
                if inspect.isfunction(member) and not name.startswith("_"):
                    assert hasattr(member, "__wrapped__"), f"{cls.__name__}.{name}: plain_errors is missing"
                    found += 1
    assert found > 15
