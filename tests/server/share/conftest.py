"""A log in memory, as the publisher's tests have it."""

from tests.server.publish.conftest import clock, log, store

__all__ = ["clock", "log", "store"]
