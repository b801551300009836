"""Metrics: counters on the hot path, names for Prometheus, and the HTTP endpoint that serves them."""

from sparklog_server.metrics.metrics import Gauge, Metrics

__all__ = ["Gauge", "Metrics"]
