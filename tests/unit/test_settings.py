"""Settings: every broken rule names its variable, and no secret is ever shown."""

import pytest

from streams.settings import LogFormat, Settings, SettingsError, load_settings, redacted_dsn

pytestmark = pytest.mark.unit

DSN = "postgresql://turnlog:hunter2@127.0.0.1:5432/turnlog"


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    for field in Settings.model_fields:
        monkeypatch.delenv(f"TURNLOG_{field.upper()}", raising=False)
    monkeypatch.setenv("TURNLOG_KAFKA", "127.0.0.1:9092")
    monkeypatch.setenv("TURNLOG_POSTGRES", DSN)
    return monkeypatch


def test_the_environment_is_read_with_the_documented_defaults() -> None:
    settings = load_settings()
    assert (settings.kafka, settings.postgres) == ("127.0.0.1:9092", DSN)
    assert (settings.lease_ttl_ms, settings.tick_ms, settings.commit_wait_ms) == (15_000, 1_000, 5_000)
    assert settings.log_format is LogFormat.JSON


def test_an_override_wins_over_the_environment_and_none_does_not(environment: pytest.MonkeyPatch) -> None:
    environment.setenv("TURNLOG_NAMESPACE", "blue")
    assert load_settings(namespace="green", kafka=None).namespace == "green"
    assert load_settings(namespace=None).namespace == "blue"


def test_every_missing_variable_is_named_at_once(environment: pytest.MonkeyPatch) -> None:
    environment.delenv("TURNLOG_KAFKA")
    environment.delenv("TURNLOG_POSTGRES")
    with pytest.raises(SettingsError, match=r"TURNLOG_KAFKA is not set: Kafka bootstrap.*\nTURNLOG_POSTGRES is not"):
        load_settings()


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("TURNLOG_KAFKA", "localhost"),
        ("TURNLOG_KAFKA", "a:1,b:70000"),
        ("TURNLOG_KAFKA", ""),
        ("TURNLOG_POSTGRES", "not a dsn"),
        ("TURNLOG_POSTGRES", " "),
        ("TURNLOG_NAMESPACE", "with space"),
        ("TURNLOG_NAMESPACE", "line\n"),
        ("TURNLOG_SCHEMA_REGISTRY", "localhost:8081"),
        ("TURNLOG_LEASE_TTL_MS", "soon"),
        ("TURNLOG_LEASE_TTL_MS", "9999"),
        ("TURNLOG_MEMBER_TTL_MS", "1999"),
        ("TURNLOG_TRANSACTION_TIMEOUT_MS", "4999"),
        ("TURNLOG_METRICS_PORT", "65536"),
        ("TURNLOG_LOG_FORMAT", "xml"),
    ],
)
def test_a_broken_rule_names_the_variable(environment: pytest.MonkeyPatch, variable: str, value: str) -> None:
    environment.setenv(variable, value)
    with pytest.raises(SettingsError, match=variable):
        load_settings()


def test_no_secret_is_shown(environment: pytest.MonkeyPatch) -> None:
    environment.setenv("TURNLOG_MASTER_KEY", "hunter2")
    environment.setenv("TURNLOG_SCHEMA_REGISTRY", "https://ana:hunter2@registry:8081")
    settings = load_settings()
    assert "hunter2" not in f"{settings!r} {settings} {settings.redacted()}"
    assert "user=turnlog" in settings.redacted()["postgres"]
    assert settings.redacted()["schema_registry"] == "https://***@registry:8081"


def test_what_was_chosen_is_told_without_secrets_and_without_what_is_as_ever(environment: pytest.MonkeyPatch) -> None:
    environment.setenv("TURNLOG_TICK_MS", "500")
    environment.setenv("TURNLOG_MASTER_KEY", "hunter2")
    assert set(load_settings().chosen()) == {"kafka", "postgres", "tick_ms", "master_key"}
    assert "hunter2" not in str(load_settings().chosen())


def test_an_error_never_quotes_the_password(environment: pytest.MonkeyPatch) -> None:
    environment.setenv("TURNLOG_POSTGRES", "postgresql://u:hunter2@[broken/x")
    with pytest.raises(SettingsError) as raised:
        load_settings()
    assert "hunter2" not in str(raised.value)


def test_a_dsn_that_cannot_be_parsed_is_hidden_whole() -> None:
    assert redacted_dsn("postgresql://u:hunter2@[broken/x") == "***"
