"""Writes the Grafana dashboards: `python -m ops.dashboards.build`. Their JSON is long and alike; what differs is here.

A dashboard is rows of panels; a panel is one or more PromQL expressions of one unit. Grafana's grid is 24 wide.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

FOLDER: Final = Path(__file__).parent / "grafana"
GRID: Final = 24
HEIGHT: Final = 8
STAT_HEIGHT: Final = 4
SCHEMA_VERSION: Final = 41
"""Of Grafana 12's dashboard JSON; later releases read it."""
DATASOURCE: Final = {"type": "prometheus", "uid": "${datasource}"}
RATE: Final = "$__rate_interval"


@dataclass(frozen=True, slots=True)
class Query:
    """One expression, and what its lines are called."""

    expression: str
    legend: str


@dataclass(frozen=True, slots=True)
class Panel:
    """One picture. `unit`: Grafana's name of it. `bad`: a stat is red from here on (`below`: up to here)."""

    title: str
    meaning: str
    unit: str
    queries: Sequence[Query]
    stat: bool = False
    bad: float | None = None
    below: bool = False


@dataclass(frozen=True, slots=True)
class Dashboard:
    """One page: rows of panels, each row with a title."""

    uid: str
    title: str
    meaning: str
    rows: Sequence[tuple[str, Sequence[Panel]]]


def quantiles(metric: str) -> list[Query]:
    """p50 and p99 of a histogram, over all processes."""
    return [
        Query(f"histogram_quantile({q}, sum by (le) (rate({metric}_bucket[{RATE}])))", f"p{round(100 * q)}")
        for q in (0.5, 0.99)
    ]


def rate(metric: str, legend: str = "", *by: str) -> Query:
    """How many a second, by these labels."""
    grouping = f" by ({', '.join(by)})" if by else ""
    return Query(f"sum{grouping} (rate({metric}[{RATE}]))", legend or " ".join(f"{{{{{label}}}}}" for label in by))


def stat(title: str, meaning: str, expression: str, unit: str = "short", **limits: Any) -> Panel:
    """One number."""
    return Panel(title, meaning, unit, [Query(expression, "")], stat=True, **limits)


STOPPED: Final = 'sum(turnlog_partition_state{state="stopped"}) or vector(0)'
RUNNING: Final = 'sum(turnlog_partition_state{state="running"}) or vector(0)'

OVERVIEW: Final = Dashboard(
    "turnlog-overview",
    "Turnlog / Overview",
    "Is it well, and how fast is it?",
    [
        (
            "Is it well?",
            [
                stat("Partitions running", "Each has one worker that writes it.", RUNNING, bad=0, below=True),
                stat("Partitions stopped", "An operator must look: see the runbook.", STOPPED, bad=1),
                stat("Gateways ready", "Caught up, and not draining.", "sum(turnlog_gateway_ready)", bad=0, below=True),
                stat(
                    "Projectors well", "They write the read model.", "sum(turnlog_projector_healthy)", bad=0, below=True
                ),
                stat("Fences hold", "1: the canary's zombie was refused.", "min(turnlog_canary_ok)", bad=0, below=True),
                stat("Alerts", "Rules that fire now.", 'count(ALERTS{alertstate="firing"}) or vector(0)', bad=1),
            ],
        ),
        (
            "How much",
            [
                Panel(
                    "Turns and frames",
                    "Committed a second.",
                    "cps",
                    [rate("turnlog_turns_total", "turns"), rate("turnlog_frames_total", "frames")],
                ),
                Panel(
                    "Connections",
                    "Open at the gateways, by kind.",
                    "short",
                    [Query("sum by (kind) (turnlog_gateway_connections)", "{{kind}}")],
                ),
                Panel(
                    "Intake not yet decided",
                    "Records behind the journal; it grows while a worker is slow or away.",
                    "short",
                    [Query("sum by (topic) (turnlog_lag_records)", "{{topic}}")],
                ),
            ],
        ),
        (
            "How fast",
            [
                Panel(
                    "Turn to agent",
                    "From its append to the agent's socket.",
                    "s",
                    quantiles("turnlog_turn_delivery_seconds"),
                ),
                Panel(
                    "Request to commit", "What a sender waits.", "s", quantiles("turnlog_gateway_commit_wait_seconds")
                ),
                Panel("Transaction", "One batch, begin to committed.", "s", quantiles("turnlog_commit_seconds")),
            ],
        ),
        (
            "What was refused, moved, rejected",
            [
                Panel("Refusals", "By reason.", "cps", [rate("turnlog_refusals_total", "", "reason")]),
                Panel("Runs that moved", "By reason.", "cps", [rate("turnlog_runs_moved_total", "", "reason")]),
                Panel(
                    "Dead letters",
                    "By reason: `turnlog dlq list`.",
                    "cps",
                    [rate("turnlog_dead_letters_total", "", "reason")],
                ),
            ],
        ),
    ],
)

