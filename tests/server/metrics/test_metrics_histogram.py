"""Histograms: bounded, and never far off."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparklog_server.metrics.metrics import Histogram

DURATIONS = st.floats(min_value=0.001, max_value=1e7, allow_nan=False)


@given(st.lists(DURATIONS, min_size=1, max_size=200), st.sampled_from([0.5, 0.95, 0.99, 0.999]))
def test_a_quantile_is_at_most_a_sixteenth_above_the_true_one(values: list[float], share: float) -> None:
    histogram = Histogram()
    for value in values:
        histogram.record(value)
    rank = max(1, -(-len(values) * share // 1))
    true = sorted(values)[int(rank) - 1]
    (found,) = histogram.quantiles([share])
    assert true <= found * (1 + 1e-9)
    assert found <= max(true * (1 + 1 / 16) * (1 + 1e-9), 2**-10 * (1 + 1 / 16))
    assert found <= max(values)
    assert histogram.count == len(values)
    assert histogram.total == pytest.approx(sum(values))


@pytest.mark.parametrize("value", [0.0, -1.0, 1e-30, 1e30, float("inf"), 2.0**-10, 2.0**26])
def test_every_value_has_a_bucket(value: float) -> None:
    histogram = Histogram()
    histogram.record(value)
    assert histogram.count == 1
    assert histogram.quantiles([0.5])[0] <= max(value, 0.0)
    for _ in range(2):
        histogram.record(1.0)
    lowest, middle, largest = histogram.quantiles([0.3, 0.6, 1.0])
    assert middle == pytest.approx(1.0, rel=1 / 16)
    assert (lowest < middle, largest > middle) == (value < 1.0, value > 1.0), "it is counted where it belongs"


def test_quantiles_forget_after_two_windows_and_counts_do_not() -> None:
    histogram = Histogram()
    histogram.record(100)
    histogram.rotate()
    histogram.record(1)
    assert histogram.quantiles([0.99]) == [100]
    histogram.rotate()
    assert histogram.quantiles([0.99])[0] == 1
    histogram.rotate()
    assert histogram.quantiles([0.5, 0.99]) == [0, 0]
    assert (histogram.count, histogram.total) == (2, 101)
