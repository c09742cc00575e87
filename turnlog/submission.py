"""What a program submits when it calls an agent: options that hold for each call, and the request's body."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

DEADLINES_S = (1.0, 3600.0)


@dataclass(frozen=True, slots=True)
class Options:
    """What `AgentProxy.duplicate` may change; see `AgentProxy`."""

    url: str
    agent: str
    user: str
    deadline: float | None
    policy: str | None
    retry: bool
    budget: float


def submission(
    options: Options,
    id: str,  # noqa: A002 - its name everywhere
    text: str | None,
    data: Mapping[str, Any] | None,
    deadline: float | None,
    *,
    streamed: bool,
    wait: float,
) -> dict[str, Any]:
    """The body of an invocation's submit. Raises `ValueError` for no input, and for a deadline that is none."""
    given = {"text": text, "data": None if data is None else dict(data)}
    body: dict[str, Any] = {
        "id": id,
        "agent": options.agent,
        "input": {name: value for name, value in given.items() if value is not None},
        "streamed": streamed,
    }
    if not body["input"]:
        raise ValueError("give it a text, data, or both")
    if (ms := deadline_ms(options.deadline if deadline is None else deadline)) is not None:
        body["deadlineMs"] = ms
    if wait:
        body["wait"] = round(wait * 1000)
    if options.policy is not None:
        body["policy"] = options.policy
    if options.retry:
        body["retry"] = True
    return body


def deadline_ms(deadline: float | None) -> int | None:
    """In milliseconds, as the gateway takes it; None: the gateway's own. Raises `ValueError` for what is none."""
    least, most = DEADLINES_S
    if deadline is not None and deadline != 0 and not least <= deadline <= most:
        raise ValueError(f"deadline: {least:g} to {most:g} seconds, or 0 for none")
    return None if deadline is None else round(deadline * 1000)