SEQUENCERS: Final = Dashboard(
    "turnlog-sequencers",
    "Turnlog / Sequencers",
    "Workers, their partitions, leases and fences.",
    [
        (
            "Partitions",
            [
                Panel(
                    "State",
                    "How many partitions are in each state.",
                    "short",
                    [Query("sum by (state) (turnlog_partition_state)", "{{state}}")],
                ),
                Panel(
                    "Leases",
                    "How many each worker holds.",
                    "short",
                    [Query("sum by (instance) (turnlog_leases_held)", "{{instance}}")],
                ),
                Panel(
                    "Lag by partition",
                    "Intake records not yet covered by the journal.",
                    "short",
                    [Query("sum by (partition) (turnlog_lag_records)", "{{partition}}")],
                ),
            ],
        ),
        (
            "Takeovers and fences",
            [
                Panel("Takeovers", "Partitions opened.", "cps", [rate("turnlog_takeovers_total", "", "instance")]),
                Panel(
                    "Opening takes",
                    "From the lease's new epoch to WriterOpened.",
                    "s",
                    quantiles("turnlog_takeover_seconds"),
                ),
                Panel(
                    "Ended epochs",
                    "As fenced, or in doubt. A few come with each restart.",
                    "cps",
                    [rate("turnlog_fenced_total", "fenced"), rate("turnlog_doubts_total", "in doubt")],
                ),
            ],
        ),
        (
            "Batches",
            [
                Panel("Records a transaction", "Larger is cheaper.", "short", quantiles("turnlog_batch_records")),
                Panel("Journal", "Events committed.", "cps", [rate("turnlog_journal_events_total", "", "instance")]),
                Panel(
                    "Repeats",
                    "Answered with the first one's ack.",
                    "cps",
                    [rate("turnlog_duplicates_total", "repeats")],
                ),
            ],
        ),
        (
            "State and readers",
            [
                Panel(
                    "Conversations in memory",
                    "And those that left it.",
                    "short",
                    [
                        Query("sum(turnlog_conversations_resident)", "in memory"),
                        Query(f"sum(rate(turnlog_evictions_total[{RATE}]))", "evicted a second"),
                    ],
                ),
                Panel(
                    "Age of checkpoints",
                    "Grows where PostgreSQL takes none.",
                    "s",
                    [Query("max by (partition) (turnlog_checkpoint_age_seconds)", "{{partition}}")],
                ),
                Panel(
                    "Readers held back",
                    "How long a topic's stable offset has been behind its end.",
                    "s",
                    [Query("max by (topic, partition) (turnlog_lso_behind_seconds)", "{{topic}} {{partition}}")],
                ),
            ],
        ),
    ],
)

