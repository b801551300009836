"""The first thing that is done to a simulated root, and the last: nothing goes wrong then.

In the end a process that has seen nothing before reads everything. If there is a compacted topic, days pass,
it is compacted until nothing is left to do, and read again.
"""

from sparklog.client import SparkLog
from sparklog.client.groups import partition_for_group
from sparklog.client.topic_plan import OFFSETS_TOPIC
from sparklog.format.batch_table import scan_batches
from sparklog.format.consumer_offsets import OffsetKey, decode_key, decode_offset_value
from sparklog.maintenance import compact
from sparklog.metadata import PartitionState, mergeable
from tests.history.recorder import History
from tests.simulation.compacted import Look, State
from tests.simulation.coordinators import OFFSETS_PARTITIONS
from tests.simulation.in_group import GROUP, SOURCE
from tests.simulation.keyed import KEYED, texts_in
from tests.simulation.processes import Role, key_of
from tests.simulation.setting import HOUR_MS, TOPICS, Setting
from tests.simulation.world import HOUR_US, SimProcess, StuckError

_MAX_READING_US = 1800 * 1_000_000
_DAYS_MS = 3 * 24 * HOUR_MS  # longer than a clock is wrong by, and a tombstone is kept


def create_compacted(setting: Setting) -> None:
    """The topic, before anything goes wrong."""
    world = setting.world

    def create(process: SimProcess) -> None:
        assert setting.compaction is not None
        with Role("first", setting).opened(process) as log:
            log.create_topic(KEYED, setting.partitions, setting.compaction.configs)

    world.calm = True
    first = world.spawn("first", create)
    world.run(lambda: first.dead, deadline_us=HOUR_US)
    world.calm = False


def read_everything(setting: Setting) -> list[str]:
    """When even the latest put has landed: by a process that has seen nothing before."""
    world = setting.world
    world.drain(3 * HOUR_US)
    last = world.spawn("last", lambda process: _read(setting, process))
    try:
        world.run(lambda: last.dead, deadline_us=world.now_us + 2 * 1000 * _DAYS_MS + _MAX_READING_US)
    except StuckError as error:
        return [f"reading everything: {error}"]
    return []


def _read(setting: Setting, process: SimProcess) -> None:
    history = History("last", setting.events.extend, lambda: process.world.now_us)
    log = Role("last", setting).opened(process)
    for topic in TOPICS:
        if topic not in log.topics():
            continue
        for partition in range(setting.partitions):
            place = topic, partition
            polling = history.poll(final=True)
            values: list[str] = []
            offsets: list[int] = []
            for arrow_batch in log.read_batches(topic, partition):
                values += [value.decode() for value in arrow_batch.column("value").to_pylist()]
                offsets += arrow_batch.column("offset").to_pylist()
            start, end = log.log_start_offset(*place), log.log_end_offset(*place)
            assert offsets == list(range(start, end)), f"{key_of(place)}: {start} to {end}, found {offsets}"
            polling.ok({key_of(place): (values, offsets)})
    if setting.members:
        look_at_offsets(setting, log, history)
    if setting.compaction is not None:
        _read_compacted(setting, log, history, process)


def look_at_offsets(setting: Setting, log: SparkLog, history: History) -> None:
    """Where the group is, and that it never went back on the way there."""
    committed = log.committed_offsets(GROUP)
    for partition in range(setting.partitions):
        place = SOURCE, partition
        asking = history.begin("fetch-committed", group=GROUP, key=key_of(place), final=True)
        asking.ok(offset=committed.get(place))
    newest: dict[OffsetKey, int] = {}
    if OFFSETS_TOPIC not in log.image.topics:
        return
    for arrow_batch in log.read_batches(OFFSETS_TOPIC, partition_for_group(GROUP, OFFSETS_PARTITIONS)):
        pairs = zip(arrow_batch["key"].to_pylist(), arrow_batch["value"].to_pylist(), strict=True)
        for key, value in pairs:
            found = decode_key(key, where="a record")
            if isinstance(found, OffsetKey) and value is not None:
                offset = decode_offset_value(value, where="a record").offset
                before, newest[found] = newest.get(found, 0), offset
                if offset < before:
                    where = f"{found.topic}-{found.partition} of {found.group}"
                    setting.problems.append(f"{where} fell from {before} to {offset}")


def _read_compacted(setting: Setting, log: SparkLog, history: History, process: SimProcess) -> None:
    witness, partitions = setting.witness, range(setting.partitions)
    for partition in partitions:
        place = KEYED, partition
        history.seek(key_of(place))
        polling = history.poll(final=True)
        state = _state(setting, log, polling.proc, partition)
        polling.ok({key_of(place): (list(state.look.found.values()), list(state.look.found))})
        witness.last.append(state)
    log.alter_topic(KEYED, {"cleanup.policy": "compact"})
    for _ in range(2):  # the first sets the horizons of what is new
        process.sleep_ms(_DAYS_MS)
        compact(log.metadata, process)
    witness.settled += [_state(setting, log, "last", partition) for partition in partitions]


def _state(setting: Setting, log: SparkLog, who: str, partition: int) -> State:
    place, began_us = (KEYED, partition), setting.world.now_us
    state = log.refresh(force=True).partition(*place)
    table = log.read(*place, state.log_start_offset, include_headers=True)
    texts, offsets = texts_in(table, setting.witness.stamps), table["offset"].to_pylist()
    look = Look(
        who=who,
        key=key_of(place),
        start=state.log_start_offset,
        end=state.log_end_offset,
        began_us=began_us,
        done_us=setting.world.now_us,
        found=dict(zip(offsets, texts, strict=True)),
    )
    may_be_rewritten = mergeable(state, state.extents.columns_between(0, len(state.extents)))
    first_dirty = max(state.log_start_offset, state.cleaned.first_dirty_offset)
    return State(
        look=look,
        log_start=state.log_start_offset,
        log_end=state.log_end_offset,
        first_dirty_offset=first_dirty,
        is_held_up=not may_be_rewritten.all(),
        is_clean_part_held_up=not may_be_rewritten[: state.extents.index_from(first_dirty)].all(),
        stored_end=_stored_end(log, state),
    )


def _stored_end(log: SparkLog, state: PartitionState) -> int | None:
    """Where the last stored batch ends, after a look at all of them: they ascend, within their extents."""
    end = None
    for extent in state.extents:
        data = log.store.read(extent.segment, extent.position, extent.size)
        table = scan_batches(data, where=extent.segment)
        first = (table.base_offset + extent.offset_delta).tolist()
        last = (table.last_offset + extent.offset_delta).tolist()
        assert extent.base_offset <= first[0], extent
        assert last[-1] + 1 == extent.end_offset, extent
        assert all(one <= other for one, other in zip(last, first[1:], strict=False)), extent
        assert end is None or end <= first[0], extent
        end = extent.end_offset
    return end
