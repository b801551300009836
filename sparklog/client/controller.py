"""Asking the controller for what only it can decide: elections, reassignments, the end of a registration.

Who it is, any broker says (Metadata). Which brokers there are, the root says, or the user. A controller that
has just been deposed answers NOT_CONTROLLER, and one that was killed does not answer; then it is looked for
again, until there is another one or the time is up. Where no broker answers, nobody waits.

Invariants: nothing is asked of a broker of another cluster. What was asked and not answered may be done: all
    three requests may be repeated.
Not here: the requests' bytes (controller_requests.py); what the root says of it afterwards.
Concurrency: one thread a call.
Sources: Kafka's AdminClient: ControllerNodeProvider, handling of NOT_CONTROLLER.
"""

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import NamedTuple, TypeVar

from sparklog.client.broker_answers import METADATA, METADATA_VERSION, NO_TOPICS, NotKafkaError, read_cluster
from sparklog.client.broker_connection import Address, BrokerConnection, parse_servers
from sparklog.client.cluster_view import describe_brokers
from sparklog.client.controller_requests import (
    ALTER_REASSIGNMENTS,
    API_VERSIONS,
    ELECT_LEADERS,
    NAMES,
    NO_ERROR,
    NOT_CONTROLLER,
    UNREGISTER_BROKER,
    VERSIONS,
    Answer,
    Answers,
    Election,
    TopicPartition,
    alter_reassignments,
    elect_leaders,
    read_answer,
    read_answers,
    read_served,
    unregister_broker,
)
from sparklog.clock import Clock
from sparklog.errors import InvalidRequestError, RetriableError, UnsupportedVersionError
from sparklog.metadata import Image

DEFAULT_TIMEOUT_MS = 30_000
_MAX_RESPONSE_BYTES = 64 << 20
_LOOK_SECONDS = 5
_PAUSE_MS = 200  # before it is looked for again
A = TypeVar("A", Answer, Answers)


class _Place(NamedTuple):
    node_id: int
    address: Address


class ControllerClient:
    """See the module's docstring."""

    def __init__(
        self,
        image: Image,
        clock: Clock,
        *,
        bootstrap_servers: str | None = None,
        timeout_ms: int = DEFAULT_TIMEOUT_MS,
    ) -> None:
        """`image`: of the root that is meant; without `bootstrap_servers`, its brokers are asked.

        Raises:
            InvalidRequestError: INVALID_OPTION; NO_BROKER_RUNS.
        """
        self._cluster_id = image.cluster_id
        self._clock = clock
        self._timeout_ms = timeout_ms
        self._answered = False  # any broker, at any time
        if bootstrap_servers is not None:
            self._servers = [address for _, address in parse_servers(bootstrap_servers)]
        else:
            self._servers = _addresses(image)

    def elect(self, election: Election, partitions: Collection[TopicPartition] | None) -> Answers:
        """Elect leaders of these partitions, or of all."""
        body = elect_leaders(election, partitions, self._timeout_ms)
        return self._ask(ELECT_LEADERS, body, lambda reader: read_answers(reader, ELECT_LEADERS))

    def reassign(self, wanted: Mapping[TopicPartition, Sequence[int] | None]) -> Answers:
        """Begin reassignments to these replicas, or call them off (None)."""
        body = alter_reassignments(wanted, self._timeout_ms)
        return self._ask(ALTER_REASSIGNMENTS, body, lambda reader: read_answers(reader, ALTER_REASSIGNMENTS))

    def unregister(self, node_id: int) -> Answer:
        """Forget a broker."""
        return self._ask(UNREGISTER_BROKER, unregister_broker(node_id), read_answer)

    def _ask(self, key: int, body: bytes, read: Callable[..., A]) -> A:
        deadline = time.monotonic() + self._timeout_ms / 1000
        while True:
            problems: dict[str, None] = {}
            found = [one for server in self._servers if (one := self._look(server, deadline, problems))]
            for place in dict.fromkeys(found):
                try:
                    answer = _ask_controller(place, key, body, read, deadline)
                except (NotKafkaError, OSError) as error:
                    problems[_told(place.address, error)] = None
                else:
                    if not _is_elsewhere(answer):
                        return answer
                    problems[_told(place.address, "it is no controller any more")] = None
            is_late = time.monotonic() + _PAUSE_MS / 1000 >= deadline
            if is_late or not self._answered:
                raise RetriableError(
                    "CONTROLLER_UNREACHABLE",
                    f"{NAMES[key]}: no controller answered ({'; '.join(problems)})",
                    fix="check that a broker runs and can be reached from here, and ask again: what was not "
                    "answered may be done already, and may be repeated",
                )
            self._clock.sleep_ms(_PAUSE_MS)

    def _look(self, server: Address, deadline: float, problems: dict[str, None]) -> _Place | None:
        """Where the controller is, as far as this server knows."""
        try:
            with BrokerConnection(server, min(deadline, time.monotonic() + _LOOK_SECONDS)) as connection:
                cluster = read_cluster(connection.ask(METADATA, METADATA_VERSION, NO_TOPICS))
        except (NotKafkaError, OSError) as error:
            problems[_told(server, error)] = None
            return None
        if cluster.cluster_id != self._cluster_id:
            raise InvalidRequestError(
                "WRONG_ROOT",
                f"broker {server[0]}:{server[1]}: found cluster {cluster.cluster_id!r}, expected "
                f"{self._cluster_id!r}",
                fix="name a broker of the root that is meant",
            )
        self._answered = True
        address = cluster.addresses.get(cluster.controller_id)
        if address is None:
            problems[_told(server, "it knows of no controller now")] = None
            return None
        return _Place(cluster.controller_id, address)


def _ask_controller(place: _Place, key: int, body: bytes, read: Callable[..., A], deadline: float) -> A:
    host, port = place.address
    with BrokerConnection(place.address, deadline, max_response_bytes=_MAX_RESPONSE_BYTES) as connection:
        served = read_served(connection.ask(API_VERSIONS, 0, b""))
        if VERSIONS[key] not in served.get(key, range(0)):
            raise UnsupportedVersionError(
                "API_NOT_SERVED",
                f"broker {place.node_id} at {host}:{port}, the controller, does not serve {NAMES[key]}",
                fix="upgrade the brokers",
            )
        return read(connection.ask(key, VERSIONS[key], body, is_flexible=True))


def _told(address: Address, problem: Exception | str) -> str:
    reason = problem.strerror if isinstance(problem, OSError) and problem.strerror else problem
    return f"{address[0]}:{address[1]}: {reason}"


def _is_elsewhere(answer: Answer | Answers) -> bool:
    """Is another one controller by now?"""
    if isinstance(answer, Answer):
        return answer.error_code == NOT_CONTROLLER
    codes = {one.error_code for one in answer.partitions.values()}
    return NOT_CONTROLLER in {answer.whole.error_code, *codes} and not {NO_ERROR} & codes


def _addresses(image: Image) -> list[Address]:
    """Of the brokers that are not fenced, the controller first."""
    running = [one for one in describe_brokers(image) if not one.is_fenced and one.listeners]
    if not running:
        raise InvalidRequestError(
            "NO_BROKER_RUNS",
            f"cluster {image.cluster_id}: no broker is registered that is not fenced and has an address, "
            "and only a controller can do this",
            fix="start a broker: sparklog-server --root ROOT",
        )
    running.sort(key=lambda one: not one.is_controller)
    return [(one.listeners[0].host, one.listeners[0].port) for one in running]
