"""``sparklog-python``: this environment's Python, for Spark's workers.

Spark puts the zip of pyspark inside the installed pyspark first on its workers' PYTHONPATH. Python does not
cache compiled modules of a zip, so each of the six or so processes of a query compiles them again: 0.5 s of
CPU time each (measured: 3.5 s until the first micro-batch of a streaming query). Without that entry Python
imports the same modules, compiled, from site-packages.

The zip of another Spark (SPARK_HOME) stays on the path.
"""

import os
import sys
import sysconfig
from pathlib import Path


def main() -> None:
    """Replace this process by Python, with the same arguments."""
    path = os.environ.get("PYTHONPATH")
    if path is not None:
        os.environ["PYTHONPATH"] = without_installed_zips(path, Path(sysconfig.get_path("purelib")))
    os.execv(sys.executable, [sys.executable, *sys.argv[1:]])  # noqa: S606 - our own Python


def without_installed_zips(path: str, packages: Path) -> str:
    """Return a PYTHONPATH without the zips of the pyspark (and its py4j) that is installed in `packages`.

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
    """Return the value for PYSPARK_PYTHON: `sparklog-python` of this Python's directory, or this Python."""
    script = Path(sys.executable).with_name("sparklog-python")
    return str(script) if os.access(script, os.X_OK) else sys.executable
