"""Pictures of the console's pages for docs/images and for looking at: light, dark and narrow.

    python scripts/console_shots.py FOLDER [--all] [--docs]

Needs what `make test-console` installs. The root is made up, in memory. `--docs` writes the pictures of the
docs, `--all` each page in each window.
"""

import argparse
import json
import random
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
from playwright.sync_api import sync_playwright

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from sparklog.client import SparkLog
from sparklog.client.lag import LagHistory
from sparklog.clock import SystemClock
from sparklog.format.schema import HEADERS_TYPE
from tests.browser.conftest import CHROMIUM, FLAGS
from tests.browser.made_roots import console, opened
from tests.support.cluster_root import ClusterRoot

MINUTE_MS = 60_000
WINDOWS: dict[str, dict[str, Any]] = {
    "light": {"viewport": {"width": 1280, "height": 900}},
    "dark": {"viewport": {"width": 1280, "height": 900}, "color_scheme": "dark"},
    "narrow": {"viewport": {"width": 390, "height": 844}},
}
PAGES = {
    "overview": "/",
    "topics": "/topics",
    "topic": "/topics/orders",
    "groups": "/groups",
    "group": "/group?group=billing",
    "commits": "/commits",
    "commit": "/commits/12",
    "diff": "/diff?from=3&to=30",
    "state": "/commits/30/state",
    "transactions": "/transactions",
    "transaction": "/transaction?id=etl",
    "maintenance": "/maintenance",
    "messages": "/topics/orders/messages?path=$.status&equals=paid",
    "message": "/topics/orders/messages/0/3",
    "tail": "/topics/orders/tail",
    "create": "/create-topic",
    "settings": "/topics/orders/settings",
    "produce": "/topics/orders/produce",
    "delete": "/topics/orders/delete",
    "delete-records": "/topics/orders/delete-records",
    "reset": "/group/reset?group=billing",
    "delete-group": "/group/delete?group=billing",
    "missing": "/topics/nope",
}
DOCS = {
    "console-overview.png": ("light", "/", 900),
    "console-topic.png": ("light", "/topics/orders", 760),
    "console-group.png": ("dark", "/group?group=billing", 800),
    "console-messages.png": ("light", "/topics/orders/messages?path=$.status&equals=paid", 760),
}


def rows(names: random.Random, count: int, now_ms: int) -> pa.Table:
    values = [
        json.dumps(
            {
                "order": names.randrange(10**6),
                "customer": f"c-{names.randrange(900):03d}",
                "status": names.choice(["new", "paid", "sent"]),
                "total": round(names.uniform(5, 300), 2),
            }
        )
        for _ in range(count)
    ]
    times = [now_ms - MINUTE_MS + at * MINUTE_MS // count for at in range(count)]
    return pa.table(
        {
            "key": [f"c-{names.randrange(900):03d}" for _ in range(count)],
            "value": values,
            "headers": pa.array([[{"key": "trace", "value": b"7f3a"}]] * count, HEADERS_TYPE),
            "timestamp": pa.array(times, pa.timestamp("ms", "UTC")),
        }
    )


def make() -> tuple[SparkLog, LagHistory]:
    """Three brokers, some topics, an hour of three groups."""
    names = random.Random(7)
    log = opened(SystemClock())
    topics = {"orders": 6, "payments": 4, "clicks": 12, "customers": 2, "shipments": 3}
    for topic, partitions in topics.items():
        log.create_topic(topic, partitions)
    log.alter_topic("orders", {"retention.ms": "2592000000"})
    log.alter_topic("customers", {"cleanup.policy": "compact"})
    log.alter_root({"retention.ms": "1209600000"})
    cluster = ClusterRoot(log)
    for topic, partitions in topics.items():
        cluster.assign(topic, *((1 + at % 3, 1 + (at + 1) % 3) for at in range(partitions)))
        cluster.lead(topic, *(1 + at % 3 for at in range(partitions)))
    for turn in range(8):
        for topic in topics:
            log.append(topic, rows(names, 400 + 900 * (topic == "clicks"), log.clock.now_ms() - turn * 1000))
    history = LagHistory()
    groups = {"billing": "orders", "etl": "clicks", "search-index": "customers"}
    now_ms = log.clock.now_ms()
    for back in range(360, -1, -1):
        sample: dict[str, dict[tuple[str, int], int]] = {}
        for group, topic in groups.items():
            wave = (
                40
                + 35 * ((back * 7919 + len(group)) % 97) / 97
                + (220 - back) * (group == "billing" and 90 < back < 220)
            )
            sample[group] = {
                (topic, at): max(0, int(log.log_end_offset(topic, at) - wave - 2 * at))
                for at in range(topics[topic])
            }
        history.add(now_ms - 10_000 * back, log.image, sample)
    for group, offsets in sample.items():
        log.commit_offsets(group, offsets)
    transaction = log.transaction("etl")
    transaction.__enter__()
    transaction.append("payments", rows(names, 20, now_ms))
    transaction.flush()
    return log, history


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--all", action="store_true")
    parser.add_argument("--docs", action="store_true")
    given = parser.parse_args()
    given.folder.mkdir(parents=True, exist_ok=True)
    log, history = make()
    with log, console(log, history=history, write=not given.docs) as base, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        for window, options in WINDOWS.items():
            context = browser.new_context(base_url=base, **options)
            page = context.new_page()
            for name, path in PAGES.items() if given.all else ():
                page.goto(path)
                page.wait_for_timeout(300)  # charts
                page.screenshot(path=given.folder / f"{name}-{window}.png", full_page=True)
            for name, (wanted, path, height) in DOCS.items() if given.docs else ():
                if wanted == window:
                    page.set_viewport_size({"width": 1280, "height": height})
                    page.goto(path)
                    page.wait_for_timeout(300)
                    page.screenshot(path=given.folder / name)
            context.close()
        browser.close()


if __name__ == "__main__":
    main()
