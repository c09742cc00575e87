"""What acceptance tests share: one whole Turnlog for the session, and the public clients' own Python."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from tests.support.up import Up, turnlog_up


@pytest.fixture(scope="session")
def up(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Up]:
    """`turnlog up` with two workers and two gateways."""
    with turnlog_up(tmp_path_factory.mktemp("up") / "data", "--workers", "2", "--gateways", "2") as running:
        yield running


@pytest.fixture(scope="session")
def clients_python() -> str:
    """The Python that has the unmodified public clients."""
    python = os.environ.get("TURNLOG_CLIENTS_PYTHON")
    if python is None:
        pytest.skip(
            "TURNLOG_CLIENTS_PYTHON is not set: `python3 dev.py test` makes the environment of the public clients, "
            "which pin another `websockets` than this project"
        )
    return python
