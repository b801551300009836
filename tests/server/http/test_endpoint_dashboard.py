"""The alert rules and the Grafana dashboard ask for metrics and labels that a running broker serves."""

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import promql_parser
import pytest

from sparklog_server.observe.collector import describe_metrics
from sparklog_server.observe.families import QUANTILE_NAMES
from tests.support.running_broker import RunningBroker

CONF = Path(__file__).parents[3] / "conf"
RULES = (CONF / "prometheus-alerts.yml").read_text()
DASHBOARD: dict[str, Any] = json.loads((CONF / "grafana-dashboard.json").read_text())
PANELS: list[dict[str, Any]] = [panel for panel in DASHBOARD["panels"] if panel["type"] != "row"]
OF_PROMETHEUS = {"job", "instance"}
SELECTOR = re.compile(r"\b((?:kafka|sparklog)_[a-z_0-9]+|up)\b(?:\{([^}]*)\})?")
MATCHER = re.compile(r'(\w+)(?:=~|!~|!=|=)"([^"]*)"')


def rules() -> Iterator[dict[str, str]]:
    """The alert rules, by the lines of their blocks: key and text."""
    for block in re.split(r"^      - (?=alert: )", RULES, flags=re.MULTILINE)[1:]:
        yield dict(re.findall(r"^ *(\w+): +(\S.*)$", block, re.MULTILINE))


def queries() -> dict[str, str]:
    """All expressions, by who asks."""
    found = {f"rule {rule['alert']}": rule["expr"] for rule in rules()}
    for panel in PANELS:
        for target in panel["targets"]:
            found[f"{panel['title']} {target['refId']}"] = target["expr"]
    for variable in DASHBOARD["templating"]["list"]:
        if variable["type"] == "query":
            found[f"variable {variable['name']}"] = variable["query"]["query"]
    return found


QUERIES = queries()
LABELS = {
    name: set(re.findall(r"\w+", re.sub(r"\(.*?\)", "", labels)))
    for name, labels in re.findall(r"^\|`(\w+)`\|([^|]*)\|", describe_metrics(), re.MULTILINE)
}


def test_every_metric_is_served(start_broker: Callable[..., RunningBroker]) -> None:
    broker = start_broker({"sparklog.http.listener": "127.0.0.1:0"})
    assert broker.broker.http.address is not None
    host, port = broker.broker.http.address
    with urlopen(f"http://{host}:{port}/metrics", timeout=30) as response:
        served = set(re.findall(r"^# HELP (\S+) ", response.read().decode(), re.MULTILINE))
    named = {name: who for who, query in QUERIES.items() for name, _ in SELECTOR.findall(query)}
    assert len(named) > 50
    assert {name: who for name, who in named.items() if name not in served | {"up"}} == {}


@pytest.mark.parametrize("who", QUERIES)
def test_a_query_is_well_formed_and_asks_for_labels_that_there_are(who: str) -> None:
    query = QUERIES[who]
    of_grafana = re.fullmatch(r"label_values\((.*), \w+\)", query)  # for variables
    promql_parser.parse(of_grafana[1] if of_grafana else query.replace("$__rate_interval", "5m"))
    known = set(OF_PROMETHEUS)
    for name, matchers in SELECTOR.findall(query):
        labels = OF_PROMETHEUS | LABELS.get(name, set())
        known |= labels
        for label, value in MATCHER.findall(matchers):
            assert label in labels, (name, label)
            assert label != "quantile" or value in {*QUANTILE_NAMES, "$quantile"}
    for by in re.findall(r"\bby \(([^)]*)\)", query):
        assert set(by.split(", ")) <= known


def test_the_rules_are_complete() -> None:
    found = list(rules())
    assert len(found) == RULES.count("alert:") > 5
    for rule in found:
        assert set(rule) == {"alert", "expr", "for", "labels", "summary", "description"}
        assert re.fullmatch(r"\d+[smh]", rule["for"])
        assert rule["labels"] in {"{severity: warning}", "{severity: critical}"}
        labels = {"job", "instance"} | LABELS.get(SELECTOR.findall(rule["expr"])[0][0], set())
        assert set(re.findall(r"\$labels\.(\w+)", rule["description"])) <= labels


def test_the_dashboard_can_be_imported() -> None:
    assert (DASHBOARD["uid"], DASHBOARD["schemaVersion"], DASHBOARD["id"]) == ("sparklog-server", 39, None)
    kinds = {one["id"] for one in DASHBOARD["__requires"]}
    assert kinds == {"grafana", "prometheus", *(panel["type"] for panel in PANELS)}
    variables = {one["name"]: one for one in DASHBOARD["templating"]["list"]}
    assert variables["DS_PROMETHEUS"]["type"] == "datasource"
    sources = re.findall(r'"uid": "([^"]*)"', json.dumps(DASHBOARD))
    assert set(sources) == {"${DS_PROMETHEUS}", DASHBOARD["uid"]}
    used = set(re.findall(r"\$(\w+)", " ".join(QUERIES.values()))) - {"__rate_interval"}
    assert used == set(variables) - {"DS_PROMETHEUS"}
    numbers = [panel["id"] for panel in DASHBOARD["panels"]]
    assert len(set(numbers)) == len(numbers)
    titles = [panel["title"] for panel in PANELS]
    assert len(set(titles)) == len(titles)


def test_panels_fill_rows_of_24_columns() -> None:
    rows: dict[int, int] = {}
    for panel in DASHBOARD["panels"]:
        place = panel["gridPos"]
        rows[place["y"]] = rows.get(place["y"], 0) + place["w"]
    assert set(rows.values()) == {24}


@pytest.mark.parametrize("panel", PANELS, ids=[panel["title"] for panel in PANELS])
def test_legends_name_labels_that_are_left(panel: dict[str, Any]) -> None:
    for target in panel["targets"]:
        named = set(re.findall(r"\{\{(\w+)\}\}", target["legendFormat"]))
        by = re.findall(r"\bby \(([^)]*)\)", target["expr"])
        if by:
            left = set(by[0].split(", "))
        elif re.match(r"(?:sum|max|min)\(", target["expr"]):
            left = set()
        else:
            left = OF_PROMETHEUS.union(*(LABELS[name] for name, _ in SELECTOR.findall(target["expr"])))
        assert named <= left
