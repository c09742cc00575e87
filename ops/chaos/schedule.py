"""Which fault comes when: the same seed, length and choice of nemeses give the same schedule, on any machine."""

from __future__ import annotations

import random
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum, StrEnum
from typing import Final


class Nemesis(StrEnum):
    """A kind of fault. The value is its name on the command line."""

    KILL_WORKER = "kill-worker"
    STOP_WORKER = "stop-worker"
    KILL_GATEWAY = "kill-gateway"
    STOP_GATEWAY = "stop-gateway"
    KILL_AGENT = "kill-agent"
    STOP_AGENT = "stop-agent"
    KILL_PROJECTOR = "kill-projector"
    DRAIN = "drain"
    BROKER_KILL = "broker-kill"
    BROKER_STOP = "broker-stop"
    BROKER_PAUSE = "broker-pause"
    POSTGRES_KILL = "postgres-kill"
    POSTGRES_STOP = "postgres-stop"
    POSTGRES_SESSIONS = "postgres-sessions"
    POSTGRES_RESTORE = "postgres-restore"
    POSTGRES_RESTORE_IDLE = "postgres-restore-idle"
    KAFKA_CUT = "kafka-cut"
    KAFKA_CUT_SENDING = "kafka-cut-sending"
    KAFKA_CUT_RECEIVING = "kafka-cut-receiving"
    KAFKA_RESET = "kafka-reset"
    KAFKA_SLOW = "kafka-slow"
    END_TXN_ANSWER_LOST = "end-txn-answer-lost"
    END_TXN_ANSWER_LATE = "end-txn-answer-late"
    END_TXN_LATE = "end-txn-late"
    POSTGRES_CUT = "postgres-cut"
    POSTGRES_RESET = "postgres-reset"
    FAILPOINT_KILL = "failpoint-kill"
    FAILPOINT_STOP = "failpoint-stop"
    WORKER_STORM = "worker-storm"
    CLOCK_AHEAD = "clock-ahead"
    CLOCK_BEHIND = "clock-behind"
    INTAKE_AGAIN = "intake-again"
    READER_STOPS = "reader-stops"
    DISK_FULL = "disk-full"


class Failpoint(StrEnum):
    """A place in a worker, between two lines, at which it can be made to die or to stop."""

    AFTER_POLL = "after-poll"
    AFTER_DECIDE = "after-decide"
    AFTER_SEND = "after-send"
    BEFORE_COMMIT = "before-commit"
    AFTER_COMMIT = "after-commit"
    BEFORE_CHECKPOINT = "before-checkpoint"
    AFTER_CHECKPOINT = "after-checkpoint"
    BEFORE_INIT = "before-init"
    AFTER_INIT = "after-init"


class Target(Enum):
    """What a nemesis is done to: the processes of a place under test, by name."""

    WORKER = ("worker-1", "worker-2")
    GATEWAY = ("gateway-1", "gateway-2")
    AGENT = ("agent-1", "agent-2", "agent-3", "agent-4")
    PROJECTOR = ("projector-1",)
    SERVER = (*WORKER, *GATEWAY)
    """What has its own way to Kafka and PostgreSQL."""
    NONE = ("",)


