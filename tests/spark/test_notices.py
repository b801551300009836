"""What a query's user is told, in the form that it has in Spark's Python workers."""

import importlib.util
import re
import subprocess
import sys
from pathlib import Path

import pytest

WARNING = """
import logging
from sparklog.spark.notices import log_with_time_and_level
log_with_time_and_level()
log_with_time_and_level()
logging.getLogger("sparklog.spark").warning("once")
logging.basicConfig(format="application: %(message)s")
logging.getLogger("sparklog.spark").warning("twice")
"""
SHOWN = r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3} WARNING sparklog\.spark: once\napplication: twice\n"


def run_as(module: str, folder: Path) -> str:
    """What a module says that is started as Spark starts its workers: python -m."""
    *packages, name = module.split(".")
    package = folder
    for one in packages:
        package = package / one
        package.mkdir()
        (package / "__init__.py").touch()
    (package / f"{name}.py").write_text(WARNING)
    project = Path(__file__).resolve().parent.parent.parent
    done = subprocess.run(
        [sys.executable, "-m", module],
        cwd=folder,
        env={"PYTHONPATH": f"{folder}:{project}"},
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stderr


def test_sparks_workers_are_modules_of_pyspark() -> None:
    for name in ("daemon", "worker"):
        assert importlib.util.find_spec(f"pyspark.{name}") is not None


@pytest.mark.slow
def test_a_worker_of_spark_tells_time_and_level_until_somebody_sets_logging_up(tmp_path: Path) -> None:
    assert re.fullmatch(SHOWN, run_as("pyspark.daemon", tmp_path))


@pytest.mark.slow
@pytest.mark.parametrize("module", ["pysparkling.daemon", "etl.main"])
def test_elsewhere_the_form_is_the_applications(module: str, tmp_path: Path) -> None:
    assert run_as(module, tmp_path) == "once\napplication: twice\n"