EDGES: Final = Dashboard(
    "turnlog-edges",
    "Turnlog / Gateways and projectors",
    "What people and agents connect to, and the read model.",
    [
        (
            "Gateways",
            [
                Panel("Requests", "By status.", "cps", [rate("turnlog_gateway_requests_total", "", "status")]),
                Panel(
                    "Frames received",
                    "By kind of socket.",
                    "cps",
                    [rate("turnlog_gateway_frames_received_total", "", "kind")],
                ),
                Panel(
                    "Sockets closed",
                    "By code: 4503 is a reader that is too slow.",
                    "cps",
                    [rate("turnlog_gateway_closes_total", "", "code")],
                ),
            ],
        ),
        (
            "Members",
            [
                Panel(
                    "Refusals", "Seen in the journal.", "cps", [rate("turnlog_gateway_refusals_total", "", "reason")]
                ),
                Panel(
                    "Runs refused",
                    "Given back: the member has as many as it may.",
                    "cps",
                    [rate("turnlog_gateway_runs_refused_total", "runs")],
                ),
                Panel(
                    "Incarnations",
                    "A gateway that others gave up goes on as a new one.",
                    "short",
                    [Query("sum by (instance) (turnlog_gateway_incarnations_total)", "{{instance}}")],
                ),
            ],
        ),
        (
            "Read model",
            [
                Panel(
                    "Entries written", "By projector.", "cps", [rate("turnlog_projector_entries_total", "", "instance")]
                ),
                Panel(
                    "A batch takes",
                    "One partition's, as one transaction.",
                    "s",
                    quantiles("turnlog_projector_write_seconds"),
                ),
                Panel(
                    "Stalled and read again",
                    "Partitions that do not go on; journals read again from the stored position.",
                    "short",
                    [
                        Query("sum(turnlog_projector_stalled_partitions)", "stalled"),
                        Query("sum(increase(turnlog_projector_rereads_total[1h]))", "read again within an hour"),
                    ],
                ),
            ],
        ),
        (
            "Retention",
            [
                Panel(
                    "Erased",
                    "Conversations that their channels keep no longer, within an hour.",
                    "short",
                    [Query("sum(increase(turnlog_projector_retention_erased_total[1h]))", "erased within an hour")],
                ),
                Panel(
                    "Overdue",
                    "How long ago the longest idle one was to be erased.",
                    "s",
                    [Query("max(turnlog_projector_retention_overdue_seconds)", "overdue")],
                ),
            ],
        ),
        (
            "Archive, digests and exports",
            [
                Panel(
                    "Behind by",
                    "What was committed before is copied.",
                    "s",
                    [Query("min by (of, to) (time() - turnlog_copy_until_timestamp_seconds)", "{{of}} {{to}}")],
                ),
                Panel(
                    "Not copied",
                    "Offsets of the journal, over all partitions.",
                    "short",
                    [
                        Query(
                            "min by (of, to) (sum by (of, to, instance) (turnlog_copy_behind_offsets))", "{{of}} {{to}}"
                        )
                    ],
                ),
                Panel(
                    "Rounds that failed",
                    "A server was away; the next round tries again.",
                    "cps",
                    [rate("turnlog_copy_failed_rounds_total", "", "of", "to")],
                ),
            ],
        ),
    ],
)

DASHBOARDS: Final = (OVERVIEW, SEQUENCERS, EDGES)


# -------------------------------------------------------------------------------------------------- Grafana's JSON
def document(dashboard: Dashboard) -> dict[str, Any]:
    """The dashboard as Grafana reads it."""
    panels: list[dict[str, Any]] = []
    y = 0
    for title, row in dashboard.rows:
        panels.append(
            {"id": len(panels) + 1, "type": "row", "title": title, "gridPos": {"h": 1, "w": GRID, "x": 0, "y": y}}
        )
        height = STAT_HEIGHT if all(panel.stat for panel in row) else HEIGHT
        width = GRID // len(row)
        for column, panel in enumerate(row):
            place = {"h": height, "w": width, "x": column * width, "y": y + 1}
            panels.append({"id": len(panels) + 1, "gridPos": place, **_panel(panel)})
        y += 1 + height
    return {
        "uid": dashboard.uid,
        "title": dashboard.title,
        "description": dashboard.meaning,
        "tags": ["turnlog"],
        "schemaVersion": SCHEMA_VERSION,
        "refresh": "10s",
        "time": {"from": "now-1h", "to": "now"},
        "templating": {
            "list": [{"name": "datasource", "label": "Prometheus", "type": "datasource", "query": "prometheus"}]
        },
        "links": [{"title": "Turnlog", "type": "dashboards", "tags": ["turnlog"], "asDropdown": False}],
        "panels": panels,
    }


def _panel(panel: Panel) -> dict[str, Any]:
    defaults: dict[str, Any] = {"unit": panel.unit, "min": 0}
    if panel.bad is not None:
        calm, alarm = ("green", "red") if not panel.below else ("red", "green")
        steps = [{"color": calm, "value": None}, {"color": alarm, "value": panel.bad + (0 if not panel.below else 1)}]
        defaults["thresholds"] = {"mode": "absolute", "steps": steps}
    targets = [
        {
            "refId": chr(ord("A") + index),
            "expr": query.expression,
            "legendFormat": query.legend,
            "datasource": DATASOURCE,
        }
        for index, query in enumerate(panel.queries)
    ]
    return {
        "type": "stat" if panel.stat else "timeseries",
        "title": panel.title,
        "description": panel.meaning,
        "datasource": DATASOURCE,
        "fieldConfig": {"defaults": defaults, "overrides": []},
        "targets": targets,
    }


def main() -> None:
    """Write each dashboard to its file."""
    FOLDER.mkdir(exist_ok=True)
    for dashboard in DASHBOARDS:
        text = json.dumps(document(dashboard), indent=1, ensure_ascii=False) + "\n"
        (FOLDER / f"{dashboard.uid}.json").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
