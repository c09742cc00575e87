"""The distribution's shape: what a stranger's `pip install turnlog` may and may not pull in."""

import subprocess
import sys

import pytest

pytestmark = pytest.mark.unit

SERVER_ONLY = ("aiokafka", "faust", "psycopg", "fastavro", "starlette", "streams", "connectors", "ops", "schemas")


def test_importing_the_sdk_loads_nothing_of_the_server() -> None:
    loaded = subprocess.run(
        [sys.executable, "-c", "import sys, turnlog; print('\\n'.join(sys.modules))"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout.splitlines()
    assert "turnlog" in loaded
    assert not set(SERVER_ONLY) & {name.partition(".")[0] for name in loaded}
