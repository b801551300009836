"""The numbers of Kafka's APIs that are served.

Sources: Kafka ApiKeys.
"""

import enum
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import msgspec
from kio.schema.errors import ErrorCode

from sparklog.errors import (
    CorruptLogError,
    DataLossError,
    FencedError,
    InvalidRequestError,
    OffsetOutOfRangeError,
    RetriableError,
    SparklogError,
    StorageError,
    UnknownTopicError,
    UnsupportedVersionError,
)
from sparklog_server.protocol.session import ANONYMOUS, Session
from sparklog_server.protocol.wire import HeldAnswer
from sparklog_server.runtime.budget import Held
from sparklog_server.settings.network import AdvertisedListener

# --- api entry ---------------------------------------------------------------------------------------
#
# A served API, and the context of one request.
#
# An entry's `handle` is bound to the services of its handler: the dispatcher and the network layer need no
# other part of a broker.
# Not here: which APIs there are (api/), reading and writing of bytes (messages.py).
# Sources: Kafka ApiKeys, RequestContext.


class RequestContext(msgspec.Struct, frozen=True, kw_only=True):
    """The context of a request, in addition to its body. `principal`: in Kafka's text form, `User:alice`."""

    api_key: int
    api_version: int
    correlation_id: int
    client_id: str
    connection_id: int
    peer_host: str
    listener: AdvertisedListener
    types: ModuleType
    answer: HeldAnswer
    principal: str = ANONYMOUS
    session: Session | None = None  # None: in tests of handlers that need none
    work: Held | None = None  # the memory for handling the request; None: as above

    def end_work(self) -> None:
        """Give back the memory for handling the request, before the handler waits for something to happen.

        The handler has dropped what the request named, and its answer counts by itself.
        """
        if self.work is not None:
            self.work.release()


Handle = Callable[[Any, RequestContext], Awaitable[Any]]


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiEntry:
    """A served API.

    Fields:
        name: Kafka's, from the handler's: handle_list_offsets is ListOffsets.
        pipelined: the next request of the connection may start before this one is answered.
        waits: the handler waits for something to happen elsewhere (records, other members). It takes no
            slot, since five hundred idle consumers must not use up queued.max.requests, and it may be
            cancelled (asyncio) when the client disconnects.
        counts: the API waits, but shortly, and for no other request: its elements count as work, as for APIs
            that do not wait. If it waits for long afterwards, it calls `end_work` of its context before.
    """

    key: int
    name: str
    versions: range
    handle: Handle
    pipelined: bool = False
    waits: bool = False
    counts: bool = False


# --- errors ------------------------------------------------------------------------------------------
#
# Maps our errors to Kafka's error codes with the same reaction of clients.
#
# Invariants: an exact code takes precedence over its class; every class of the tree has a code.
# Sources: Kafka Errors.java (retriable or not), sparklog/errors.py.


__all__ = ["ANONYMOUS", "ErrorCode", "error_code"]

BY_CODE = {
    "APPEND_TOO_LARGE": ErrorCode.record_list_too_large,
    "BATCH_TOO_LARGE": ErrorCode.message_too_large,
    "CONFIG_OUT_OF_BOUNDS": ErrorCode.invalid_config,
    "CORRUPT_BATCH": ErrorCode.corrupt_message,
    "DUPLICATE_SEQUENCE": ErrorCode.duplicate_sequence_number,
    "INVALID_BATCH": ErrorCode.invalid_record,
    "INVALID_CONFIG_VALUE": ErrorCode.invalid_config,
    "INVALID_GROUP": ErrorCode.invalid_group_id,
    "INVALID_PARTITION_COUNT": ErrorCode.invalid_partitions,
    "INVALID_TOPIC_CONFIG": ErrorCode.invalid_config,
    "INVALID_TOPIC_NAME": ErrorCode.invalid_topic_exception,
    "OFFSET_OUT_OF_RANGE": ErrorCode.offset_out_of_range,
    "OUT_OF_ORDER_SEQUENCE": ErrorCode.out_of_order_sequence_number,
    "PRODUCER_FENCED": ErrorCode.invalid_producer_epoch,
    "PRODUCER_UNMAPPED": ErrorCode.invalid_producer_id_mapping,
    "RECORD_TOO_LARGE": ErrorCode.message_too_large,
    "TIMESTAMP_OUT_OF_RANGE": ErrorCode.invalid_timestamp,
    "TOO_MANY_PARTITIONS": ErrorCode.policy_violation,
    "TOPIC_EXISTS": ErrorCode.topic_already_exists,
    # All producers retry after it, at the same broker.
    "TRANSACTION_CHANGED": ErrorCode.not_enough_replicas,
    "TRANSACTIONS_FULL": ErrorCode.not_enough_replicas,
    "TRANSACTION_STATE": ErrorCode.invalid_txn_state,
    "TRANSACTION_TOO_LARGE": ErrorCode.transaction_abortable,
    "TRANSACTION_UNKNOWN": ErrorCode.not_enough_replicas,
    "UNKNOWN_CONFIG": ErrorCode.invalid_config,
    "UNKNOWN_PRODUCER": ErrorCode.unknown_producer_id,
    "UNSUPPORTED_ATTRIBUTES": ErrorCode.invalid_record,
    "UNSUPPORTED_CODEC": ErrorCode.unsupported_compression_type,
    "UNSUPPORTED_CONFIG": ErrorCode.invalid_config,
    "UNSUPPORTED_MAGIC": ErrorCode.unsupported_for_message_format,
}

