"""What an operator does is noted before it happens: what no worker would note does not happen."""

from __future__ import annotations

import pytest

from ops.cli.common import translated_failures
from ops.cli.errors import USAGE, CommandFailed
from ops.decided import CannotNote, noted
from streams.settings import load_settings

pytestmark = pytest.mark.unit

NOWHERE = load_settings(kafka="127.0.0.1:1", postgres="postgresql://unused")


@pytest.mark.parametrize(
    ("by", "reason", "field"),
    [("x" * 3_000, "", "by"), ("", "", "by"), ("ana", "\0", "reason")],
)
async def test_a_note_that_a_worker_would_refuse_is_refused_before_anything_is_done(
    by: str, reason: str, field: str
) -> None:
    with pytest.raises(CannotNote, match=field):
        await noted(NOWHERE, action="text_shown", subject="sql", by=by, reason=reason, partition=0)


def test_it_is_wrong_input_of_a_command() -> None:
    with pytest.raises(CommandFailed, match="not done") as failed, translated_failures():
        raise CannotNote("it cannot be noted in the journal, and is not done: by: too long")
    assert failed.value.exit_code == USAGE
