"""The settings of every server process: `TURNLOG_*` in the environment, checked as a whole before anything starts."""

from __future__ import annotations

import re
from enum import StrEnum
from typing import Annotated, Any, Self

from psycopg import ProgrammingError
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from pydantic import AfterValidator, Field, SecretStr, ValidationError, model_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

ENV_PREFIX = "TURNLOG_"
REDACTED = "***"

# A topic name may have 249 characters of this set; the longest name that follows the namespace is `.conversations`.
NAMESPACE_RULE = r"[A-Za-z0-9._-]{0,200}"
ADDRESS_RULE = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+):(\d{1,5})")

Milliseconds = Annotated[int, Field(ge=1, le=24 * 60 * 60 * 1000)]
Port = Annotated[int, Field(ge=0, le=65535)]


class SettingsError(ValueError):
    """Settings that break a rule; the message names each variable and its rule, never a secret's value."""


class LogFormat(StrEnum):
    """How log lines on stderr look: one JSON object a line for machines, or coloured text for people."""

    JSON = "json"
    CONSOLE = "console"


def _bootstrap(value: str) -> str:
    for address in value.split(","):
        match = ADDRESS_RULE.fullmatch(address.strip())
        if match is None or not 0 < int(match[2]) < 65536:
            raise ValueError("must be HOST:PORT, or several of them separated by commas")
    return ",".join(address.strip() for address in value.split(","))


def _dsn(value: str) -> str:
    try:
        conninfo_to_dict(value)
    except ProgrammingError:
        # libpq's message quotes the DSN, and with it the password.
        raise ValueError("must be a PostgreSQL connection string such as postgresql://user@host:5432/name") from None
    if not value.strip():
        raise ValueError("must not be empty")
    return value


