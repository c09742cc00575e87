"""Faults of gateways, and of the agents connected to them: lost, drained, interrupted in an answer."""

from __future__ import annotations

from collections.abc import Callable

from streams.core.commands import Drain
from streams.core.events import MemberJoined
from tests.simulation.agents import Agent
from tests.simulation.gateways import Gateway
from tests.simulation.hand import FUSE_MOST, Hand


class GatewayFaults(Hand):
    """What befalls a gateway, or a connection to it."""

    def kinds(self) -> dict[str, Callable[[], None]]:
        """By what a seed or a shell calls them."""
        return {
            "kill gateway": self._kill_gateway,
            "pause gateway": self._pause_gateway,
            "stop gateway": self._stop_gateway,
            "disconnect agent": self._disconnect_agent,
            "interrupt agent": self._interrupt_agent,
            "drain agent": self._drain_agent,
            "operator drains": self._drain_by_operator,
        }

    def _kill_gateway(self, gateway: Gateway | None = None) -> None:
        gateway = gateway or self._gateway()
        if gateway is None:
            return
        respawn = self._some(3.0)
        waits = [self._some(2.0) for _ in self._cast.agents]

        def strike() -> None:
            self._place.trace(f"{gateway.name} is killed")
            orphans = gateway.kill()
            self._loop.later(respawn, self._new_gateway)
            for wait, agent in zip(waits, orphans, strict=False):
                self._loop.later(respawn + wait, self._reconnect, agent)

        gateway.process.light(self._random.randint(0, FUSE_MOST), 0, strike)

    def _pause_gateway(self) -> None:
        gateway = self._gateway()
        if gateway is None:
            return
        length = self._some(12.0, 0.5)

        def strike() -> None:
            self._place.trace(f"{gateway.name} is stopped for {length:.1f} s")
            self._loop.pause(gateway.process)
            self._until_heal(length, self._loop.resume, gateway.process)

        gateway.process.light(self._random.randint(0, FUSE_MOST), 0, strike)

    def _stop_gateway(self) -> None:
        """One of a rolling restart."""
        gateway = self._gateway()
        if gateway is None:
            return
        self._place.trace(f"{gateway.name} is asked to stop")
        orphans, respawn = gateway.stop(), self._some(3.0)
        self._loop.later(respawn, self._new_gateway)
        for agent in orphans:
            self._loop.later(respawn + self._some(5.0), self._reconnect, agent)

    def _drain_agent(self) -> None:
        """It gets nothing new, and goes a while later."""
        agent = self._random.choice(self._cast.agents)
        gateway = self._connected(agent)
        if gateway is None:
            return
        gateway.drain(agent)
        away = self._some(4.0)
        self._loop.later(away, gateway.disconnect, agent, self._random.choice(["drained", "done"]))
        self._loop.later(away + self._some(3.0), self._reconnect, agent)

    def _drain_by_operator(self) -> None:
        """`turnlog member drain`, to every partition, of a member that may be gone by now."""
        place = self._place
        members = [
            entry.event.member
            for partition in range(place.partitions)
            for _, entry in place.journal(partition)
            if isinstance(entry.event, MemberJoined)
        ]
        if not members:
            return
        drain = Drain(at=0, timestamp=0, member=self._random.choice(members), by="operator", reason="rolling update")
        for partition in range(place.partitions):
            place.cluster.write((place.cluster.topics.membership, partition), None, place.codec.encode_command(drain))

    def _interrupt_agent(self, until: float | None = None) -> None:
        """Its connection closes, or its gateway dies, in the middle of an answer: with the next one that is begun."""
        if until is None:
            until = self._loop.now + self.LIES_IN_WAIT_S
        busy = [agent for agent in self._cast.agents if agent.in_hand and self._connected(agent) is not None]
        if not busy:
            if self._loop.now < min(until, self._heal_at - 1.0):
                self._loop.later(self._some(0.3), self._interrupt_agent, until)
            return
        agent = self._random.choice(busy)
        gateway = self._connected(agent)
        assert gateway is not None
        self._place.trace(f"{agent.name} is interrupted in {agent.in_hand[0][0].run_id}")
        if self._random.random() < 0.3:
            self._kill_gateway(gateway)
        else:
            self._lose_connection(gateway, agent)

    def _disconnect_agent(self) -> None:
        """It closes its connection, or loses it."""
        agent = self._random.choice(self._cast.agents)
        gateway = self._connected(agent)
        if gateway is None:
            return
        if self._random.random() < 0.5:
            self._lose_connection(gateway, agent)
        else:
            gateway.disconnect(agent, "left", abruptly=False)
            self._loop.later(self._some(3.0), self._reconnect, agent)

    def _lose_connection(self, gateway: Gateway, agent: Agent) -> None:
        """It comes back, or another process does in its place."""
        gateway.disconnect(agent, "closed", abruptly=True)
        back = self._restarted if self._random.random() < 0.3 else self._reconnect
        self._loop.later(self._some(6.0), back, agent)

    def _restarted(self, agent: Agent) -> None:
        if self._connected(agent) is None:
            self._place.trace(f"{agent.name} is another process")
            agent.restart()
            self._reconnect(agent)
