"""Rules for single actions that need no image: the same for our own plans and for bytes from disk.

Each function returns the rule that is broken, or None; the caller knows whether that means a wrong call
or a corrupt log.
"""

from collections.abc import Mapping

from sparklog.errors import InvalidRequestError
from sparklog.metadata.actions import (
    NO_PRODUCER_ID,
    AllocateProducerIds,
    Extent,
    RegisterBroker,
    RequestApplied,
    WriterTxn,
)
from sparklog.metadata.ids import is_id
from sparklog.storage import validate_name

MAX_OFFSET = (1 << 63) - 1
MAX_PARTITIONS = 100_000
MAX_APPLICATION_LENGTH = 1024
MAX_CONTENT_LENGTH = 128
MAX_LISTENERS = 100
MAX_HOST_LENGTH = 255  # of a host name in DNS
_MIN_BATCH_BYTES = 61  # a record batch's header


def why_illegal_extent(extent: Extent) -> str | None:
    """Bounds of every field, and whether they fit together."""
    try:
        validate_name(extent.segment)
    except InvalidRequestError as error:
        return error.message
    if extent.position < 0 or extent.position > MAX_OFFSET - extent.size:
        return f"position {extent.position} is out of range"
    if extent.size < _MIN_BATCH_BYTES:
        return f"size {extent.size} is below {_MIN_BATCH_BYTES}, the smallest record batch"
    if extent.base_offset < 0:
        return f"base_offset {extent.base_offset} is negative"
    if not 1 <= extent.record_count <= MAX_OFFSET - extent.base_offset:
        return f"record_count {extent.record_count} is out of range"
    if not -1 <= extent.max_timestamp_ms <= MAX_OFFSET:
        return f"max_timestamp_ms {extent.max_timestamp_ms} is out of range"
    if not -extent.base_offset <= extent.offset_delta <= extent.base_offset:
        return f"offset_delta {extent.offset_delta} does not fit base_offset {extent.base_offset}"
    return _why_illegal_producer(extent)


def _why_illegal_producer(extent: Extent) -> str | None:
    if extent.producer_id == NO_PRODUCER_ID:
        if extent.producer_epoch != -1 or extent.base_sequence != -1:
            return "a producer epoch or sequence without a producer id"
        return None
    if not 0 <= extent.producer_id <= MAX_OFFSET:
        return f"producer_id {extent.producer_id} is out of range"
    if not 0 <= extent.producer_epoch < 1 << 15:
        return f"producer_epoch {extent.producer_epoch} is out of range"
    if not 0 <= extent.base_sequence < 1 << 31:
        return f"base_sequence {extent.base_sequence} is out of range"
    return None


def why_illegal_partition_count(partitions: int) -> str | None:
    """A topic has at least one partition."""
    if not 1 <= partitions <= MAX_PARTITIONS:
        return f"{partitions} partitions, expected 1 to {MAX_PARTITIONS}"
    return None


def why_illegal_configs(configs: Mapping[str, str | None]) -> str | None:
    """Settings have names; what they mean is checked by log/config.py."""
    return "a setting has an empty name" if "" in configs else None


def why_illegal_writer_txn(txn: WriterTxn) -> str | None:
    """An application has a name, versions count from 0; whether the topics exist is for apply.py."""
    if not 1 <= len(txn.application) <= MAX_APPLICATION_LENGTH:
        return (
            f"application name of {len(txn.application)} characters, expected 1 to {MAX_APPLICATION_LENGTH}"
        )
    if not 0 <= txn.version <= MAX_OFFSET:
        return f"version {txn.version}, expected 0 to {MAX_OFFSET}"
    if len(txn.content) > MAX_CONTENT_LENGTH:
        return f"content of {len(txn.content)} characters, expected at most {MAX_CONTENT_LENGTH}"
    if txn.topics is None:
        return "content without topics" if txn.content else None
    if not txn.topics or len(set(txn.topics)) < len(txn.topics):
        return f"{len(txn.topics)} topics, expected at least one, and each once"
    return None


def why_illegal_registration(broker: RegisterBroker) -> str | None:
    """Bounds of every field; whether the epoch is new is for apply.py."""
    if not 0 <= broker.node_id < 1 << 31:
        return f"node id {broker.node_id}, expected 0 to {(1 << 31) - 1}"
    if broker.broker_epoch < 0:
        return f"broker epoch {broker.broker_epoch} is negative"
    if not is_id(broker.incarnation_id):
        return f"incarnation id {broker.incarnation_id!r} is malformed"
    if len(broker.listeners) > MAX_LISTENERS:
        return f"{len(broker.listeners)} listeners, expected at most {MAX_LISTENERS}"
    for listener in broker.listeners:
        if not 1 <= len(listener.host) <= MAX_HOST_LENGTH:
            return f"a host name of {len(listener.host)} characters, expected 1 to {MAX_HOST_LENGTH}"
        if not 1 <= listener.port < 1 << 16:
            return f"port {listener.port}, expected 1 to {(1 << 16) - 1}"
    return None


def why_illegal_producer_ids(ids: AllocateProducerIds) -> str | None:
    """A block is not empty and stays in the domain."""
    if not 0 <= ids.first <= MAX_OFFSET - 1 or not 1 <= ids.count <= MAX_OFFSET - ids.first:
        return f"{ids.count} producer ids from {ids.first}, expected at least one from 0 to {MAX_OFFSET - 1}"
    return None


def why_illegal_request(request: RequestApplied) -> str | None:
    """Bounds of every field; whether the sequence is new is for apply.py."""
    if not is_id(request.publisher):
        return f"publisher {request.publisher!r} is malformed"
    if not 0 <= request.sequence <= MAX_OFFSET:
        return f"sequence {request.sequence}, expected 0 to {MAX_OFFSET}"
    if request.actions < 0:
        return f"{request.actions} actions, expected at least 0"
    if request.nonce and not is_id(request.nonce):
        return f"nonce {request.nonce!r} is malformed"
    if not -1 <= request.base < MAX_OFFSET:
        return f"base {request.base}, expected -1 to {MAX_OFFSET - 1}"
    return None
