"""Writers: plain appends, repeated only when it is certain that nothing came of them, and queries.

After an append of unknown outcome a writer does what the error says: it goes on until a publish has
succeeded, which makes sure that nothing comes of the append any more;
then it looks, and appends again if it is not there.
"""

from dataclasses import dataclass, field

from sparklog.client import SparkLog, StagedAppend
from sparklog.errors import InvalidRequestError, RetriableError, StorageError
from sparklog.log.writer import LogWriter
from tests.history.recorder import History
from tests.simulation.keyed import KEYED, lacks_keys
from tests.simulation.processes import Role, Seen, end_open, parts_of, rows_of, stage, topic_of
from tests.simulation.queries import Batch, Query
from tests.simulation.world import SimProcess


@dataclass
class Writer(Role):
    """Appends; sometimes as a query that commits its batches exactly once."""

    sequence: int = 0
    query: Query = field(default_factory=Query)
    inherited: Query | None = None  # a copy of another's, which goes on elsewhere: only its batch is finished
    doubtful: dict[str, list[str]] | None = None  # unknown whether it was appended, by this life
    may_look: bool = False  # a publish has succeeded since

    def __post_init__(self) -> None:
        self.query.name = f"{self.name}q"

    def live(self, process: SimProcess) -> None:
        self.doubtful = None
        super().live(process)

    def act(self, log: SparkLog, history: History, process: SimProcess) -> bool:
        if self.doubtful is not None and self.may_look:
            self._look_again(log, history)
            return True
        if self.inherited is not None:
            self._run_batch(log, history, self.inherited)
            self.inherited = None
        elif self.query.pending is not None or self.setting.dice.random() < self.setting.transactional:
            self._run_batch(log, history, self.query)
        else:
            self._append(log, history, self._new_values())
        self.may_look = True
        return True

    def inherit(self, other: "Writer") -> None:
        """Go on with what the other one's memory held of its query."""
        query = other.query if other.inherited is None else other.inherited
        if query.pending is not None:
            self.inherited = query.copy()

    # --- plain appends -------------------------------------------------------------------------------

    def _new_values(self) -> dict[str, list[str]]:
        dice = self.setting.dice
        topic = self.setting.throw_topic()
        values: dict[str, list[str]] = {}
        for _ in range(dice.choice((1, 1, 2, 4))):
            key = f"{topic}-{dice.randrange(self.setting.partitions)}"
            text = self.setting.new_text(topic, self.name, self.sequence, may_lack_key=True)
            values.setdefault(key, []).append(text)
            self.sequence += 1
        return values

    def _append(self, log: SparkLog, history: History, values: dict[str, list[str]]) -> None:
        sending = history.send(values)
        try:
            if topic_of(values) in log.refresh().topics:
                result = log.append(topic_of(values), rows_of(self.setting, log, values))
            else:
                result = log.publish([stage(self.setting, log, log.writer, values)])
        except StorageError as error:
            # What retention or compaction may have removed, is not to be looked for.
            stays = not self.setting.expires and topic_of(values) != KEYED
            if end_open(sending, error) and stays and self.doubtful is None:
                self.doubtful, self.may_look = values, False
            raise
        except RetriableError as error:
            sending.fail(error)
            raise
        except InvalidRequestError as error:
            if error.code != "INVALID_ROWS" or not lacks_keys(values):
                raise
            sending.fail(error)  # the topic is compacted now: nothing without a key is taken
            return
        sending.ok(parts_of(values, result))

    def _look_again(self, log: SparkLog, history: History) -> None:
        assert self.doubtful is not None
        values = self.doubtful
        log.refresh(force=True)
        key, sent = next(iter(values.items()))
        topic, partition = topic_of(values), int(key.rpartition("-")[2])
        there = False
        if topic in log.image.topics:
            table = log.read(topic, partition, log.log_start_offset(topic, partition))
            there = sent[0].encode() in table["value"].to_pylist()
        self.doubtful = None
        self.setting.world.met["looked for, there" if there else "looked for, and appended again"] += 1
        if not there:
            self._append(log, history, values)

    # --- queries -------------------------------------------------------------------------------------

    def _run_batch(self, log: SparkLog, history: History, query: Query) -> None:
        """As Spark: write the plan down, run its tasks, publish; after any trouble the same batch again."""
        batch = query.next_batch(self.setting)
        try:
            for topics in batch.writes:
                if self._write(log, history, query, batch, topics) and query is self.query:
                    # Perhaps what was there is this batch, perhaps not. Whoever restored it finds out.
                    query.start_anew()
                    return
        except InvalidRequestError as error:
            may_differ = query.was_restored or query is self.inherited  # by whoever has it as well
            if error.code not in ("TXN_CONTENT_DIFFERS", "VERSION_OUTDATED") or not may_differ:
                raise
            self.setting.world.met["restored checkpoint noticed"] += 1
            query.start_anew()
            return
        query.note_done()

    def _write(
        self, log: SparkLog, history: History, query: Query, batch: Batch, topics: tuple[str, ...]
    ) -> bool:
        """One publish. Was a topic left out because it has a later version?"""
        values = batch.values_of(topics)
        txn = query.application, batch.version
        sending = history.send(values, txn="/".join((*map(str, txn), str(query.restored), *topics)))
        try:
            result = log.publish(self._run_tasks(log, values), txn=txn, content=batch.content)
        except StorageError as error:
            end_open(sending, error)
            raise
        except (RetriableError, InvalidRequestError) as error:
            sending.fail(error)
            raise
        has_later = False
        appended = {topic for topic, _ in result.ranges}
        parts = dict(parts_of(batch.values_of(tuple(appended)), result))
        for topic, found in result.skipped.items():
            assert topic not in appended, result
            if found.version == batch.version:
                # By an earlier attempt, which may not know where.
                parts.update({key: (texts, None) for key, texts in batch.values_of((topic,)).items()})
            else:
                assert query.was_restored or query is self.inherited, f"{txn}: skipped for {found}"
                has_later = True
                self.setting.world.met["older version skipped, and said so"] += 1
        assert appended | result.skipped.keys() == set(topics), (topics, result)
        sending.ok(parts)
        return has_later

    def _run_tasks(self, log: SparkLog, values: dict[str, list[str]]) -> list[StagedAppend]:
        """One task a partition, each with segments of its own; sometimes a second attempt wins."""
        staged: list[StagedAppend] = []
        log.refresh()
        for key, texts in values.items():
            for _ in range(self.setting.dice.choice((1, 1, 2))):
                writer = LogWriter(log.store, log.clock, seen=Seen(log.metadata))
                attempt = stage(self.setting, log, writer, {key: texts})
                writer.close()
            staged.append(attempt)
        return staged
