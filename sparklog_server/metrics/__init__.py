"""Metrics: counters on the hot path. Their names for Prometheus are in observe/."""

from sparklog_server.metrics.metrics import Gauge, Metrics

__all__ = ["Gauge", "Metrics"]
