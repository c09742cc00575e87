"""How it is shown: a line of numbers, tables of partitions, members and open runs, and what just happened."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any, ClassVar, Final

from rich.text import Text
from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal
from textual.widgets import DataTable, Footer, Header, RichLog, Static

from ops.console.compare import changes, rates
from ops.console.sample import Member, OpenRun, Partition, Sample, Source

UNKNOWN: Final = "-"
PARTITIONS: Final = ("p", "state", "worker", "epoch", "lag", "in memory", "checkpoint")
MEMBERS: Final = ("member", "group", "runs", "")
RUNS: Final = ("open for", "conversation", "turn", "member", "epoch", "status")
SLOW_S: Final = 60
"""A run that is open for longer is shown in another colour."""
LAG_MANY: Final = 1_000
GOOD, BAD, DIM, ODD = "green", "bold red", "dim", "yellow"


class Top(App[None]):
    """The screen. It looks every `every_s` seconds, the next time only after the last look has come."""

    TITLE = "turnlog top"
    CSS = """
    #numbers { height: auto; padding: 0 1; background: $panel; }
    #problems { height: auto; padding: 0 1; color: $error; }
    #tables { height: 1fr; }
    #lower { height: 1fr; }
    DataTable, #events { height: 100%; border: round $primary; scrollbar-size: 1 1; }
    #partitions { width: 3fr; }
    #members { width: 2fr; }
    #runs { width: 3fr; }
    #events { width: 2fr; padding: 0 1; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("q", "quit", "Quit"),
        Binding("p", "pause", "Pause"),
        Binding("r", "look", "Look now"),
    ]

    def __init__(self, source: Source, every_s: float) -> None:
        super().__init__()
        self._source = source
        self._every_s = every_s
        self._before: Sample | None = None
        self._paused = False

    def compose(self) -> ComposeResult:
        """The parts, from top to bottom."""
        yield Header(show_clock=True)
        yield Static("looking …", id="numbers")
        yield Static("", id="problems")
        with Horizontal(id="tables"):
            yield _table("partitions", PARTITIONS)
            yield _table("members", MEMBERS)
        with Horizontal(id="lower"):
            yield _table("runs", RUNS)
            yield RichLog(id="events", max_lines=500, wrap=True, min_width=1)
        yield Footer()

    def on_mount(self) -> None:
        """Begin to look."""
        titles = {"#partitions": "partitions", "#members": "members", "#runs": "open runs, the longest first"}
        for name, title in titles.items():
            self.query_one(name, DataTable).border_title = title
        self.query_one("#events", RichLog).border_title = "what happened"
        for name, columns in (("#partitions", PARTITIONS), ("#members", MEMBERS), ("#runs", RUNS)):
            self.query_one(name, DataTable).add_columns(*columns)
        self.action_look()
        self.set_interval(self._every_s, self._tick)

    def _tick(self) -> None:
        if not self._paused:
            self.action_look()

    def action_pause(self) -> None:
        """Stand still, or go on."""
        self._paused = not self._paused
        self.sub_title = "paused" if self._paused else ""

    def action_look(self) -> None:
        """Look now. One look at a time: a slow server is not asked again meanwhile."""
        if not any(worker.group == "look" and worker.is_running for worker in self.workers):
            self.run_worker(self._look(), group="look")

    async def _look(self) -> None:
        self.show(await self._source.look())

    def show(self, sample: Sample) -> None:
        """Put a look on the screen."""
        before, self._before = self._before, sample
        self.query_one("#numbers", Static).update(_numbers(sample, {} if before is None else rates(before, sample)))
        stopped = [
            f"partition {each.partition} is stopped: {each.stopped}" for each in sample.partitions if each.stopped
        ]
        problems = self.query_one("#problems", Static)
        problems.update(Text("\n".join([*sample.problems, *stopped])))
        problems.display = bool(sample.problems or stopped)
        _fill(self.query_one("#partitions", DataTable), [_partition(each) for each in sample.partitions])
        _fill(self.query_one("#members", DataTable), [_member(each) for each in sample.members])
        _fill(self.query_one("#runs", DataTable), [_run(each, sample.now_ms) for each in sample.runs])
        if before is not None:
            events, now = self.query_one("#events", RichLog), f"{datetime.now(UTC):%H:%M:%S}"
            for sentence in changes(before, sample):
                events.write(Text.assemble((now, DIM), " ", sentence))


