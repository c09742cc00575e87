"""One run: the place, its people, the schedule of faults, the healing, the wait for every turn's end, and the proof.

Safety is checked over all that was written and seen; liveness from the moment when the last fault was undone: every
turn is answered or ended within a stated time, what lies in the intake shrinks to nothing, a slow reader delays nobody.
"""

from __future__ import annotations

import asyncio
import random
import shlex
import shutil
import tempfile
from collections import Counter
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any, Final

import httpx

from ops.audit.verify import Scope, verify_cluster
from ops.audit.violations import Verdict
from ops.chaos import guards, lag, probe, seen
from ops.chaos.backups import Backups
from ops.chaos.guards import CONTROLS, Guard
from ops.chaos.nemeses import Nemeses
from ops.chaos.notes import Notebook, notes
from ops.chaos.people import REQUEST_S, Person
from ops.chaos.place import GATEWAYS, PARTITIONS, TTL_MS, Notify, Place, opened
from ops.chaos.processes import AGAIN_MOST_S
from ops.chaos.promises import fences_a_minute, log_problems
from ops.chaos.schedule import TTL_S, Fault, Nemesis, schedule
from ops.chaos.standstill import Standstill, measured
from ops.chaos.state import state_of
from ops.chaos.viewers import By, Viewer
from ops.chaos.writers import writer_problems
from ops.journal import entries_of
from streams.core.events import Entry, WriterOpened

PEOPLE: Final = 10
FIRST_ANSWER_WITHIN_S: Final = 60.0
BACKOFF_MOST_S: Final = 6.4
ADOPT_S: Final = 5.0
RESTART_S: Final = 10.0
LIVENESS_S: Final = round(AGAIN_MOST_S + RESTART_S + 2 * TTL_S + BACKOFF_MOST_S + TTL_S + ADOPT_S + 30.0)
"""Once the last fault is undone, every turn is answered or ended so soon, and every viewer has seen it: processes are
tried again (8 s) and back (a busy machine's 10 s), a zombie's lease ends and its successor's backoff (6.4 s) ends, each
TTL starts anew after the claim, an adopted run that nobody has is given again (5 s), and a person's or an agent's own
patience with a request that was lost is over (30 s at most). Times in which the machine stood still do not count."""
LOOK_S: Final = 1.0
SHOWN_MOST: Final = 40


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What to run. `data` None: a temporary folder, removed unless something is wrong. No `nemeses`: all of them; or,
    for a control, those under which its guard is missed."""

    seed: int
    minutes: float
    nemeses: Sequence[Nemesis] = ()
    data: Path | None = None
    without: Guard | None = None
    """The control: workers run without this guard, and something must be found."""

    @property
    def faults(self) -> Sequence[Fault]:
        """The schedule."""
        chosen = self.nemeses or (() if self.without is None else CONTROLS[self.without].nemeses)
        return schedule(self.seed, self.minutes * 60, chosen)

    @property
    def for_workers(self) -> Mapping[str, str]:
        """Variables that worker processes get on top."""
        return {} if self.without is None else {guards.VARIABLE: self.without, **CONTROLS[self.without].settings}

    @property
    def command(self) -> str:
        """What repeats it."""
        chosen = chain.from_iterable(("--nemesis", str(each)) for each in self.nemeses)
        control = [] if self.without is None else ["--without", str(self.without)]
        begin = ["turnlog", "chaos", "--seed", str(self.seed), "--minutes", f"{self.minutes:g}"]
        return shlex.join([*begin, *chosen, *control])


@dataclass(slots=True)
class Report:
    """What a run came to. `document()` is the contract with scripts: `turnlog chaos -o json`."""

    plan: Plan
    faults: Counter[str] = field(default_factory=Counter)
    unmet: list[str] = field(default_factory=list)
    violations: list[str] = field(default_factory=list)
    counts: dict[str, int] = field(default_factory=dict)
    refusals: Counter[str] = field(default_factory=Counter)
    unasked: dict[str, list[str]] = field(default_factory=dict)
    mistaken: list[str] = field(default_factory=list)
    """Turns that the known limit was met with (`limits`)."""
    settled_s: float | None = None
    probe_s: float | None = None
    """The longest that anybody waited for an answer while a viewer read nothing."""
    stood_s: float = 0.0
    """So long the machine, or this process, stood still: limits of liveness do not count it."""
    stood_longest_s: float = 0.0
    """The longest time of those."""
    load: float = 0.0
    """The highest load average of a minute."""
    cuts: str = ""
    """How cuts were made."""
    data: Path | None = None
    database: Path | None = None
    """Where PostgreSQL's data is after a failover."""

    @property
    def ok(self) -> bool:
        """Nothing that was promised is broken."""
        return not self.violations

    def document(self) -> dict[str, Any]:
        """For scripts."""
        return {
            "ok": self.ok,
            "seed": self.plan.seed,
            "minutes": self.plan.minutes,
            "faults": dict(sorted(self.faults.items())),
            "unmet": self.unmet,
            **self.counts,
            "refusals": dict(sorted(self.refusals.items())),
            "ended_unasked": self.unasked,
            "mistaken": self.mistaken,
            "settled_s": self.settled_s,
            "slow_reader_probe_s": self.probe_s,
            "stood_still_s": self.stood_s,
            "stood_still_longest_s": self.stood_longest_s,
            "load_most": self.load,
            "cuts": self.cuts,
            "violations": self.violations[:SHOWN_MOST],
            "violations_total": len(self.violations),
            "data": None if self.data is None else str(self.data),
            "repeat": self.plan.command,
        }


