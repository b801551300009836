"""The driver's side of the streaming source, without Spark: what is read when, after which crash."""

from pathlib import Path
from typing import Any, NoReturn

import pyarrow as pa
import pytest

import sparklog
from sparklog.client import SparkLog
from sparklog.clock import ManualClock
from sparklog.errors import DataLossError, InvalidRequestError, StorageError
from sparklog.metadata.model.extents import AdvanceLogStart
from sparklog.spark.options import parse_source_options
from sparklog.spark.stream_planner import StreamPlanner
from tests.spark.planning import append, planner, read, topics


@pytest.fixture
def log(root: str) -> SparkLog:
    opened = sparklog.open(root, create=True)
    opened.create_topic("t", partitions=2)
    append(opened, 0, 100)
    return opened


def test_a_crash_in_the_first_micro_batch_keeps_its_start(log: SparkLog, root: str) -> None:
    """Without the start in the end's offset, records 100 to 104 would never be read."""
    first = planner(root, startingOffsets="latest")
    start = first.initial_offset()
    append(log, 0, 5)
    end = first.latest_offset(start, limited=True)
    assert read(first.input_partitions(start, end)) == [("t", 0, 100, 105)]
    append(log, 0, 5)  # the query is dead; the log grows

    second = planner(root, startingOffsets="latest")
    start_again = second.initial_offset()
    assert topics(start_again)["t"]["0"] == 110
    assert read(second.input_partitions(start_again, end)) == [("t", 0, 100, 105)]
    after = second.latest_offset(end, limited=True)
    assert read(second.input_partitions(end, after)) == [("t", 0, 105, 110)]


def test_only_the_first_micro_batch_carries_its_start(log: SparkLog, root: str) -> None:
    plan = planner(root, maxOffsetsPerTrigger="40")
    start = plan.initial_offset()
    first = plan.latest_offset(start, limited=True)
    second = plan.latest_offset(first, limited=True)
    assert "@initial/t" in first
    assert "@initial/t" not in second
    assert read(plan.input_partitions(first, second)) == [("t", 0, 40, 80)]


def test_nothing_new_gives_the_start_back_unchanged(log: SparkLog, root: str) -> None:
    plan = planner(root)
    end = plan.latest_offset(plan.initial_offset(), limited=True)
    assert plan.latest_offset(end, limited=True) is end
    append(log, 1, 1)
    assert plan.latest_offset(end, limited=True) is not end


def test_trigger_once_ignores_the_limits(log: SparkLog, root: str) -> None:
    plan = planner(root, maxOffsetsPerTrigger="10", maxBytesPerTrigger="1")
    assert topics(plan.latest_offset(plan.initial_offset(), limited=False))["t"]["0"] == 100


def test_max_bytes_always_makes_progress(log: SparkLog, root: str) -> None:
    plan = planner(root, maxBytesPerTrigger="1")
    offset = plan.initial_offset()
    for _ in range(3):
        before = offset
        offset = plan.latest_offset(before, limited=True)
        assert topics(offset)["t"]["0"] == topics(before)["t"]["0"] + 1


def test_min_offsets_waits_for_enough_or_long_enough(log: SparkLog, root: str) -> None:
    clock = ManualClock()
    plan = planner(root, clock, minOffsetsPerTrigger="150", maxTriggerDelay="1m")
    first = plan.latest_offset(plan.initial_offset(), limited=True)
    assert topics(first)["t"] == {"0": 100, "1": 0}, "the first one after a start is not put off"
    append(log, 0, 100)
    assert plan.latest_offset(first, limited=True) == first, "not enough"
    append(log, 1, 60)
    end = plan.latest_offset(first, limited=True)
    assert topics(end)["t"] == {"0": 200, "1": 60}, "enough"
    append(log, 1, 5)
    assert plan.latest_offset(end, limited=True) == end, "not enough"
    clock.advance_ms(60_000)
    assert topics(plan.latest_offset(end, limited=True))["t"]["1"] == 65, "waited long enough"


def test_available_now_stops_at_the_end_it_found(log: SparkLog, root: str) -> None:
    plan = planner(root, maxOffsetsPerTrigger="60", minOffsetsPerTrigger="50")
    start = plan.initial_offset()
    plan.freeze_end()
    append(log, 0, 500)
    log.add_partitions("t", 3)
    append(log, 2, 5)
    seen = [start]
    while (following := plan.latest_offset(seen[-1], limited=True)) != seen[-1]:
        seen.append(following)
    assert [topics(o)["t"]["0"] for o in seen] == [0, 60, 100]
    assert "2" not in topics(seen[-1])["t"]


