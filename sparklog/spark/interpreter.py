"""``sparklog-python``: this environment's Python, for Spark's workers.

Spark puts the zip of pyspark that lies inside the installed pyspark before everything else on its workers'
PYTHONPATH. A zip keeps no compiled modules, so each of the six or so processes that a query starts compiles
them anew: 0.5 s of processor time each (measured: 3.5 s until the first micro-batch of a streaming query).
Without that entry the same modules come, compiled, from the directory beside it.

Another Spark's zip (SPARK_HOME) is left where it is.
"""

import os
import sys
import sysconfig
from pathlib import Path


def main() -> None:
    """Become Python, with the same arguments."""
    path = os.environ.get("PYTHONPATH")
    if path is not None:
        os.environ["PYTHONPATH"] = without_installed_zips(path, Path(sysconfig.get_path("purelib")))
    os.execv(sys.executable, [sys.executable, *sys.argv[1:]])  # noqa: S606 - our own Python


def without_installed_zips(path: str, packages: Path) -> str:
    """A PYTHONPATH without zips of the pyspark (and of py4j, which it needs) that `packages` has unpacked.

    Args:
        path: entries separated by os.pathsep.
        packages: the environment's site-packages.
    """
    if not all((packages / name / "__init__.py").exists() for name in ("pyspark", "py4j")):
        return path
    zips = (packages / "pyspark" / "python" / "lib").resolve()
    entries = path.split(os.pathsep)
    return os.pathsep.join(
        entry for entry in entries if not (entry.endswith(".zip") and Path(entry).parent.resolve() == zips)
    )


def worker_python() -> str:
    """What PYSPARK_PYTHON should be: `sparklog-python` if it lies beside this Python, else this Python."""
    beside = Path(sys.executable).with_name("sparklog-python")
    return str(beside) if os.access(beside, os.X_OK) else sys.executable
