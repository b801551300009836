"""Lets Spark find the format ``sparklog`` by itself: it imports every module named ``pyspark_*``.

One such module that fails to import would hide all others from Spark, so this one never fails:
where sparklog or pyspark cannot be imported, it simply offers nothing.
"""

try:
    from sparklog.spark.datasource import SparklogDataSource as DefaultSource

    __all__ = ["DefaultSource"]
except Exception:  # noqa: BLE001 - see above: whatever the reason, never fail at import
    __all__ = []
