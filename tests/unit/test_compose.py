"""docker-compose.yml runs what the embedded stack runs, with settings and commands that exist."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from itertools import takewhile
from pathlib import Path
from typing import Any

import pytest
import yaml
from check_jsonschema.builtin_schemas import get_builtin_schema
from jsonschema import Draft202012Validator, ValidationError

from ops.embedded.kafka import BROKER_SETTINGS, KAFKA_VERSION
from ops.embedded.postgres import MAJOR
from streams.settings import Settings, load_settings

ROOT = Path(__file__).parents[2]
PROCESSES = ("worker", "projector", "gateway", "archiver")
WATCHING = {"prometheus", "grafana", "otel-collector", "jaeger"}


@pytest.fixture(scope="module")
def compose() -> dict[str, Any]:
    loaded: dict[str, Any] = yaml.safe_load((ROOT / "docker-compose.yml").read_text())
    return loaded


def require_compose(document: dict[str, Any]) -> None:
    """Raise `ValidationError` unless it is what the Compose Specification allows."""
    Draft202012Validator(get_builtin_schema("vendor.compose-spec")).validate(document)


def test_it_is_a_compose_file_by_the_specification_and_has_all_of_a_deployment(compose: dict[str, Any]) -> None:
    require_compose(compose)
    assert compose["services"].keys() == {"kafka", "postgres", "setup", *PROCESSES, *WATCHING}


def test_what_a_compose_file_has_not_is_refused(compose: dict[str, Any]) -> None:
    services = {**compose["services"], "worker": {**compose["services"]["worker"], "comand": ["worker"]}}
    with pytest.raises(ValidationError, match="comand"):
        require_compose({**compose, "services": services})


def test_the_servers_are_those_of_the_embedded_stack(compose: dict[str, Any]) -> None:
    assert compose["services"]["kafka"]["image"] == f"apache/kafka:{KAFKA_VERSION}"
    assert compose["services"]["postgres"]["image"] == f"postgres:{MAJOR}"


def test_the_broker_is_set_as_the_embedded_one_where_both_set_something(compose: dict[str, Any]) -> None:
    ours = {f"KAFKA_{name.upper().replace('.', '_')}": value for name, value in BROKER_SETTINGS.items()}
    theirs = compose["services"]["kafka"]["environment"]
    named_otherwise = {"KAFKA_LISTENER_SECURITY_PROTOCOL_MAP", "KAFKA_INTER_BROKER_LISTENER_NAME"}
    both = (ours.keys() & theirs.keys()) - named_otherwise
    assert {"KAFKA_AUTO_CREATE_TOPICS_ENABLE", "KAFKA_TRANSACTION_STATE_LOG_MIN_ISR"} <= both
    assert {name: theirs[name] for name in both} == {name: ours[name] for name in both}


@pytest.mark.parametrize("name", ["setup", *PROCESSES])
def test_the_settings_of_each_process_are_good(compose: dict[str, Any], name: str) -> None:
    environment = compose["services"][name]["environment"]
    fields = {variable.removeprefix("TURNLOG_").lower(): _resolved(value) for variable, value in environment.items()}
    assert fields.keys() <= Settings.model_fields.keys()
    settings = load_settings(**fields)
    assert settings.kafka in compose["services"]["kafka"]["environment"]["KAFKA_ADVERTISED_LISTENERS"]
    user, password = (compose["services"]["postgres"]["environment"][f"POSTGRES_{x}"] for x in ("USER", "PASSWORD"))
    assert f"//{user}:{password}@postgres:5432/" in settings.postgres


def _resolved(value: str) -> str:
    """What compose makes of it where the variable is not set."""
    return re.sub(r"\$\{\w+:-([^}]*)\}", r"\1", value)


def test_what_watches_is_started_only_where_it_is_wanted_and_its_files_are_there(compose: dict[str, Any]) -> None:
    watching = {name: service for name, service in compose["services"].items() if "profiles" in service}
    assert watching.keys() == WATCHING
    assert all(service["profiles"] == ["watch"] for service in watching.values())
    mounted = [volume.split(":")[0] for service in watching.values() for volume in service.get("volumes", [])]
    files = [path for path in mounted if path.startswith("./")]
    assert len(files) == 6
    assert all((ROOT / path).exists() for path in files)


def test_prometheus_scrapes_each_process_where_it_serves(compose: dict[str, Any]) -> None:
    jobs = yaml.safe_load((ROOT / "ops/dashboards/prometheus.yaml").read_text())["scrape_configs"]
    found = {job["dns_sd_configs"][0]["names"][0]: job["dns_sd_configs"][0]["port"] for job in jobs}
    metrics_port = int(compose["services"]["worker"]["environment"]["TURNLOG_METRICS_PORT"])
    assert found == {"worker": metrics_port, "projector": metrics_port, "gateway": 8080}


@pytest.mark.parametrize("name", PROCESSES)
def test_each_process_is_a_command_with_options_that_exist(compose: dict[str, Any], name: str) -> None:
    command = compose["services"][name]["command"]
    helped = subprocess.run(
        [sys.executable, "-m", "ops.cli", *takewhile(str.isalpha, command), "--help"],
        cwd=ROOT,
        env={**os.environ, "NO_COLOR": "1", "COLUMNS": "200"},
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    assert all(option in helped for option in command[1:] if option.startswith("--"))


def test_processes_wait_for_the_setup_and_the_setup_for_the_servers(compose: dict[str, Any]) -> None:
    services = compose["services"]
    for name in PROCESSES:
        assert services[name]["depends_on"] == {"setup": {"condition": "service_completed_successfully"}}
    assert services["setup"]["depends_on"].keys() == {"kafka", "postgres"}
    assert all("healthcheck" in services[name] for name in services["setup"]["depends_on"])


def test_nothing_is_published_beyond_this_machine(compose: dict[str, Any]) -> None:
    published = [port for service in compose["services"].values() for port in service.get("ports", [])]
    assert published
    assert all(port.startswith("127.0.0.1:") for port in published)


def test_the_archive_is_where_the_image_lets_its_user_write(compose: dict[str, Any]) -> None:
    archiver = compose["services"]["archiver"]
    [url] = [word for word in archiver["command"] if "/" in word]
    assert archiver["volumes"] == [f"archive:{url}"]
    assert f"RUN install --directory --owner turnlog {url}\n" in (ROOT / "Dockerfile").read_text()


def test_the_image_holds_every_package_of_the_distribution() -> None:
    copied = re.findall(r"^COPY (\w+) \1$", (ROOT / "Dockerfile").read_text(), re.MULTILINE)
    assert set(copied) == {"turnlog", "streams", "connectors", "ops", "schemas"}
