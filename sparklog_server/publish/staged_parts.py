"""Parts of transactions: what the image must say for them to be staged, and not appended.

The rules are the engine's (StagingJudge), and a few that are of the protocol: a request names its
transactional id, which must be the producer's; and what coordinators stage of a group's offsets has no
sequence of its own, and needs the group to be added instead of the partition.

When a request of the first protocol is read, the broker notes which transaction its image shows open, since
the epoch does not say which one is meant. Nothing else is asked then: this broker may not know yet what
another has done for the producer a moment ago. Nor is a part refused by an image that may be older than that,
or acknowledged as a repetition: what `may_be_early` is judged by the newest one before anybody is told.

Invariants: pure; for the same image the same answers.
Not here: sequences (bundle_plan.py), what clients are told (api/produce.py).
Sources: docs/adr/0028; Kafka ReplicaManager (transaction verification), TransactionCoordinator
    .handleVerifyPartitionsInTransaction.
"""

import dataclasses
from collections.abc import Sequence
from typing import Final

from msgspec.structs import replace

from sparklog.errors import InvalidRequestError, SparklogError
from sparklog.metadata import (
    SEQUENCES,
    DraftExtent,
    Image,
    ProducerState,
    Staging,
    StagingJudge,
    changed_refusal,
)
from sparklog_server.publish.parts import AppendPart, PartOutcome

MOST_SHOWN: Final = 100  # characters of what a client calls itself: there is an error for each of its parts
_EARLY = frozenset(
    {
        "PRODUCER_FENCED",
        "PRODUCER_UNMAPPED",
        "TRANSACTIONS_FULL",
        "TRANSACTION_STATE",
        "TRANSACTION_TOO_LARGE",
    }
)


def staging_of(part: AppendPart) -> Staging:
    """As the engine judges it; where its bytes are does not matter for that."""
    assert part.transaction is not None
    draft = DraftExtent(
        topic_id=part.topic_id,
        partition=part.partition,
        segment="",
        position=0,
        size=part.size_bytes,
        record_count=part.encoded.record_count,
        max_timestamp_ms=part.encoded.max_timestamp_ms,
        producer_id=part.producer_id,
        producer_epoch=part.producer_epoch,
        base_sequence=part.base_sequence,
    )
    return Staging(draft=draft, opens_ms=part.transaction.opens_ms)


def transaction_refusal(image: Image, judge: StagingJudge, part: AppendPart) -> SparklogError | None:
    """Why it may not be staged, whatever its sequence; None: it may."""
    said = part.transaction
    assert said is not None
    found = image.transactions.of_producer(part.producer_id)
    if found is not None and found.transactional_id != said.transactional_id:
        return InvalidRequestError(
            "PRODUCER_UNMAPPED",
            f"{part.topic}-{part.partition}: found producer id {part.producer_id} with transactional id "
            f"{said.transactional_id[:MOST_SHOWN]!r}, expected that of another",
            fix="initialise the producer again",
        )
    staging = staging_of(part)
    refusal = changed_refusal(image, staging, said.number) or judge.refusal(staging)
    if refusal is not None or said.group is None or found is None:
        return refusal
    if found.is_ongoing and said.group in found.groups:
        return None
    return InvalidRequestError(
        "TRANSACTION_STATE",
        f"transactional id {said.transactional_id!r}: found offsets of group {said.group!r}, which was not "
        "added to its transaction",
        fix="abort the transaction: it was ended meanwhile, or its client is at fault",
    )


def adding(image: Image, parts: Sequence[AppendPart]) -> Sequence[AppendPart]:
    """The parts; those of groups that were added add the partition that their offsets are in.

    They do so in the transaction that was open when they were read, and in no other: the epoch may be that of
    the next one as well, and another broker that publishes them for us does not know of groups.
    """
    if not any(part.transaction is not None and part.transaction.group is not None for part in parts):
        return parts
    return [_adding(image, part) for part in parts]


def _adding(image: Image, part: AppendPart) -> AppendPart:
    said, found = part.transaction, image.transactions.of_producer(part.producer_id)
    if said is None or said.group is None or found is None or not found.is_ongoing:
        return part
    if said.number != found.number:
        return part
    said = dataclasses.replace(said, opens_ms=found.started_ms)
    return replace(part, transaction=said)


def following(part: AppendPart, known: ProducerState | None) -> AppendPart:
    """The part with the next sequence of its producer, if it came without one."""
    if part.transaction is None or part.base_sequence >= 0:
        return part
    sequence = 0
    if known is not None and known.producer_epoch == part.producer_epoch:
        sequence = (known.last_sequence + 1) % SEQUENCES
    return replace(part, base_sequence=sequence)


def may_be_early(image: Image, part: AppendPart, outcome: PartOutcome) -> bool:
    """May a newer image, in which something has been done for its producer, say otherwise?

    It may take what this one refuses, and not have what this one has staged already:
    1. the answer to a batch of the first protocol is lost, and its transaction is aborted, by another broker;
    2. the client gives its sequence numbers to other records, in the next transaction and the same epoch;
    3. who goes by the old image acknowledges these as a repetition: they are staged nowhere, and lost.
    """
    if outcome.duplicate:
        return part.transaction is not None
    if getattr(outcome.error, "code", "") not in _EARLY:
        return False
    found = image.transactions.of_producer(part.producer_id)
    return found is None or part.producer_epoch >= found.producer_epoch
