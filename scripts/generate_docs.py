"""Writes the reference pages of docs/ from the declarations in the code.

usage: python scripts/generate_docs.py [--check]     --check: fail if a page is out of date
"""

import ast
import sys
from collections.abc import Iterable
from pathlib import Path

from sparklog.errors import CODES
from sparklog.failpoints import FAILPOINTS, VARIABLE
from sparklog.log.config import describe_configs, render_properties
from sparklog.spark.option_table import SINK_OPTIONS, SOURCE_OPTIONS, Option
from sparklog_server.api.registry import describe_apis
from sparklog_server.observe.collector import describe_metrics
from sparklog_server.settings.config import describe_server_configs, render_server_properties

HEADERS = "`array<struct<key: string, value: binary>>`"
SOURCE_COLUMNS = (
    ("`key`, `value`", "binary", "The record's, or null. Cast them: `CAST(value AS STRING)`."),
    ("`topic`", "string", ""),
    ("`partition`", "int", ""),
    ("`offset`", "bigint", ""),
    ("`timestamp`", "timestamp", "When the record was made or appended, as `timestampType` says."),
    (
        "`timestampType`",
        "int",
        "0: given by the writer, or the time of the write; 1: LogAppendTime.",
    ),
    ("`headers`", HEADERS, "With `includeHeaders=true`; null where a record has none."),
)
SINK_COLUMNS = (
    (
        "`value`",
        "string or binary",
        "Must be there. Null is a tombstone, which deletes the key in a compacted topic.",
    ),
    (
        "`key`",
        "string or binary",
        "Decides the partition, as in Kafka's Java client. Null or missing: any partition.",
    ),
    ("`topic`", "string", "Needed without the option `topic`, and ignored with it."),
    ("`partition`", "int", "Takes precedence over the key; null leaves it to the key."),
    ("`headers`", HEADERS, "Unless `includeHeaders=false`."),
    (
        "`timestamp`",
        "timestamp or bigint",
        "A bigint is milliseconds since 1970; null or missing, the time of the write. Kafka's sink has none.",
    ),
)
PROJECT = Path(__file__).resolve().parent.parent
DOCS = PROJECT / "docs"
PACKAGES = ("sparklog", "sparklog_server")
MOST_REMEDIES = 3  # of one code


def errors_page() -> str:
    """Every error code, with the remedies that the code gives where it raises it."""
    remedies = _remedies()
    parts = [
        f"## SPARKLOG_{code}\n\n{_sentence(meaning)} SQLSTATE {state}.\n"
        + "".join(f"\n- {_sentence(remedy)}" for remedy in remedies.get(code, [])[:MOST_REMEDIES])
        for code, (state, meaning) in sorted(CODES.items())
    ]
    return (
        "# Error codes\n\n"
        "Messages read `[SPARKLOG_CODE] where, what was found, what was expected. Fix: what to do. "
        "SQLSTATE: ...`. Through Spark only the text arrives, so it holds everything. Below a code is what "
        "its messages recommend, by the place that raises it; `…` stands for a name or number.\n\n"
        + "\n\n".join(part.rstrip() for part in parts)
        + "\n"
    )


def _sentence(text: str) -> str:
    text = text.strip().rstrip(".")
    return f"{text[0].upper()}{text[1:]}."