@dataclass(frozen=True, slots=True)
class Shape:
    """What a nemesis looks like. `least_s` to `most_s`: how long it lasts. `weight`: how often it comes."""

    target: Target
    least_s: float
    most_s: float
    weight: int = 2


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault of a schedule: `at_s` after the first one may come, for `for_s`."""

    at_s: float
    nemesis: Nemesis
    process: str
    """Name of the process that it is done to; empty: to none of them alone."""
    for_s: float
    detail: str = ""

    @property
    def what(self) -> str:
        """For people."""
        return " ".join(part for part in (self.nemesis, self.process, self.detail) if part)


# The time to live of a worker's leases and of a gateway's members in a place under test (`place.ENVIRONMENT`): pauses
# are from half of it to three times.
TTL_S: Final = 4.0
HALF, THRICE = TTL_S / 2, TTL_S * 3

SHAPES: Final[Mapping[Nemesis, Shape]] = {
    Nemesis.KILL_WORKER: Shape(Target.WORKER, 0.0, 3.0, 5),
    Nemesis.STOP_WORKER: Shape(Target.WORKER, HALF, THRICE, 5),
    Nemesis.KILL_GATEWAY: Shape(Target.GATEWAY, 0.0, 4.0, 4),
    Nemesis.STOP_GATEWAY: Shape(Target.GATEWAY, HALF, THRICE, 4),
    Nemesis.KILL_AGENT: Shape(Target.AGENT, 0.0, 3.0, 5),
    Nemesis.STOP_AGENT: Shape(Target.AGENT, HALF, THRICE, 4),
    Nemesis.KILL_PROJECTOR: Shape(Target.PROJECTOR, 0.0, 3.0, 1),
    Nemesis.DRAIN: Shape(Target.SERVER, 0.0, 2.0, 2),
    Nemesis.BROKER_KILL: Shape(Target.NONE, 0.0, 6.0, 3),
    Nemesis.BROKER_STOP: Shape(Target.NONE, 0.0, 4.0, 1),
    Nemesis.BROKER_PAUSE: Shape(Target.NONE, 1.0, 8.0, 2),
    Nemesis.POSTGRES_KILL: Shape(Target.NONE, 0.0, 5.0, 2),
    Nemesis.POSTGRES_STOP: Shape(Target.NONE, 0.0, THRICE, 2),
    Nemesis.POSTGRES_SESSIONS: Shape(Target.NONE, 0.0, 0.0, 3),
    Nemesis.POSTGRES_RESTORE: Shape(Target.NONE, 0.0, 0.0, 2),
    Nemesis.POSTGRES_RESTORE_IDLE: Shape(Target.NONE, 0.0, 0.0, 1),
    Nemesis.KAFKA_CUT: Shape(Target.SERVER, HALF, THRICE, 2),
    Nemesis.KAFKA_CUT_SENDING: Shape(Target.SERVER, HALF, THRICE, 2),
    Nemesis.KAFKA_CUT_RECEIVING: Shape(Target.SERVER, HALF, THRICE, 2),
    Nemesis.KAFKA_RESET: Shape(Target.SERVER, 0.0, 0.0, 2),
    Nemesis.KAFKA_SLOW: Shape(Target.SERVER, 3.0, 8.0, 1),
    Nemesis.END_TXN_ANSWER_LOST: Shape(Target.WORKER, 0.0, 0.0, 3),
    Nemesis.END_TXN_ANSWER_LATE: Shape(Target.WORKER, 0.5, 8.0, 2),
    Nemesis.END_TXN_LATE: Shape(Target.WORKER, 0.5, 8.0, 3),
    Nemesis.POSTGRES_CUT: Shape(Target.SERVER, HALF, THRICE, 3),
    Nemesis.POSTGRES_RESET: Shape(Target.SERVER, 0.0, 0.0, 2),
    Nemesis.FAILPOINT_KILL: Shape(Target.WORKER, 0.0, 2.0, 6),
    Nemesis.FAILPOINT_STOP: Shape(Target.WORKER, HALF, THRICE, 5),
    Nemesis.WORKER_STORM: Shape(Target.NONE, 9.0, 12.0, 1),
    Nemesis.CLOCK_AHEAD: Shape(Target.SERVER, 8.0, 15.0, 1),
    Nemesis.CLOCK_BEHIND: Shape(Target.SERVER, 8.0, 15.0, 1),
    Nemesis.INTAKE_AGAIN: Shape(Target.NONE, 0.0, 0.0, 3),
    Nemesis.READER_STOPS: Shape(Target.NONE, 4.0, 15.0, 1),
    Nemesis.DISK_FULL: Shape(Target.NONE, 3.0, 6.0, 1),
}

ALONE: Final = frozenset(
    {Nemesis.DISK_FULL, Nemesis.POSTGRES_RESTORE, Nemesis.POSTGRES_RESTORE_IDLE, Nemesis.BROKER_STOP}
)
"""They handle servers that others handle too: nothing begins before they are over."""
MIXED_SHARE: Final = 0.35
"""Of the faults, so many are still there when the next one comes."""
PAUSE_S: Final = (0.5, 4.0)
"""Between the end of a fault and the next one, unless they are mixed."""
RESTART_S: Final = 6.0
"""What a server takes to be back, of which the schedule knows nothing else."""


def schedule(seed: int, seconds: float, nemeses: Collection[Nemesis] = ()) -> Sequence[Fault]:
    """The faults that begin within `seconds`. `nemeses` empty: all of them."""
    chosen = sorted(nemeses or Nemesis, key=list(Nemesis).index)
    rng = random.Random(f"turnlog-chaos-{seed}")  # noqa: S311 -- a schedule, not a secret
    faults: list[Fault] = []
    deck: list[Nemesis] = []
    at_s = 0.0
    while at_s < seconds:
        if not deck:
            deck = [each for each in chosen for _ in range(SHAPES[each].weight)]
            rng.shuffle(deck)
        fault = _fault(rng, at_s, deck.pop())
        faults.append(fault)
        lasts = fault.for_s + (RESTART_S if fault.nemesis in ALONE else 0.0)
        mixed = fault.nemesis not in ALONE and rng.random() < MIXED_SHARE
        at_s = round(at_s + (rng.uniform(0.2, 1.0) if mixed else lasts + rng.uniform(*PAUSE_S)), 2)
    return faults


def _fault(rng: random.Random, at_s: float, nemesis: Nemesis) -> Fault:
    shape = SHAPES[nemesis]
    detail = ""
    if nemesis in {Nemesis.FAILPOINT_KILL, Nemesis.FAILPOINT_STOP}:
        detail = str(rng.choice(list(Failpoint)))
    process = rng.choice(shape.target.value)
    return Fault(at_s, nemesis, process, round(rng.uniform(shape.least_s, shape.most_s), 2), detail)
