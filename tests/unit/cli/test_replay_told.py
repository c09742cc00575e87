"""What `turnlog replay` tells people of two points of history."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from ops.cli.replay import _told_fields

pytestmark = pytest.mark.unit


@pytest.mark.parametrize(
    ("fields", "changed", "told"),
    [
        ({"run_epoch": [1, 2], "member": ["gw-1.1", None]}, True, "run epoch 1 → 2, member gw-1.1 → none"),
        (
            {"next": [{"agents/bots": "gw-1.1"}, {}], "started": [False, True]},
            True,
            "next agents/bots: gw-1.1 → none, started no → yes",
        ),
        ({"asks": ["q-1", "q-2"], "frames": 0}, False, "asks q-1 q-2, frames 0"),
    ],
)
def test_fields_read_as_words(fields: Mapping[str, Any], changed: bool, told: str) -> None:
    assert _told_fields(fields, changed=changed) == told
