"""sparklog for Spark: ``register(spark)``, ``configure(builder)``, ``StreamingLagListener``.

Importing this package does not import pyspark; its lazy attributes do.
"""

from typing import Any

from sparklog.spark.session import configure, register, require_pyspark

__all__ = ["SparklogDataSource", "StreamingLagListener", "configure", "register"]

_LAZY = {
    "SparklogDataSource": "sparklog.spark.datasource",
    "StreamingLagListener": "sparklog.spark.lag_listener",
}


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        import importlib  # noqa: PLC0415 - only on access

        require_pyspark()
        return getattr(importlib.import_module(_LAZY[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