@dataclass(slots=True)
class Crowd:
    """The people, and who looks on: one viewer of each conversation by SSE, one by WebSocket."""

    people: list[Person] = field(default_factory=list)
    viewers: list[Viewer] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    stop: asyncio.Event = field(default_factory=asyncio.Event)
    talking: list[asyncio.Task[None]] = field(default_factory=list)
    looking: list[asyncio.Task[None]] = field(default_factory=list)
    http: httpx.AsyncClient | None = None
    notebook: Notebook | None = None

    def of(self, person: Person) -> list[Viewer]:
        """Who looks at this person's conversation."""
        return [viewer for viewer in self.viewers if viewer.conversation == person.conversation]


async def run(plan: Plan, notify: Notify) -> Report:
    """Run it. `notify` gets a line for each thing that happens. Raises what the start of a stack raises."""
    data = plan.data or Path(tempfile.mkdtemp(prefix="turnlog-chaos-"))
    async with measured() as standstill:
        report = await _run(plan, data, _Clock(notify, standstill))
        report.stood_s = round(standstill.stood_s(0.0), 1)
        report.stood_longest_s = round(standstill.longest_s(), 1)
        report.load = round(standstill.load, 1)
    if report.ok and plan.data is None:
        await asyncio.to_thread(shutil.rmtree, data)
        report.data = None
    return report


async def _run(plan: Plan, data: Path, clock: _Clock) -> Report:
    clock.say(f"seed {plan.seed}: {len(plan.faults)} faults within {plan.minutes:g} min; again: {plan.command}")
    report = Report(plan, data=data)
    small_disk = any(fault.nemesis is Nemesis.DISK_FULL for fault in plan.faults)
    async with _said_where(data, clock), opened(data, clock.say, plan.for_workers, small_disk=small_disk) as place:
        report.cuts = place.how_cut
        clock.say(f"cuts: {report.cuts}")
        async with _crowd(place, plan.seed) as crowd:
            nemeses = Nemeses(place, Backups(place.settings.postgres), crowd.viewers, plan.seed)
            await nemeses.outages.back_up()
            await _faults(plan, nemeses, report, clock)
            await _settled(place, crowd, report, clock)
            if report.ok:
                clock.say("a viewer stops reading; the others must not notice")
                await _probed(place, crowd, report, clock.standstill)
            report.unmet = nemeses.unmet
            clock.say("the audit reads everything again")
            await _proof(place, crowd, nemeses, report)
        report.database = place.database.data
        _count(place, crowd, report)
    clock.say("clean" if report.ok else f"{len(report.violations)} violations")
    return report


class _Clock:
    """Lines for people, each with the seconds since the start in front."""

    def __init__(self, notify: Notify, standstill: Standstill) -> None:
        self._notify = notify
        self._began = standstill.now()
        self.standstill = standstill

    def say(self, line: str) -> None:
        self._notify(f"{self.standstill.now() - self._began:7.1f} s  {line}")


