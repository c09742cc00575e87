"""The limits of a connection, and the token bucket that keeps its rate."""

from __future__ import annotations

import msgspec

MAX_FRAME_BYTES = 128 * 1024
HARD_CAP_BYTES = 1024 * 1024
MAX_TEXT_BYTES = 64 * 1024
MAX_METADATA_BYTES = 16 * 1024
# Of a checkpoint, as compact JSON. The frame that brings it may be as long as any message of a socket.
MAX_CHECKPOINT_BYTES = 256 * 1024
MAX_IN_FLIGHT = 32
MAX_CONVERSATIONS = 5_000
# Live runs of one agent's connection; one more goes to the next member in rank.
RUNS_PER_MEMBER = 200
HEARTBEAT_MS = 30_000
IDLE_MS = 60_000
HELLO_MS = 10_000
REPLAY_BATCH = 100
REPLAY_MAX = 10_000
OUTBOUND_FRAMES = 1_000
# A batch of a replay (100 frames of up to 128 KiB, 12.5 MiB) and what comes live meanwhile. What is written at once,
# such as a long resume, may go beyond it on its own; only what piles up behind it may not.
OUTBOUND_BYTES = 16 * 1024 * 1024
# Of an agent's connection, while their partitions do not know the member yet: 16 checkpoints of full size.
HELD_BYTES = 16 * MAX_CHECKPOINT_BYTES

# A person's connection: 20 frames/s, and two seconds' worth at once, so that a burst meets the in-flight limit (32)
# before the rate. An agent's connection serves a whole channel, so it gets the channel's rate; it is read no faster
# rather than refused, since an agent is not told which piece of a stream was not taken.
USER_RATE, USER_BURST = 20.0, 40.0
AGENT_RATE, AGENT_BURST = 2_000.0, 4_000.0


def advertised(*, channel_scope: bool) -> dict[str, int]:
    """`welcome.data.limits`."""
    limits = {
        "maxFrameBytes": MAX_FRAME_BYTES,
        "maxTextBytes": MAX_TEXT_BYTES,
        "maxMetadataBytes": MAX_METADATA_BYTES,
        "maxInFlight": MAX_IN_FLIGHT,
        "heartbeatIntervalMs": HEARTBEAT_MS,
        "idleTimeoutMs": IDLE_MS,
        "replayBatch": REPLAY_BATCH,
        "replayMax": REPLAY_MAX,
    }
    if channel_scope:
        limits["maxConversations"] = MAX_CONVERSATIONS
    return limits


class Rate(msgspec.Struct):
    """A token bucket over a clock in milliseconds that the caller passes."""

    per_second: float
    burst: float
    tokens: float
    at_ms: int

    @classmethod
    def full(cls, per_second: float, burst: float, now_ms: int) -> Rate:
        """A bucket that nothing was taken from yet."""
        return cls(per_second, burst, burst, now_ms)

    def take(self, now_ms: int) -> int:
        """Take one token: 0, or the milliseconds until there is one."""
        self.tokens = min(self.burst, self.tokens + (now_ms - self.at_ms) * self.per_second / 1000)
        self.at_ms = now_ms
        if self.tokens >= 1:
            self.tokens -= 1
            return 0
        return max(1, round((1 - self.tokens) / self.per_second * 1000))

    def owe(self, now_ms: int) -> int:
        """Take one token, there or not: the milliseconds until it would have been there."""
        self.tokens = min(self.burst, self.tokens + (now_ms - self.at_ms) * self.per_second / 1000) - 1
        self.at_ms = now_ms
        return max(0, round(-self.tokens / self.per_second * 1000))
