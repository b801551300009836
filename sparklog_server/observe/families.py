"""Prometheus families with exact names, in one line each.

Kafka's histograms become what the JMX exporter makes of them: gauges with the label quantile, and a count.
Sources: Strimzi's kafka-metrics.yaml.
"""

from collections.abc import Iterable, Iterator, Mapping

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from sparklog_server.metrics.histogram import Histogram

QUANTILES = (0.50, 0.75, 0.95, 0.98, 0.99, 0.999)
QUANTILE_NAMES = ("0.50", "0.75", "0.95", "0.98", "0.99", "0.999")
Labels = Mapping[str, str]
Rows = Iterable[tuple[Labels, float]]


def gauge(name: str, help_text: str, value: float) -> Metric:
    """One number."""
    return gauges(name, help_text, [({}, value)])


def gauges(name: str, help_text: str, rows: Rows) -> Metric:
    """A number for each set of labels."""
    family = GaugeMetricFamily(name, help_text)
    for labels, value in rows:
        family.add_sample(name, dict(labels), value)
    return family


def counter(name: str, help_text: str, value: float) -> Metric:
    """One number that only grows; `name` ends in _total or _count."""
    return counters(name, help_text, [({}, value)])


def counters(name: str, help_text: str, rows: Rows) -> Metric:
    """As `counter`, for each set of labels."""
    family: Metric
    if name.endswith("_total"):
        family = CounterMetricFamily(name, help_text)
    else:
        # The JMX exporter's _count has no _total, which prometheus_client insists on: untyped, then.
        family = Metric(name, help_text, "untyped")
    for labels, value in rows:
        family.add_sample(name, dict(labels), value)
    return family


def quantiles(name: str, help_text: str, histograms: Iterable[tuple[Labels, Histogram]]) -> Iterator[Metric]:
    """Gauges of the quantiles of the last minute or two, and how many values there were since the start."""
    rows: list[tuple[Labels, float]] = []
    counts: list[tuple[Labels, float]] = []
    for labels, histogram in histograms:
        found = histogram.quantiles(QUANTILES)
        rows += [
            ({**labels, "quantile": quantile}, value)
            for quantile, value in zip(QUANTILE_NAMES, found, strict=True)
        ]
        counts.append((labels, histogram.count))
    yield gauges(name, help_text, rows)
    yield counters(f"{name}_count", f"{help_text} How many since the start.", counts)
