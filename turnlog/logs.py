"""Log lines of an agent: the conversation, turn and run that each one is about.

The SDK's own lines have them as fields of the record (`extra`). So has every line that is logged within a handler, by
whatever library, where the program's logging asks for it:

    out = logging.StreamHandler()
    out.addFilter(TurnFields())
"""

from __future__ import annotations

import logging
from contextvars import ContextVar
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from turnlog.run import Run

ANSWERED: ContextVar[Run | None] = ContextVar("turnlog_run", default=None)
"""The run whose handler this is."""


def about(run: Run) -> dict[str, object]:
    """What a log line says of a run, by the names of its fields; none is empty."""
    turn = run.turn
    fields = {"conversation": turn.conversation, "turn": turn.id, "run": turn.run, "run_epoch": run.epoch}
    return {name: value for name, value in fields.items() if value is not None}


class TurnFields(logging.Filter):
    """Gives records that are logged within a turn's handler the fields `conversation`, `turn`, `run` and `run_epoch`.

    Add it to a handler of the program's logging. It lets every record through.
    """

    def filter(self, record: logging.LogRecord) -> bool:
        """See the class."""
        run = ANSWERED.get()
        for name, value in about(run).items() if run is not None else ():
            record.__dict__.setdefault(name, value)
        return True
