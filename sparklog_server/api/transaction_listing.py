"""Listings and descriptions of transactions and producers for administrators.

Not here: changes (transactions.py).
"""

import contextlib
from collections.abc import Callable, Iterable, Sequence
from types import ModuleType
from typing import Any

from sparklog.client.cluster_view import STATE_NAMES, Wanted, chosen, coordinated
from sparklog.client.patterns import CpuBudget
from sparklog.errors import InvalidRequestError
from sparklog.metadata import AclOperation, Image, PartitionState, ResourceType, Transaction
from sparklog_server.api.registry import api
from sparklog_server.api.services import Services
from sparklog_server.protocol.apis import ApiKey, ErrorCode, RequestContext
from sparklog_server.protocol.responses import (
    encode_partition,
    encode_producers,
    encode_topics,
    field,
    make,
    maker,
)
from sparklog_server.protocol.wire import Pace, Response, in_slices, text_bytes
from sparklog_server.security.access import Caller
from sparklog_server.transactions.coordinator import active_producers

# --- ListTransactions --------------------------------------------------------------------------------

PATTERN_SECONDS = 0.05
_LISTED_BYTES = 160  # while the answer is made, without the id


@api(ApiKey.LIST_TRANSACTIONS, versions=range(3))
async def handle_list_transactions(request: Any, context: RequestContext, services: Services) -> Any:
    """ListTransactions (key 66), versions 0-2.

    Does: the transactional ids that this broker coordinates, with their producer ids and states, by filters
        of states, producer ids, and how long they have been open. So the union over brokers, as in Kafka's
        admin client, has each id once. The answer lists unknown names of states. A pattern is RE2's, as in
        Kafka; an invalid one, or one that takes more than 50 ms of CPU, is INVALID_REGULAR_EXPRESSION.
        An id that is not open has no duration: Kafka counts from 1970 there, and lists those that are idle,
        too.
    Beyond some 32 MB: UNKNOWN_SERVER_ERROR; use a filter.
    Versions: 1 durations (KIP-994); 2 patterns (KIP-1152).
    """
    wanted = Wanted(
        states=request.state_filters,
        producer_ids=request.producer_id_filters,
        running_ms=field(request, "duration_filter", -1),
        pattern=field(request, "transactional_id_pattern"),
    )
    error, found = await _found_states(wanted, services)
    unknown = wanted.unknown_states
    names = [*unknown, *(one.transactional_id for one in found)]
    if not context.answer.fits(sum(await in_slices(map(_listed_bytes, names)))):
        error, found, unknown = ErrorCode.unknown_server_error, [], []
    await context.answer.reserve()
    types = context.types
    in_phase = {
        phase: maker(types.TransactionState, "transactional_id", "producer_id", transaction_state=name)
        for phase, name in STATE_NAMES.items()
    }
    return make(
        types.ListTransactionsResponse,
        error_code=error,
        unknown_state_filters=unknown,
        transaction_states=await in_slices(
            in_phase[one.phase](one.transactional_id, one.producer_id) for one in found
        ),
    )


def _listed_bytes(name: str) -> int:
    """Return the memory of an id, or the name of a state: twice its bytes, while the answer is built."""
    return _LISTED_BYTES + 2 * text_bytes(name)


async def _found_states(wanted: Wanted, services: Services) -> tuple[ErrorCode, list[Transaction]]:
    await services.root.look()
    if not services.membership.is_in_charge:
        return ErrorCode.coordinator_not_available, []
    image = services.root.image
    # The other storage threads stay free for requests without a pattern.
    one_at_a_time = services.searching if wanted.pattern else contextlib.nullcontext()
    try:
        async with one_at_a_time:
            return ErrorCode.none, await services.root.run(_choose, image, wanted, services)
    except InvalidRequestError:
        return ErrorCode.invalid_regular_expression, []


def _choose(image: Image, wanted: Wanted, services: Services) -> list[Transaction]:
    return chosen(
        coordinated(image, services.node_id),
        wanted,
        now_ms=services.clock.now_ms(),
        budget=CpuBudget(PATTERN_SECONDS),
    )


