"""What a record batch that a client hands in must keep to, beyond what a stored one must.

Stored batches may have lost records to compaction and may be control batches; new ones may not.

Invariants: a table that passes can be appended by setting base offsets only.
Not here: duplicate or out-of-order sequences (they need the producer's state), timestamps against the clock.
Concurrency: pure functions.
Sources: FORMAT.md#record-batch (Writer MUST); Kafka LogValidator, DefaultRecordBatch.ensureValid.
"""

import numpy as np
import numpy.typing as npt

from sparklog.errors import InvalidRequestError
from sparklog.format.batch_table import BatchTable
from sparklog.format.record_batch import NO_PRODUCER_ID


def validate_produced(table: BatchTable, *, where: str) -> None:
    """Refuse batches that no producer may write; decode_records checks the records inside.

    Raises: InvalidRequestError INVALID_BATCH for the first batch that breaks a rule.
    """
    spanned = table.last_offset - table.base_offset + 1
    has_producer = table.producer_id > NO_PRODUCER_ID
    rules: tuple[tuple[npt.NDArray[np.bool_], str, npt.NDArray[np.int64]], ...] = (
        (table.record_count < 1, "record_count {}, expected at least 1", table.record_count),
        (table.record_count != spanned, "last_offset_delta + 1 of {}, expected record_count", spanned),
        (table.is_control, "a control batch (attributes {}), expected records", table.attributes),
        (
            has_producer & (table.producer_epoch < 0),
            "producer_epoch {}, expected 0 or more",
            table.producer_epoch,
        ),
        (
            has_producer & (table.base_sequence < 0),
            "base_sequence {}, expected 0 or more",
            table.base_sequence,
        ),
        (
            table.is_transactional & ~has_producer,
            "producer_id {} in a transaction, expected 0 or more",
            table.producer_id,
        ),
    )
    for broken, found, value in rules:
        if broken.any():
            batch = int(np.argmax(broken))
            raise InvalidRequestError(
                "INVALID_BATCH",
                f"{where}@{table.position[batch]}: found {found.format(value[batch])}",
                fix="let a Kafka client build the batch",
            )
