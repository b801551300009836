"""Why a producer may not, in Kafka's error codes: each client acts on them, and some only on old ones.

What a producer makes of them (Java's; others alike):

    PRODUCER_FENCED, INVALID_PRODUCER_EPOCH   another process has its transactional id: it ends
    INVALID_PRODUCER_ID_MAPPING               the id is not known any more, or another's: it ends, or
                                              begins anew
    INVALID_TXN_STATE                         it asks for what does not follow: a fault, it ends
    POLICY_VIOLATION                          there is no room for its id: it ends; librdkafka asks again,
                                              for as long as it may take
    CONCURRENT_TRANSACTIONS                   it asks again in a moment, here
    NOT_COORDINATOR, COORDINATOR_NOT_AVAILABLE   it looks for the coordinator, and asks again there

Invariants: whatever is not said by the transaction itself is one of the last two: nothing is known to have
    happened, or what has is answered likewise when it is asked again. Of these no producer ends.
Not here: the rules (sparklog/metadata/model), which APIs mask what since which version (sparklog_server/api).
Sources: Kafka TransactionCoordinator, TransactionStateManager.appendTransactionToLog, KafkaApis
    (PRODUCER_FENCED to those who know it), TransactionManager.TxnRequestHandler.
"""

from collections.abc import Mapping
from types import MappingProxyType

from sparklog.errors import FencedError, InvalidRequestError, RetriableError, SparklogError, StorageError
from sparklog_server.protocol.errors import ErrorCode, error_code

_BY_CODE: Mapping[str, ErrorCode] = MappingProxyType(
    {
        "BROKER_FENCED": ErrorCode.not_coordinator,
        "COORDINATOR_MOVED": ErrorCode.not_coordinator,
        "INVALID_TRANSACTIONAL_ID": ErrorCode.invalid_request,
        "INVALID_TRANSACTION_TIMEOUT": ErrorCode.invalid_transaction_timeout,
        "PRODUCER_FENCED": ErrorCode.producer_fenced,
        "PRODUCER_UNMAPPED": ErrorCode.invalid_producer_id_mapping,
        "TRANSACTIONS_FULL": ErrorCode.policy_violation,
        "TRANSACTION_CHANGED": ErrorCode.concurrent_transactions,
        "TRANSACTION_MISSING": ErrorCode.transactional_id_not_found,
        "TRANSACTION_STATE": ErrorCode.invalid_txn_state,
        "TRANSACTION_TOO_LARGE": ErrorCode.transaction_abortable,
    }
)


def refusal_of(error: BaseException) -> ErrorCode:
    """What to answer a producer whose transaction could not be worked on."""
    if isinstance(error, SparklogError):
        known = _BY_CODE.get(error.code)
        if known is not None:
            return known
    if isinstance(error, InvalidRequestError):
        return error_code(error)
    if isinstance(error, FencedError):
        return ErrorCode.not_coordinator
    if isinstance(error, RetriableError | StorageError | TimeoutError):
        return ErrorCode.coordinator_not_available
    return error_code(error)


def refusal_once_begun(error: BaseException) -> ErrorCode:
    """The same for what is added to a transaction: while the root has no room, its producer asks again.

    POLICY_VIOLATION would end Java's at AddOffsetsToTxn and TxnOffsetCommit, and its transaction at
    AddPartitionsToTxn.
    """
    code = refusal_of(error)
    return ErrorCode.coordinator_not_available if code is ErrorCode.policy_violation else code


def masked(error: ErrorCode, *, knows_fenced: bool) -> ErrorCode:
    """For clients older than PRODUCER_FENCED: the code by which they knew it."""
    if error is ErrorCode.producer_fenced and not knows_fenced:
        return ErrorCode.invalid_producer_epoch
    return error
