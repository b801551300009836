"""The errors of sparklog, by what the caller should do next.

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

A message has at most MAX_TEXT characters, whatever input it quotes: its middle is left out.
It carries the code, the cause and the fix, because Spark passes only text on:
``[SPARKLOG_UNKNOWN_OPTION] found ..., expected .... Fix: ... SQLSTATE: 42K05``.
Sources: Spark's error conditions.
"""

import re
from typing import TypeVar

# --- redaction ---------------------------------------------------------------------------------------
#
# Option values in messages: secrets are masked.
#
# Invariants: every message that quotes an option's value quotes `shown` of it, in linear time. A value is
#     masked by its option's name, by its content (a JAAS line, a PEM block), and where it is a URL with a
#     password; when in doubt it is masked.
# Sources: spark.redaction.regex; the settings of type PASSWORD in Kafka's ConfigDefs.


HIDDEN = "***"
_MAX_SHOWN = 300
_SECRET_NAME = re.compile(
    r"secret|passw|passphrase|token|credential|jaas|private|access[._-]?key|(^|[._-])key$|^(kafka\.)?(sasl|ssl)\.",
    re.IGNORECASE,
)
_SECRET_VALUE = re.compile(r"(password|passphrase|secret|token|pwd)\s*=|-----BEGIN ", re.IGNORECASE)
_BEFORE_AUTHORITY = re.compile(r"[/\s]")
_NAME = re.compile(r"(?<![\w/])[^:]")


def may_hold_secret(name: str) -> bool:
    """True if the value of an option or setting of this name might be a secret."""
    return _SECRET_NAME.search(name) is not None


def shown(name: str, value: object) -> str:
    """Return an option's value as a message may quote it."""
    text = str(value)
    if may_hold_secret(name) or _SECRET_VALUE.search(text):
        return HIDDEN
    text = without_user_info(text)
    if len(text) > _MAX_SHOWN:
        text = f"{text[:_MAX_SHOWN]}..."
    return repr(text)


def without_user_info(text: str) -> str:
    """Mask user names and passwords in the URLs of a text.

    User information is the text between '//' and '@', or, without '//', from a name with a colon to the '@'.
    Takes linear time: the text may be hostile.
    """
    *parts, last = text.split("@")
    found = []
    for part in parts:
        start = _user_info(part)
        found.append(part if start is None else part[:start] + HIDDEN)
    return "@".join((*found, last))


def _user_info(part: str) -> int | None:
    """Return the start of the user information in the text before an '@', or None."""
    begin = max((found.end() for found in _BEFORE_AUTHORITY.finditer(part)), default=0)
    if part.endswith("//", 0, begin):
        return begin
    begin = max(begin, part.rfind(",", begin) + 1)
    colon = part.rfind(":", begin)
    found = _NAME.search(part, begin, colon) if colon >= 0 else None
    return None if found is None else found.start()


# --- utf8 --------------------------------------------------------------------------------------------
#
# Texts that UTF-8 cannot encode.
#
# Python's strings may hold halves of surrogate pairs, from command lines that are not UTF-8 and from JSON
# escapes. Records and documents cannot hold them, so names are checked before they are written.
#
# Concurrency: pure.


def utf8_size(text: str) -> int | None:
    """Return the size in bytes, or None if UTF-8 cannot encode the text."""
    if text.isascii():
        return len(text)
    try:
        return len(text.encode())
    except UnicodeEncodeError:
        return None


def why_not_utf8(text: str) -> str | None:
    """Return what is wrong with a text that UTF-8 cannot encode, printable; None if it can."""
    if utf8_size(text) is not None:
        return None
    return f"{text[:100]!a}, which has half of a surrogate pair, so that UTF-8 cannot encode it"


# --- errors ------------------------------------------------------------------------------------------


E = TypeVar("E", bound=BaseException)
MAX_TEXT = 8_000
_KEPT_AT_END = 1_000

