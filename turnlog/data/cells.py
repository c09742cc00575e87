"""What several tables write into their cells the same way."""

from __future__ import annotations

from typing import Any

from turnlog.data.tables import Row


def assignments(assigned: Any) -> list[dict[str, Any]]:
    """Assignments as `tables.ASSIGNMENTS` has them."""
    return [
        {"group_name": each.group, "member": each.member, "run_id": each.run_id, "run_epoch": each.run_epoch}
        for each in assigned
    ]


def content(frame: Any) -> Row:
    """A frame's own columns, from `text` to `client_id`."""
    return (
        frame.text,
        frame.key_id,
        frame.data,
        frame.metadata,
        frame.extra,
        frame.stream_id,
        frame.done,
        frame.status,
        frame.client_id,
    )


def between(start: int | None, end: int | None) -> int | None:
    """Ms from `start` to `end`, where both are known."""
    return None if start is None or end is None else end - start


def turn_seq(run_id: str, conversation_id: str) -> int:
    """Of `<conversation>/<turn seq>[~<edition>]/<group>`."""
    number = run_id.removeprefix(f"{conversation_id}/").partition("/")[0].partition("~")[0]
    return int(number) if number.isdecimal() else 0
