"""Settings of maintenance by the broker, and of how long records and producers are kept where neither a topic
nor the root says so.

log.retention.minutes and log.retention.hours say log.retention.ms in other units (sources.py).
Sources: Kafka CleanerConfig, ServerLogConfigs, TransactionLogConfig.
"""

import dataclasses

from sparklog.log.config import TopicConfig
from sparklog.log.setting import LONG_MAX, setting
from sparklog.maintenance.budget import FILES_PER_SECOND
from sparklog.maintenance.choose_compactions import DEDUPE_BUFFER_BYTES
from sparklog_server.settings.units import INT_MAX

NO_RATE = 1.7976931348623157e308  # Kafka's default: the largest double
_TOPIC = TopicConfig()


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class MaintenanceSettings:
    """The fields' names are the keys with underscores."""

    log_cleaner_enable: bool = setting(
        "log.cleaner.enable",
        default=True,
        doc="""Merge small extents, compact, and remove dead files in the background, in a process of low
        priority. false: somebody else does (`sparklog maintain`), or the log gets larger, and slower to read.
        As in Kafka, records past their retention go in any case.""",
    )
    log_cleaner_io_max_bytes_per_second: float = setting(
        "log.cleaner.io.max.bytes.per.second",
        default=NO_RATE,
        minimum=1,
        unit="bytes/s",
        doc="""How much maintenance reads and writes in a second, together. Smaller: others feel less of it;
        larger: it is done sooner.""",
    )
    sparklog_vacuum_max_files_per_second: int = setting(
        "sparklog.vacuum.max.files.per.second",
        default=FILES_PER_SECOND,
        minimum=1,
        maximum=LONG_MAX,
        unit="files/s",
        doc="""How many dead files maintenance removes in a second. Smaller: the disk, or the object store's
        limit of requests, is left to others; larger: space is freed sooner.""",
    )
    log_cleaner_dedupe_buffer_size: int = setting(
        "log.cleaner.dedupe.buffer.size",
        default=DEDUPE_BUFFER_BYTES,
        minimum=1 << 20,
        maximum=LONG_MAX,
        unit="bytes",
        doc="""Memory for the keys of a round of compaction, in the process that does it: 24 bytes a slot, of
        which two thirds are filled. Smaller: more rounds where many keys were written, each of which rewrites
        the partition; larger: more memory.""",
    )
    log_cleaner_delete_retention_ms: int = setting(
        "log.cleaner.delete.retention.ms",
        default=_TOPIC.delete_retention_ms,
        minimum=0,
        maximum=LONG_MAX,
        unit="ms",
        doc="""delete.retention.ms of topics that do not say it, for what this broker compacts; a value on
        the root wins, and is what `sparklog compact` and streams know, too. Longer: slower readers still see
        a key's deletion; shorter: tombstones take space for less long.""",
    )
    log_cleaner_min_compaction_lag_ms: int = setting(
        "log.cleaner.min.compaction.lag.ms",
        default=_TOPIC.min_compaction_lag_ms,
        minimum=0,
        maximum=LONG_MAX,
        unit="ms",
        doc="""As log.cleaner.delete.retention.ms, for min.compaction.lag.ms: how long a record stays as it
        is.""",
    )
    log_cleaner_max_compaction_lag_ms: int = setting(
        "log.cleaner.max.compaction.lag.ms",
        default=_TOPIC.max_compaction_lag_ms,
        minimum=1,
        maximum=LONG_MAX,
        unit="ms",
        doc="""As log.cleaner.delete.retention.ms, for max.compaction.lag.ms: after how long a record is
        compacted, whatever the dirty ratio.""",
    )
    log_cleaner_min_cleanable_ratio: float = setting(
        "log.cleaner.min.cleanable.ratio",
        default=_TOPIC.min_cleanable_dirty_ratio,
        minimum=0,
        maximum=1,
        unit="ratio",
        doc="""As log.cleaner.delete.retention.ms, for min.cleanable.dirty.ratio: how much of a partition is
        dirty when it is compacted. Smaller: less space; larger: less rewriting.""",
    )
    log_cleaner_backoff_ms: int = setting(
        "log.cleaner.backoff.ms",
        default=15_000,
        minimum=1,
        maximum=LONG_MAX,
        unit="ms",
        doc="""How often to look whether anything is to be merged, compacted or removed. Shorter: fewer small
        extents; longer: fewer looks.""",
    )
    sparklog_maintenance_delay_max_ms: int = setting(
        "sparklog.maintenance.delay.max.ms",
        default=60_000,
        minimum=0,
        maximum=LONG_MAX,
        unit="ms",
        doc="""For how long merging, compaction and the removal of dead files wait while the broker is busy:
        while it takes more than a tenth of a processor. 0: they do not wait. Longer: bursts of load have disk
        and processors for themselves; shorter: fewer small extents while the load lasts.""",
    )
    log_retention_check_interval_ms: int = setting(
        "log.retention.check.interval.ms",
        default=300_000,
        minimum=1,
        maximum=LONG_MAX,
        unit="ms",
        doc="""How often to look whether records are past their retention. Shorter: space is freed sooner;
        longer: fewer looks.""",
    )
    log_retention_ms: int = setting(
        "log.retention.ms",
        default=-1,
        minimum=-1,
        excluded=(0,),  # by which all records of all topics would go; Kafka refuses it, too
        maximum=LONG_MAX,
        unit="ms",
        doc="""retention.ms of topics that do not say it, for what this broker removes and tells; -1: for
        ever, which is not Kafka's default. log.retention.minutes and log.retention.hours say it in other
        units; the smallest unit that is given wins. Only log.retention.hours=168 in a file counts for
        nothing, since Kafka's own file has it: for a week write log.retention.ms=604800000. A value on the
        root wins, and is what `sparklog expire` and streams know, too.""",
    )
    log_retention_bytes: int = setting(
        "log.retention.bytes",
        default=-1,
        minimum=-1,
        maximum=LONG_MAX,
        unit="bytes",
        doc="""As log.retention.ms, for retention.bytes: of a partition; -1: no limit.""",
    )
    producer_id_expiration_ms: int = setting(
        "producer.id.expiration.ms",
        default=86_400_000,
        minimum=1,
        maximum=INT_MAX,
        unit="ms",
        doc="""How long partitions remember idempotent producers that write nothing, at least; they are
        forgotten within twice that. Longer: late repetitions of a batch are still told from new ones;
        shorter: less to remember where each job is a new producer. A value on the root wins.""",
    )

    @property
    def bytes_per_second(self) -> int | None:
        """None: no limit."""
        rate = self.log_cleaner_io_max_bytes_per_second
        return None if rate >= LONG_MAX else int(rate)
