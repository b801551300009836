"""Observations of the whole broker, and their Prometheus families."""
