"""The manifests are Kubernetes' own, and fit the processes: settings, ports, probes, time to drain."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from streams.settings import Settings, load_settings
from tests.support.command import turnlog

FOLDER = Path(__file__).parents[2] / "ops/kubernetes"
KUBERNETES = "1.34"
DOCUMENTS: list[dict[str, Any]] = [
    document
    for file in sorted(FOLDER.glob("*.yaml"))
    if file.name != "kustomization.yaml"
    for document in yaml.safe_load_all(file.read_text("utf-8"))
]
DEPLOYMENTS = [document for document in DOCUMENTS if document["kind"] == "Deployment"]


def of_kind(kind: str, name: str) -> dict[str, Any]:
    [found] = [d for d in DOCUMENTS if d["kind"] == kind and d["metadata"]["name"] == name]
    return found


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda d: f"{d['kind']}-{d['metadata']['name']}")
def test_a_manifest_is_one_of_its_kind_and_has_no_field_that_the_kind_has_not(document: dict[str, Any]) -> None:
    kubernetes_validate.validate(document, KUBERNETES, strict=True)


def test_the_kustomization_lists_every_manifest() -> None:
    listed = yaml.safe_load((FOLDER / "kustomization.yaml").read_text("utf-8"))["resources"]
    assert sorted(listed) == sorted(file.name for file in FOLDER.glob("*.yaml") if file.name != "kustomization.yaml")


def test_the_archive_is_written_by_one_at_a_time_and_by_a_command_that_exists() -> None:
    spec = of_kind("CronJob", "archive")["spec"]
    [container] = spec["jobTemplate"]["spec"]["template"]["spec"]["containers"]
    assert spec["concurrencyPolicy"] == "Forbid"
    assert turnlog(*container["args"][:2], "--help").code == 0


def test_the_settings_are_settings_and_good() -> None:
    given = of_kind("ConfigMap", "turnlog")["data"] | of_kind("Secret", "turnlog")["stringData"]
    fields = {name.removeprefix("TURNLOG_").lower(): value for name, value in given.items()}
    assert fields.keys() <= Settings.model_fields.keys()
    load_settings(**fields)


@pytest.mark.parametrize("deployment", DEPLOYMENTS, ids=lambda d: d["metadata"]["name"])
def test_a_process_is_probed_drained_and_kept_in_number(deployment: dict[str, Any]) -> None:
    name, spec = deployment["metadata"]["name"], deployment["spec"]["template"]["spec"]
    [container] = spec["containers"]
    settings = of_kind("ConfigMap", "turnlog")["data"]
    [port] = container["ports"]
    served = 8080 if name == "gateway" else int(settings["TURNLOG_METRICS_PORT"])
    assert port["containerPort"] == served
    for probe, path in (("startupProbe", "/healthz"), ("livenessProbe", "/healthz"), ("readinessProbe", "/readyz")):
        assert container[probe]["httpGet"] == {"path": path, "port": port["name"]}
    waits_s = container["startupProbe"]["periodSeconds"] * container["startupProbe"]["failureThreshold"]
    assert waits_s * 1000 > Settings.model_fields["start_wait_ms"].default
    drains_s = int(settings["TURNLOG_DRAIN_BUDGET_MS"]) / 1000
    assert spec["terminationGracePeriodSeconds"] >= drains_s + 15
    budget = of_kind("PodDisruptionBudget", name)["spec"]
    labels = deployment["spec"]["template"]["metadata"]["labels"]
    assert budget["selector"] == deployment["spec"]["selector"] == {"matchLabels": labels}
    assert deployment["spec"]["replicas"] > budget["maxUnavailable"]
    assert "cpu" not in container["resources"]["limits"], "one that is throttled is late for its leases"
