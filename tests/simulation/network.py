"""The way to the object store: what becomes of a request, told as botocore tells it.

A request takes effect at the server at one moment between its sending and its answer, whether or not its
sender is still alive: now, never, twice, or long after its sender gave up. Where the way leads through a
proxy, botocore tells of every lost connection as of one that was never made. What an error means is not for
the simulation to say: storage/s3_client.py does.
Sources: botocore.httpsession (which errors become which); urllib3, connectionpool._make_request (ProxyError
whenever a connection is not known to have reached the proxy).
"""

from collections.abc import Callable
from http.client import RemoteDisconnected
from typing import NoReturn, TypeVar

from botocore import exceptions as boto
from urllib3.exceptions import NewConnectionError, ProxyError

from tests.simulation.world import HOUR_US, MINUTE_US, SimProcess, World

T = TypeVar("T")
LATE_US = (20_000, 1_000_000, MINUTE_US, 20 * MINUTE_US, 2 * HOUR_US)
_ENDPOINT = "sim:remote"
_BUSY = {"Error": {"Code": "SlowDown"}, "ResponseMetadata": {"HTTPStatusCode": 503}}


class Network:
    """Between all processes and one server."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.latency_us = world.dice.choice((200, 2_000, 30_000))
        self.fault_rate = world.dice.choice((0.0, 0.01, 0.05))
        self.has_proxy = world.dice.random() < 0.4
        self.fails_until_us = 0
        self.breaks_for_us = 0  # when the next commit has got there, the way breaks for so long
        self._is_broken = False
        self.requests = 0

    def latency(self) -> int:
        """Of one direction."""
        return self.world.dice.randrange(1, self.latency_us)

    def send(self, process: SimProcess, kind: str, apply: Callable[[], T]) -> T:
        """One attempt at a request that changes something.

        Args:
            kind: what faults are counted as.
            apply: what the server does whenever the request gets there.

        Raises: what botocore raises for want of an answer.
        """
        world, rate = self.world, self.fault_rate
        there, back = self.latency(), self.latency()
        self.requests += 1
        is_failing = world.now_us < self.fails_until_us
        if (is_failing and not self._is_broken) or world.chance(rate, "busy"):
            process.wait_us(there + back)
            raise boto.ClientError(_BUSY, "PutObject")
        if is_failing or world.chance(rate / 2, "no connection"):
            process.wait_us(there)
            self._never_connected()
        if world.chance(rate, "request lost"):
            process.wait_us(self._patience())
            self._lost()
        answers: list[T] = []

        def arrive() -> None:
            answers.append(apply())

        if world.chance(rate, f"late {kind}"):
            world.at(world.dice.choice(LATE_US), arrive)
            process.wait_us(self._patience())
            self._lost()
        world.at(there, arrive)
        if world.chance(rate, f"doubled {kind}"):
            world.at(there + world.dice.choice((1_000, 1_000_000, 10 * MINUTE_US)), arrive)
        if world.chance(rate, "answer lost"):
            process.wait_us(there + self._patience())
            self._lost()
        process.wait_us(there)
        if kind == "commit" and self.breaks_for_us:
            self._break()
            self._lost()
        process.wait_us(back)
        return answers[0]

    def fail(self, duration_us: int) -> None:
        """The store answers everything with an error."""
        self._is_broken = False
        self.fails_until_us = self.world.now_us + duration_us

    def _break(self) -> None:
        self._is_broken = True
        self.fails_until_us, self.breaks_for_us = self.world.now_us + self.breaks_for_us, 0

    def heal(self) -> None:
        """It answers, and nobody waits for a commit to break at."""
        self.fails_until_us = self.breaks_for_us = 0

    def _patience(self) -> int:
        return self.world.dice.choice((5_000, 200_000, 5_000_000))

    def _never_connected(self) -> NoReturn:
        if self.has_proxy:
            _raise_from_proxy(NewConnectionError(None, "connection refused"))  # type: ignore[arg-type]
        raise boto.EndpointConnectionError(endpoint_url=_ENDPOINT, error="connection refused")

    def _lost(self) -> NoReturn:
        """The request was under way."""
        if self.has_proxy and self.world.chance(0.5, "proxy error"):
            _raise_from_proxy(RemoteDisconnected("Remote end closed connection without response"))
        raise boto.ReadTimeoutError(endpoint_url=_ENDPOINT, error="timed out")


def _raise_from_proxy(cause: Exception) -> NoReturn:
    error = ProxyError("Unable to connect to proxy", cause)
    raise boto.ProxyConnectionError(proxy_url="sim:proxy", error=error) from error
