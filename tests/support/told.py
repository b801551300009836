"""What one logger has said.

`caplog.messages` and `caplog.records` have what every thread and every library of the process says meanwhile,
and so a test that counts them fails when another one's client is slow to end. These are of one logger.
"""

import logging

import pytest


class Told:
    """told("sparklog.spark"): the messages of this logger and of those below it, since the test began."""

    def __init__(self, caplog: pytest.LogCaptureFixture) -> None:
        self._caplog = caplog

    def __call__(self, logger: str) -> list[str]:
        return [record.getMessage() for record in self.records(logger)]

    def records(self, logger: str) -> list[logging.LogRecord]:
        """The same with their levels."""
        return [record for record in self._caplog.records if f"{record.name}.".startswith(f"{logger}.")]

    def forget(self) -> None:
        """From now on, only what is said after this."""
        self._caplog.clear()
