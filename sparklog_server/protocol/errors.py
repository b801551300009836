"""From our errors to Kafka's error codes: what a client should do next is the same on both sides.

Invariants: an exact code of errors.py wins over its class; every class of the tree has an answer.
Sources: Kafka Errors.java (retriable or not), sparklog/errors.py.
"""

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

__all__ = ["ErrorCode", "error_code"]

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
    # Producers send again then, all of them, and look for nobody else before.
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
    """Kafka's code of an error; UNKNOWN_SERVER_ERROR for what is no error of ours."""
    if isinstance(error, SparklogError) and error.code in BY_CODE:
        return BY_CODE[error.code]
    for kind, code in _BY_CLASS:
        if isinstance(error, kind):
            return code
    return ErrorCode.unknown_server_error