def _remedies() -> dict[str, list[str]]:
    """Return the texts given as `fix` with each error code, in the order of the source files."""
    found: dict[str, list[str]] = {}
    for path in sorted(file for package in PACKAGES for file in (PROJECT / package).rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if not (isinstance(node, ast.Call) and node.args and isinstance(node.args[0], ast.Constant)):
                continue
            texts = [_text(keyword.value) for keyword in node.keywords if keyword.arg == "fix"]
            for text in filter(None, texts):
                known = found.setdefault(str(node.args[0].value), [])
                if text.lower() not in (other.lower() for other in known):
                    known.append(text)
    return found


def _text(node: ast.expr) -> str:
    """Return a text of the source, with `…` for what is filled in; empty if it is computed elsewhere."""
    if isinstance(node, ast.Constant):
        return str(node.value)
    if isinstance(node, ast.JoinedStr):
        return "".join(str(part.value) if isinstance(part, ast.Constant) else "…" for part in node.values)
    return ""


def options_page() -> str:
    """Every option of the Spark source and sink."""
    return (
        "# Options of the Spark source and sink\n\n"
        "Names are case-insensitive. Unknown options are refused with the nearest known name. For options "
        "that start with `kafka.` see "
        "[ADR 0003](adr/0003-options-of-kafka-clients.md).\n\n"
        "## Source: `spark.read` and `spark.readStream`\n\n"
        + _options(SOURCE_OPTIONS)
        + "\n## Sink: `df.write` and `df.writeStream`\n\n"
        + _options(SINK_OPTIONS)
        + "\n## Columns\n\n"
        "What the source gives is fixed, as with Kafka's connector; parse `value` yourself.\n\n"
        + table(("column of the source", "type", "meaning"), SOURCE_COLUMNS)
        + "\nThe sink takes these by name, in any order. It leaves out all others, so that rows read from a "
        "topic can be written again; drop `partition` unless the other topic has as many. A warning names "
        "columns that neither the source nor the sink has (`keys`). A name that differs from one of these in "
        "capitals only (`Key`) is refused.\n\n"
        + table(("column of the sink", "type", "meaning"), SINK_COLUMNS)
        + "\n## Sources with names\n\n"
        "From Spark 4.2 on a streaming source can have a name. Then sources can be added to a query and "
        "removed from it without a new checkpoint:\n\n"
        "```python\n"
        'spark.conf.set("spark.sql.streaming.queryEvolution.enableSourceEvolution", "true")\n'
        'spark.conf.set("spark.sql.streaming.offsetLog.formatVersion", "2")  # Spark 4.2 needs this, too\n'
        'named = spark.readStream.format("sparklog").name("shop")\n'
        'orders = named.option("subscribe", "orders").load("/tmp/shop-log")\n'
        "```\n\n"
        "- All sources of the query need a name, and the checkpoint must have been made with names.\n"
        "- A new name is a new source, which begins at its `startingOffsets`. So a source that is renamed "
        "reads its topics again.\n"
        "- Topics can be added to `subscribe` without names, too: they are read from their beginning.\n"
    )


def configs_page() -> str:
    """Every topic configuration."""
    return "# Topic configurations\n\n" + describe_configs()


def server_configs_page() -> str:
    """Every setting of the broker."""
    return (
        "# Settings of sparklog-server\n\n"
        "From flags (`--override key=value`), else the environment (`SPARKLOG_SERVER_NUM_PARTITIONS` for "
        "`num.partitions`), else the file given as an argument or to `--config` "
        "(`sparklog-server --print-config` prints one). Unknown keys are refused with the nearest known "
        "name. Of Kafka's keys "
        "without a counterpart, those whose guarantees cannot be met are refused with the reason; those "
        "without an effect here, or with the only possible value, are ignored with a warning that names "
        "them: Kafka's own `server.properties` starts a broker. The variables that Kubernetes sets in "
        "pods for services called sparklog-server (`SPARKLOG_SERVER_SERVICE_HOST`) are ignored with a "
        "warning, too.\n\n"
        "What can be changed while brokers run (*update*, in Kafka's words): `per-broker` by "
        "`kafka-configs --entity-type brokers --entity-name 1`, or for all that have none of their own with "
        "`--entity-default`; `cluster-wide` for all only, since it is of what they share; `read-only` by a "
        "restart. The broker's own wins over that of all, and that over what it was started with "
        "([cluster.md](cluster.md#settings-of-running-brokers)). With a topic's own name on the root, "
        "defaults of topics count for Spark and the command line, too ([configs.md](configs.md)).\n\n"
        + describe_server_configs()
    )


def metrics_page() -> str:
    """Every metric of the broker."""
    return (
        "# Metrics of sparklog-server\n\n"
        "`sparklog.http.listener=:9404` serves `/metrics` for Prometheus, `/health` (restart the broker if "
        "it says no) and `/ready` (send it no clients if it says no). Probes belong there: the listeners of "
        "Kafka's protocol refuse connections while one of several brokers is out of touch with the storage. "
        "Alert rules: "
        "[conf/prometheus-alerts.yml](../conf/prometheus-alerts.yml). Dashboard: "
        "[conf/grafana-dashboard.json](../conf/grafana-dashboard.json), for Grafana 10.4 and newer: "
        "Dashboards, New, Import. It asks Prometheus for the jobs that scrape brokers, and has rows for "
        "brokers, throughput, consumer groups, requests by API with their quantiles, the event loop, "
        "commits, transactions, maintenance and storage. Without Prometheus, `sparklog top` shows topics "
        "and groups live ([cli.md](cli.md#top)).\n\n"
        "Names are those that Kafka's metrics have behind the JMX exporter with Strimzi's rules, and those "
        "of kafka_exporter, so that dashboards fit; `sparklog_*` are our own. Quantiles are of the last one "
        "to two minutes; each such metric has a `_count` beside it. What cannot happen here has no metric: "
        "there are no replicas that fall behind, and no unclean elections.\n\n"
        "Of several brokers each serves its own page. A partition is told of by the broker that leads it, or "
        "by the controller if none does, and a group by its coordinator: sums over brokers are right.\n\n"
        "A page of many thousands of partitions takes seconds to make (100,000: 5 to 9 of CPU). After one "
        "that took more than 0.1 s the same is served for three times as long, in the format in which it was "
        "made: at 100,000 partitions what you see may be half a minute old.\n\n" + describe_metrics()
    )


def apis_page() -> str:
    """Every API of the broker."""
    apis = describe_apis()
    rows = [(f"[{one.name}](#{one.name.lower()})", str(one.key), one.versions) for one in apis]
    sections = [
        f"\n## {one.name}\n\n{_sentence(one.does)}\n"
        + (f"\nDoes not: {one.does_not.rstrip('.')}.\n" if one.does_not else "")
        for one in apis
    ]
    return (
        "# Kafka's APIs that sparklog-server serves\n\n"
        "ApiVersions lists exactly these, and every version of them is served with all of its fields "
        "(Produce is listed from 0, and served from 3). Other APIs are not served; clients learn that from "
        "ApiVersions before they ask. `sparklog brokers api-versions` asks a running broker.\n\n"
        + table(("API", "key", "versions"), rows)
        + "".join(sections)
    )


def failpoints_page() -> str:
    """Every failpoint."""
    rows = [(f"`{name}`", ", ".join(map(str, rows)), where) for name, (rows, where) in FAILPOINTS.items()]
    return (
        "# Failpoints\n\n"
        "Named places in the code where tests kill, fail or pause a process; off, and free (0.03 us), "
        f"unless `{VARIABLE}=POINT:PASS[:ACTION]` is set. Several are separated by commas. Actions: `kill` "
        "(SIGKILL to itself, the default), `raise[=ERRNO]` (an error as if from the kernel, EIO if none is "
        "named), `pause=FILE` (makes FILE.reached, and waits until FILE exists).\n\n"
        "Rows are those of the crash matrix: 1 a write in the middle; 2 written, before and after the sync; "
        "3 a speculative or late task; 4 staged, not committed; 5 the steps of a commit on a directory; 6 a "
        "put without an answer; 7 committed, not acknowledged; 8 the broker's produce; 9 a leader that was "
        "paused; 10 taking a root over; 11 snapshots and cleaning; 12 offset commits; 13 removing files; 14 "
        "failing disks; 15 merging; 16 removing data files. `tests/crash/test_matrix.py` kills at all of "
        "them.\n\n" + table(("name", "rows", "where"), rows)
    )


def table(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    """A Markdown table."""
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    lines += ["| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in rows]
    return "\n".join(lines) + "\n"


def _options(options: Iterable[Option]) -> str:
    return table(
        ("option", "default", "queries", "meaning"),
        ((f"`{o.name}`", o.default or "", o.only or "both", o.doc) for o in options),
    )


PAGES = {
    "errors.md": errors_page,
    "options.md": options_page,
    "configs.md": configs_page,
    "server-configs.md": server_configs_page,
    "metrics.md": metrics_page,
    "apis.md": apis_page,
    "failpoints.md": failpoints_page,
    "../conf/server.properties": render_server_properties,
    "../conf/topic.properties": render_properties,
}


def main() -> int:
    """Write the pages, or with --check name those that are out of date."""
    stale = []
    for name, page in PAGES.items():
        path = DOCS / name
        text = page()
        if not path.exists() or path.read_text() != text:
            stale.append(name)
            if "--check" not in sys.argv:
                path.write_text(text)
    if stale:
        print(("out of date: " if "--check" in sys.argv else "wrote: ") + ", ".join(stale))
    return int(bool(stale) and "--check" in sys.argv)


if __name__ == "__main__":
    sys.exit(main())
