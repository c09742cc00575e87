"""Log lines of a server process: structured, on stderr, one format for this code's and the libraries' lines."""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Callable, Sequence

import structlog
from structlog.typing import EventDict, Processor

from streams.runtime.partitioning import partition_of
from streams.settings import LogFormat

# What libraries say below this is about their inner life.
LIBRARY_LEVEL = logging.WARNING
# aiokafka warns of each refused request, which the runtime reports once in its own words.
QUIET_LOGGERS: Sequence[str] = ("aiokafka", "kafka")

# Without the frames' local variables, which structlog shows by default: connection strings and secrets are among them.
TRACEBACKS = structlog.tracebacks.ExceptionDictTransformer(show_locals=False)

FIELDS = ("conversation", "turn", "run", "run_epoch", "partition", "writer_epoch")
"""Fields of the standard library's log records that are shown, by whatever logger."""

REPEAT_AFTER_S = 10.0
"""A quiet logger says the same thing once in so long: aiokafka tries a lost broker ten times a second."""


class OnceInAWhile(logging.Filter):
    """Lets a message through unless the same one, whatever its arguments, came within the last `REPEAT_AFTER_S`."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._clock = clock
        self._said: dict[tuple[str, str], float] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        """False: it was said a moment ago. Messages are as many as there are calls in the libraries: bounded."""
        now, message = self._clock(), (record.name, str(record.msg))
        if now - self._said.get(message, -REPEAT_AFTER_S) < REPEAT_AFTER_S:
            return False
        self._said[message] = now
        return True


class Places:
    """Adds to lines about a `conversation` the partition that it lies in: a processor of structlog's."""

    def __init__(self) -> None:
        self.partitions = 0
        """How many there are; 0: not known yet, and nothing is added."""

    def __call__(self, _logger: object, _method: str, event: EventDict) -> EventDict:
        """See the class."""
        conversation = event.get("conversation")
        if self.partitions and conversation and isinstance(conversation, str) and "partition" not in event:
            event["partition"] = partition_of(conversation, self.partitions)
        return event


def configure_logs(log_format: LogFormat, places: Places | None = None, level: int = logging.INFO) -> None:
    """Set up structlog and the standard library's logging for the whole process. Later calls replace earlier ones."""
    shared: list[Processor] = [
        structlog.contextvars.merge_contextvars,
        # What `turnlog`, the SDK, says of a turn; and libraries of their own.
        structlog.stdlib.ExtraAdder(FIELDS),
        *(() if places is None else (places,)),
        structlog.stdlib.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    ending: list[Processor] = (
        [structlog.processors.ExceptionRenderer(TRACEBACKS), structlog.processors.JSONRenderer()]
        if log_format is LogFormat.JSON
        else [
            structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty(), exception_formatter=structlog.dev.plain_traceback)
        ]
    )
    structlog.configure(
        processors=[*shared, structlog.stdlib.ProcessorFormatter.wrap_for_formatter],
        wrapper_class=structlog.make_filtering_bound_logger(level),
        logger_factory=structlog.stdlib.LoggerFactory(),
        cache_logger_on_first_use=True,
    )
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=shared,
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *ending],
        )
    )
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(LIBRARY_LEVEL)
    for name in ("streams", "connectors", "ops"):
        logging.getLogger(name).setLevel(level)
    sparing = OnceInAWhile()
    for name in QUIET_LOGGERS:
        logging.getLogger(name).setLevel(logging.ERROR)
    handler.addFilter(lambda record: not record.name.startswith(tuple(QUIET_LOGGERS)) or sparing.filter(record))