# --- DescribeTransactions ----------------------------------------------------------------------------

_NONE = -1
_STATE_BYTES, _TOPIC_BYTES, _PARTITION_BYTES = 300, 150, 40  # while the answer is made, without names
_A_PIECE = 16  # partitions take as long as an entity


@api(ApiKey.DESCRIBE_TRANSACTIONS, versions=range(1))
async def handle_describe_transactions(request: Any, context: RequestContext, services: Services) -> Any:
    """DescribeTransactions (key 65), version 0.

    Does: state, producer, time-out, start and partitions of transactional ids of any coordinator; with the
        partitions of __consumer_offsets that have staged offsets, as in Kafka.
        TRANSACTIONAL_ID_NOT_FOUND as of the newest image only.
    Beyond 32 MiB of partitions the rest of the ids is answered UNKNOWN_SERVER_ERROR: request fewer.
    Versions: 0 (KIP-664).
    """
    await services.root.look(force=True)
    image = services.root.image
    names = dict.fromkeys(request.transactional_ids)
    pace = Pace()
    fitting = await _fitting(names, image, context, pace)
    await context.answer.reserve()
    in_charge = services.membership.is_in_charge
    errors = {name: _error(image, name, name in fitting, in_charge) for name in names}
    failed = {error: _failed(context.types, error) for error in set(errors.values())}
    described = {
        name: await _described(context.types, image, name, pace)
        for name, error in errors.items()
        if not error
    }
    return make(
        context.types.DescribeTransactionsResponse,
        transaction_states=await in_slices(
            failed[error](name) if error else described[name] for name, error in errors.items()
        ),
    )


