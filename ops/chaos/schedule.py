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
    POSTGRES_FAILOVER = "postgres-failover"
    POSTGRES_FAILOVER_IDLE = "postgres-failover-idle"
    KAFKA_CUT = "kafka-cut"
    KAFKA_CUT_SENDING = "kafka-cut-sending"
    KAFKA_CUT_RECEIVING = "kafka-cut-receiving"
    KAFKA_RESET = "kafka-reset"
    KAFKA_SLOW = "kafka-slow"
    END_TXN_ANSWER_LOST = "end-txn-answer-lost"
    END_TXN_ANSWER_LATE = "end-txn-answer-late"
    END_TXN_LATE = "end-txn-late"
    JOURNAL_REFUSES = "journal-refuses"
    POSTGRES_CUT = "postgres-cut"
    POSTGRES_CUT_SENDING = "postgres-cut-sending"
    POSTGRES_CUT_RECEIVING = "postgres-cut-receiving"
    POSTGRES_RESET = "postgres-reset"
    SESSION_LOST = "session-lost"
    TAKEN_FOR_DEAD = "taken-for-dead"
    CLIENTS_CUT = "clients-cut"
    FAILPOINT_KILL = "failpoint-kill"
    FAILPOINT_STOP = "failpoint-stop"
    PAUSED_CLAIM = "paused-claim"
    WORKER_STORM = "worker-storm"
    AGENT_STORM = "agent-storm"
    CLOCK_AHEAD = "clock-ahead"
    CLOCK_BEHIND = "clock-behind"
    INTAKE_AGAIN = "intake-again"
    READER_STOPS = "reader-stops"
    DISK_FULL = "disk-full"


class Failpoint(StrEnum):
    """A place in a worker or a gateway, between two lines, at which it can be made to die or to stop."""

    AFTER_POLL = "after-poll"
    AFTER_DECIDE = "after-decide"
    AFTER_SEND = "after-send"
    BEFORE_COMMIT = "before-commit"
    AFTER_COMMIT = "after-commit"
    BEFORE_CHECKPOINT = "before-checkpoint"
    AFTER_CHECKPOINT = "after-checkpoint"
    BEFORE_INIT = "before-init"
    AFTER_INIT = "after-init"
    AFTER_REPLAY = "after-replay"
    AFTER_INTAKE = "after-intake"
    """A gateway has given a command to Kafka's client."""
    BEFORE_SHOW = "before-show"
    """A gateway has read from the journal what nobody was shown yet."""
    BEFORE_TELL = "before-tell"
    """A gateway knows that a command is committed; who waits for it does not."""


OF_GATEWAYS: Final = (Failpoint.AFTER_INTAKE, Failpoint.BEFORE_SHOW, Failpoint.BEFORE_TELL)
OF_WORKERS: Final = tuple(point for point in Failpoint if point not in OF_GATEWAYS)
OF_CLAIMS: Final = (Failpoint.BEFORE_INIT, Failpoint.AFTER_INIT, Failpoint.AFTER_REPLAY)
"""Met in a claim only: the worker is given a reason for one."""

DROPPED, HELD = "packets dropped", "held by the proxy"
"""How a cut is made, where the kernel can."""


