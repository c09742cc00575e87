"""Log lines of a server process: structured, on stderr, one format for this code's and the libraries' lines."""

from __future__ import annotations

import logging
import sys
from collections.abc import Sequence

import structlog
from structlog.typing import Processor

from streams.settings import LogFormat

# What libraries say below this is about their inner life.
LIBRARY_LEVEL = logging.WARNING
# aiokafka warns of each refused request, which the runtime reports once in its own words.
QUIET_LOGGERS: Sequence[str] = ("aiokafka", "kafka")


def configure_logs(log_format: LogFormat, level: int = logging.INFO) -> None:
    """Set up structlog and the standard library's logging for the whole process. Later calls replace earlier ones."""
    shared: list[Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    ending: list[Processor] = (
        [structlog.processors.dict_tracebacks, structlog.processors.JSONRenderer()]
        if log_format is LogFormat.JSON
        else [structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty())]
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
    for name in QUIET_LOGGERS:
        logging.getLogger(name).setLevel(logging.ERROR)
