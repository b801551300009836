"""Spark's classes for Python data sources, whatever its version from 4.0 on.

What a version lacks (features.py) is replaced by what it has instead; nobody else asks for versions.
"""

from typing import TYPE_CHECKING

from pyspark.sql import datasource

if TYPE_CHECKING or hasattr(datasource, "DataSourceStreamArrowWriter"):
    from pyspark.sql.datasource import DataSourceStreamArrowWriter as StreamWriterBase

    STREAM_WRITER_GETS_ARROW = True
else:
    from pyspark.sql.datasource import DataSourceStreamWriter as StreamWriterBase

    STREAM_WRITER_GETS_ARROW = False

CAN_PUSH_FILTERS = hasattr(datasource, "Filter")
CAN_LIMIT_READS = hasattr(datasource.DataSourceStreamReader, "getDefaultReadLimit")

__all__ = ["CAN_LIMIT_READS", "CAN_PUSH_FILTERS", "STREAM_WRITER_GETS_ARROW", "StreamWriterBase"]