class Target(Enum):
    """What a nemesis is done to: the processes of a place under test, by name."""

    WORKER = ("worker-1", "worker-2")
    GATEWAY = ("gateway-1", "gateway-2")
    AGENT = ("agent-1", "agent-2", "agent-3", "agent-4", "agent-5")
    PROJECTOR = ("projector-1",)
    SERVER = (*WORKER, *GATEWAY)
    """What has its own way to Kafka and PostgreSQL."""
    ANY = (*WORKER, *GATEWAY, *AGENT, *PROJECTOR)
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
    Nemesis.POSTGRES_FAILOVER: Shape(Target.NONE, 0.5, 5.0, 2),
    Nemesis.POSTGRES_FAILOVER_IDLE: Shape(Target.NONE, 0.5, 5.0, 1),
    Nemesis.KAFKA_CUT: Shape(Target.SERVER, HALF, THRICE, 2),
    Nemesis.KAFKA_CUT_SENDING: Shape(Target.SERVER, HALF, THRICE, 2),
    Nemesis.KAFKA_CUT_RECEIVING: Shape(Target.SERVER, HALF, THRICE, 2),
    Nemesis.KAFKA_RESET: Shape(Target.SERVER, 0.0, 0.0, 2),
    Nemesis.KAFKA_SLOW: Shape(Target.SERVER, 3.0, 8.0, 1),
    Nemesis.END_TXN_ANSWER_LOST: Shape(Target.WORKER, 0.0, 0.0, 3),
    Nemesis.END_TXN_ANSWER_LATE: Shape(Target.WORKER, 0.5, 8.0, 2),
    Nemesis.END_TXN_LATE: Shape(Target.WORKER, 0.5, 8.0, 3),
    Nemesis.JOURNAL_REFUSES: Shape(Target.NONE, 0.5, 4.0, 1),
    Nemesis.POSTGRES_CUT: Shape(Target.SERVER, HALF, THRICE, 2),
    Nemesis.POSTGRES_CUT_SENDING: Shape(Target.SERVER, HALF, THRICE, 1),
    Nemesis.POSTGRES_CUT_RECEIVING: Shape(Target.SERVER, HALF, THRICE, 1),
    Nemesis.POSTGRES_RESET: Shape(Target.SERVER, 0.0, 0.0, 2),
    Nemesis.SESSION_LOST: Shape(Target.WORKER, HALF, TTL_S, 2),
    Nemesis.TAKEN_FOR_DEAD: Shape(Target.WORKER, 1.0, 2.0, 2),
    Nemesis.CLIENTS_CUT: Shape(Target.GATEWAY, HALF, THRICE, 1),
    Nemesis.FAILPOINT_KILL: Shape(Target.SERVER, 0.0, 2.0, 7),
    Nemesis.FAILPOINT_STOP: Shape(Target.SERVER, HALF, THRICE, 6),
    Nemesis.PAUSED_CLAIM: Shape(Target.WORKER, TTL_S * 1.25, THRICE, 1),
    Nemesis.WORKER_STORM: Shape(Target.NONE, 9.0, 12.0, 1),
    Nemesis.AGENT_STORM: Shape(Target.NONE, 6.0, 9.0, 1),
    Nemesis.CLOCK_AHEAD: Shape(Target.ANY, 8.0, 15.0, 1),
    Nemesis.CLOCK_BEHIND: Shape(Target.ANY, 8.0, 15.0, 1),
    Nemesis.INTAKE_AGAIN: Shape(Target.NONE, 0.0, 0.0, 3),
    Nemesis.READER_STOPS: Shape(Target.NONE, 4.0, 15.0, 1),
    Nemesis.DISK_FULL: Shape(Target.NONE, 3.0, 6.0, 1),
}

ALONE: Final = frozenset(
    {
        Nemesis.DISK_FULL,
        Nemesis.POSTGRES_RESTORE,
        Nemesis.POSTGRES_RESTORE_IDLE,
        Nemesis.POSTGRES_FAILOVER,
        Nemesis.POSTGRES_FAILOVER_IDLE,
        Nemesis.BROKER_STOP,
    }
)
"""They handle servers that others handle too: nothing begins before they are over."""
CUTS: Final = frozenset(
    {
        Nemesis.KAFKA_CUT,
        Nemesis.KAFKA_CUT_SENDING,
        Nemesis.KAFKA_CUT_RECEIVING,
        Nemesis.POSTGRES_CUT,
        Nemesis.POSTGRES_CUT_SENDING,
        Nemesis.POSTGRES_CUT_RECEIVING,
    }
)
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
    process = rng.choice(shape.target.value)
    detail = ""
    if nemesis in {Nemesis.FAILPOINT_KILL, Nemesis.FAILPOINT_STOP}:
        detail = str(rng.choice(OF_WORKERS if process in Target.WORKER.value else OF_GATEWAYS))
    elif nemesis in CUTS:
        detail = rng.choice((DROPPED, HELD))
    return Fault(at_s, nemesis, process, round(rng.uniform(shape.least_s, shape.most_s), 2), detail)
