"""Scripted agents: what they answer, and what they remember from one connection to the next."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import count
from random import Random

from streams.core.events import Frame


@dataclass(slots=True)
class Given:
    """A run that an agent has in hand."""

    conversation: str
    run_id: str
    run_epoch: int
    turn_seq: int


@dataclass(slots=True)
class Unacked:
    """A frame that was written, or should have been."""

    conversation: str
    frame: Frame
    run_id: str | None
    run_epoch: int | None
    delivered: int


class Agent:
    """An agent process: it outlives its connections."""

    MANNERS = ("quiet", "announces", "names")

    def __init__(self, name: str, random: Random) -> None:
        self.name = name
        self.random = random
        self.manner = random.choice(self.MANNERS)
        self.keeps_watermarks = random.random() < 0.5
        self.watermarks: dict[str, int] = {}
        self.unacked: dict[str, Unacked] = {}
        """By clientId."""
        self.ids = count(1)
        self.goes_on = random.random() < 0.6
        """Whether what it was at work on when its connection ended is finished on the next one."""
        self.in_hand: list[tuple[Given, list[Frame]]] = []
        """Runs that it has begun to answer, and what of the answer is still to be sent."""

    def answer(self, given: Given) -> list[Frame]:
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
            case _:
                return [
                    Frame(id="", type="run", status="started"),
                    Frame(id="", type="genui", data='"a"', stream_id=stream),
                    Frame(id="", type="genui", data='"b"', stream_id=stream, done=True),
                    Frame(id="", type="text", text="done"),
                    Frame(id="", type="run", status="finished"),
                ]