@asynccontextmanager
async def _said_where(data: Path, clock: _Clock) -> AsyncIterator[None]:
    try:
        yield
    except BaseException:
        clock.say(f"not finished; the logs are in {data}")
        raise


@asynccontextmanager
async def _crowd(place: Place, seed: int) -> AsyncIterator[Crowd]:
    """People who talk, and viewers; the first answers are there when it is given."""
    crowd, secret = Crowd(), place.secret("web")
    notebook = Notebook(place.seen / "viewers.jsonl")
    async with httpx.AsyncClient(timeout=REQUEST_S, limits=httpx.Limits(max_connections=4 * PEOPLE)) as http:
        crowd.http, crowd.notebook = http, notebook
        try:
            for number in range(PEOPLE):
                rng = random.Random(f"turnlog-chaos-person-{seed}-{number}")  # noqa: S311 -- no secret
                person = Person(f"p{number}", place.urls, rng, crowd.problems)
                await person.arrive(http, secret)
                crowd.people.append(person)
                for by in By:
                    # Half of them begin at the other gateway.
                    urls = [place.urls[(number + n) % GATEWAYS] for n in range(GATEWAYS)]
                    crowd.viewers.append(Viewer(person.conversation, person.token, urls, by, notebook))
            crowd.looking = [asyncio.create_task(viewer.look()) for viewer in crowd.viewers]
            crowd.talking = [
                asyncio.create_task(person.talk(http, crowd.of(person)[0], crowd.stop)) for person in crowd.people
            ]
            async with asyncio.timeout(FIRST_ANSWER_WITHIN_S):
                await asyncio.gather(*(_first_answer(viewer) for viewer in crowd.viewers))
            yield crowd
        finally:
            tasks = [*crowd.talking, *crowd.looking]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            notebook.close()


async def _first_answer(viewer: Viewer) -> None:
    while viewer.last < 2:  # noqa: ASYNC110 -- the start of a run, looked at a few times
        await asyncio.sleep(LOOK_S / 10)


async def _faults(plan: Plan, nemeses: Nemeses, report: Report, clock: _Clock) -> None:
    """The schedule, each fault at its time; returns when the last one is undone."""
    began = asyncio.get_running_loop().time()

    async def one(fault: Fault) -> None:
        clock.say(f"{fault.what} for {fault.for_s:g} s")
        await nemeses.do(fault)
        clock.say(f"over: {fault.what}")

    async with asyncio.TaskGroup() as tasks:
        for fault in plan.faults:
            await asyncio.sleep(max(0.0, began + fault.at_s - asyncio.get_running_loop().time()))
            report.faults[str(fault.nemesis)] += 1
            tasks.create_task(one(fault), name=fault.what)


async def _settled(place: Place, crowd: Crowd, report: Report, clock: _Clock) -> None:
    """Every fault is undone: wait until all is answered and seen. What is not in time is a violation of liveness."""
    crowd.stop.set()
    standstill = clock.standstill
    began = standstill.now()
    clock.say(f"all faults are over; every turn must be answered and seen within {LIVENESS_S} s")
    left = ["nobody looked yet"]
    try:
        async with standstill.within(LIVENESS_S):
            await asyncio.gather(*(process.ready.wait() for process in place.processes() if process.wanted))
            await asyncio.gather(*crowd.talking)
            while left := await _unsettled(place, crowd):  # noqa: ASYNC110 -- others' state: it has to be asked for
                await asyncio.sleep(LOOK_S)
    except TimeoutError:
        down = [process.name for process in place.processes() if process.wanted and not process.ready.is_set()]
        silent = [p.name for p, task in zip(crowd.people, crowd.talking, strict=True) if not task.done()]
        report.violations.append(
            f"liveness: {LIVENESS_S} s after the last fault, and {standstill.stood_s(began):.1f} s of standstill: "
            f"{'; '.join(left[:10])}; processes not ready: {down}; people whose line is not taken: {silent}"
        )
    else:
        report.settled_s = round(standstill.ran_s(began), 1)
        clock.say(f"settled after {report.settled_s} s")


