"""ListTransactions (key 66), versions 0-2.

Does: the transactional ids that this broker coordinates, with their producer ids and states, by filters of
    states, producer ids, and how long they have been open. So the union over brokers has each once, as
    Kafka's admin client makes it. Names that are no states are told. A pattern is RE2's, as in Kafka; one
    that is none, or takes more than 50 ms of CPU, is INVALID_REGULAR_EXPRESSION.
    An id that is not open has no duration: Kafka counts from 1970 there, and lists those that are idle, too.
Beyond some 32 MB: UNKNOWN_SERVER_ERROR; use a filter.
Versions: 1 durations (KIP-994); 2 patterns (KIP-1152).
"""

import contextlib
from typing import Any

from sparklog.client.cluster_view import STATE_NAMES, Wanted, chosen, coordinated
from sparklog.client.patterns import CpuBudget
from sparklog.errors import InvalidRequestError
from sparklog.metadata import Image, Transaction
from sparklog_server.api.registry import api
from sparklog_server.api.services import Services
from sparklog_server.protocol.apis import ApiKey, ErrorCode, RequestContext
from sparklog_server.protocol.responses import field, make, maker
from sparklog_server.protocol.wire import in_slices, text_bytes

PATTERN_SECONDS = 0.05
_STATE_BYTES = 160  # while the answer is made, beside the id


@api(ApiKey.LIST_TRANSACTIONS, versions=range(3))
async def handle_list_transactions(request: Any, context: RequestContext, services: Services) -> Any:
    """Answer as of the newest image."""
    wanted = Wanted(
        states=request.state_filters,
        producer_ids=request.producer_id_filters,
        running_ms=field(request, "duration_filter", -1),
        pattern=field(request, "transactional_id_pattern"),
    )
    error, found = await _found(wanted, services)
    unknown = wanted.unknown_states
    names = [*unknown, *(one.transactional_id for one in found)]
    if not context.answer.fits(sum(await in_slices(map(_size_of, names)))):
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


def _size_of(name: str) -> int:
    """What an id, or the name of a state, takes: twice its bytes, when the answer is put together."""
    return _STATE_BYTES + 2 * text_bytes(name)


async def _found(wanted: Wanted, services: Services) -> tuple[ErrorCode, list[Transaction]]:
    await services.root.look()
    if not services.membership.is_in_charge:
        return ErrorCode.coordinator_not_available, []
    image = services.root.image
    # The other storage threads are there for those who send none.
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
