"""Kafka and Postgres as containers, on machines with a Docker engine."""

from __future__ import annotations

import re
import secrets
import socket
import subprocess
from types import TracebackType
from typing import TYPE_CHECKING

from ops.embedded import EmbeddedStack

if TYPE_CHECKING:
    from testcontainers.core.container import DockerContainer

KAFKA_IMAGE = "apache/kafka:4.4.0"
POSTGRES_IMAGE = "postgres:18"
START_S = 120


def docker_answers() -> bool:
    """Whether a Docker engine answers, not merely whether its command is installed."""
    try:
        return subprocess.run(["docker", "info"], capture_output=True, timeout=20, check=False).returncode == 0
    except (FileNotFoundError, subprocess.TimeoutExpired):
        return False


class ContainerStack(EmbeddedStack):
    """The two containers behind the face of an embedded stack; its servers cannot be killed one by one."""

    def __init__(self, kafka: str, postgres: str, containers: list[DockerContainer]) -> None:
        super().__init__(kafka, postgres, None, None)
        self._containers = containers

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def stop(self) -> None:
        while self._containers:
            self._containers.pop().stop()


def start() -> EmbeddedStack:
    """Start both containers and wait until they are ready."""
    kafka_port, postgres_port, password = _free_port(), _free_port(), secrets.token_urlsafe(16)
    # A Kafka client is told the advertised address, so that the published port must be known before the start.
    kafka = _container(KAFKA_IMAGE, {9092: kafka_port}, _broker_environment(kafka_port), r"Kafka Server started")
    postgres = _container(
        POSTGRES_IMAGE,
        {5432: postgres_port},
        {"POSTGRES_USER": "turnlog", "POSTGRES_DB": "turnlog", "POSTGRES_PASSWORD": password},
        # Its set-up starts and stops a server of its own first.
        r"init process complete[\s\S]*ready to accept connections",
    ).with_command("-c max_connections=200")
    started: list[DockerContainer] = []
    try:
        for container in (kafka, postgres):
            container.start()
            started.append(container)
    except BaseException:
        for container in started:
            container.stop()
        raise
    dsn = f"postgresql://turnlog:{password}@127.0.0.1:{postgres_port}/turnlog"
    return ContainerStack(f"127.0.0.1:{kafka_port}", dsn, started)


def _container(image: str, published: dict[int, int], environment: dict[str, str], ready: str) -> DockerContainer:
    # Half a second to import, and of no use to a session without containers.
    from testcontainers.core.container import DockerContainer  # noqa: PLC0415
    from testcontainers.core.wait_strategies import LogMessageWaitStrategy  # noqa: PLC0415

    container = DockerContainer(image)
    for inside, outside in published.items():
        container = container.with_bind_ports(inside, outside)
    for name, value in environment.items():
        container = container.with_env(name, value)
    return container.waiting_for(LogMessageWaitStrategy(re.compile(ready)).with_startup_timeout(START_S))


def _broker_environment(port: int) -> dict[str, str]:
    return {
        "KAFKA_NODE_ID": "1",
        "KAFKA_PROCESS_ROLES": "broker,controller",
        "KAFKA_LISTENERS": "PLAINTEXT://:9092,CONTROLLER://:9093",
        "KAFKA_ADVERTISED_LISTENERS": f"PLAINTEXT://127.0.0.1:{port}",
        "KAFKA_CONTROLLER_LISTENER_NAMES": "CONTROLLER",
        "KAFKA_LISTENER_SECURITY_PROTOCOL_MAP": "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT",
        "KAFKA_CONTROLLER_QUORUM_VOTERS": "1@localhost:9093",
        "KAFKA_OFFSETS_TOPIC_REPLICATION_FACTOR": "1",
        "KAFKA_TRANSACTION_STATE_LOG_REPLICATION_FACTOR": "1",
        "KAFKA_TRANSACTION_STATE_LOG_MIN_ISR": "1",
        "KAFKA_GROUP_INITIAL_REBALANCE_DELAY_MS": "0",
        "KAFKA_AUTO_CREATE_TOPICS_ENABLE": "false",
    }


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
