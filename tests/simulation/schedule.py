"""One schedule: a seed's world, its faults, its healing, and what was found in the end."""

from __future__ import annotations

import gc
import warnings
from dataclasses import dataclass, field, replace
from itertools import count
from random import Random

from ops.audit.turns import NothingLost
from ops.audit.violations import Tally
from streams.core.events import Rejected
from streams.core.routing import DELIVER, POLICIES
from streams.core.state import KEYS_IN_ROW
from streams.runtime.ports import Limits
from tests.simulation import kept, promises, returns, routes
from tests.simulation.agents import Agent
from tests.simulation.audited import audit
from tests.simulation.deeds import DEEDS
from tests.simulation.faults import Director
from tests.simulation.gateways import Gateway
from tests.simulation.hand import Cast
from tests.simulation.loop import Stuck
from tests.simulation.people import People
from tests.simulation.place import Place
from tests.simulation.poison import Poison
from tests.simulation.workers import Worker, WorkerSettings

LIVELY_WITHIN_S = 60.0
"""After the faults have healed, every turn is answered or ended within this. The longest way: a lease that has to
expire (6 s), a member after it (5 s), pauses between writer epochs (0.1 to 6.4 s, twice), an open transaction's
time-out (5 s) and the watchdog (8 s); then a single agent that has two dozen turns to answer one after the other, each
in a second or two."""
LOOK_EVERY_S = 0.5
COLLECT_EVERY = 8
"""Schedules: Python's collector looks at everything there is, each time."""
_ran = count(1)
ALSO = 0.25
"""Of all worlds have conversations of the agents' own, and as many people of other channels."""
STOP_WITHIN_S = 12.0
REFUSE = "refuse"
"""Agents do not take what they are given first."""
DECLARE = "declare"
"""All agents declare their processes, and their channel gives these a grace."""
KINDS = frozenset({*DEEDS, *POLICIES, REFUSE, DECLARE, routes.OWN, routes.ROUTE})
"""What can be named beside faults."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of a seed. `violations` empty: every promise was kept."""

    seed: int
    violations: tuple[str, ...]
    digest: str
    trace: tuple[str, ...]
    tally: Tally
    virtual_s: float
    steps: int
    struck: tuple[str, ...]
    """Lines of the product before which, within a step, a process was killed or paused."""

    def without_trace(self) -> Outcome:
        """For those that nobody has to look at."""
        return replace(self, trace=())


