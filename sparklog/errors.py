"""Every error that sparklog raises, by what the caller should do next.

    SparklogError
      RetriableError           lost a race, store busy        -> back off, retry
      FencedError              a newer epoch or writer exists -> reopen
      OffsetOutOfRangeError    outside [log start, log end]   -> reset the position
      DataLossError            records are gone               -> decide: failOnDataLoss=false, or investigate
      CorruptLogError          bytes break FORMAT.md          -> take offline, repair
      StorageError             the file system refused        -> free space, fix permissions
        FatalStorageError      fsync failed: durability unknown -> stop the process
        NotFoundError, AlreadyExistsError                     (names in a store)
      InvalidRequestError      bad option, name, record       -> fix the call
        UnknownTopicError      no such topic or partition     -> create it, or fix the name
      UnsupportedVersionError  written by a newer sparklog    -> upgrade

Messages carry their code, the cause and the fix, because Spark passes only text on:
``[SPARKLOG_UNKNOWN_OPTION] found ..., expected .... Fix: ... SQLSTATE: 42K05``.
Sources: style.md rules 20-21; Spark's error conditions.
"""

# Code -> (SQLSTATE, meaning). One line each, sorted; docs/errors.md is generated from it.
CODES: dict[str, tuple[str, str]] = {
    "APPEND_TOO_LARGE": ("54000", "one append is larger than a segment can be"),
    "BATCH_TOO_LARGE": ("54000", "a record batch is larger than the limit"),
    "CONFIG_OUT_OF_BOUNDS": ("22023", "a setting's value is outside its bounds"),
    "CORRUPT_BATCH": ("XX001", "the bytes of a record batch break FORMAT.md"),
    "CORRUPT_CONSUMER_OFFSET": ("XX001", "the bytes of a record of __consumer_offsets break FORMAT.md"),
    "CORRUPT_INDEX": ("XX001", "the bytes of an index break FORMAT.md"),
    "DATA_LOSS": ("58030", "records that should be there are gone"),
    "EXTENT_MISMATCH": ("XX001", "the batches of an extent are not those that it describes"),
    "INTERNAL": ("XX000", "a bug in sparklog; please report it"),
    "INVALID_BATCH": ("22023", "a producer's record batch breaks a rule for new batches"),
    "INVALID_COLUMN": ("42804", "a column of the written rows is missing or has the wrong type"),
    "INVALID_CONFIG_VALUE": ("22023", "a setting's value has the wrong form"),
    "INVALID_GROUP": ("42602", "a consumer group's name is not legal"),
    "INVALID_OPTION": ("22023", "an option's value is malformed, or contradicts another"),
    "INVALID_ROWS": ("42K09", "the rows have a column of the wrong name or type"),
    "INVALID_STREAM_OFFSET": ("22023", "a checkpoint's offset is not one of this source"),
    "INVALID_TOPIC_NAME": ("42602", "a topic's name is not legal"),
    "MISSING_OPTION": ("42K06", "a required option is not set"),
    "OFFSET_OUT_OF_RANGE": ("22003", "the offset is outside the log's start and end"),
    "PARTITION_MISSING": ("42704", "no such partition"),
    "PARTITION_OUT_OF_RANGE": ("22003", "a row names a partition that the topic does not have"),
    "READ_TOO_LARGE": ("54000", "one read would hold more bytes than an Arrow column can"),
    "RECORD_COLUMN_LENGTH": ("22023", "the columns of records differ in length"),
    "RECORD_COLUMN_TOO_LARGE": ("54000", "a column holds more bytes than one call takes"),
    "RECORD_COLUMN_TYPE": ("42804", "a column of records has the wrong type"),
    "RECORD_HEADER_NULL": ("22004", "a record header, or its key, is null"),
    "RECORD_TOO_LARGE": ("54000", "a record does not fit into one batch"),
    "SEGMENT_MISSING": ("58030", "a segment that extents refer to does not exist"),
    "SEGMENT_TRUNCATED": ("XX001", "a segment is shorter than its extents say"),
    "TIMESTAMP_OUT_OF_RANGE": ("22008", "a record's timestamp is too far from now"),
    "TOPIC_CHANGED": ("40001", "a topic was created or changed by somebody else meanwhile"),
    "TOPIC_EXISTS": ("42710", "a topic of this name exists"),
    "TOPIC_MISSING": ("42704", "no such topic"),
    "UNKNOWN_CONFIG": ("42K05", "no setting has this name"),
    "UNKNOWN_OPTION": ("42K05", "no such option"),
    "UNKNOWN_TOPIC_OR_PARTITION": ("42704", "no such topic or partition"),
    "UNSUPPORTED_ATTRIBUTES": ("0A000", "a record batch uses attribute bits that this version does not know"),
    "UNSUPPORTED_CODEC": ("0A000", "a compression codec that this version does not know"),
    "UNSUPPORTED_CONSUMER_OFFSET": ("0A000", "a record of __consumer_offsets of a version that this one does not know"),
    "UNSUPPORTED_KAFKA_OPTION": ("0A000", "an option of Kafka clients that has no counterpart here"),
    "UNSUPPORTED_MAGIC": ("0A000", "a record batch of another magic than 2"),
    "UNSUPPORTED_SAVE_MODE": ("0A000", "only append makes sense for a log"),
    "WRITER_FAILED": ("58030", "a segment could not be written or made durable"),
    "WRONG_PYTHON": ("55000", "Spark runs another Python than the one sparklog is installed for"),
    "WRONG_ROOT": ("22023", "a checkpoint or file belongs to another root"),
}