# In this order: a subclass before its base.
_BY_CLASS: tuple[tuple[type[BaseException], ErrorCode], ...] = (
    (UnknownTopicError, ErrorCode.unknown_topic_or_partition),
    (InvalidRequestError, ErrorCode.invalid_request),
    (OffsetOutOfRangeError, ErrorCode.offset_out_of_range),
    (RetriableError, ErrorCode.request_timed_out),
    (FencedError, ErrorCode.not_leader_or_follower),
    (CorruptLogError, ErrorCode.kafka_storage_error),
    (DataLossError, ErrorCode.kafka_storage_error),
    (StorageError, ErrorCode.kafka_storage_error),
    (UnsupportedVersionError, ErrorCode.kafka_storage_error),
    (SparklogError, ErrorCode.unknown_server_error),
    (TimeoutError, ErrorCode.request_timed_out),
)


def error_code(error: BaseException) -> ErrorCode:
    """Return Kafka's code of an error; UNKNOWN_SERVER_ERROR for foreign exceptions."""
    if isinstance(error, SparklogError) and error.code in BY_CODE:
        return BY_CODE[error.code]
    for kind, code in _BY_CLASS:
        if isinstance(error, kind):
            return code
    return ErrorCode.unknown_server_error


# --- api keys ----------------------------------------------------------------------------------------


class ApiKey(enum.IntEnum):
    """Kafka's names and numbers."""

    PRODUCE = 0
    FETCH = 1
    LIST_OFFSETS = 2
    METADATA = 3
    OFFSET_COMMIT = 8
    OFFSET_FETCH = 9
    FIND_COORDINATOR = 10
    JOIN_GROUP = 11
    HEARTBEAT = 12
    LEAVE_GROUP = 13
    SYNC_GROUP = 14
    DESCRIBE_GROUPS = 15
    LIST_GROUPS = 16
    SASL_HANDSHAKE = 17
    API_VERSIONS = 18
    CREATE_TOPICS = 19
    DELETE_TOPICS = 20
    DELETE_RECORDS = 21
    INIT_PRODUCER_ID = 22
    OFFSET_FOR_LEADER_EPOCH = 23
    ADD_PARTITIONS_TO_TXN = 24
    ADD_OFFSETS_TO_TXN = 25
    END_TXN = 26
    WRITE_TXN_MARKERS = 27
    TXN_OFFSET_COMMIT = 28
    DESCRIBE_ACLS = 29
    CREATE_ACLS = 30
    DELETE_ACLS = 31
    DESCRIBE_CONFIGS = 32
    ALTER_CONFIGS = 33
    ALTER_REPLICA_LOG_DIRS = 34
    DESCRIBE_LOG_DIRS = 35
    SASL_AUTHENTICATE = 36
    CREATE_PARTITIONS = 37
    DELETE_GROUPS = 42
    ELECT_LEADERS = 43
    INCREMENTAL_ALTER_CONFIGS = 44
    ALTER_PARTITION_REASSIGNMENTS = 45
    LIST_PARTITION_REASSIGNMENTS = 46
    OFFSET_DELETE = 47
    DESCRIBE_USER_SCRAM_CREDENTIALS = 50
    ALTER_USER_SCRAM_CREDENTIALS = 51
    DESCRIBE_CLIENT_QUOTAS = 48
    ALTER_CLIENT_QUOTAS = 49
    DESCRIBE_QUORUM = 55
    DESCRIBE_CLUSTER = 60
    DESCRIBE_PRODUCERS = 61
    UNREGISTER_BROKER = 64
    DESCRIBE_TRANSACTIONS = 65
    LIST_TRANSACTIONS = 66
    CONSUMER_GROUP_HEARTBEAT = 68
    CONSUMER_GROUP_DESCRIBE = 69
    LIST_CONFIG_RESOURCES = 74
    DESCRIBE_TOPIC_PARTITIONS = 75
    SHARE_GROUP_HEARTBEAT = 76
    SHARE_GROUP_DESCRIBE = 77
    SHARE_FETCH = 78
    SHARE_ACKNOWLEDGE = 79
    DESCRIBE_SHARE_GROUP_OFFSETS = 90
    ALTER_SHARE_GROUP_OFFSETS = 91
    DELETE_SHARE_GROUP_OFFSETS = 92
