"""What all tests share: real servers for the session, and a fresh namespace and database for each test."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import hypothesis
import pytest
import structlog

import ops.embedded
from ops.embedded import EmbeddedStack, StackUnavailable
from streams.settings import Settings, load_settings
from tests.support import containers, kafka, postgres

KINDS = ("unit", "contract", "integration", "acceptance", "simulation")
TESTS = Path(__file__).parent

# A busy machine makes a correct example slow: time is no property that these tests are about.
hypothesis.settings.register_profile("turnlog", deadline=None, print_blob=True)
hypothesis.settings.load_profile("turnlog")

# By default a logged traceback shows every local variable: a test's whole world, which takes a busy machine seconds.
structlog.configure(
    processors=[
        structlog.contextvars.merge_contextvars,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.dev.ConsoleRenderer(colors=False, exception_formatter=structlog.dev.plain_traceback),
    ]
)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--stack",
        choices=("auto", "embedded", "containers"),
        default="auto",
        help="where Kafka and Postgres come from unless TURNLOG_KAFKA and TURNLOG_POSTGRES name them: the embedded "
        "pair, or Docker containers; auto takes the embedded pair, and containers where it cannot be had",
    )


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        folder = item.path.relative_to(TESTS).parts[0]
        if folder == "field_reports":
            # Ordered by what they are about: each is of the kind that its servers make it.
            servers = {"stack", "private_stack"} & set(getattr(item, "fixturenames", ()))
            folder = "integration" if servers else "unit"
        if folder in KINDS:
            item.add_marker(getattr(pytest.mark, folder))


@pytest.fixture(scope="session")
def stack(request: pytest.FixtureRequest) -> Iterator[EmbeddedStack]:
    """Kafka and Postgres for the whole session; a test that kills or restarts servers takes `private_stack`."""
    source = request.config.getoption("--stack")
    if source == "containers":
        opened = containers.start()
    else:
        try:
            opened = ops.embedded.servers()
        except StackUnavailable:
            if source == "embedded" or not containers.docker_answers():
                raise
            opened = containers.start()
    with opened:
        yield opened


@pytest.fixture(scope="module")
def private_stack() -> Iterator[EmbeddedStack]:
    """An embedded stack for the tests of one module, which may kill and restart its servers."""
    with ops.embedded.start(None) as opened:
        yield opened


@pytest.fixture
def fresh_namespace(stack: EmbeddedStack) -> Iterator[str]:
    """A topic namespace that nothing else uses; its topics are deleted after the test."""
    with kafka.namespace(stack.kafka) as name:
        yield name


@pytest.fixture
def fresh_database(stack: EmbeddedStack) -> Iterator[str]:
    """The connection string of a new, empty database; it is dropped after the test."""
    with postgres.database(stack.postgres) as dsn:
        yield dsn


@pytest.fixture
def settings(stack: EmbeddedStack, fresh_namespace: str, fresh_database: str) -> Settings:
    """The default settings on the session's servers, in a namespace and a database of the test's own."""
    return load_settings(kafka=stack.kafka, postgres=fresh_database, namespace=fresh_namespace)