class Settings(BaseSettings):
    """What a worker, gateway or projector needs to know; each field is `TURNLOG_<NAME>` in the environment.

    Durations say their unit in their name. Build it with `load_settings`, which turns what breaks a rule into one
    `SettingsError` that names the variables.
    """

    model_config = SettingsConfigDict(env_prefix=ENV_PREFIX, frozen=True, hide_input_in_errors=True, extra="forbid")

    kafka: Annotated[str, AfterValidator(_bootstrap)] = Field(description="Kafka bootstrap address, HOST:PORT[,…]")
    postgres: Annotated[str, AfterValidator(_dsn)] = Field(repr=False, description="PostgreSQL connection string")
    namespace: str = Field("", pattern=f"^{NAMESPACE_RULE}$", description="prefix of every topic; empty for none")
    schema_registry: str | None = Field(
        None, repr=False, pattern="^https?://", description="Confluent schema registry, a URL"
    )
    master_key: SecretStr | None = Field(None, description="wraps the keys kept in PostgreSQL and in Kafka")
    seal: bool = Field(
        default=False, description="seal what is said by a key of its conversation; needs TURNLOG_MASTER_KEY"
    )
    host: str = Field("127.0.0.1", min_length=1, description="address that servers listen on")
    metrics_port: Port = Field(0, description="port of a worker's /metrics; 0 takes a free one")
    traces: str = Field("", pattern="^(https?://.+)?$", description="OTLP collector, a URL; empty: no traces are taken")
    log_format: LogFormat = Field(LogFormat.JSON, description="log lines on stderr: json or console")

    lease_ttl_ms: Milliseconds = Field(15_000, description="a worker that renews nothing for so long loses its leases")
    lease_heartbeat_ms: Milliseconds = Field(5_000, description="time between two renewals of a worker's leases")
    tick_ms: Milliseconds = Field(1_000, description="time between two ticks of a partition's log clock")
    member_ttl_ms: Milliseconds = Field(5_000, description="members of a gateway silent for so long are expired")
    gateway_heartbeat_ms: Milliseconds = Field(1_000, description="time between two heartbeats of a gateway")
    checkpoint_every_ms: Milliseconds = Field(5_000, description="longest time between two checkpoints of a partition")
    checkpoint_every_events: int = Field(20_000, ge=1, description="most journal events between two checkpoints")
    batch_max: int = Field(4_000, ge=1, le=100_000, description="most intake records decided in one transaction")
    idle_conversations_max: int = Field(250_000, ge=0, description="idle conversations a worker keeps in memory")
    transaction_timeout_ms: Milliseconds = Field(10_000, description="the broker aborts a transaction open for so long")
    request_timeout_ms: Milliseconds = Field(5_000, description="longest wait for an answer of Kafka")
    start_wait_ms: int = Field(60_000, ge=0, description="a process that starts waits so long for Kafka and PostgreSQL")
    commit_wait_ms: Milliseconds = Field(5_000, description="a POST waits so long for its commit, then answers 503")
    token_ttl_s: int = Field(1_800, ge=1, le=7 * 24 * 60 * 60, description="lifetime of an access token, seconds")
    canary_every_s: int = Field(300, ge=0, description="projectors run the fence's canary so often, seconds; 0: never")
    retention_every_s: int = Field(60, ge=0, description="projectors look for what retain_days ends so often; 0: never")
    runs_per_member: int = Field(200, ge=1, description="live runs of one agent's connection; more go to the next one")
    drain_budget_ms: int = Field(10_000, ge=0, description="accepted runs may finish for so long while draining")

    @model_validator(mode="after")
    def _rules_between_fields(self) -> Self:
        # Two heartbeats must fit into a TTL, or one late heartbeat makes a live process look dead.
        if self.lease_ttl_ms < 2 * self.lease_heartbeat_ms:
            raise ValueError("TURNLOG_LEASE_TTL_MS must be at least twice TURNLOG_LEASE_HEARTBEAT_MS")
        if self.member_ttl_ms < 2 * self.gateway_heartbeat_ms:
            raise ValueError("TURNLOG_MEMBER_TTL_MS must be at least twice TURNLOG_GATEWAY_HEARTBEAT_MS")
        if self.transaction_timeout_ms < self.request_timeout_ms:
            raise ValueError("TURNLOG_TRANSACTION_TIMEOUT_MS must not be below TURNLOG_REQUEST_TIMEOUT_MS")
        if self.seal and self.master_key is None:
            raise ValueError("TURNLOG_SEAL needs TURNLOG_MASTER_KEY: the keys that seal are themselves sealed by it")
        return self

    def redacted(self) -> dict[str, Any]:
        """All settings as plain values fit for a log line or a page: passwords and keys replaced by `***`."""
        shown = self.model_dump(mode="json", exclude={"postgres", "master_key"})
        shown["postgres"] = redacted_dsn(self.postgres)
        shown["schema_registry"] = None if self.schema_registry is None else redacted_url(self.schema_registry)
        shown["master_key"] = None if self.master_key is None else REDACTED
        return shown

    def chosen(self) -> dict[str, Any]:
        """As `redacted`, only what is not as it would be by itself."""
        fields = type(self).model_fields
        return {name: value for name, value in self.redacted().items() if value != fields[name].default}


def redacted_dsn(dsn: str) -> str:
    """`dsn` as `key=value` pairs with every secret replaced by `***`; what cannot be parsed is hidden whole."""
    try:
        parts = conninfo_to_dict(dsn)
    except ProgrammingError:
        return REDACTED
    return make_conninfo("", **{name: REDACTED if "password" in name else value for name, value in parts.items()})


def redacted_url(url: str) -> str:
    """`url` with the user and password in front of its host replaced by `***`."""
    return re.sub(r"(?<=://).*@", f"{REDACTED}@", url)


def load_settings(**overrides: Any) -> Settings:
    """The settings from the environment; `overrides` (from command-line options) win, `None` means not given.

    Raises `SettingsError`, which names every variable that is missing or breaks its rule.
    """
    given = {name: value for name, value in overrides.items() if value is not None}
    try:
        return Settings(**given)
    except ValidationError as error:
        raise SettingsError("\n".join(_explained(problem) for problem in error.errors(include_input=False))) from None


def _explained(problem: Any) -> str:
    if not problem["loc"]:
        return str(problem["msg"]).removeprefix("Value error, ")
    field = str(problem["loc"][0])
    variable = ENV_PREFIX + field.upper()
    if problem["type"] == "missing":
        return f"{variable} is not set: {Settings.model_fields[field].description}"
    return f"{variable}: {str(problem['msg']).removeprefix('Value error, ')}"
