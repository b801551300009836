import json
from pathlib import Path

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from sparklog.demo import dataset
from sparklog.demo import dataset as verify

ROWS = st.lists(
    st.fixed_dictionaries({"a": st.none() | st.integers(0, 3), "b": st.sampled_from("xy")}), max_size=12
)
SCHEMA = pa.schema([("a", pa.int64()), ("b", pa.string())])


def flights(*rows: tuple[str, str, int | None]) -> pa.Table:
    origins, hours, delays = zip(*rows, strict=True)
    return pa.table({"origin": origins, "time_hour": hours, "dep_delay": pa.array(delays, pa.int64())})


@given(ROWS, ROWS)
def test_difference_is_that_of_multisets(
    expected: list[dict[str, object]], found: list[dict[str, object]]
) -> None:
    difference = verify.compare_rows(
        pa.Table.from_pylist(expected, schema=SCHEMA), pa.Table.from_pylist(found, schema=SCHEMA)
    )
    remaining, extra = list(expected), 0
    for row in found:
        if row in remaining:
            remaining.remove(row)
        else:
            extra += 1
    assert (difference.lost, difference.duplicated) == (len(remaining), extra)
    assert difference.equal == (not remaining and not extra)


def test_hourly_delays_count_cancelled_flights_without_delay() -> None:
    hourly = verify.hourly_delays(
        flights(
            ("JFK", "2013-01-01T10:00:00Z", 5),
            ("JFK", "2013-01-01T10:00:00Z", None),
            ("EWR", "2013-01-01T10:00:00Z", None),
        )
    )
    assert hourly.to_pylist() == [
        {"origin": "EWR", "time_hour": "2013-01-01T10:00:00Z", "flights": 1, "departures": 0, "delay_min": 0},
        {"origin": "JFK", "time_hour": "2013-01-01T10:00:00Z", "flights": 2, "departures": 1, "delay_min": 5},
    ]


@given(
    st.lists(
        st.tuples(st.sampled_from(["JFK", "EWR"]), st.sampled_from(["t1", "t2"]), st.integers(-9, 9)),
        min_size=1,
    )
)
def test_partial_sums_add_up_to_the_batch_computation(rows: list[tuple[str, str, int]]) -> None:
    middle = len(rows) // 2
    parts = [verify.hourly_delays(flights(*part)) for part in (rows[:middle], rows[middle:]) if part]
    assert verify.add_up(pa.concat_tables(parts)).equals(verify.hourly_delays(flights(*rows)))


def test_record_published_twice_makes_a_sum_wrong() -> None:
    once = verify.hourly_delays(flights(("JFK", "t1", 5), ("EWR", "t1", 1)))
    twice = pa.concat_tables([once, once.slice(0, 1)])
    difference = verify.compare_rows(once, verify.add_up(twice))
    assert (difference.lost, difference.duplicated) == (1, 1)


def test_json_values_become_the_rows_again() -> None:
    rows = [{"origin": "JFK", "flight": 7}, {"origin": "EWR", "dep_delay": -3, "tailnum": "N1"}]
    values = pa.chunked_array([[json.dumps(row).encode()] for row in rows], pa.binary())
    table = verify.parse_values(values, dataset.ARROW_SCHEMA)
    assert table.schema.equals(dataset.ARROW_SCHEMA)
    assert [{k: v for k, v in row.items() if v is not None} for row in table.to_pylist()] == rows
    assert verify.parse_values(pa.chunked_array([], pa.binary()), dataset.ARROW_SCHEMA).num_rows == 0


def test_data_set_has_every_flight_of_2013(tmp_path: Path) -> None:
    table = dataset.read_flights(dataset.unpack_flights(tmp_path))
    assert table.num_rows == 336_776
    assert table.schema.equals(dataset.ARROW_SCHEMA)
    assert table["tailnum"].null_count == 2_512
