"""Spark's classes for Python data sources, whatever its version from 4.0 on.

What a version lacks (features.py) is replaced by what it has instead; nobody else asks for versions.
"""

from typing import TYPE_CHECKING

from pyspark.sql import datasource

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
