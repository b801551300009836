"""What plans of transactions refuse, and how; transactions.py says what each error is to Kafka's clients.

Not here: what is refused when actions are applied (the actions' modules).
Concurrency: pure functions.
"""

from sparklog.errors import FencedError, InvalidRequestError, RetriableError
from sparklog.metadata.model.image import Image
from sparklog.metadata.model.transaction_values import (
    MAX_TRANSACTIONAL_ID_LENGTH,
    Transaction,
)


def validate_producer(
    image: Image, transactional_id: str, producer_id: int, producer_epoch: int
) -> Transaction:
    """The transaction of an id; raises unless this is its producer, in its epoch.

    Raises:
        InvalidRequestError: PRODUCER_UNMAPPED.
        FencedError: PRODUCER_FENCED.
    """
    known = image.transactions.get(transactional_id)
    if known is None or known.producer_id != producer_id:
        raise unmapped(transactional_id, producer_id, known)
    if known.producer_epoch != producer_epoch:
        raise fenced(known, producer_id, producer_epoch)
    return known


def unmapped(transactional_id: str, producer_id: int, known: Transaction | None) -> InvalidRequestError:
    """The error for a producer id that is not the transactional id's."""
    expected = "which is unknown" if known is None else f"whose producer id is {known.producer_id}"
    name = transactional_id[:MAX_TRANSACTIONAL_ID_LENGTH]  # of an unknown one the length is the client's
    return InvalidRequestError(
        "PRODUCER_UNMAPPED",
        f"transactional id {name!r}: found producer id {producer_id}, {expected}",
        fix="initialise the producer again; a transactional id that is not used for "
        "transactional.id.expiration.ms is forgotten",
    )


def fenced(known: Transaction, producer_id: int, producer_epoch: int) -> FencedError:
    """The error for a producer that is no longer the transactional id's."""
    return FencedError(
        "PRODUCER_FENCED",
        f"transactional id {known.transactional_id!r}: found producer {producer_id} in epoch "
        f"{producer_epoch}, expected {known.producer_id} in epoch {known.producer_epoch}",
        fix="close this producer: another with its transactional id was initialised, or its transaction took "
        "longer than its timeout and was aborted",
    )


def wrong_state(known: Transaction, found: str, fix: str) -> InvalidRequestError:
    """The error for what the phase of a transaction does not allow."""
    return InvalidRequestError(
        "TRANSACTION_STATE",
        f"transactional id {known.transactional_id!r}, transaction {known.number} ({known.phase}): {found}",
        fix=fix,
    )


def too_large(known: Transaction, found: str) -> InvalidRequestError:
    """The error for what a transaction has no room for."""
    return InvalidRequestError(
        "TRANSACTION_TOO_LARGE",
        f"transactional id {known.transactional_id!r}, transaction {known.number}: found {found} are allowed",
        fix="abort it, and commit more often",
    )


def full(found: str) -> RetriableError:
    """The error for what a root has no room for."""
    return RetriableError(
        "TRANSACTIONS_FULL",
        f"root: found {found} are allowed",
        fix="end transactions that are open (`sparklog transactions list`), or wait until unused ids are "
        "forgotten (transactional.id.expiration.ms); then try again",
    )