def _table(name: str, columns: Sequence[str]) -> DataTable[Any]:
    table: DataTable[Any] = DataTable(id=name, cursor_type="row", zebra_stripes=True)
    table.tooltip = ", ".join(column for column in columns if column)
    return table


def _fill(table: DataTable[Any], rows: Sequence[Sequence[Any]]) -> None:
    """New rows, with the cursor and the scroll where they were. A cell that is a `str` would be read as markup, and ids
    of conversations and groups are whatever their users called them."""
    cursor, scroll = table.cursor_row, table.scroll_y
    table.clear()
    for row in rows:
        table.add_row(*(Text(cell) if isinstance(cell, str) else cell for cell in row))
    table.move_cursor(row=min(cursor, max(len(rows) - 1, 0)))
    table.scroll_to(y=scroll, animate=False)


def _numbers(sample: Sample, a_second: dict[str, float]) -> Text:
    """Two lines: how it is, and how much goes on."""
    live = [each for each in sample.partitions if each.live]
    stopped = [each for each in sample.partitions if each.stopped]
    lags = [each.lag for each in sample.partitions if each.lag is not None]
    first: list[Any] = [
        ("partitions ", DIM),
        (f"{len(live)}/{len(sample.partitions)}", GOOD if len(live) == len(sample.partitions) and live else BAD),
        *([("  stopped ", DIM), (str(len(stopped)), BAD)] if stopped else []),
        ("   workers ", DIM),
        (str(len(sample.workers)), "" if sample.workers else BAD),
        ("   members ", DIM),
        str(len(sample.members)),
        ("   open runs ", DIM),
        str(sample.open_runs),
        ("   lag ", DIM),
        (str(sum(lags)) if lags else UNKNOWN, ODD if sum(lags) > LAG_MANY else ""),
        ("   connections ", DIM),
        UNKNOWN if sample.connections is None else str(sample.connections),
    ]
    second: list[Any] = []
    for name in ("turns", "frames", "events"):
        rate = a_second.get(name)
        second += [(f"{name}/s ", DIM), UNKNOWN if rate is None else f"{rate:,.1f}", "   "]
    for name in ("takeovers", "runs moved", "refusals", "fenced", "dead letters"):
        total = sample.totals.get(name)
        style = ODD if total and name in {"fenced", "dead letters"} else ""
        second += [(f"{name} ", DIM), (UNKNOWN if total is None else f"{total:,.0f}", style), "   "]
    return Text.assemble(*first, "\n", *second)


def _partition(each: Partition) -> list[Any]:
    state = "stopped" if each.stopped else each.state or ("held" if each.live else "nobody's")
    good = state in {"running", "held"} and each.live
    age = UNKNOWN if each.checkpoint_age_ms is None else f"{max(each.checkpoint_age_ms, 0) / 1000:.0f} s ago"
    lag = Text(UNKNOWN if each.lag is None else str(each.lag), ODD if (each.lag or 0) > LAG_MANY else "")
    resident = UNKNOWN if each.resident is None else str(each.resident)
    return [each.partition, Text(state, GOOD if good else BAD), each.worker, each.writer_epoch, lag, resident, age]


def _member(each: Member) -> list[Any]:
    return [each.member, each.group, each.runs, Text("drains", ODD) if each.draining else ""]


def _run(each: OpenRun, now_ms: int) -> list[Any]:
    seconds = max(now_ms - each.opened_at, 0) / 1000
    took = f"{seconds:.1f} s" if seconds < SLOW_S else f"{seconds // 60:.0f} min {seconds % 60:.0f} s"
    return [
        Text(took, ODD if seconds > SLOW_S else ""),
        each.conversation,
        each.turn_seq,
        each.member or Text("nobody", ODD),
        Text(str(each.run_epoch), ODD if each.run_epoch > 1 else ""),
        each.status,
    ]
