"""How idle the loop and the storage threads are."""

from sparklog_server.observe.observation import WINDOW_SAMPLES, Sample, Utilization


def test_utilization_is_that_of_the_last_minute() -> None:
    utilization = Utilization(storage_threads=lambda: 4)
    assert (utilization.loop_idle, utilization.storage_idle) == (1.0, 1.0)
    utilization.add(Sample(0.0, 0.0, 0.0))
    utilization.add(Sample(10.0, 2.5, 10.0))
    assert (utilization.loop_idle, utilization.storage_idle) == (0.75, 0.75)
    utilization.add(Sample(10.0, 99.0, 999.0))
    assert (utilization.loop_idle, utilization.storage_idle) == (0.0, 0.0)
    for second in range(WINDOW_SAMPLES):
        utilization.add(Sample(100.0 + second, 99.0, 999.0))
    assert (utilization.loop_idle, utilization.storage_idle) == (1.0, 1.0)
    utilization.sample(5.0)
