"""The page of metrics says what the registries have, and the registries have what the page says."""

import re
from pathlib import Path

from prometheus_client import CollectorRegistry

from connectors.gateway.metrics import GatewayMetrics
from ops.history.rounds import RoundMetrics
from streams.projector.metrics import ProjectorMetrics
from streams.runtime.metrics import WorkerMetrics

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "metrics.md"
ROW = re.compile(r"^\| `(turnlog_\w+)` \| (\w+) \| (\w+) \|\s*([^|]*?)\s*\|\s*([^|]*?)\s*\|$", re.MULTILINE)


def described(registry: CollectorRegistry) -> dict[str, tuple[str, tuple[str, ...], str]]:
    """Per metric of a registry: type, labels, meaning."""
    labels = {metric._name: tuple(metric._labelnames) for metric in registry._collector_to_names}  # type: ignore[attr-defined]
    return {
        f"{family.name}_total" if family.type == "counter" else family.name: (
            family.type,
            labels[family.name],
            family.documentation,
        )
        for family in registry.collect()
    }


def rows(process: str) -> dict[str, tuple[str, tuple[str, ...], str]]:
    """The page's rows of one kind of process."""
    return {
        name: (kind, tuple(re.findall(r"`(\w+)`", labels)), meaning)
        for name, of, kind, labels, meaning in ROW.findall(PAGE.read_text("utf-8"))
        if of == process
    }


def test_the_table_lists_the_metrics_of_a_worker_word_for_word() -> None:
    assert rows("worker") == described(WorkerMetrics().registry)


def test_the_table_lists_the_metrics_of_a_projector_word_for_word() -> None:
    assert rows("projector") == described(ProjectorMetrics().registry)


def test_the_table_lists_the_metrics_of_a_gateway_word_for_word() -> None:
    assert rows("gateway") == described(GatewayMetrics().registry)


def test_the_table_lists_the_metrics_of_a_copier_word_for_word() -> None:
    assert rows("copier") == described(RoundMetrics("archive", "s3://bucket", 60).registry)
