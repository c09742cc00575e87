"""Scripted agents: what they answer, and what they remember from one connection to the next."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import count
from random import Random

from streams.core.events import Frame

ASKS_MOST = 2
"""Interrupts of one agent: each is followed by an answer, which may be a turn, which may be asked about."""
WHOLE_ANSWER = ("a", "b", "c", "done")
"""What a person has to be shown of the answer of an agent that goes by steps, whoever gave which part of it."""


@dataclass(frozen=True, slots=True)
class Wait:
    """For the answer to an interrupt."""

    ask: str


Script = list[Frame | Wait]


@dataclass(frozen=True, slots=True)
class Given:
    """A run that an agent has in hand. `said`: the client ids of what was committed of it; `answered`: the interrupts
    of it that are."""

    conversation: str
    run_id: str
    run_epoch: int
    turn_seq: int
    said: frozenset[str] = frozenset()
    answered: frozenset[str] = frozenset()


@dataclass(slots=True)
class Unacked:
    """A frame that was written, or should have been."""

    conversation: str
    frame: Frame
    run_id: str | None
    run_epoch: int | None
    delivered: int


@dataclass(slots=True)
class Story:
    """What a gateway knows of an open run from the journal."""

    member: str | None
    epoch: int
    said: dict[int, str] = field(default_factory=dict)
    """Seq -> client id of its numbered frames that stand."""
    noted: set[str] = field(default_factory=set)
    """Client ids of its checkpoints."""
    answered: set[str] = field(default_factory=set)
    """Interrupts."""


class Agent:
    """An agent process: it outlives its connections. Some declare themselves, so that their runs are kept for them for
    a while when a connection is lost.

    | manner | what it does |
    |---|---|
    | quiet | one message, which is the answer |
    | announces | `read`, a stream, `run finished` |
    | names | names its run in each frame |
    | asks | asks the person in the middle, and waits |
    | steps | keeps checkpoints, sometimes asks, and can go on where another of its kind stopped |
    """

    MANNERS = ("quiet", "announces", "names", "asks", "steps")

    def __init__(
        self,
        name: str,
        random: Random,
        manner: str | None = None,
        refusals: int = 0,
        *,
        declares: bool = False,
        owned: Sequence[str] = (),
    ) -> None:
        """`declares`: it does, whatever is drawn. `owned`: conversations of its own channel."""
        self.owned = owned
        self.name = name
        self.random = random
        self.manner = manner or random.choice(self.MANNERS)
        self.keeps_watermarks = random.random() < 0.5
        self.continues = self.manner == "steps"
        self.names = self.manner in {"names", "steps"} or (self.manner == "asks" and random.random() < 0.5)
        self.watermarks: dict[str, int] = {}
        self.unacked: dict[str, Unacked] = {}
        """By clientId."""
        self.ids = count(1)
        self.goes_on = not self.continues and random.random() < 0.6
        """Whether what it was at work on when its connection ended is finished on the next one. (One that can continue
        is told what there is of a run, and goes on from there.)"""
        self.in_hand: list[tuple[Given, Script]] = []
        """Runs that it has begun to answer, and what of the answer is still to be sent."""
        self.asks_left = ASKS_MOST
        self.refusals = refusals
        """So many of the runs that it is given first it does not take."""
        self.heeds = random.random() < 0.7
        """It stops when it hears that its run is over, or is to stop. Who does not goes on as if it had not heard."""
        self.over: set[str] = set()
        """Runs of which it heard that they are over."""
        self.to_stop: set[str] = set()
        """Runs that it was told to stop."""
        self._declares = random.random() < 0.4 or declares
        self._processes = 1

    @property
    def instance(self) -> str:
        """The process that it is, as gateways vouch for it; empty: it declares none."""
        return f"{self.name}~{self._processes}" if self._declares else ""

    def restart(self) -> None:
        """Its process is gone, and another one comes in its place, which knows nothing of what that one did and cannot
        prove to be it."""
        self._processes += 1
        for known in (self.watermarks, self.unacked, self.in_hand, self.over, self.to_stop):
            known.clear()

    def heard(self, given: Given, script: Script) -> None:
        """Before the next step: what it heard of the run meanwhile."""
        if given.run_id in self.over and self.heeds:
            script.clear()
        elif given.run_id in self.to_stop and self.heeds:
            self.to_stop.discard(given.run_id)
            script[:] = [Frame(id="", type="run", status="aborted")]

    def answer(self, given: Given) -> Script:
        """What it says to this turn, in its manner."""
        stream = f"s{given.turn_seq}"
        match self.manner:
            case "quiet":
                return [Frame(id="", type="text", text="yes")]
            case "announces":
                return [
                    Frame(id="", type="read", watermark=given.turn_seq),
                    Frame(id="", type="genui", data='"a"', stream_id=stream),
                    Frame(id="", type="genui", data='"b"', stream_id=stream, done=True),
                    Frame(id="", type="run", status="finished"),
                ]
            case "names":
                return [
                    Frame(id="", type="run", status="started"),
                    Frame(id="", type="genui", data='"a"', stream_id=stream),
                    Frame(id="", type="genui", data='"b"', stream_id=stream, done=True),
                    Frame(id="", type="text", text="done"),
                    Frame(id="", type="run", status="finished"),
                ]
            case "asks":
                # Who names no run says which turn it has begun with: "started" alone may be taken for an earlier one.
                begins = Frame(id="", type="run", status="started")
                return [
                    begins if self.names else Frame(id="", type="read", watermark=given.turn_seq),
                    *self._ask(f"{given.run_id}?{given.run_epoch}", None),
                    Frame(id="", type="text", text="done"),
                    Frame(id="", type="run", status="finished"),
                ]
            case _:
                return self._steps(given)

    def _ask(self, ask: str, client_id: str | None) -> Script:
        """An interrupt, the wait for its answer, and the sign that it has come."""
        if not self.asks_left:
            return []
        self.asks_left -= 1
        named = (None, None) if client_id is None else (f"{client_id}?", f"{client_id}!")
        return [
            Frame(id=ask, type="interrupt", data='{"payload":"which?"}', client_id=named[0]),
            Frame(id="", type="run", status="interrupted"),
            Wait(ask),
            Frame(id=ask, type="interrupt_resolved", data='{"answer":"that"}', client_id=named[1]),
        ]

    def _steps(self, given: Given) -> Script:
        """The whole answer, without what was said of it. Each part has the same client id whoever says it."""
        own, stream = f"{given.conversation}/{given.turn_seq}", f"t{given.turn_seq}"
        ask, asked = f"{given.run_id}?", f"{own}?" in given.said
        asks = self._ask(ask, own) if asked or self.random.random() < 0.3 else []
        if asked and not asks:  # somebody asked whom it is not up to any more
            asks = [Wait(ask), Frame(id=ask, type="interrupt_resolved", data='{"answer":"that"}', client_id=f"{own}!")]
        whole: Script = [
            Frame(id="", type="run", status="started"),
            Frame(id="", type="genui", data='"a"', stream_id=stream, client_id=f"{own}.0"),
            Frame(id="", type="checkpoint", data='{"step":1}', client_id=f"{own}.c1"),
            Frame(id="", type="genui", data='"b"', stream_id=stream, client_id=f"{own}.1"),
            *asks,
            Frame(id="", type="checkpoint", data='{"step":2}', client_id=f"{own}.c2"),
            Frame(id="", type="genui", data='"c"', stream_id=stream, done=True, client_id=f"{own}.2"),
            Frame(id="", type="text", text="done", client_id=f"{own}.3"),
            Frame(id="", type="run", status="finished"),
        ]
        return [step for step in whole if not _is_over(step, given)]


def _is_over(step: Frame | Wait, given: Given) -> bool:
    if isinstance(step, Wait):
        return step.ask in given.answered
    return step.client_id in given.said