def test_available_now_finishes_a_position_past_its_own_end(log: SparkLog, root: str) -> None:
    """A restarted query stands where it stands, even if its freeze came from an older view."""
    before = planner(root)
    end = before.latest_offset(before.initial_offset(), limited=True)
    plan = planner(root)
    plan.freeze_end()
    assert plan.latest_offset(end, limited=True) == end


def test_new_partitions_and_topics_start_at_their_beginning(log: SparkLog, root: str) -> None:
    options = {"path": root, "subscribePattern": "t.*", "startingOffsets": "latest"}
    plan = StreamPlanner(parse_source_options(options, streaming=True), ManualClock())
    start = plan.initial_offset()
    log.add_partitions("t", 3)
    append(log, 2, 7)
    log.create_topic("t2", partitions=1)
    append(log, 0, 9, topic="t2")
    end = plan.latest_offset(start, limited=True)
    assert read(plan.input_partitions(start, end)) == [("t", 2, 0, 7), ("t2", 0, 0, 9)]


def test_group_progress_is_recorded_as_soon_as_the_next_batch_is_asked_for(log: SparkLog, root: str) -> None:
    plan = planner(root, **{"kafka.group.id": "g"})
    start = plan.initial_offset()
    end = plan.latest_offset(start, limited=True)
    assert log.committed_offsets("g") == {}, "planned is not done"
    plan.latest_offset(end, limited=True)
    assert log.committed_offsets("g") == {("t", 0): 100, ("t", 1): 0}
    commits = log.refresh().commit
    plan.commit(end)
    plan.latest_offset(end, limited=True)
    assert log.refresh().commit == commits, "once per position"


