"""`sparklog cost`: what a load costs on an object store in a month: requests, bytes and dollars.

The numbers of requests are those that the code makes; tests compare them with requests that were counted at a
client. They depend on how often is written, and by how many tasks, not on how many topics a commit touches.
Not here: what an existing root costs (the metrics of a broker), processors, network, discounts.
Sources: the clouds' price lists, as of PRICES_OF; benchmarks/README.md for maintenance.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import click

from sparklog.cli.framework import Command, current
from sparklog.cli.inputs import parse_duration
from sparklog.cli.output import show_json, show_rows, tell

GIB = 1 << 30
MIB = 1 << 20
MONTH_S = 30 * 86_400
# What the code does: storage/object_store.py, log/segment_file.py, log/reader.py. Tests compare them.
PART_BYTES = 8 * MIB
INDEXED_BYTES = 4 * MIB
FETCH_BYTES = 4 * MIB
# A poll finds the new commit, and that there is no other.
GETS_PER_POLL = 2
# Counted by benchmarks/bench_requests.py: puts of a merge for each GiB.
MERGE_PUTS_PER_GIB = 316
# A vacuum keeps what a merge has replaced for a week.
KEPT_S = 7 * 86_400

# --- prices ------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Prices:
    """Dollars of a store.

    Fields:
        of: what the prices are of.
        put, get: for 1,000 requests that write or list, and that read. Deletion is free.
        gib_month: for a GiB that is kept for a month.
        upload_requests: of an object in parts, besides its parts.
        most_composed: parts in one such request; of more parts, groups are composed first. 0: no limit.
    """

    of: str
    put: float
    get: float
    gib_month: float
    upload_requests: int
    most_composed: int = 0


PRICES_OF = "2026-11"
PRICES = {
    "s3": Prices(of="S3 Standard, us-east-1", put=0.005, get=0.0004, gib_month=0.023, upload_requests=2),
    "gs": Prices(
        of="Cloud Storage Standard, us-central1",
        put=0.005,
        get=0.0004,
        gib_month=0.020,
        upload_requests=1,
        most_composed=32,
    ),
    "az": Prices(
        of="Blob Storage hot, LRS, East US", put=0.005, get=0.0004, gib_month=0.0184, upload_requests=1
    ),
}

# --- estimate ----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """What is written and read.

    Fields:
        rate: bytes a second, as they are stored.
        partitions: of all topics.
        tasks: that write in a micro-batch.
        readers: streams that read everything once.
    """

    rate: float
    partitions: int
    trigger_s: float
    tasks: int
    readers: int
    retention_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """A kind of requests in a month."""

    what: str
    puts: float = 0.0
    gets: float = 0.0
    stored_bytes: float = 0.0

    def dollars(self, prices: Prices) -> float:
        requests = self.puts / 1000 * prices.put + self.gets / 1000 * prices.get
        return requests + self.stored_bytes / GIB * prices.gib_month


def puts_of_segment(size: float, prices: Prices) -> int:
    """Return the requests that write a segment of this size, and its index."""
    index = 1 if size >= INDEXED_BYTES else 0
    if size < 2 * PART_BYTES:
        return 1 + index
    parts = math.ceil(size / PART_BYTES)
    groups = math.ceil(parts / prices.most_composed) if prices.most_composed else 1
    return parts + (groups if groups > 1 else 0) + prices.upload_requests + index


def estimate(load: Load, prices: Prices) -> list[Line]:
    """Return what a month of a load needs."""
    triggers = MONTH_S / load.trigger_s
    per_task = load.rate * load.trigger_s / load.tasks
    extents = load.partitions * load.tasks
    extent = load.rate * load.trigger_s / extents
    month_gib = load.rate * MONTH_S / GIB
    gets_per_extent = max(1, math.ceil(extent / FETCH_BYTES))
    segment_gets = max(1, math.ceil(per_task / FETCH_BYTES))
    return [
        Line(what="write records", puts=triggers * load.tasks * puts_of_segment(per_task, prices)),
        Line(what="commit", puts=triggers),
        Line(what="follow", gets=triggers * GETS_PER_POLL * load.readers),
        Line(what="read records", gets=triggers * extents * gets_per_extent * load.readers),
        Line(
            what="merge",
            puts=month_gib * MERGE_PUTS_PER_GIB,
            gets=triggers * load.tasks * segment_gets,
        ),
        Line(what="keep", stored_bytes=load.rate * (load.retention_s + KEPT_S)),
    ]


# --- command -----------------------------------------------------------------------------------------


_RATE = re.compile(r"(\d+(?:\.\d+)?)\s*(k|m|g)?(i)?b(?:/s)?", re.ASCII | re.IGNORECASE)
_POWERS = {"": 0, "k": 1, "m": 2, "g": 3}


def parse_rate(_ctx: click.Context, _parameter: click.Parameter, value: str) -> float:
    """Callback of an option: `30MB/s`, `1GiB/s`, in bytes a second."""
    match = _RATE.fullmatch(value.strip())
    rate = 0.0
    if match is not None:
        rate = float(match[1]) * (1024 if match[3] else 1000) ** _POWERS[(match[2] or "").lower()]
    if not 1 <= rate <= 1e13:
        raise click.BadParameter(f"found {value!r}, expected bytes a second, such as 30MB/s or 1GiB/s.")
    return rate


def _duration(default: str, **words: Any) -> Callable[[Any], Any]:
    return click.option(
        *words.pop("names"), callback=parse_duration, default=default, show_default=True, **words
    )


@click.command("cost", cls=Command)
@click.option("--rate", callback=parse_rate, required=True, help="What is written: 30MB/s, 1GiB/s.")
@click.option("--topics", type=click.IntRange(1, 100_000), default=1, show_default=True)
@click.option(
    "--partitions", type=click.IntRange(1, 10_000), default=10, show_default=True, help="Of a topic."
)
@_duration("10s", names=["--trigger", "trigger_ms"], help="Between two micro-batches.")
@click.option("--tasks", type=click.IntRange(1, 10_000), default=4, show_default=True, help="That write.")
@click.option(
    "--readers", type=click.IntRange(0, 1000), default=1, show_default=True, help="Streams that read it all."
)
@_duration("7d", names=["--retention", "retention_ms"], help="How long records are kept.")
@click.option("--store", type=click.Choice(list(PRICES)), default="s3", show_default=True)
@click.option(
    "--put-price", type=click.FloatRange(0, 1000), help="Dollars for 1,000 writes, instead of the table's."
)
@click.option("--get-price", type=click.FloatRange(0, 1000), help="Dollars for 1,000 reads.")
@click.option("--gib-price", type=click.FloatRange(0, 1000), help="Dollars for a GiB and month.")
def cost(
    rate: float,
    topics: int,
    partitions: int,
    trigger_ms: int,
    tasks: int,
    readers: int,
    retention_ms: int,
    store: str,
    put_price: float | None,
    get_price: float | None,
    gib_price: float | None,
) -> None:
    """Requests, bytes and dollars of a month on an object store.

    The rate is of bytes as they are stored, so after compression. Prices are list prices; yours may differ.
    """
    if trigger_ms < 1:
        raise click.UsageError("--trigger must be at least 1ms.")
    prices = PRICES[store]
    prices = replace(
        prices,
        put=prices.put if put_price is None else put_price,
        get=prices.get if get_price is None else get_price,
        gib_month=prices.gib_month if gib_price is None else gib_price,
    )
    load = Load(
        rate=rate,
        partitions=topics * partitions,
        trigger_s=trigger_ms / 1000,
        tasks=tasks,
        readers=readers,
        retention_s=retention_ms / 1000,
    )
    lines = estimate(load, prices)
    rows = [_row(line, prices) for line in [*lines, _total(lines)]]
    if current().json:
        show_json(
            {
                "store": store,
                "prices": {
                    "of": prices.of,
                    "as_of": PRICES_OF,
                    "put_1000": prices.put,
                    "get_1000": prices.get,
                }
                | {"gib_month": prices.gib_month},
                "written_bytes": round(rate * MONTH_S),
                "lines": rows,
            }
        )
        return
    shown = [{**row, "dollars": f"{row['dollars']:,.2f}"} for row in rows]
    show_rows("what:A_MONTH puts gets stored_bytes:STORED:bytes dollars:USD", shown)
    tell(f"Prices of {PRICES_OF}: {prices.of}. Without processors, network and Spark's checkpoints.")


def _total(lines: list[Line]) -> Line:
    return Line(
        what="total",
        puts=sum(line.puts for line in lines),
        gets=sum(line.gets for line in lines),
        stored_bytes=sum(line.stored_bytes for line in lines),
    )


def _row(line: Line, prices: Prices) -> dict[str, object]:
    return {
        "what": line.what,
        "puts": round(line.puts),
        "gets": round(line.gets),
        "stored_bytes": round(line.stored_bytes),
        "dollars": round(line.dollars(prices), 2),
    }