async def _unsettled(place: Place, crowd: Crowd) -> list[str]:
    journal = await _journal(place)
    told = seen.tell(chain.from_iterable(journal.values()))
    turns = await lag.waiting(place.settings, journal)
    left = [f"partition {number} has {count} turns without outcome" for number, count in turns.items() if count]
    for conversation, each in told.items():
        left += [f"{run} is open" for run in each.open_runs]
        left += [f"turn {turn.seq} of {conversation} waits" for turn in each.turns() if turn.waiting and not each.given]
    for viewer in crowd.viewers:
        head = len(told[viewer.conversation].numbered) if viewer.conversation in told else 0
        if viewer.last < head:
            left.append(f"a viewer of {viewer.conversation} by {viewer.by} saw {viewer.last} of {head}")
    return left


async def _journal(place: Place) -> dict[int, list[Entry]]:
    """By partition."""
    return {
        partition: [entry async for entry in entries_of(place.settings, partition, follow=False)]
        for partition in range(PARTITIONS)
    }


async def _probed(place: Place, crowd: Crowd, report: Report, standstill: Standstill) -> None:
    person, http, notebook = crowd.people[0], crowd.http, crowd.notebook
    if http is None or notebook is None:
        raise RuntimeError("nobody is there to be asked")
    slow, others = probe.slow_viewer(person, place.urls, notebook), crowd.of(person)
    state = partial(state_of, place, http)
    waited_s = await probe.slow_reader_delays_nobody(
        http, person, slow, others, problems=report.violations, standstill=standstill, state=state
    )
    report.probe_s = round(waited_s, 3)
    crowd.viewers.append(slow)


async def _proof(place: Place, crowd: Crowd, nemeses: Nemeses, report: Report) -> None:
    """Invariants 1 to 7 and 9 to 12 by the audit, 8 by what the clients wrote down; what leases, checkpoints and intake
    promise by what workers wrote down and by the logs."""
    verdict = await verify_cluster(place.settings, Scope(), lambda _: None)
    report.violations += _audited(verdict)
    journal = await _journal(place)
    for partition, partitions_own in journal.items():
        changes = await lag.changes(place.settings, partition)
        report.violations += log_problems(partition, partitions_own, changes, TTL_MS)
    diaries = {each.name: _notes(place, each.name) for each in (*place.workers, *place.passers_by)}
    report.violations += writer_problems(diaries, nemeses.outages.losses)
    entries = list(chain.from_iterable(journal.values()))
    told = seen.tell(entries)
    agents = {each.name: _notes(place, each.name) for each in (*place.agents, *place.guest_agents)}
    for person in crowd.people:
        conversation = told.get(person.conversation, seen.Told())
        report.violations += seen.line_problems(person.name, conversation, person.lines)
        report.violations += seen.answer_problems(person.conversation, conversation)
        report.mistaken += sorted(conversation.mistaken)
        for viewer in crowd.of(person):
            report.violations += seen.viewer_problems(person.conversation, conversation, viewer.seen)
    report.violations += seen.delivery_problems(told, agents)
    report.violations += crowd.problems
    report.violations += [problem for viewer in crowd.viewers for problem in viewer.problems]
    tally = verdict.tally
    report.counts = {
        "events": tally.events,
        "turns": tally.turns,
        "answered": tally.answered,
        "ended": tally.ended,
        "open": tally.open,
        "takeovers": tally.takeovers,
        "fenced": tally.fenced,
        "writer_epochs": sum(isinstance(entry.event, WriterOpened) for entry in entries),
        "deliveries": sum(note["note"] == "turn" for each in agents.values() for note in each),
        "frames_seen": sum(len(viewer.seen) for viewer in crowd.viewers),
        "fences_a_minute": max(fences_a_minute(each) for each in journal.values()),
        "connections": sum(viewer.connections for viewer in crowd.viewers),
    }


def _notes(place: Place, name: str) -> list[dict[str, Any]]:
    return list(notes(place.seen / f"{name}.jsonl"))


def _audited(verdict: Verdict) -> list[str]:
    found = [
        f"invariant {each.invariant} (partition {each.partition}, lsn {each.lsn}, conversation {each.conversation}): "
        f"{each.problem}"
        for each in verdict.findings.shown
    ]
    more = verdict.findings.count - len(found)
    return [*found, f"{more} more of the audit's"] if more else found


def _count(place: Place, crowd: Crowd, report: Report) -> None:
    for person in crowd.people:
        report.refusals.update(person.refusals)
    for process in place.processes():
        if process.unasked:
            report.unasked[process.name] = process.unasked
    report.counts["starts"] = sum(process.starts for process in place.processes())
