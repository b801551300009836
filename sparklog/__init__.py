"""A Kafka-style commit log native to PySpark.

    import sparklog

    log = sparklog.open("/data/log")
    sparklog.register(spark)

Names are imported at their first use, so that `sparklog --help` starts quickly and Spark's workers load
only what they need.
"""

import importlib
import importlib.util
from typing import TYPE_CHECKING, Any

from sparklog import errors
from sparklog.errors import SparklogError

if TYPE_CHECKING:
    from sparklog import spark
    from sparklog.client import (
        AppendedRange,
        AppendOptions,
        AppendResult,
        CommittedOffset,
        PartitionDescription,
        SparkLog,
        TopicDescription,
    )
    from sparklog.client import open_log as open  # noqa: A004 - sparklog.open(root) is the API
    from sparklog.spark import StreamingLagListener, register

__version__ = "0.1.0"

__all__ = [
    "AppendOptions",
    "AppendResult",
    "AppendedRange",
    "CommittedOffset",
    "PartitionDescription",
    "SparkLog",
    "SparklogError",
    "StreamingLagListener",
    "TopicDescription",
    "__version__",
    "errors",
    "open",
    "register",
    "spark",
]

# Public name -> (module, name there); None: the module itself.
_LAZY: dict[str, tuple[str, str | None]] = {
    "AppendOptions": ("sparklog.client", "AppendOptions"),
    "AppendResult": ("sparklog.client", "AppendResult"),
    "AppendedRange": ("sparklog.client", "AppendedRange"),
    "CommittedOffset": ("sparklog.client", "CommittedOffset"),
    "PartitionDescription": ("sparklog.client", "PartitionDescription"),
    "SparkLog": ("sparklog.client", "SparkLog"),
    "StreamingLagListener": ("sparklog.spark", "StreamingLagListener"),
    "TopicDescription": ("sparklog.client", "TopicDescription"),
    "open": ("sparklog.client", "open_log"),
    "register": ("sparklog.spark", "register"),
    "spark": ("sparklog.spark", None),
}


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module, attribute = _LAZY[name]
    found = importlib.import_module(module)
    value = found if attribute is None else getattr(found, attribute)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """Names that can be used here: help(), and completion in an editor, ask for the value of each."""
    missing = set() if importlib.util.find_spec("pyspark") else {"StreamingLagListener"}
    return sorted({*__all__} - missing)