def test_a_failure_to_record_progress_is_a_warning(
    log: SparkLog, root: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    plan = planner(root, **{"kafka.group.id": "g"})
    end = plan.latest_offset(plan.initial_offset(), limited=True)

    def full(*_: object, **__: object) -> NoReturn:
        raise StorageError("STORAGE_FULL", "no space", fix="free some")

    monkeypatch.setattr("sparklog.client.SparkLog.commit_offsets", full)
    plan.commit(end)
    assert "progress of group g was not recorded" in caplog.text


def test_records_that_retention_took_before_they_were_read_are_data_loss(log: SparkLog, root: str) -> None:
    plan = planner(root)
    start = plan.initial_offset()
    end = plan.latest_offset(start, limited=True)
    topic_id = log.image.topics["t"].topic_id
    log.metadata.publish(lambda _: [AdvanceLogStart(topic_id=topic_id, partition=0, log_start_offset=30)])
    with pytest.raises(DataLossError, match="t-0: offsets 0 to 30 are gone"):
        plan.input_partitions(start, end)
    lenient = planner(root, failOnDataLoss="false")
    assert read(lenient.input_partitions(start, end)) == [("t", 0, 30, 100)]


def test_a_log_shorter_than_the_checkpoint_is_data_loss(log: SparkLog, root: str, tmp_path: Path) -> None:
    plan = planner(root)
    end = plan.latest_offset(plan.initial_offset(), limited=True)
    beyond = {**end, "t": {"0": 5_000, "1": 0}}
    with pytest.raises(DataLossError, match="offset 5000 was reached, and the log ends at 100"):
        plan.latest_offset(beyond, limited=True)
    lenient = planner(root, failOnDataLoss="false")
    assert topics(lenient.latest_offset(beyond, limited=True)) == topics(end)


def test_what_is_appended_to_a_log_shorter_than_the_checkpoint_is_read(log: SparkLog, root: str) -> None:
    """As with Kafka's connector, and not only from the offset on that was reached once."""
    lenient = planner(root, failOnDataLoss="false", maxOffsetsPerTrigger="10")
    end = lenient.latest_offset(lenient.initial_offset(), limited=False)
    beyond = {**end, "t": {"0": 5_000, "1": 0}}
    back = lenient.latest_offset(beyond, limited=True)
    assert read(lenient.input_partitions(beyond, back)) == []
    append(log, 0, 7)
    assert read(planner(root).input_partitions(beyond, back)) == [], "planned again, after a crash"
    after = lenient.latest_offset(back, limited=True)
    assert read(lenient.input_partitions(back, after)) == [("t", 0, 100, 107)]
    assert lenient.latest_offset(after, limited=True) == after


def test_available_now_finds_a_log_shorter_than_the_checkpoint(log: SparkLog, root: str) -> None:
    """Only an older freeze is no loss: the log itself must reach the position."""
    end = planner(root).latest_offset(planner(root).initial_offset(), limited=True)
    beyond = {**end, "t": {"0": 5_000, "1": 0}}
    plan = planner(root)
    plan.freeze_end()
    with pytest.raises(DataLossError, match="offset 5000 was reached, and the log ends at 100"):
        plan.latest_offset(beyond, limited=True)
    lenient = planner(root, failOnDataLoss="false")
    lenient.freeze_end()
    back = lenient.latest_offset(beyond, limited=True)
    assert topics(back) == topics(end)
    assert lenient.latest_offset(back, limited=True) == back, "it comes to an end"


def test_available_now_finds_it_of_partitions_newer_than_its_freeze(log: SparkLog, root: str) -> None:
    plan = planner(root)
    plan.freeze_end()
    log.add_partitions("t", 3)
    append(log, 2, 7)
    before = planner(root)
    end = before.latest_offset(before.initial_offset(), limited=True)
    assert plan.latest_offset(end, limited=True) == end
    beyond = {**end, "t": {"0": 100, "1": 0, "2": 8}}
    with pytest.raises(DataLossError, match="t-2: offset 8 was reached, and the log ends at 7"):
        plan.latest_offset(beyond, limited=True)


def test_available_now_finishes_a_position_that_the_log_reached_after_its_freeze(
    log: SparkLog, root: str
) -> None:
    plan = planner(root)
    plan.freeze_end()
    append(log, 0, 50)
    before = planner(root)
    end = before.latest_offset(before.initial_offset(), limited=True)
    assert topics(end)["t"]["0"] == 150
    assert plan.latest_offset(end, limited=True) == end


def test_another_roots_checkpoint_is_refused(log: SparkLog, root: str, tmp_path: Path) -> None:
    end = planner(root).initial_offset()
    other = sparklog.open(tmp_path / "other", create=True)
    other.create_topic("t", partitions=2)
    with pytest.raises(InvalidRequestError, match="checkpoint belongs to the root") as caught:
        planner(str(tmp_path / "other")).latest_offset(end, limited=True)
    assert caught.value.code == "WRONG_ROOT"


@pytest.mark.usefixtures("directory")
def test_a_root_made_anew_under_the_same_path_is_noticed(log: SparkLog, root: str) -> None:
    """A living worker must not go on with the image of a log that is gone."""
    import shutil

    plan = planner(root)
    end = plan.latest_offset(plan.initial_offset(), limited=True)
    shutil.rmtree(root)
    sparklog.open(root, create=True).create_topic("t", partitions=2)
    with pytest.raises(InvalidRequestError, match="checkpoint belongs to the root"):
        plan.latest_offset(end, limited=True)


# --- topics that are no longer subscribed to ---------------------------------------------------------


@pytest.fixture
def both(log: SparkLog, root: str) -> dict[str, Any]:
    """The offset of a query that has read all of t and u."""
    log.create_topic("u", partitions=1)
    append(log, 0, 30, "u")
    plan = planner(root, subscribe="t,u")
    return plan.latest_offset(plan.initial_offset(), limited=True)


def following(
    plan: StreamPlanner, start: dict[str, Any]
) -> tuple[dict[str, Any], list[tuple[str, int, int, int]]]:
    end = plan.latest_offset(start, limited=True)
    return end, read(plan.input_partitions(start, end))


def test_a_dropped_topic_is_reported_as_data_loss(log: SparkLog, root: str, both: dict[str, Any]) -> None:
    append(log, 0, 5)
    with pytest.raises(DataLossError, match=r"u-0 at offset 30: no longer among the topics and partitions"):
        planner(root, subscribe="t").latest_offset(both, limited=True)
    fewer = parse_source_options({"path": root, "assign": '{"t": [0]}'}, streaming=True)
    with pytest.raises(DataLossError, match=r"t-1 at offset 0, u-0 at offset 30: no longer"):
        StreamPlanner(fewer, ManualClock()).latest_offset(both, limited=True)


def test_a_dropped_topic_goes_on_where_it_was_left(log: SparkLog, root: str, both: dict[str, Any]) -> None:
    append(log, 0, 5)
    append(log, 0, 7, "u")
    dropped, parts = following(planner(root, subscribe="t", failOnDataLoss="false"), both)
    assert parts == [("t", 0, 100, 105)]
    assert topics(dropped).keys() == {"t"}
    assert dropped["@kept/u"] == {"0": 30}

    # From here on it is no news, also for those who insist.
    append(log, 0, 5)
    without, parts = following(planner(root, subscribe="t"), dropped)
    assert parts == [("t", 0, 105, 110)]
    assert planner(root, subscribe="t").latest_offset(without, limited=True) == without

    append(log, 0, 1)
    back, parts = following(planner(root, subscribe="t,u"), without)
    assert parts == [("t", 0, 110, 111), ("u", 0, 30, 37)]
    assert not any(name.startswith("@kept") for name in back)
    assert read(planner(root, subscribe="t").input_partitions(without, back)) == parts  # planned again


def test_a_drop_without_news_is_an_offset_of_its_own(log: SparkLog, root: str, both: dict[str, Any]) -> None:
    plan = planner(root, subscribe="t", failOnDataLoss="false")
    end, parts = following(plan, both)
    assert parts == []
    assert end["@kept/u"] == {"0": 30}
    assert plan.latest_offset(end, limited=True) == end


@pytest.mark.parametrize("made_anew", [True, False])
def test_positions_are_kept_while_the_topic_exists(
    log: SparkLog, root: str, both: dict[str, Any], made_anew: bool
) -> None:
    end, _ = following(planner(root, subscribe="t", failOnDataLoss="false"), both)
    log.delete_topic("u")
    if made_anew:
        log.create_topic("u", partitions=1)
        append(log, 0, 3, "u")
        _, parts = following(planner(root, subscribe="t,u"), end)
        assert parts == [("u", 0, 0, 3)]
    after, _ = following(planner(root, subscribe="t"), end)
    assert not any(name.startswith("@kept") for name in after)


def test_an_internal_topic_that_a_pattern_no_longer_finds_is_no_loss(log: SparkLog, root: str) -> None:
    log.commit_offsets("g", {("t", 0): 1})
    everything = planner(root, subscribe="t,__consumer_offsets")
    start = everything.latest_offset(everything.initial_offset(), limited=True)
    options = {"path": root, "subscribePattern": "t.*"}
    plan = StreamPlanner(parse_source_options(options, streaming=True), ManualClock())
    assert topics(plan.latest_offset(start, limited=True)).keys() == {"t"}
    with pytest.raises(DataLossError, match="__consumer_offsets"):
        planner(root, subscribe="t").latest_offset(start, limited=True)


@pytest.mark.parametrize(("options", "tasks"), [({}, 200), ({"maxPartitions": "1000000"}, 400)])
def test_many_partitions_with_little_in_each_share_tasks(
    log: SparkLog, root: str, options: dict[str, str], tasks: int
) -> None:
    log.create_topic("many", partitions=400)
    numbers = pa.array(range(400), pa.int32())
    log.append("many", pa.table({"value": [b"x"] * 400, "partition": numbers}))
    plan = planner(root, subscribe="many", **options)
    start = plan.initial_offset()
    planned = plan.input_partitions(start, plan.latest_offset(start, limited=True))
    assert len(planned) == tasks
    assert read(planned) == [("many", p, 0, 1) for p in range(400)]


@pytest.mark.parametrize(
    ("options", "tasks"), [({}, 3), ({"minPartitions": "1"}, 8), ({"maxPartitions": "2"}, 2)]
)
def test_partitions_share_as_many_tasks_as_run_at_a_time(
    log: SparkLog, root: str, monkeypatch: pytest.MonkeyPatch, options: dict[str, str], tasks: int
) -> None:
    """Nothing is lost or read twice, within the limit of a micro-batch and after it."""
    monkeypatch.setenv("SPARKLOG_TASK_SLOTS", "3")
    log.create_topic("u", partitions=8)
    for partition in range(8):
        append(log, partition, 10 * (partition + 1), topic="u")
    given = {"subscribe": "u", "maxOffsetsPerTrigger": "180", **options}
    plan = planner(root, **given)
    start = plan.initial_offset()
    middle = plan.latest_offset(start, limited=True)
    end = plan.latest_offset(middle, limited=True)
    first, second = plan.input_partitions(start, middle), plan.input_partitions(middle, end)
    assert (len(first), len(second)) == (tasks, tasks)
    assert sum(high - low for _, _, low, high in read(first)) <= 180
    assert [low for _, _, low, _ in read(second)] == [high for _, _, _, high in read(first)]
    assert [(p, high) for _, p, _, high in read(second)] == [(p, 10 * (p + 1)) for p in range(8)]
    again = planner(root, **given)  # in another process, after a crash
    assert read(again.input_partitions(start, middle)) == read(first)
