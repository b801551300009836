"""Both kinds of event loop, as for the network."""

from tests.server.network.conftest import run

__all__ = ["run"]
