"""Prepares a root that was restored from a backup for use: `sparklog root restore`.

    1. on an object store: write the name of the new incarnation where publishers read it, and wait until each
       process that was not stopped has read it (metadata/loading.py)
    2. check that the log is whole: a process that was not stopped may have written a commit after its end
    3. begin the new incarnation, in one commit (metadata/model/restoring.py)
    4. remove old requests and heartbeats, so that no process acts on them

Invariants: records, topics, settings, groups' offsets and versions of applications do not change.
    Running it again is harmless: yet another incarnation begins.
Not here: copying the backup back, and stopping the processes that have the root open.
Concurrency: meant to run while no process has the root open; a process that has it open is refused from then
    on.
After a crash: between 1 and 3 nothing is published until it is run again; after 3 only garbage is left.
Sources: adr/0033; docs/maintenance.md.
"""

from dataclasses import dataclass

from sparklog.clock import Clock
from sparklog.log.config import LOST_COMMITS_KEY
from sparklog.maintenance.budget import alone
from sparklog.metadata import Action, Image, MetadataLog, new_id, plan_restore_root, plan_set_configs
from sparklog.metadata.documents.properties import HEARTBEATS, REQUESTS
from sparklog.metadata.loading import LEASE_MS, load_image, write_incarnation


@dataclass(frozen=True, slots=True, kw_only=True)
class RestoreReport:
    """The results of a restore, or its plan in a dry run.

    Fields:
        commit: the one that began the incarnation; of a dry run the last commit.
        producer_id: the next one to be assigned; producer_id_before: the next one before the restore.
        leader_epoch: the lowest epoch of any partition from now on.
        producers: idempotent producers that partitions have forgotten.
        transactions: transactional ids, each with a new producer; aborted: those that were open.
        brokers: node ids that were registered, and not fenced.
        applications: applications that wrote with a version, as streaming queries do.
        partitions: of all topics.
    """

    incarnation_before: str
    incarnation: str
    commit: int
    producer_id_before: int
    producer_id: int
    leader_epoch: int
    partitions: int
    producers: int
    transactions: int
    aborted: tuple[str, ...] = ()
    brokers: tuple[int, ...] = ()
    applications: tuple[str, ...] = ()


def restore(metadata: MetadataLog, clock: Clock, *, dry_run: bool = False) -> RestoreReport:
    """Begin a new incarnation of a root that was restored from a backup.

    Raises:
        RetriableError: MAINTENANCE_RUNNING, a process of this machine maintains the root.
        CorruptLogError: the log has a gap, or is damaged. Also the errors of MetadataLog.publish.
    """
    incarnation_id = new_id()
    if dry_run:
        return _report(metadata.refresh(force=True), incarnation_id, clock.now_ms())
    store = metadata.store
    with alone(metadata):
        if store.traits.is_remote:
            write_incarnation(store, incarnation_id)
            clock.sleep_ms(2 * LEASE_MS)
        load_image(store, metadata.cluster_id)  # lists all names: no commit is beyond a gap
        reports: list[RestoreReport] = []

        def plan(image: Image) -> list[Action]:
            now_ms = clock.now_ms()
            reports.append(_report(image, incarnation_id, now_ms, commit=image.commit + 1))
            note = plan_set_configs(image, None, {LOST_COMMITS_KEY: None})
            restored = plan_restore_root(image, incarnation_id=incarnation_id, now_ms=now_ms)
            return [restored] if note is None else [restored, note]

        metadata.publish(plan)
        for directory in (REQUESTS, HEARTBEATS):
            store.delete_many([file.name for file in store.list(directory)])
    return reports[-1]


def _report(image: Image, incarnation_id: str, now_ms: int, *, commit: int | None = None) -> RestoreReport:
    planned = plan_restore_root(image, incarnation_id=incarnation_id, now_ms=now_ms)
    states = [state for topic in image.topics.values() for state in topic.partitions]
    applications = {name for topic in image.topics.values() for name in topic.writer_txns}
    return RestoreReport(
        incarnation_before=image.incarnation.incarnation_id,
        incarnation=incarnation_id,
        commit=image.commit if commit is None else commit,
        producer_id_before=image.next_producer_id,
        producer_id=planned.producer_id + len(image.transactions),
        leader_epoch=planned.leader_epoch,
        partitions=len(states),
        producers=len({number for state in states for number in state.producers}),
        transactions=len(image.transactions),
        aborted=tuple(name for name, open_ in image.transactions.items() if open_.is_ongoing),
        brokers=tuple(sorted(broker.node_id for broker in image.brokers.values() if not broker.is_fenced)),
        applications=tuple(sorted(applications)),
    )
