"""Ownership as a picture: a lane for each member, a bar for each run that it held, a line where one changed hands."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from html import escape
from typing import Any, Final

WIDTH: Final = 1_040
NAMES: Final = 230
LANE: Final = 26
BAR: Final = 16
TOP: Final = 22
LEAST: Final = 3.0
"""Width of the shortest bar: one that is over in no time is seen all the same."""
LANES_MOST: Final = 40
TRACKS_MOST: Final = 8
BARS_MOST: Final = 1_500
NAME_SHOWN: Final = 32

_CLASSES: Final = {
    "answered": "answered",
    "open": "open",
    "failed": "failed",
    "timed_out": "failed",
    "owner_gone": "failed",
}


def drawn(lanes: Sequence[Mapping[str, Any]], moment: Callable[[int], str]) -> str:
    """SVG of the `lanes` of one conversation; empty when nobody held anything."""
    lanes = lanes[:BARS_MOST]
    if not lanes:
        return ""
    begin = min(lane["from"] for lane in lanes)
    end = max(begin + 1, *(lane["until"] or lane["from"] for lane in lanes))
    scale = (WIDTH - NAMES - 16) / (end - begin)
    rows, tracks = _placed(lanes, end)
    tops, height = {}, TOP
    for row, count in rows.items():
        tops[row] = height
        height += count * (BAR + 3) + LANE - BAR
    parts = [
        f'<svg viewBox="0 0 {WIDTH} {height + 8}" role="img" aria-label="who held which run, over time">',
        f'<text class="soft" x="{NAMES}" y="12">{escape(moment(begin))}</text>',
        f'<text class="soft" x="{WIDTH - 16}" y="12" text-anchor="end">{escape(moment(end))}</text>',
    ]
    for (group, member), y in tops.items():
        name = "waits" if member is None else member
        title = f"<title>{escape(f'{name} of {group}')}</title>"
        parts.append(f'<line class="axis" x1="0" y1="{y}" x2="{WIDTH - 16}" y2="{y}"/>')
        parts.append(f'<text class="name" x="0" y="{y + 17}">{escape(_short(name))}{title}</text>')
    before: dict[str, tuple[float, int]] = {}
    for lane, track in zip(lanes, tracks, strict=True):
        top = tops.get((lane["group"], lane["member"]))
        if top is None:
            continue
        x = NAMES + (lane["from"] - begin) * scale
        width = max(LEAST, ((lane["until"] or end) - lane["from"]) * scale)
        y = top + 5 + track * (BAR + 3)
        parts += _hand(before.get(lane["run_id"]), x, y)
        parts.append(_bar(lane, x, y, width, moment))
        before[lane["run_id"]] = (x + width, y)
    return "\n".join([*parts, "</svg>"])


def _placed(lanes: Sequence[Mapping[str, Any]], end: int) -> tuple[dict[tuple[str, str | None], int], Sequence[int]]:
    """Of each row how many tracks it has, and of each lane the track: runs of one time lie below each other."""
    busy: dict[tuple[str, str | None], list[int]] = {}
    tracks = []
    for lane in lanes:
        row = (lane["group"], lane["member"])
        if row not in busy and len(busy) == LANES_MOST:
            tracks.append(0)
            continue
        until = busy.setdefault(row, [])
        free = next((at for at, time in enumerate(until) if time <= lane["from"]), len(until))
        free = min(free, TRACKS_MOST - 1)
        if free == len(until):
            until.append(0)
        until[free] = lane["until"] or end
        tracks.append(free)
    return {row: len(until) for row, until in busy.items()}, tracks


def _bar(lane: Mapping[str, Any], x: float, y: int, width: float, moment: Callable[[int], str]) -> str:
    outcome = str(lane["outcome"] or "open")
    kind = "moved" if outcome.startswith("moved") else _CLASSES.get(outcome, "ended")
    if lane["member"] is None:
        kind = "ended"
    until = "the end" if lane["until"] is None else moment(lane["until"])
    said = f"turn {lane['turn_seq']}, run epoch {lane['run_epoch']}: {outcome}; {moment(lane['from'])} to {until}"
    label = ""
    if width > 7.0 * len(str(lane["turn_seq"])) + 6:
        label = f'<text x="{x + 4:.1f}" y="{y + 12}" style="fill:#fff">{lane["turn_seq"]}</text>'
    return (
        f'<g><title>{escape(said)}</title><rect class="{kind}" x="{x:.1f}" y="{y}" width="{width:.1f}" '
        f'height="{BAR}" rx="3"/>{label}</g>'
    )


def _hand(before: tuple[float, int] | None, x: float, y: int) -> list[str]:
    """The line from where the run was before."""
    if before is None or before[1] == y:
        return []
    from_x, from_y = before
    middle = BAR // 2
    return [f'<path class="hand" d="M{from_x:.1f} {from_y + middle} L{x:.1f} {y + middle}"/>']


def _short(name: str) -> str:
    return name if len(name) <= NAME_SHOWN else f"…{name[-NAME_SHOWN + 1 :]}"
