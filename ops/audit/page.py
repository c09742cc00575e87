"""A report as one HTML file that needs nothing else: to be read, printed and kept. Everything that was written by
somebody is escaped."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from html import escape
from importlib.resources import files
from typing import Any, Final

from ops.audit.lanes import drawn

COUNTS: Final = {
    "turns": ("turn", "turns", "what people and callers said, in the whole partitions"),
    "answered": ("turn answered", "turns answered", "by every group that they were given to"),
    "open": ("turn open", "turns open", "waiting for an agent, or being answered"),
    "ended": (
        "turn ended",
        "turns ended",
        "without an answer, with a reason: failed, cancelled, timed out, owner gone",
    ),
    "unrouted": ("turn for nobody", "turns for nobody", "of a channel that was routed to no agents"),
    "takeovers": ("takeover", "takeovers", "runs that another member took over from the one that had them"),
    "continued": ("run continued", "runs continued", "of the takeovers: went on in the middle of the answer"),
    "fenced": ("frame fenced", "frames fenced", "refused, for their sender no longer held the run; nobody saw them"),
    "skewed": ("turn of another clock", "turns of other clocks", "sent by a clock more than a minute off the broker's"),
}
"""Of a verdict's counts: one, many, and what is counted."""

Row = Mapping[str, Any]
Moment = Callable[[int], str]

STYLE: Final = (files("ops.audit") / "report.css").read_text("utf-8")


def page(report: Row, moment: Moment) -> str:
    """The file. `moment` writes a time in ms for people."""
    whole = "the whole journal" if report["conversation"] is None else f"conversation {report['conversation']}"
    parts = [
        "<!doctype html>",
        f'<html lang="en"><head><meta charset="utf-8"><title>Turnlog audit report: {_e(whole)}</title>',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">",
        f"<style>{STYLE}</style></head><body><main>",
        f"<h1>Turnlog audit report</h1><p>Of <b>{_e(whole)}</b>, {_partitions(report['partitions'])}, ",
        f"{_e(moment(report['from']))} to {_e(moment(report['to']))} UTC.</p>",
        f'<p class="soft">Made {_e(moment(report["made_at"]))} UTC from journal <code>{_e(report["journal"])}</code>.',
        f"What people and agents said is {'shown' if report['text_shown'] else 'not shown, only how long it was'}.</p>",
        *_missing(report["missing"]),
        *_banner(report),
        *_cards(report),
        *_promises(report),
        *_conversations(report, moment),
        *_refusals(report, moment),
        *_members(report, moment),
        *_writers(report, moment),
        "<footer>Each figure is from the journal alone; <code>turnlog audit verify</code> checks it again,",
        "<code>turnlog audit explain CONVERSATION/SEQ</code> tells why a turn went where it did.</footer>",
        "</main></body></html>\n",
    ]
    return "\n".join(parts)


def _e(value: object) -> str:
    return escape("-" if value is None else str(value), quote=True)


def _count(number: int, what: str) -> str:
    return f"{number:,} {what}" if number == 1 else f"{number:,} {what}s"


def _partitions(partitions: Sequence[int]) -> str:
    if len(partitions) == 1:
        return f"partition {partitions[0]}"
    return f"{len(partitions)} partitions"


def _missing(missing: Sequence[Row]) -> Iterable[str]:
    if missing:
        yield '<div class="missing"><b>History is missing.</b> What rests on it cannot be told, nor verified:<ul>'
        for each in missing:
            yield f"<li>partition {each['partition']}: offsets {each['from']:,} to {each['to']:,}</li>"
        yield "</ul></div>"


def _banner(report: Row) -> Iterable[str]:
    verdict = report["verdict"]
    if verdict is None:
        yield f'<div class="banner doubt">Not verified<small>{_e(report["could_not_verify"])}</small></div>'
    elif verdict["ok"]:
        said = f"{verdict['events']:,} events checked, {len(report['invariants'])} promises"
        held = "Every promise holds"
        if verdict["unchecked"]:
            held = "No promise is broken, as far as could be checked"
            said += f"; not, or not of all: {', '.join(map(str, verdict['unchecked']))}"
        yield f'<div class="banner good">{held}<small>{said}</small></div>'
    else:
        found = _count(verdict["violations_total"], "violation")
        yield f'<div class="banner bad">{found}<small>listed below</small></div>'
    for note in report["notes"]:
        yield f'<p class="soft">{_e(note)}</p>'


def _cards(report: Row) -> Iterable[str]:
    verdict = report["verdict"]
    if verdict is None:
        return
    yield '<div class="cards">'
    for name, (one, many, meaning) in COUNTS.items():
        label = one if verdict[name] == 1 else many
        yield f'<div class="card"><b>{verdict[name]:,}</b><span>{label}</span><small>{_e(meaning)}</small></div>'
    yield "</div>"


def _promises(report: Row) -> Iterable[str]:
    yield "<h2>Promises</h2><table><tr><th>#</th><th>Promise</th><th>Result</th></tr>"
    for each in report["invariants"]:
        found = each["violations"]
        result = '<td class="soft">not checked</td>' if found is None else '<td class="yes">✓ holds</td>'
        if each["unchecked"]:
            result = '<td class="soft">not checked, or not of all</td>'
        if found:
            result = f'<td class="no">✗ {_count(found, "violation")}</td>'
        yield f'<tr><td class="n">{each["invariant"]}</td><td>{_e(each["promise"])}</td>{result}</tr>'
    yield "</table>"
    violations = [] if report["verdict"] is None else report["verdict"]["violations"]
    if violations:
        rows = [(v["invariant"], v["partition"], v["lsn"], v["conversation"], v["problem"]) for v in violations]
        yield "<h2>Violations</h2>"
        yield from _table(("#", "partition", "lsn", "conversation", "problem"), rows, numbers=3)


