"""Pictures of the console's pages for docs/images and for looking at: light, dark and narrow.

    python scripts/console_shots.py FOLDER [--all] [--docs]

Needs what `make test-console` installs. The root is made up, in memory. `--docs` writes the pictures of the
docs, `--all` each page in each window.
"""

import argparse
import json
import random
import sys
from collections.abc import Collection
from pathlib import Path
from typing import Any

import pyarrow as pa
from playwright.sync_api import sync_playwright

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from sparklog.client import SparkLog
from sparklog.client.group_coordinators import GroupCoordinators, GroupDescription, Member
from sparklog.client.lag import LagHistory
from sparklog.clock import ManualClock, SystemClock
from sparklog.console.views import RecentImages
from sparklog.format.schema import HEADERS_TYPE
from sparklog.metadata import Image
from tests.browser.conftest import CHROMIUM, FLAGS
from tests.browser.made_roots import console, opened
from tests.support.cluster_root import ClusterRoot

STEP_MS, STEPS = 10_000, 361
TOPICS = {"orders": 6, "payments": 4, "clicks": 12, "customers": 2, "shipments": 3}
GROUPS = {"billing": "orders", "etl": "clicks", "search-index": "customers"}
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
    "transaction": "/transaction?id=payments-1",
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
    times = [now_ms - STEP_MS + at * STEP_MS // count for at in range(count)]
    return pa.table(
        {
            "key": [f"c-{names.randrange(900):03d}" for _ in range(count)],
            "value": values,
            "headers": pa.array([[{"key": "trace", "value": b"7f3a"}]] * count, HEADERS_TYPE),
            "timestamp": pa.array(times, pa.timestamp("ms", "UTC")),
        }
    )


def make() -> tuple[SparkLog, LagHistory, Image]:
    """Three brokers, some topics, an hour of three groups; and the image of a minute ago."""
    names = random.Random(7)
    clock = ManualClock(SystemClock().now_ms() - STEPS * STEP_MS)
    log = opened(clock)
    for topic, partitions in TOPICS.items():
        log.create_topic(topic, partitions)
    log.alter_topic("orders", {"retention.ms": "2592000000"})
    log.alter_topic("customers", {"cleanup.policy": "compact"})
    log.alter_root({"retention.ms": "1209600000"})
    log.commit_offsets("billing", {("orders", at): 0 for at in range(6)})
    cluster = ClusterRoot(log)
    for topic, partitions in {**TOPICS, "__consumer_offsets": 50}.items():
        cluster.assign(topic, *((1 + at % 3, 1 + (at + 1) % 3) for at in range(partitions)))
        cluster.lead(topic, *(1 + at % 3 for at in range(partitions)))
    history = LagHistory()
    read: dict[str, dict[tuple[str, int], int]] = {group: {} for group in GROUPS}
    for step in range(STEPS):
        clock.advance_ms(STEP_MS)
        log.append("orders", rows(names, names.randrange(90, 130), clock.now_ms()))
        for topic in ("clicks", "payments", "customers", "shipments")[
            : names.randrange(2 if step % 3 else 5)
        ]:
            log.append(topic, rows(names, names.randrange(40, 90), clock.now_ms()))
        for group, topic in GROUPS.items():
            is_slow = group == "billing" and 130 < step < 250
            for at in range(TOPICS[topic]):
                end, before = log.log_end_offset(topic, at), read[group].get((topic, at), 0)
                read[group][topic, at] = (
                    min(end, before + names.randrange(5, 12))
                    if is_slow
                    else min(end, before + 60)
                    if step < 300
                    else before + ((end - before) * names.randrange(60, 95) // 100)
                )
            if step % 6 == 0 or step == STEPS - 1:
                log.commit_offsets(group, read[group])
        if step == STEPS - 60:
            transaction = log.transaction("payments-1")
            transaction.__enter__()
            transaction.append("payments", rows(names, 20, clock.now_ms()))
            transaction.flush()
        history.add(clock.now_ms(), log.image, read)
        if step == STEPS - 7:
            minute_ago = log.image
    return log, history, minute_ago


def described(_self: GroupCoordinators, groups: Collection[str]) -> dict[str, GroupDescription]:
    """What a coordinator would say."""
    members = tuple(
        Member(
            consumer_id=f"billing-{host}-2f41c9d{host}",
            instance_id=None,
            client_id=f"billing-{host}",
            host=f"/10.0.0.1{host}",
            partitions=tuple(("orders", 3 * host + at) for at in range(3)),
        )
        for host in range(2)
    )
    return {
        name: GroupDescription(
            group=name,
            state="Stable",
            coordinator="kafka-1:9092 (1)",
            assignment_strategy="range",
            members=members,
        )
        for name in groups
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--all", action="store_true")
    parser.add_argument("--docs", action="store_true")
    given = parser.parse_args()
    given.folder.mkdir(parents=True, exist_ok=True)
    log, history, minute_ago = make()
    RecentImages.oldest = lambda _self, _now_ms: (60.0, minute_ago)  # type: ignore[assignment, method-assign]
    GroupCoordinators.describe = described  # type: ignore[assignment, method-assign]
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