# Code -> (SQLSTATE, meaning). One line each, sorted; docs/errors.md is generated from it.
CODES: dict[str, tuple[str, str]] = {
    "API_NOT_SERVED": ("0A000", "a broker does not serve the requested API"),
    "APPEND_TOO_LARGE": ("54000", "one append is larger than a segment can be"),
    "BATCH_TOO_LARGE": ("54000", "a record batch is larger than the limit"),
    "BROKER_COORDINATES": ("55006", "a broker has served the root and coordinates its groups"),
    "BROKER_FENCED": ("40001", "a newer broker serves the root, or this one was fenced"),
    "BROKER_MISSING": ("42704", "no broker of this id is registered"),
    "BROKER_UNREACHABLE": ("08001", "no bootstrap server answered"),
    "BUCKET_MISSING": ("42704", "no such bucket"),
    "CHECKPOINT_OUTDATED": ("55000", "a later micro-batch of the query is in the log already"),
    "CLOCK_SKEWED": ("58030", "this machine's clock is too wrong for the object store"),
    "COMMIT_MISSING": ("42704", "a commit of the metadata log is removed, or not yet written"),
    "COMMIT_TOO_LARGE": ("54000", "a metadata commit is larger than the limit"),
    "COMPACTED_TOPIC": ("42809", "a topic that keeps the last record of each key"),
    "CONFIG_OUT_OF_BOUNDS": ("22023", "a setting's value is outside its bounds"),
    "CONSUMER_OFFSET_STRING_TOO_LONG": ("22001", "a group, topic or note is too long for __consumer_offsets"),
    "CONTROLLER_FENCED": ("40001", "a newer controller is active; this one must not decide"),
    "CONTROLLER_UNREACHABLE": ("08001", "no controller of the brokers answered"),
    "COORDINATOR_CLOSED": ("57P01", "a coordinator stops or restarts; retry"),
    "COORDINATOR_MOVED": ("40001", "another broker coordinates this, or this one in a newer epoch"),
    "COORDINATOR_UNREACHABLE": ("08001", "no coordinator of the groups answered"),
    "CORRUPT_BATCH": ("XX001", "the bytes of a record batch break FORMAT.md"),
    "CORRUPT_CONSUMER_OFFSET": ("XX001", "the bytes of a record of __consumer_offsets break FORMAT.md"),
    "CORRUPT_INDEX": ("XX001", "the bytes of an index break FORMAT.md"),
    "CORRUPT_METADATA_COMMIT": ("XX001", "a metadata commit is damaged, or does not continue the log"),
    "CORRUPT_METADATA_LOG": ("XX001", "commits are missing from the metadata log"),
    "CORRUPT_METADATA_REQUEST": ("XX001", "a request to publish is damaged"),
    "CORRUPT_METADATA_SNAPSHOT": ("XX001", "a metadata snapshot is damaged"),
    "CORRUPT_META_PROPERTIES": ("XX001", "meta.properties is damaged"),
    "DATA_LOSS": ("58030", "records that should be there are gone"),
    "DEMO_CHECK_FAILED": ("XX000", "the demo found records lost or duplicated"),
    "DEMO_DATA_MISSING": ("42704", "the demo's data package is not installed"),
    "DEMO_DIRECTORY_TAKEN": ("42710", "the demo would overwrite a directory that it did not create"),
    "DEMO_JOB_FAILED": ("58000", "a Spark job of the demo failed"),
    "DEMO_SPARK_MISSING": ("42704", "pyspark is not installed"),
    "DUPLICATE_BROKER": ("55006", "a running broker has this node id"),
    "DUPLICATE_SEQUENCE": ("23505", "a producer's batch was appended already"),
    "DURABILITY_UNKNOWN": ("58030", "a failed fsync; the process must stop"),
    "EXTENTS_CHANGED": ("40001", "extents changed under a replacement"),
    "EXTENT_MISMATCH": ("XX001", "the batches of an extent differ from its description"),
    "FILE_CLOSED": ("55000", "a file was used after closing"),
    "FILE_EXISTS": ("58030", "a file exists already"),
    "FILE_FORKED": ("55000", "a file was used in a forked child of the process that opened it"),
    "FILE_NOT_FOUND": ("58030", "a file is missing"),
    "FILE_TOO_LARGE": ("54000", "a file hit a size limit"),
    "GROUP_MISSING": ("42704", "no such consumer group"),
    "GROUP_UNCHANGED": ("55006", "a group has members, or its coordinator refused to change it"),
    "ILLEGAL_FILE_NAME": ("42602", "a file name could leave the root, or is not one"),
    "ILLEGAL_ROOT": ("42602", "a root that is not a directory"),
    "INTERNAL": ("XX000", "a bug in sparklog; please report it"),
    "INTERNAL_TOPIC": ("42809", "a topic in which groups and brokers keep their state"),
    "INVALID_ACL": ("22023", "an ACL that breaks Kafka's rules"),
    "INVALID_ACTIONS": ("22023", "actions that do not apply to the image"),
    "INVALID_BATCH": ("22023", "a producer's record batch breaks a rule for new batches"),
    "INVALID_CLIENT_CONFIG": ("22023", "a security setting of a client is invalid"),
    "INVALID_COLUMN": ("42804", "a column of the written rows is missing or has the wrong type"),
    "INVALID_CONFIG_VALUE": ("22023", "a setting's value has the wrong form"),
    "INVALID_DEAD_LETTER_TOPIC": ("42602", "the dead-letter topic is missing, or not made for that"),
    "INVALID_GROUP": ("42602", "a consumer group's name is not legal"),
    "INVALID_OPTION": ("22023", "an option's value is malformed, or contradicts another"),
    "INVALID_PARTITION_COUNT": ("22023", "an impossible number of partitions"),
    "INVALID_PARTITION_FILE": ("22023", "a file of partitions is not what Kafka's tools write"),
    "INVALID_PATTERN": ("2201B", "a pattern breaks RE2's syntax, or is too large"),
    "INVALID_QUOTA": ("22023", "a quota, or its entity, that breaks Kafka's rules"),
    "INVALID_ROWS": ("42K09", "the rows have a column of the wrong name or type"),
    "INVALID_STREAM_OFFSET": ("22023", "a checkpoint's offset is not from this source"),
    "INVALID_TOPIC_CONFIG": ("22023", "a topic or root setting that is not text"),
    "INVALID_TOPIC_NAME": ("42602", "a topic's name is not legal"),
    "INVALID_TRANSACTIONAL_ID": ("22001", "a transactional id that is empty or too long"),
    "INVALID_TRANSACTION_TIMEOUT": ("22003", "a transaction's timeout is outside its bounds"),
    "INVALID_USER": ("42602", "a name that no user may have, or too many users"),
    "KAFKA_NOT_INSTALLED": ("42704", "mirror needs the extra kafka"),
    "KERNELS_UNUSABLE": (
        "58000",
        "this installation's compiled loops are missing, or of another version",
    ),
    "MAINTENANCE_RUNNING": ("55006", "another process of this machine maintains the root"),
    "MIRROR_DIVERGED": ("55000", "a mirrored topic is not as the mirror has left it"),
    "MISSING_OPTION": ("42K06", "a required option is not set"),
    "MISSING_TRANSACTIONAL_ID": ("22023", "a batch of a transaction in a request that names none"),
    "NOT_AUTHENTICATED": ("28000", "a broker refused the credentials, or expects other ones"),
    "NOT_A_SPARKLOG_BROKER": ("08004", "a bootstrap server is no sparklog broker"),
    "NOT_COMPACTED": ("22023", "a topic to be compacted keeps all records"),
    "NOT_LEADER": ("40001", "another broker leads the partition, or this one in a later epoch"),
    "NO_BROKER_RUNS": ("55000", "an operation needs a running broker"),
    "OFFSET_OUT_OF_RANGE": ("22003", "the offset is outside the log's start and end"),
    "OPEN_LISTENER": ("28000", "a listener that other machines reach lets everybody in"),
    "OUT_OF_ORDER_SEQUENCE": ("22023", "a producer's batch does not follow its last one"),
    "PARTITION_MISSING": ("42704", "no such partition"),
    "PARTITION_OUT_OF_RANGE": ("22003", "a row names a partition that the topic does not have"),
    "PARTITION_UNREADABLE": ("58030", "an export is not complete, since a partition cannot be read"),
    "PREVIEW_OUTDATED": ("40001", "what a preview in the console showed has changed, or was confirmed"),
    "PRODUCER_FENCED": ("40001", "a producer with a newer epoch exists"),
    "PRODUCER_UNMAPPED": ("22023", "a producer id is not that of the transactional id"),
    "PUBLISH_BACKLOG_FULL": ("53000", "too much is waiting to be published"),
    "PUBLISH_CONTENDED": ("40001", "a publish lost too many races"),
    "PUBLISH_UNRESOLVED": ("08007", "the outcome of a publish is not known yet"),
    "PUT_ABORTED": ("40001", "a put was stopped by a cleaner; nothing was changed"),
    "PUT_INDEFINITE": ("08007", "a put may or may not have happened"),
    "PUT_REFUSED": ("40001", "a put was overtaken before it took effect; nothing was changed"),
    "READ_OVERTAKEN": ("40001", "the segments of a read were merged and removed repeatedly"),
    "READ_TOO_LARGE": ("54000", "one read would hold more bytes than an Arrow column can"),
    "RECORD_COLUMN_LENGTH": ("22023", "the columns of records differ in length"),
    "RECORD_COLUMN_TOO_LARGE": ("54000", "a column holds more bytes than one call takes"),
    "RECORD_COLUMN_TYPE": ("42804", "a column of records has the wrong type"),
    "RECORD_HEADER_NULL": ("22004", "a record header, or its key, is null"),
    "RECORD_TOO_LARGE": ("54000", "a record does not fit into one batch"),
    "RETAIN_TOO_SHORT": ("22023", "a vacuum would retain less than a week, and is not forced to"),
    "ROOT_NOT_ALLOWED": ("42501", "a root is outside the places that allowedRoots names"),
    "ROOT_NOT_EMPTY": ("42710", "the directory of a new root holds other files"),
    "ROOT_NOT_FOUND": ("42704", "no root at this place"),
    "ROOT_NOT_VISIBLE": ("42704", "this machine does not see a broker's root, or sees another one"),
    "ROOT_RESTORED": ("40001", "a root was restored from a backup while it was open"),
    "S3_NOT_INSTALLED": ("42704", "an s3:// root needs the extra s3"),
    "SCHEMAS_NOT_INSTALLED": ("42704", "fastavro or protobuf is not installed"),
    "SEGMENT_MISSING": ("58030", "a segment that extents refer to does not exist"),
    "SEGMENT_TRUNCATED": ("XX001", "a segment is shorter than its extents say"),
    "SERVER_NOT_INSTALLED": ("42704", "sparklog-server needs the extra server"),
    "SHARE_GROUPS_FULL": ("53000", "the root has no room for the state of more share groups"),
    "SHARE_STATE_CHANGED": ("40001", "the offsets of a share group were reset, or it was deleted"),
    "SOURCE_FAILED": ("58000", "the Kafka cluster to be mirrored refused a request"),
    "SOURCE_UNREACHABLE": ("08001", "the Kafka cluster to be mirrored does not answer"),
    "SPARK_CONNECT_UNSUPPORTED": ("0A000", "this needs a classic session of Spark, not Spark Connect"),
    "SPARK_NOT_INSTALLED": ("42704", "the Spark integration needs the extra spark"),
    "STAGING_EXPIRED": ("40001", "staged data is too old to be published; it may have been swept"),
    "STORAGE_FAILED": ("58030", "the storage failed"),
    "STORAGE_FULL": ("53100", "the disk or the quota is full"),
    "STORAGE_REFUSED": ("42501", "the storage is read-only for us"),
    "STORAGE_UNSUPPORTED": ("0A000", "the storage lacks something that durability needs"),
    "STORE_ANSWER_WRONG": ("08P01", "an object store's response is malformed"),
    "STORE_NOT_INSTALLED": (
        "42704",
        "a gs://, abfss://, az:// or hdfs:// root, or one through fsspec, needs an extra",
    ),
    "STORE_UNAVAILABLE": ("08006", "the object store does not answer"),
    "TIMESTAMP_OUT_OF_RANGE": ("22008", "a record's timestamp is too far from now"),
    "TOO_MANY_ACLS": ("54000", "more ACLs than a root may have"),
    "TOO_MANY_OPEN_FILES": ("53000", "the open files limit is reached"),
    "TOO_MANY_PARTITIONS": ("54000", "the root, or a request, would have too many partitions"),
    "TOO_MANY_QUOTAS": ("54000", "more entities with quotas than a root may have"),
    "TOPIC_CHANGED": ("40001", "a topic was created or changed concurrently"),
    "TOPIC_EXISTS": ("42710", "a topic of this name exists"),
    "TOPIC_MISSING": ("42704", "no such topic"),
    "TRANSACTIONS_FULL": ("53000", "the root has no room for more transactions or staged extents"),
    "TRANSACTION_ABORTED": ("40000", "a broker or an administrator has aborted a transaction"),
    "TRANSACTION_CHANGED": ("40001", "a newer transaction has begun since the request was read"),
    "TRANSACTION_FORKED": ("25000", "a transaction is used in a forked child of its process"),
    "TRANSACTION_MISSING": ("42704", "no such transactional id"),
    "TRANSACTION_STATE": ("25000", "a transaction is in the wrong state for the request"),
    "TRANSACTION_TOO_LARGE": ("54000", "a transaction has no room for more"),
    "TRANSACTION_UNKNOWN": ("08007", "the newest state of a transaction cannot be read"),
    "TXN_CONTENT_DIFFERS": ("23505", "a writer's version is in the log already, with other content"),
    "UNKNOWN_CONFIG": ("42K05", "no setting has this name"),
    "UNKNOWN_OPTION": ("42K05", "no such option"),
    "UNKNOWN_PRODUCER": ("22023", "a batch may repeat one of an evicted producer"),
    "UNSAFE_FILESYSTEM": ("0A000", "a file system that could lose acknowledged commits"),
    "UNSUPPORTED_ATTRIBUTES": ("0A000", "a record batch uses attribute bits that this version does not know"),
    "UNSUPPORTED_CODEC": ("0A000", "a compression codec that this version does not know"),
    "UNSUPPORTED_CONFIG": ("0A000", "a setting of Kafka that has no counterpart here"),
    "UNSUPPORTED_CONSUMER_OFFSET": ("0A000", "a record of __consumer_offsets of an unknown version"),
    "UNSUPPORTED_CONTROL_TYPE": ("0A000", "a control record of a type that this version does not know"),
    "UNSUPPORTED_KAFKA_OPTION": ("0A000", "an option of Kafka clients that has no counterpart here"),
    "UNSUPPORTED_MAGIC": ("0A000", "a record batch of another magic than 2"),
    "UNSUPPORTED_METADATA": ("0A000", "metadata written by a newer version"),
    "UNSUPPORTED_META_VERSION": ("0A000", "a root written by a newer version"),
    "UNSUPPORTED_SAVE_MODE": ("0A000", "only append makes sense for a log"),
    "UNSUPPORTED_STORE": ("0A000", "a kind of storage that this version does not support"),
    "UNSUPPORTED_TABLE": ("0A000", "a table in Spark's catalog with options, which Spark would drop"),
    "USER_MISSING": ("42704", "no user of this name, or none for this mechanism"),
    "VERSION_OUTDATED": ("55000", "the log already has a later version of the writer"),
    "WRITER_FAILED": ("58030", "a segment could not be written or made durable"),
    "WRONG_PYTHON": ("55000", "Spark runs another Python than the one that has sparklog"),
    "WRONG_ROOT": ("22023", "a root is not the expected one"),
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
        self.message = _bounded(message)
        self.fix = _bounded(fix)
        super().__init__(code, self.message, self.fix)

    def __str__(self) -> str:
        end = "" if self.message.endswith((".", "?", "!")) else "."
        fix = self.fix.rstrip(".")
        return f"[SPARKLOG_{self.code}] {self.message}{end} Fix: {fix}. SQLSTATE: {self.sqlstate}"

    def __reduce__(self) -> tuple[object, ...]:
        # Spark carries exceptions between processes; keyword-only arguments need help.
        return (_rebuild, (type(self), self.code, self.message, self.fix))


def _bounded(text: str) -> str:
    if len(text) <= MAX_TEXT:
        return text
    omitted = f" ... ({len(text) - MAX_TEXT:,} or more characters omitted) ... "
    return text[: MAX_TEXT - _KEPT_AT_END - len(omitted)] + omitted + text[-_KEPT_AT_END:]


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


def as_value(error: E) -> E:
    """Drop the traceback and the cause of an error that is kept.

    A traceback refers to frames and all their buffers. A kept error in one of these frames would be a cycle,
    which lives until the garbage collector runs.
    """
    error.__traceback__ = error.__cause__ = error.__context__ = None
    return error