class SparklogError(Exception):
    """Root of all errors raised by sparklog.

    Args:
        code: a key of CODES, without the SPARKLOG_ prefix.
        message: where, what was found, what was expected.
        fix: what to do next, as an imperative sentence.
    """

    def __init__(self, code: str, message: str, *, fix: str) -> None:
        sqlstate, _ = CODES[code]
        self.code = code
        self.sqlstate = sqlstate
        self.message = message
        self.fix = fix
        super().__init__(code, message, fix)

    def __str__(self) -> str:
        end = "" if self.message.endswith((".", "?", "!")) else "."
        return f"[SPARKLOG_{self.code}] {self.message}{end} Fix: {self.fix.rstrip('.')}. SQLSTATE: {self.sqlstate}"

    def __reduce__(self) -> tuple[object, ...]:
        # Spark carries exceptions between processes; keyword-only arguments need help.
        return (_rebuild, (type(self), self.code, self.message, self.fix))


def _rebuild(cls: type[SparklogError], code: str, message: str, fix: str) -> SparklogError:
    return cls(code, message, fix=fix)


class RetriableError(SparklogError):
    """Nothing was changed; the same call may succeed later."""


class FencedError(SparklogError):
    """A newer epoch exists; reopen and start over."""


class OffsetOutOfRangeError(SparklogError):
    """The offset is outside [log_start_offset, log_end_offset]."""


class DataLossError(SparklogError):
    """Records that should be there are gone."""


class CorruptLogError(SparklogError):
    """Stored bytes do not follow FORMAT.md."""


class StorageError(SparklogError):
    """The storage refused an operation."""


class FatalStorageError(StorageError):
    """Durability is unknown (a failed fsync); the process must stop, not retry."""


class NotFoundError(StorageError):
    """No such name in the store."""


class AlreadyExistsError(StorageError):
    """The name is taken; put-if-absent changed nothing."""


class InvalidRequestError(SparklogError):
    """The call itself is wrong."""


class UnknownTopicError(InvalidRequestError):
    """No such topic or partition."""


class UnsupportedVersionError(SparklogError):
    """Written by a newer version, or using a feature that this one does not know."""
