"""The data source ``sparklog`` of Spark: batch and stream, read and write.

Spark makes a new instance for every plan, in several processes, from the options alone; so an instance holds
nothing else, and each method parses the options for its kind of query.
Spark starts each of those processes for one call. So each method imports only what it needs: Arrow, NumPy
and the client take a quarter of a second of CPU time.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource
from pyspark.sql.types import StructType

from sparklog.errors import InvalidRequestError
from sparklog.spark.data_source_api import plain_errors
from sparklog.spark.features import ADMISSION_CONTROL, FILTER_PUSHDOWN, Feature
from sparklog.spark.notices import Notices, log_with_time_and_level
from sparklog.spark.options import parse_sink_options, parse_source_options
from sparklog.spark.roots import refuse_options_of_a_table
from sparklog.spark.values import check_user_schema, parse_bool, sql_schema

if TYPE_CHECKING:
    from sparklog.spark.batch_reader import SparklogBatchReader
    from sparklog.spark.stream_reader import SparklogStreamReader
    from sparklog.spark.stream_writer import SparklogBatchWriter, SparklogStreamWriter


@plain_errors
class SparklogDataSource(DataSource):
    """``spark.read|readStream.format("sparklog")`` and ``df.write|writeStream.format("sparklog")``.

    Options, rows and semantics are those of Spark's Kafka connector (options.py lists them all);
    ``load(root)``, ``save(root)`` and ``start(root)`` name the log's directory.
    """

    @classmethod
    def name(cls) -> str:
        return "sparklog"

    def schema(self) -> str:
        refuse_options_of_a_table(self._given())
        return sql_schema(include_headers=self._include_headers())

    def reader(self, schema: StructType) -> "SparklogBatchReader":
        from sparklog.spark.batch_reader import SparklogBatchReader
        from sparklog.spark.data_source_api import CAN_PUSH_FILTERS

        check_user_schema(schema.fieldNames(), include_headers=self._include_headers())
        options = parse_source_options(self._given(), streaming=False)
        if not options.filter_pushdown:
            return SparklogBatchReader(options)
        if not CAN_PUSH_FILTERS:
            self._warn_missing(FILTER_PUSHDOWN, ["filterPushdown"])
            return SparklogBatchReader(options)
        from sparklog.spark.pushdown import SparklogPushdownReader

        return SparklogPushdownReader(options)

    def streamReader(self, schema: StructType) -> "SparklogStreamReader":
        from sparklog.spark.data_source_api import CAN_LIMIT_READS
        from sparklog.spark.stream_reader import SparklogStreamReader

        check_user_schema(schema.fieldNames(), include_headers=self._include_headers())
        options = parse_source_options(self._given(), streaming=True)
        if CAN_LIMIT_READS:
            from sparklog.spark.limited_reader import LimitedStreamReader

            return LimitedStreamReader(options)
        limits = ("maxOffsetsPerTrigger", "maxBytesPerTrigger", "minOffsetsPerTrigger")
        self._warn_missing(ADMISSION_CONTROL, [name for name in limits if name.lower() in self._given()])
        return SparklogStreamReader(options)

    def writer(self, schema: StructType, overwrite: bool) -> "SparklogBatchWriter":
        from sparklog.spark.stream_writer import SparklogBatchWriter

        _refuse_overwrite("mode overwrite" if overwrite else None)
        return SparklogBatchWriter(schema, parse_sink_options(self._given(), streaming=False))

    def streamWriter(self, schema: StructType, overwrite: bool) -> "SparklogStreamWriter":  # noqa: ARG002
        from sparklog.spark.stream_writer import SparklogStreamWriter

        # Spark sets `overwrite` for the output mode complete: every micro-batch has the whole result again.
        # As Kafka's sink does, this one appends it; readers take the latest record of a key.
        return SparklogStreamWriter(schema, parse_sink_options(self._given(), streaming=True))

    def _include_headers(self) -> bool:
        return parse_bool(self._given(), "includeHeaders", default=False)

    def _warn_missing(self, feature: Feature, options: list[str]) -> None:
        if options:
            text = f"{', '.join(options)}: this Spark has no {feature.name}: {feature.without}"
            Notices(self._given()).warn(text)

    def _given(self) -> Mapping[str, str]:
        log_with_time_and_level()
        return {name.lower(): value for name, value in self.options.items()}


def _refuse_overwrite(mode: str | None) -> None:
    if mode is not None:
        raise InvalidRequestError(
            "UNSUPPORTED_SAVE_MODE",
            f"{mode} is not supported: a log can only be appended to",
            fix='use .mode("append"); to start over, delete the topic first (sparklog topics delete)',
        )
