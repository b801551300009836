"""A log in memory and a clock that stands still, as for the publisher."""

from tests.server.publish.conftest import clock, log, store

__all__ = ["clock", "log", "store"]