async def _fitting(names: Iterable[str], image: Image, context: RequestContext, pace: Pace) -> set[str]:
    """Count the approximate size of the descriptions; return the ids that fit."""
    fitting = set()
    for name in names:
        one = image.transactions.get(name)
        size = _STATE_BYTES + 2 * text_bytes(name)
        if one is None:
            context.answer.fits(size)  # the error is answered, whether it fits or not
        elif context.answer.fits(size + _PARTITION_BYTES * len(one.partitions)):
            if context.answer.fits(_size_of_topics(one, image)):
                fitting.add(name)
            await pace.made(1 + len(one.partitions) // _A_PIECE)
    return fitting


def _size_of_topics(one: Transaction, image: Image) -> int:
    """Return the size of its topics without their partitions."""
    topics = (image.topic_by_id.get(topic_id) for topic_id in one.partitions.by_topic)
    names = (topic.name for topic in topics if topic is not None)
    return sum(_TOPIC_BYTES + 2 * text_bytes(topic) for topic in names)


def _error(image: Image, name: str, fits: bool, in_charge: bool) -> ErrorCode:
    if not in_charge:
        return ErrorCode.coordinator_not_available
    if not name:
        return ErrorCode.invalid_request
    if name not in image.transactions:
        return ErrorCode.transactional_id_not_found
    return ErrorCode.none if fits else ErrorCode.unknown_server_error


def _failed(types: ModuleType, error: ErrorCode) -> Callable[[str], Any]:
    """Return the constructor of entries with an error only, from their ids."""
    return maker(
        types.TransactionState,
        "transactional_id",
        error_code=error,
        producer_id=_NONE,
        producer_epoch=_NONE,
    )


async def _described(types: ModuleType, image: Image, name: str, pace: Pace) -> Any:
    one = image.transactions[name]
    return make(
        types.TransactionState,
        error_code=ErrorCode.none,
        transactional_id=name,
        transaction_state=STATE_NAMES[one.phase],
        transaction_timeout=one.timeout_ms,
        transaction_start_time=one.started_ms if one.is_ongoing else _NONE,
        producer_id=one.producer_id,
        producer_epoch=one.producer_epoch,
        topics=await _topics(types, image, one, pace),
    )


async def _topics(types: ModuleType, image: Image, one: Transaction, pace: Pace) -> list[Any]:
    numbers: dict[str, list[int]] = {}
    for count, (topic_id, partition) in enumerate(one.partitions):
        if count % _A_PIECE == 0:
            await pace.made(1)
        topic = image.topic_by_id.get(topic_id)
        if topic is not None:  # else it was deleted, and its part is dropped
            numbers.setdefault(topic.name, []).append(partition)
    topics = []
    for name, found in numbers.items():
        topics.append(make(types.TopicData, topic=name, partitions=found))
        await pace.made(1)
    return topics


# --- DescribeProducers -------------------------------------------------------------------------------

MAX_PRODUCERS = 100_000  # in all partitions of a request: some 60 ms
_PRODUCERS_BYTES, _PRODUCER_BYTES = 200, 100  # while the answer is made
_LOOKED_AT_TOGETHER = 64  # partitions: a thread for each of thousands took longer than looking
_Place = tuple[str, int]


@api(ApiKey.DESCRIBE_PRODUCERS, versions=range(1))
async def handle_describe_producers(request: Any, context: RequestContext, services: Services) -> Any:
    """DescribeProducers (key 61), version 0.

    Does: the producers that a partition remembers: epoch, last sequence, the time of the last batch. As of
        the newest image, for any leader of the partition. Staged batches count: sequences are those of
        staging.
    Does not: the start offset of an open transaction (CurrentTxnStartOffset is -1): its records have no
        offsets yet. So `kafka-transactions abort` needs the producer (--producer-id), and `find-hanging`
        finds none,
        correctly: an unknown transaction cannot have staged anything.
    Beyond MAX_PRODUCERS, or 32 MiB of partitions, the rest of the partitions is answered
    UNKNOWN_SERVER_ERROR:
        ask for fewer.
    Versions: 0 (KIP-664).
    """
    await services.root.look(force=True)
    image = services.root.image
    asked = dict.fromkeys(
        (topic.name, number) for topic in request.topics for number in topic.partition_indexes
    )
    room = _Room(image, context, services.access.caller(context))
    errors = {place: room.error(place) for place in asked}
    await context.answer.reserve()
    found = await _look(services, image, [place for place, error in errors.items() if not error])
    partitions = await in_slices(
        found[place] if place in found else encode_partition(place[1], error)
        for place, error in errors.items()
    )
    answers: dict[str, list[bytes]] = {}
    for (name, _), one in zip(errors, partitions, strict=True):
        answers.setdefault(name, []).append(one)
    return Response(chunks=encode_topics(answers))


class _Room:
    """The limit of producers in the partitions of a request."""

    def __init__(self, image: Image, context: RequestContext, caller: Caller) -> None:
        self._image = image
        self._caller = caller
        self._answer = context.answer
        self._left = MAX_PRODUCERS

    def error(self, place: _Place) -> ErrorCode:
        """Return the error if a partition does not fit; else count it."""
        name, number = place
        if not self._caller.may(AclOperation.READ, ResourceType.TOPIC, name):
            return ErrorCode.topic_authorization_failed
        topic = self._image.topics.get(name)
        if topic is None or not 0 <= number < len(topic.partitions):
            return ErrorCode.unknown_topic_or_partition
        count = len(topic.partitions[number].producers)
        if count > self._left or not self._answer.fits(_PRODUCERS_BYTES + _PRODUCER_BYTES * count):
            return ErrorCode.unknown_server_error
        self._left -= count
        return ErrorCode.none


async def _look(services: Services, image: Image, places: Sequence[_Place]) -> dict[_Place, bytes]:
    """Encode the partitions with producers, many partitions in one call of a thread."""
    states = [(place, image.topics[place[0]].partitions[place[1]]) for place in places]
    wanted = [(place, state) for place, state in states if state.producers]
    found: dict[_Place, bytes] = {}
    for first in range(0, len(wanted), _LOOKED_AT_TOGETHER):
        some = wanted[first : first + _LOOKED_AT_TOGETHER]
        found |= await services.root.run(_look_at, image, some)
    return found


def _look_at(image: Image, some: Sequence[tuple[_Place, PartitionState]]) -> dict[_Place, bytes]:
    return {
        place: encode_partition(place[1], ErrorCode.none, encode_producers(active_producers(image, state)))
        for place, state in some
    }
