"""`sparklog cost`: the requests that it predicts are those that the code makes."""

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import click
import numpy as np
import pyarrow as pa
import pytest

import sparklog
from sparklog.cli import cost as module
from sparklog.cli.cost import PRICES, Load, estimate, parse_rate, puts_of_segment
from sparklog.log import reader, segment_file
from sparklog.storage import gcs, object_store
from sparklog.storage.s3 import S3Store
from tests.cli.conftest import Run

LOAD = Load(rate=30e6, partitions=100, trigger_s=10, tasks=4, readers=1, retention_s=7 * 86_400)


def dollars(load: Load, store: str = "s3") -> dict[str, float]:
    return {line.what: line.dollars(PRICES[store]) for line in estimate(load, PRICES[store])}


def with_(**changes: float) -> Load:
    return replace(LOAD, **changes)  # type: ignore[arg-type]


def test_the_sizes_are_those_of_the_code() -> None:
    assert module.PART_BYTES == object_store.PART_BYTES
    assert module.FETCH_BYTES == object_store.FETCH_BYTES == reader.STEP_BYTES
    assert module.INDEXED_BYTES == segment_file.INDEXED_BYTES
    assert PRICES["gs"].most_composed == gcs.MAX_COMPOSED


@pytest.mark.parametrize(("parts", "composed"), [(2, 1), (32, 1), (33, 2 + 1), (96, 3 + 1)])
def test_many_parts_are_composed_in_groups_first(parts: int, composed: int) -> None:
    of_index = 1
    assert puts_of_segment(parts * module.PART_BYTES, PRICES["gs"]) == parts + composed + of_index


@pytest.mark.slow
@pytest.mark.parametrize("megabytes", [1, 6, 20])
def test_predicted_requests_are_those_that_are_counted(s3_root: str, megabytes: int) -> None:
    rows = megabytes * 1000
    values = np.random.default_rng(1).integers(0, 255, rows * 1000, np.uint8).tobytes()
    offsets = pa.py_buffer(np.arange(0, (rows + 1) * 1000, 1000, dtype=np.int32).tobytes())
    value = pa.Array.from_buffers(pa.binary(), rows, [None, offsets, pa.py_buffer(values)])
    with sparklog.open(s3_root, create=True) as log, sparklog.open(s3_root, create=True) as follower:
        assert isinstance(log.store, S3Store)
        assert isinstance(follower.store, S3Store)
        log.create_topic("t", partitions=1)
        log.append("t", pa.table({"value": ["first"]}))
        follower.refresh()
        before, polled = Counter(log.store.requests), Counter(follower.store.requests)
        log.append("t", pa.table({"value": value}))
        made = Counter(log.store.requests) - before
        follower.refresh()
        follow = Counter(follower.store.requests) - polled
        size = sum(stored.size for stored in log.store.list("segments", recursive=True))
    puts = sum(made[name] for name in ("put_object", "upload_part", "create_multipart_upload"))
    puts += made["complete_multipart_upload"]
    assert puts == puts_of_segment(size, PRICES["s3"]) + 1  # and the commit
    assert follow["get_object"] == module.GETS_PER_POLL


def test_topics_share_the_puts() -> None:
    few, many = dollars(with_(partitions=10)), dollars(with_(partitions=1000))
    assert few["write records"] == many["write records"]
    assert few["read records"] < many["read records"]


def test_what_makes_it_cheaper() -> None:
    assert dollars(with_(trigger_s=60))["commit"] == pytest.approx(dollars(LOAD)["commit"] / 6)
    assert dollars(with_(readers=0))["read records"] == 0
    assert dollars(with_(retention_s=0))["keep"] == pytest.approx(dollars(LOAD)["keep"] / 2)
    assert dollars(LOAD, "gs")["keep"] < dollars(LOAD, "s3")["keep"]


@pytest.mark.parametrize(
    ("text", "rate"),
    [("30MB/s", 30e6), ("1 GiB/s", 1 << 30), ("512kib", 512 << 10), ("1.5mb/s", 1.5e6), ("100B/s", 100)],
)
def test_rates(text: str, rate: float) -> None:
    assert parse_rate(click.Context(click.Command("x")), click.Option(["--rate"]), text) == rate


@pytest.mark.parametrize("text", ["", "30", "MB/s", "-1MB/s", "1TB/s", "0B/s"])
def test_what_is_no_rate(text: str) -> None:
    with pytest.raises(click.BadParameter, match="expected bytes a second"):
        parse_rate(click.Context(click.Command("x")), click.Option(["--rate"]), text)


def test_the_command(run: Run, run_json: Callable[..., Any]) -> None:
    table = run("cost", "--rate", "30MB/s", "--topics", "10", "--trigger", "10s", "--store", "gs").stdout
    assert "Cloud Storage Standard, us-central1" in table
    shown = run_json("cost", "--rate", "30MB/s", "--topics", "10", "--put-price", "0")
    lines = {line["what"]: line for line in shown["lines"]}
    assert lines["commit"]["puts"] == 259_200
    assert lines["commit"]["dollars"] == 0
    total = lines.pop("total")
    assert total["puts"] == pytest.approx(sum(line["puts"] for line in lines.values()), abs=len(lines))
    assert shown["prices"]["as_of"] == module.PRICES_OF
