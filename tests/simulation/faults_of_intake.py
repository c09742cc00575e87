"""Faults of what is written to the intake: repeated, in floods, and leaves of which nobody is told."""

from __future__ import annotations

from collections.abc import Callable

from streams.core.commands import Command, CommitFrame, RefuseRun
from streams.runtime.intake import origin_of
from tests.simulation.agents import Agent
from tests.simulation.cluster import Log, LogRecord
from tests.simulation.gateways import Gateway
from tests.simulation.hand import Hand

TURNS_BEFORE = 200
"""That a partition has to read before a certain frame."""


class IntakeFaults(Hand):
    """What lies in the intake more than once, or not at all."""

    def kinds(self) -> dict[str, Callable[[], None]]:
        """By what a seed or a shell calls them."""
        return {
            "leave lost": self._lose_leave,
            "intake repeated": self._repeat_intake,
            "flood": self._flood,
        }

    def special(self) -> dict[str, Callable[[], None]]:
        """To be named only."""
        return {"leave lost behind turns": self._lose_leave_behind_turns}

    def _repeat_intake(self) -> None:
        """Records of the intake are written once more, later than others that came behind them."""
        self._repeat(lambda records: self._random.sample(records, min(len(records), self._random.randint(0, 4))))

    def _flood(self) -> None:
        """One record of each topic comes again and again: a backlog for everything behind it."""
        self._repeat(lambda records: [self._random.choice(records)] * 40 if records else [])

    def _repeat(self, choose: Callable[[list[LogRecord]], list[LogRecord]]) -> None:
        cluster = self._place.cluster
        for topic in (cluster.topics.turns, cluster.topics.frames, cluster.topics.membership):
            for partition in range(self._place.partitions):
                records = [each for each in cluster.logs[topic, partition].records if self._may_be_repeated(each)]
                for record in choose(records):
                    cluster.write_again(record)

    def _may_be_repeated(self, record: LogRecord) -> bool:
        """Of membership, changes. What is poison lies there once."""
        place = self._place
        if origin_of(record) in self._cast.poison.origins:
            return False
        if record.topic == place.cluster.topics.turns:
            return True
        if record.topic == place.cluster.topics.membership:
            return isinstance(place.codec.decode_membership(record, 0), Command)
        return isinstance(place.codec.decode_frames(record, 0), CommitFrame | RefuseRun)

    def _lose_leave(self) -> None:
        """An agent's connection closes, and its gateway's words of it reach no partition: they ask for its list, while
        they have much to read."""
        agent = self._random.choice(self._cast.agents)
        gateway = self._connected(agent)
        if gateway is None:
            return
        self._flood()
        self._loop.later(self._some(0.5, 0.02), self._leave_untold, gateway, agent)

    def _leave_untold(self, gateway: Gateway, agent: Agent) -> None:
        if gateway.alive and agent.name in gateway.agents:
            gateway.loses += 1
            gateway.disconnect(agent, "left", abruptly=True)
            self._loop.later(self._some(3.0), self._reconnect, agent)

    def _lose_leave_behind_turns(self, until: float | None = None) -> None:
        """As `_lose_leave`, of an agent that has just written a frame, which a partition reads behind many turns: each
        of them is said again, and has an outcome."""
        until = until or min(self._loop.now + self.LIES_IN_WAIT_S, self._heal_at - 1.5)
        if not any(script for agent in self._cast.agents for _, script in agent.in_hand):
            if self._loop.now < until:
                self._loop.later(0.05, self._lose_leave_behind_turns, until)
            return
        cluster, partitions = self._place.cluster, range(self._place.partitions)
        for each in partitions:
            said = [
                record for record in cluster.logs[cluster.topics.turns, each].records if self._may_be_repeated(record)
            ]
            for _ in range(TURNS_BEFORE if said else 0):
                cluster.write_again(self._random.choice(said))
        logs = [cluster.logs[cluster.topics.frames, each] for each in partitions]
        self._leave_after_a_frame([(log, log.end) for log in logs], self._loop.now + 1.0)

    def _leave_after_a_frame(self, ends: list[tuple[Log, int]], until: float) -> None:
        """Whoever writes one behind these ends leaves, and nobody is told."""
        for log, end in ends:
            for record in log.records[end:]:
                frame = self._place.codec.decode_frames(record, 0)
                member = frame.member if isinstance(frame, CommitFrame) else ""
                for gateway in self._cast.gateways:
                    agent = gateway.agent_of(member) if gateway.alive else None
                    if agent is not None:
                        self._leave_untold(gateway, agent)
                        return
        if self._loop.now < until:
            self._loop.later(0.002, self._leave_after_a_frame, ends, until)