def _table(columns: Sequence[str], rows: Iterable[Sequence[object]], *, numbers: int) -> Iterable[str]:
    """`numbers`: so many columns, from the first, are short."""
    yield "<table><tr>" + "".join(f"<th>{column}</th>" for column in columns) + "</tr>"
    for row in rows:
        cells = (f'<td class="{"n" if at < numbers else "words"}">{_e(cell)}</td>' for at, cell in enumerate(row))
        yield f"<tr>{''.join(cells)}</tr>"
    yield "</table>"


def _conversations(report: Row, moment: Moment) -> Iterable[str]:
    if not report["conversations"]:
        return
    yield "<h2>Conversations: who owned what</h2>"
    yield (
        '<p class="key"><span><i class="answered"></i>answered</span><span><i class="moved"></i>moved on</span>'
        '<span><i class="open"></i>open at the end</span>'
        '<span><i class="failed"></i>failed, timed out, owner gone</span>'
        '<span><i class="ended"></i>cancelled or waiting</span></p>'
    )
    for told in report["conversations"]:
        name = _e(told["conversation"])
        yield f'<section class="talk" id="c-{name}"><header><h3 class="id">{name}</h3>'
        counts = (
            f"{_count(told['turns'], 'turn')}, {_count(told['moves'], 'move')}, {_count(told['refusals'], 'refusal')}"
        )
        span = f"{_e(moment(told['from']))} to {_e(moment(told['to']))}"
        yield f'<span class="soft">partition {told["partition"]}, {counts}; {span}</span></header>'
        yield drawn(told["lanes"], moment)
        yield "<details open><summary>Timeline</summary>"
        yield from _timeline(told["timeline"], moment)
        if told["timeline_left_out"]:
            yield f'<p class="soft">{told["timeline_left_out"]:,} later events are not listed.</p>'
        yield "</details></section>"
    if report["conversations_left_out"]:
        yield f'<p class="soft">{report["conversations_left_out"]:,} further conversations are not told of.</p>'


def _timeline(lines: Sequence[Row], moment: Moment) -> Iterable[str]:
    yield "<table><tr><th>time (UTC)</th><th>lsn</th><th>seq</th><th>what happened</th></tr>"
    for line in lines:
        cells = "".join(f'<td class="n">{cell}</td>' for cell in _when(line, moment))
        words = "".join([_e(line["words"]), *_pieces(line, moment)])
        yield f'<tr>{cells}<td class="words">{words}</td></tr>'
    yield "</table>"


def _when(line: Row, moment: Moment) -> Sequence[str]:
    return [_e(moment(line["timestamp"])), _e(line["lsn"]), _e(line["seq"] or "")]


def _pieces(line: Row, moment: Moment) -> Iterable[str]:
    """The pieces of a streamed answer, folded away."""
    pieces = line.get("pieces", ())
    if not pieces:
        return
    many = _count(len(pieces) + line["pieces_left_out"], "piece")
    yield f'<details class="pieces"><summary>in {many}, until {_e(moment(pieces[-1]["timestamp"]))}</summary><table>'
    for piece in pieces:
        cells = "".join(f'<td class="n">{cell}</td>' for cell in _when(piece, moment))
        yield f'<tr>{cells}<td class="words">{_e(piece["words"])}</td></tr>'
    yield "</table>"
    if line["pieces_left_out"]:
        yield f'<p class="soft">{_count(line["pieces_left_out"], "later piece")} not listed.</p>'
    yield "</details>"


def _refusals(report: Row, moment: Moment) -> Iterable[str]:
    if not report["refusals"]:
        return
    yield f"<h2>Refusals ({report['refusals_total']:,})</h2>"
    rows = [
        (moment(r["timestamp"]), r["lsn"], r["reason"], r["member"], r["conversation"], r["detail"])
        for r in report["refusals"]
    ]
    yield from _table(("time (UTC)", "lsn", "reason", "member", "conversation", "detail"), rows, numbers=3)


def _members(report: Row, moment: Moment) -> Iterable[str]:
    if not report["members"]:
        return
    yield "<h2>Members</h2>"
    rows = [
        (
            each["partition"],
            each["member"],
            each["group"],
            "before" if each["joined"] is None else moment(each["joined"]),
            "still there" if each["left"] is None else moment(each["left"]),
            each.get("reason"),
        )
        for each in report["members"]
    ]
    yield from _table(("partition", "member", "group", "joined", "left", "why"), rows, numbers=1)


def _writers(report: Row, moment: Moment) -> Iterable[str]:
    if not report["writers"]:
        return
    yield "<h2>Writers</h2>"
    rows = [
        (each["partition"], each["writer_epoch"], moment(each["timestamp"]), each["lsn"], each["worker"])
        for each in report["writers"]
    ]
    yield from _table(("partition", "epoch", "opened (UTC)", "lsn", "worker"), rows, numbers=4)
