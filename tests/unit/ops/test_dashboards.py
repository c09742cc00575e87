"""Rules and dashboards ask for what the processes really have, and every alert says what to do."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import promql_parser as promql
import pytest
import yaml
from prometheus_client import CollectorRegistry

from connectors.gateway.metrics import GatewayMetrics
from ops.dashboards.build import DASHBOARDS, FOLDER, document
from ops.history.rounds import RoundMetrics
from streams.projector.metrics import ProjectorMetrics
from streams.runtime.metrics import WorkerMetrics
from streams.runtime.partition import PartitionState
from tests.unit.test_metrics_page import described

ROOT = Path(__file__).parents[3]
RULES: list[dict[str, Any]] = [
    rule
    for group in yaml.safe_load((ROOT / "ops/dashboards/prometheus-rules.yaml").read_text("utf-8"))["groups"]
    for rule in group["rules"]
]
OF_PROMETHEUS = {"up": set[str](), "ALERTS": {"alertname", "alertstate"}}
SCRAPED = {"instance", "job"}


def series() -> dict[str, set[str]]:
    """Every series that a scrape of each process gives, with its labels."""
    found = {name: set(labels) for name, labels in OF_PROMETHEUS.items()}
    registries: tuple[CollectorRegistry, ...] = (
        WorkerMetrics().registry,
        GatewayMetrics().registry,
        ProjectorMetrics().registry,
        RoundMetrics("archive", "s3://bucket", 60).registry,
    )
    for registry in registries:
        for name, (kind, labels, _) in described(registry).items():
            if kind == "histogram":
                found |= {f"{name}_{suffix}": set(labels) for suffix in ("sum", "count")}
                found[f"{name}_bucket"] = {*labels, "le"}
            else:
                found[name] = set(labels)
    return found


SERIES = series()


def selectors(node: Any) -> Iterator[promql.VectorSelector]:
    """Every series that an expression asks for."""
    if isinstance(node, promql.VectorSelector):
        yield node
    for part in ("lhs", "rhs", "expr", "vector_selector", "args"):
        below = getattr(node, part, None)
        for each in below if isinstance(below, list | tuple) else [below]:
            if each is not None and not isinstance(each, str):
                yield from selectors(each)


def grouped(node: Any) -> Iterator[str]:
    """Every label that an expression groups or matches by."""
    modifier = getattr(node, "modifier", None)
    for holder in (modifier, getattr(modifier, "matching", None)):
        yield from getattr(holder, "labels", None) or ()
    for part in ("lhs", "rhs", "expr", "args"):
        below = getattr(node, part, None)
        for each in below if isinstance(below, list | tuple) else [below]:
            if each is not None and not isinstance(each, str):
                yield from grouped(each)


def check(expression: str, legend: str = "") -> None:
    parsed = promql.parse(expression.replace("$__rate_interval", "5m"))
    asked = list(selectors(parsed))
    assert asked, f"{expression} asks for nothing"
    labels: set[str] = set(SCRAPED)
    for selector in asked:
        assert selector.name is not None
        assert selector.name in SERIES, f"{expression}: nothing has {selector.name}"
        labels |= SERIES[selector.name]
        matched = {matcher.name for matcher in selector.matchers.matchers}
        assert matched <= SERIES[selector.name] | SCRAPED, f"{expression}: {selector.name} has no {matched}"
        states = [m.value for m in selector.matchers.matchers if m.name == "state"]
        assert set(states) <= {state.value for state in PartitionState}
    named = {*grouped(parsed), *re.findall(r"{{\s*(\w+)\s*}}", legend)}
    assert named <= labels, f"{expression}: no series has {named - labels}"


@pytest.mark.parametrize("rule", RULES, ids=[rule["alert"] for rule in RULES])
def test_a_rule_asks_for_what_there_is_and_has_a_runbook(rule: dict[str, Any]) -> None:
    check(rule["expr"])
    assert rule["labels"]["severity"] in {"critical", "warning"}
    text = (ROOT / rule["annotations"]["runbook"]).read_text("utf-8")
    assert text.startswith(f"# {rule['alert']}\n")
    assert rule["expr"] in text
    assert all(f"## {part}\n" in text for part in ("Look", "Do"))
    templated = set(re.findall(r"\$labels\.(\w+)", rule["annotations"]["summary"]))
    known = set().union(*(SERIES[str(s.name)] for s in selectors(promql.parse(rule["expr"])))) | SCRAPED
    assert templated <= known


def test_the_runbooks_are_those_of_the_rules() -> None:
    pages = {page.name for page in (ROOT / "docs/runbooks").glob("turnlog-*.md")}
    assert pages == {Path(rule["annotations"]["runbook"]).name for rule in RULES}
    index = (ROOT / "docs/runbooks/README.md").read_text("utf-8")
    assert all(f"]({page})" in index for page in pages)


@pytest.mark.parametrize("dashboard", DASHBOARDS, ids=[each.uid for each in DASHBOARDS])
def test_a_dashboard_asks_for_what_there_is_and_its_file_is_as_built(dashboard: Any) -> None:
    for _, panels in dashboard.rows:
        for panel in panels:
            for query in panel.queries:
                check(query.expression, query.legend)
    written = json.loads((FOLDER / f"{dashboard.uid}.json").read_text("utf-8"))
    assert written == document(dashboard), "run: python -m ops.dashboards.build"
    places = [panel["gridPos"] for panel in written["panels"]]
    assert all(place["x"] + place["w"] <= 24 for place in places)


def test_every_metric_of_a_process_is_on_a_dashboard_or_in_a_rule() -> None:
    expressions = [rule["expr"] for rule in RULES]
    expressions += [q.expression for d in DASHBOARDS for _, row in d.rows for panel in row for q in panel.queries]
    parsed = [promql.parse(each.replace("$__rate_interval", "5m")) for each in expressions]
    asked = {re.sub("_(bucket|sum|count)$", "", str(s.name)) for each in parsed for s in selectors(each)}
    has = {re.sub("_(bucket|sum|count)$", "", name) for name in SERIES} - set(OF_PROMETHEUS)
    assert has - asked <= UNWATCHED, f"nobody looks at {sorted(has - asked - UNWATCHED)}"


UNWATCHED = {
    "turnlog_checkpoints_total",
    "turnlog_gateway_authorizations_total",
    "turnlog_gateway_live_lost_total",
    "turnlog_projector_lsn",
    "turnlog_projector_unavailable_total",
}
"""For people who look closer, on the processes' own pages."""
