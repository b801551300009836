"""Getting a Spark session to know the format ``sparklog``.

Spark finds Python data sources by running PYSPARK_PYTHON (or python3 of PATH) and importing every
module named ``pyspark_*`` there; the package pyspark_sparklog serves that. It only works when that
interpreter is the one in which sparklog is installed, which an environment that is not activated
(a Jupyter kernel, an IDE) gets wrong. `configure` sets it, `register` needs no finding at all.
"""

import os
import sys
from typing import TYPE_CHECKING

from sparklog.errors import InvalidRequestError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


# Spark hides secrets and tokens in the plans that it prints, but would show the option "key".
_REDACTION = "spark.sql.redaction.options.regex"
_REDACTION_DEFAULT = "(?i)url"
_REDACTION_WITH_KEYS = r"(?i)url|^(s3\.)?key$"


def configure(builder: "SparkSession.Builder") -> "SparkSession.Builder":
    """Prepare the environment for a session that is about to be built.

    Sets PYSPARK_PYTHON to this interpreter unless it is set already, and hides the option key in plans.

    Example:
        ``spark = sparklog.spark.configure(SparkSession.builder.appName("etl")).getOrCreate()``

    Raises:
        InvalidRequestError: a SparkContext runs already with another interpreter; it keeps it.
    """
    from pyspark import SparkContext  # noqa: PLC0415 - importing sparklog.spark must stay cheap

    active = SparkContext._active_spark_context
    if active is not None and os.path.realpath(active.pythonExec) != os.path.realpath(sys.executable):
        raise InvalidRequestError(
            "WRONG_PYTHON",
            f"Spark is running already, with the Python workers' interpreter {active.pythonExec}, and "
            f"sparklog is installed for {sys.executable}",
            fix="stop that session, and call configure before the first one (or set PYSPARK_PYTHON)",
        )
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    if _REDACTION not in builder._options:
        builder.config(_REDACTION, _REDACTION_WITH_KEYS)
    return builder


def register(spark: "SparkSession") -> None:
    """Make ``format("sparklog")`` known to this session; again and again does no harm."""
    from sparklog.spark.datasource import SparklogDataSource  # noqa: PLC0415 - as above

    spark.dataSource.register(SparklogDataSource)
    if spark.conf.get(_REDACTION, _REDACTION_DEFAULT) == _REDACTION_DEFAULT:
        spark.conf.set(_REDACTION, _REDACTION_WITH_KEYS)