@dataclass(slots=True)
class Shape:
    """What of a world its seed decides."""

    random: Random
    beside: Random
    """A source of its own for what was thought of later: seeds are what they were."""
    only: tuple[str, ...] = ()
    """Kinds of faults, deeds and rules that are named: what they need to show is there more often."""
    faults: tuple[str, ...] | None = None
    """Kinds to draw from; None: any."""
    deeds: tuple[str, ...] = ()
    """What people do besides talking."""
    refusals: int = 0
    """Runs that each agent does not take, first."""
    partitions: int = 0
    workers: int = 0
    agents: int = 0
    heal_at: float = 0.0
    echo_until: float = 0.0
    batch_bytes: int = 0
    """The small one cuts most transactions into several batches, each a place to end them."""
    paces: dict[str, float] = field(default_factory=dict)
    member_ttl_ms: int = 5_000
    limits: Limits = field(init=False)
    worker: WorkerSettings = field(init=False)
    keys_in_row: int = KEYS_IN_ROW
    rules: dict[str, object] = field(init=False)
    """Of the agents' channel."""
    document: str = ""
    owned: bool = False
    """Agents have a conversation of their own in each partition."""
    routed: bool = False
    """People of other channels speak, too."""

    @property
    def hunting(self) -> bool:
        return bool(self.only)

    def __post_init__(self) -> None:
        draw = self.random
        self.partitions = draw.choice([1, 1, 1, 2])
        self.workers = draw.choice([1, 2, 2, 3])
        self.agents = draw.randint(1, 3)
        self.heal_at = 6.0 + draw.random() * 10.0
        self.limits = Limits(
            batch_max=draw.choice([2, 5, 4_000]),
            tick_ms=1_000,
            member_ttl_ms=self.member_ttl_ms,
            checkpoint_every_ms=draw.choice([300, 1_500, 3_600_000]),
            checkpoint_every_events=draw.choice([4, 40, 1_000_000]),
            idle_conversations_max=draw.choice([0, 1, 50_000]),
        )
        ttl = draw.choice([3_000, 6_000])
        self.worker = WorkerSettings(lease_ttl_ms=ttl, lease_heartbeat_ms=ttl // 4)
        self.echo_until = draw.choice([0.0, self.heal_at, self.heal_at if self.hunting else 0.0])
        self.batch_bytes = draw.choice([1 << 20, 900])
        self.paces = {"kafka": draw.choice([1.0, 1.0, 10.0, 60.0]), "postgres": draw.choice([1.0, 1.0, 10.0])}
        self.keys_in_row = draw.choice([KEYS_IN_ROW, KEYS_IN_ROW, 1, 3])
        self._draw_deeds()
        self.rules = self._draw_rules()
        self.document = routes.document(self.rules)
        self.owned = self._also(routes.OWN)
        self.routed = self._also(routes.ROUTE)

    def _also(self, kind: str) -> bool:
        """Whether this is to be seen, too: drawn beside all else, so that it changes nothing of that."""
        return kind in self.only if self.only else self.beside.random() < ALSO

    def _draw_deeds(self) -> None:
        draw = self.random
        if self.only:
            self.faults = tuple(kind for kind in self.only if kind not in KINDS)
            self.deeds = tuple(kind for kind in self.only if kind in DEEDS)
            self.refusals = 2 * (REFUSE in self.only)
        else:
            self.deeds = tuple(draw.sample(DEEDS, draw.randint(1, 4))) if draw.random() < 0.6 else ()
            self.refusals = draw.choice([0, 0, 0, 1, 3])

    def _draw_rules(self) -> dict[str, object]:
        """Of the agents' channel."""
        draw = self.random
        policies = [policy for policy in POLICIES if policy in self.only]
        free = [*[DELIVER] * 4, *POLICIES] if not self.only else [DELIVER]
        return {
            "group_settle_ms": draw.choice([0, 1_000]),
            "adopt_ms": draw.choice([1_000, 2_000]),
            "watchdog_ms": draw.choice([1_200, 3_000, 8_000]),
            "on_owner_loss": draw.choice(["continue", "continue", "restart", "fail", None, None]),
            "policy": draw.choice(policies or free),
            "max_waiting": draw.choice([100, 1, 2]),
            "busy": draw.choice(["wait", "wait", "refuse"]),
            "grace_ms": draw.choice([1_000, 5_000] if DECLARE in self.only else [0, 1_000, 5_000]),
            "deadline_ms": draw.choice([0, 0, 0, 0, 5_000]),
        }


class Schedule:
    """A world under one seed, from its start to the audit."""

    def __init__(self, seed: int, only: tuple[str, ...] = ()) -> None:
        """`only`: the kinds of faults, deeds and rules to draw from; none: the seed chooses."""
        self.seed = seed
        self._shape = shape = Shape(Random(seed ^ 0x5EED), Random(seed ^ 0xB0A7), only)
        self.place = Place(seed, shape.partitions)
        self.place.keys_in_row = shape.keys_in_row
        self._done = False
        self._lost = [NothingLost() for _ in range(shape.partitions)]
        self._seen = [0] * shape.partitions
        self._rejected: set[str] = set()

    def run(self) -> Outcome:
        """Run it to its end."""
        place = self.place
        with place.entered():
            try:
                self._play()
            except Stuck as stuck:
                place.violations.append(str(stuck))
            tally = self._judge()
            place.loop.dispose()
        return Outcome(
            self.seed,
            tuple(dict.fromkeys(place.violations)),
            place.digest,
            tuple(place.lines),
            tally,
            place.loop.now,
            place.loop.steps,
            tuple(place.loop.struck),
        )

    def _play(self) -> None:
        place, shape, loop = self.place, self._shape, self.place.loop
        place.network.paces = shape.paces
        place.cluster.batch_bytes = shape.batch_bytes
        self._watch = promises.Watch(place, shape.worker.lease_ttl_ms)
        loop._context.run(self._cast_all)
        director = Director(self._cast, place.branch(), heal_at=shape.heal_at)
        loop._context.run(director.plan, shape.faults)
        loop.later(shape.heal_at + LOOK_EVERY_S, self._look)
        loop.run(shape.heal_at + LIVELY_WITHIN_S, lambda: self._done)
        if not self._done:
            place.broken(self._unfinished())
        self._stop_workers()

    def _cast_all(self) -> None:
        place, shape = self.place, self._shape
        names, gateways = count(1), count(1)
        conversations = [
            name
            for partition in range(shape.partitions)
            for name in place.conversation_ids(partition, shape.random.randint(1, 3))
        ]
        self._poison = Poison(place, place.branch())
        manner = "steps" if shape.random.random() < 0.4 else None  # of all, else each has its own
        turns = shape.random.randint(1, 4)
        owned = place.owned_ids() if shape.owned else []
        self._people = People(
            place,
            [*conversations, *owned],
            turns,
            echo_until=shape.echo_until,
            deeds=shape.deeds,
            owned=owned,
            routed=shape.routed,
        )
        self._cast = Cast(
            place=place,
            watch=self._watch,
            workers=[],
            gateways=[],
            agents=[
                Agent(
                    f"agent{number}",
                    place.branch(),
                    manner,
                    shape.refusals,
                    declares=DECLARE in shape.only,
                    owned=owned,
                )
                for number in range(shape.agents)
            ],
            new_worker=lambda: Worker(place, f"wk-{next(names)}", shape.limits, shape.worker),
            new_gateway=lambda: Gateway(place, f"g{next(gateways)}", (1, shape.document)),
            poison=self._poison,
            lease_ttl_s=shape.worker.lease_ttl_ms / 1000,
        )
        self._cast.workers += [self._cast.new_worker() for _ in range(shape.workers)]
        self._cast.gateways += [self._cast.new_gateway() for _ in range(2)]
        for number, agent in enumerate(self._cast.agents):
            self._cast.gateways[number % 2].connect(agent)
        place.cluster.on_commit = self._committed

    def _committed(self, partition: int) -> None:
        self._people.told()
        for gateway in self._cast.gateways:
            if gateway.alive:
                gateway.told()

    def _look(self) -> None:
        """Whether every turn has come to its end."""
        for partition, lost in enumerate(self._lost):
            entries = self.place.journal(partition)
            for _, entry in entries[self._seen[partition] :]:
                lost.see(entry)
                if isinstance(entry.event, Rejected):
                    self._rejected.add(entry.event.origin)
            self._seen[partition] = len(entries)
        open_turns = sum(lost.settle().open for lost in self._lost)
        taken = self._people.content and self._rejected.issuperset(self._poison.origins)
        if taken and not open_turns and not self._held_back():
            self.place.trace("every turn has come to its end")
            self._done = True
        else:
            self.place.loop.later(LOOK_EVERY_S, self._look)

    def _held_back(self) -> list[int]:
        """Partitions whose readers stand before an open transaction. (One is open for a moment in each commit.)"""
        logs, topic = self.place.cluster.logs, self.place.cluster.topics.conversations
        return [each for each in range(self.place.partitions) if logs[topic, each].stable_end < logs[topic, each].end]

    def _unfinished(self) -> str:
        states = [f"{worker.name} has {worker.partitions}" for worker in self._cast.workers if worker.alive]
        open_turns = sum(lost.settle().open for lost in self._lost)
        return (
            f"{LIVELY_WITHIN_S:.0f} s after the faults healed {open_turns} turns are open, and {self._people.accepted} "
            f"of {self._people.expected} accepted; {len(set(self._poison.origins) - self._rejected)} poisonous records "
            f"not rejected; "
            f"readers of {self._held_back() or 'no partition'} are held back; {'; '.join(states)}"
        )

    def _stop_workers(self) -> None:
        """All drain: the last checkpoint of each partition has to be that of a replay."""
        loop = self.place.loop
        alive = [worker for worker in self._cast.workers if worker.alive]
        for worker in alive:
            worker.stop()
        loop.run(loop.now + STOP_WITHIN_S, lambda: not any(worker.alive for worker in alive))
        if any(worker.alive for worker in alive):
            self.place.broken(f"a worker had not drained after {STOP_WITHIN_S:.0f} s")

    def _judge(self) -> Tally:
        place, found = self.place, self.place.violations
        tally, lines = audit(place)
        found += lines
        for partition in range(place.partitions):
            intake = promises.read(place, partition)
            found += promises.broken(intake, self._shape.member_ttl_ms, clock_was_set=self._cast.clock_was_set)
            found += promises.poison_left(place, partition, self._poison.origins)
            found += promises.mistold(intake)
            found += promises.erased_in_use(intake)
            found += kept.broken(intake.entries, self._shape.rules)
            found += returns.broken(intake, self._shape.rules)
            found += routes.broken(intake.entries)
        found += [f"nobody handled: {error}" for error in place.loop.errors]
        signs = promises.BAD_SIGNS if self._poison.cursed else (*promises.BAD_SIGNS, promises.CORE_FAILED)
        found += [line.strip() for line in place.lines if any(sign in line for sign in signs)]
        return tally


def run_seed(seed: int, only: tuple[str, ...] = ()) -> Outcome:
    """Run one schedule. `only`: the kinds of faults, deeds and rules to draw from; none: the seed chooses."""
    collecting = gc.isenabled()
    gc.disable()  # what it would find, and when, depends on what ran before
    ran, struck = next(_ran), False
    if ran == 1:
        gc.collect()
        gc.freeze()  # modules and what they hold need not be looked at again
    with warnings.catch_warnings():
        # What a killed process had made and not begun.
        warnings.filterwarnings("ignore", message="coroutine .* was never awaited", category=RuntimeWarning)
        try:
            outcome = Schedule(seed, only).run()
            struck = bool(outcome.struck)
            return outcome
        finally:
            if struck or ran % COLLECT_EVERY == 0:  # what a step that was unwound had made is to be warned of in here
                gc.collect()
            if collecting:
                gc.enable()
