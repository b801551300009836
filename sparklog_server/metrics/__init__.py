"""Counters of the hot path. Prometheus names are in observe/."""

from sparklog_server.metrics.metrics import Gauge, Metrics

__all__ = ["Gauge", "Metrics"]
