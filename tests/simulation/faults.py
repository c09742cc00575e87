"""What goes wrong, and when: a seed's choice of faults, each at a time, some at a step.

A seed enables only some kinds (what never happens together would else hide what one kind alone shows) and draws a few
faults of them. Killing and pausing strike after a drawn number of further steps of the process, so that every await of
every process is a place to die.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from random import Random

from streams.core.commands import Command, CommitFrame, Drain, RefuseRun
from streams.core.events import MemberJoined
from streams.runtime.intake import origin_of
from tests.simulation.agents import Agent
from tests.simulation.cluster import Log, LogRecord
from tests.simulation.gateways import Gateway
from tests.simulation.loop import Process
from tests.simulation.network import Link, Server
from tests.simulation.place import Place
from tests.simulation.poison import Poison
from tests.simulation.promises import Watch
from tests.simulation.workers import Worker

FUSE_MOST = 40
AMBUSH_FUSE_MOST = 12
LINES_MOST = 30
"""Of the product's coroutines; a step of a worker has ten or so."""
STEPS = ("init", "take", "confirm", "produce", "end", "save")
"""Of the protocols with Kafka and Postgres."""
TURNS_BEFORE = 200
"""That a partition has to read before a certain frame."""
HOUR_MS = 3_600_000


@dataclass(slots=True)
class Cast:
    """Who is there now, and how to make one more."""

    place: Place
    watch: Watch
    workers: list[Worker]
    gateways: list[Gateway]
    agents: list[Agent]
    new_worker: Callable[[], Worker]
    new_gateway: Callable[[], Gateway]
    poison: Poison
    lease_ttl_s: float
    clock_was_set: bool = False


class Director:
    """Makes the faults of a plan happen, and undoes what lasts."""

    LIES_IN_WAIT_S = 4.0

    def __init__(self, cast: Cast, random: Random, *, heal_at: float) -> None:
        self._cast = cast
        self._place = cast.place
        self._loop = cast.place.loop
        self._random = random
        self._heal_at = heal_at
        self._poison = cast.poison
        self._special: dict[str, Callable[[], None]] = {
            f"{what} at {step}": partial(self._ambush, strike, step)
            for what, strike in (("kill", self._kill_this), ("pause", self._pause_this))
            for step in STEPS
        }
        self._special["leave lost behind turns"] = self._lose_leave_behind_turns
        """To be named only: among the others each of them would hardly ever be drawn."""
        self._kinds: dict[str, Callable[[], None]] = {
            "kill worker": self._kill_worker,
            "pause worker": self._pause_worker,
            "wedge worker": self._wedge_worker,
            "stop worker": self._stop_worker,
            "one more worker": self._one_more_worker,
            "kill gateway": self._kill_gateway,
            "pause gateway": self._pause_gateway,
            "stop gateway": self._stop_gateway,
            "disconnect agent": self._disconnect_agent,
            "leave lost": self._lose_leave,
            "interrupt agent": self._interrupt_agent,
            "drain agent": self._drain_agent,
            "operator drains": self._drain_by_operator,
            "late words": self._poison.late_words,
            "poison": self._poison.spill,
            "core fails": self._poison.curse,
            "kafka down": lambda: self._server_down(self._place.cluster.server),
            "kafka stalls": lambda: self._server_stalls(self._place.cluster.server),
            "postgres down": lambda: self._server_down(self._place.database.server),
            "postgres stalls": lambda: self._server_stalls(self._place.database.server),
            "cut": self._cut,
            "spell": self._spell,
            "batches refused": self._refuse_batches,
            "marker forgotten": self._forget_marker,
            "broker's clock": self._set_clock,
            "postgres restored": self._restore,
            "sessions ended": self._end_sessions,
            "session ended": self._end_session,
            "taken for dead": self._take_for_dead,
            "renewals lost": self._lose_renewals,
            "ends late": self._delay_ends,
            "flood": self._flood,
            "kill at": lambda: self._ambush(self._kill_this),
            "pause at": lambda: self._ambush(self._pause_this),
            "intake repeated": self._repeat_intake,
        }

    @property
    def kinds(self) -> list[str]:
        """All there are."""
        return sorted(self._kinds)

    def plan(self, only: tuple[str, ...] | None = None) -> None:
        """Draw the faults, of these kinds alone; None: of any."""
        draw = self._random
        if unknown := set(only or ()) - self._kinds.keys() - self._special.keys():
            raise ValueError(f"no such fault: {', '.join(sorted(unknown))}; there are {', '.join(self.kinds)}")
        kinds = draw.sample(self.kinds, draw.randint(1, 6)) if only is None else list(only)
        for _ in range(draw.randint(2, 9) if kinds else 0):
            kind = draw.choice(kinds)
            self._loop.later(draw.random() * (self._heal_at - 0.5), self._strike, kind)
        self._loop.later(self._heal_at, self._heal)

    def _strike(self, kind: str) -> None:
        self._place.trace(f"FAULT: {kind}")
        (self._kinds.get(kind) or self._special[kind])()

    def _heal(self) -> None:
        """From here on nothing goes wrong any more."""
        cast, place = self._cast, self._place
        place.trace("HEAL")
        place.network.heal()
        place.cluster.refusing = place.cluster.forgets_marker = place.cluster.breaks_at_end = False
        for server in (place.cluster.server, place.database.server):
            place.network.revive(server)
        for worker in cast.workers:
            worker.process.fuse = -1
            if worker.alive:
                worker.resume()
        for gateway in cast.gateways:
            gateway.process.fuse = -1
            if gateway.alive:
                place.loop.resume(gateway.process)
        if not any(worker.staying for worker in cast.workers):
            self._new_worker()
        if not any(gateway.open for gateway in cast.gateways):
            self._new_gateway()
        for agent in cast.agents:
            self._reconnect(agent)

    # ---------------------------------------------------------------------------------------------------- helpers
    def _some(self, longest: float, shortest: float = 0.1) -> float:
        return shortest + self._random.random() * (longest - shortest)

    def _until_heal(self, delay: float, undo: Callable[..., object], *arguments: object) -> None:
        """Undo it then; the healing undoes it anyway."""
        self._loop.later(delay, undo, *arguments)

    def _worker(self) -> Worker | None:
        alive = [worker for worker in self._cast.workers if worker.alive]
        return self._random.choice(alive) if alive else None

    def _gateway(self) -> Gateway | None:
        open_ones = [gateway for gateway in self._cast.gateways if gateway.open]
        return self._random.choice(open_ones) if open_ones else None

    def _light(self, process: Process, effect: Callable[[], None], steps_most: int = FUSE_MOST) -> None:
        """Strike between two of its steps, drawn, or before a line of one of them."""
        draw = self._random.randint
        lines = draw(1, LINES_MOST) if self._random.random() < 0.5 else 0
        process.light(draw(0, steps_most), lines, effect)

    def _new_worker(self) -> None:
        worker = self._cast.new_worker()
        self._cast.workers.append(worker)
        self._place.trace(f"{worker.name} starts")

    def _new_gateway(self) -> None:
        gateway = self._cast.new_gateway()
        self._cast.gateways.append(gateway)
        self._place.trace(f"{gateway.name} starts")

    # ---------------------------------------------------------------------------------------------------- workers
    def _kill_worker(self) -> None:
        worker = self._worker()
        if worker is None:
            return
        self._light(worker.process, lambda: self._kill_this(worker))

    def _pause_worker(self) -> None:
        worker = self._worker()
        if worker is None:
            return
        self._light(worker.process, lambda: self._pause_this(worker))

    def _wedge_worker(self) -> None:
        """Its event loop hangs while its heartbeat's thread lives."""
        worker = self._worker()
        if worker is None:
            return
        length = self._some(2 * self._cast.lease_ttl_s, 0.5)

        def strike() -> None:
            self._place.trace(f"{worker.name}'s event loop hangs for {length:.1f} s")
            self._loop.pause(worker.process)
            self._until_heal(length, worker.resume)

        self._light(worker.process, strike)

    def _ambush(self, strike: Callable[[Worker], None], step: str = "") -> None:
        """Whoever takes this step of the protocol next, or a drawn one, is struck some steps later."""
        step = step or self._random.choice(STEPS)

        def struck(process: Process) -> None:
            worker = next((each for each in self._cast.workers if each.process is process and each.alive), None)
            if worker is not None and self._loop.now < self._heal_at:
                self._light(process, lambda: strike(worker), AMBUSH_FUSE_MOST)

        self._place.trace(f"whoever comes to {step} next …")
        self._place.ambush(step, struck)

    def _kill_this(self, worker: Worker) -> None:
        self._place.trace(f"{worker.name} is killed")
        self._cast.watch.died(worker.name)
        worker.kill()
        self._loop.later(self._some(4.0), self._new_worker)

    def _pause_this(self, worker: Worker) -> None:
        length = self._some(3 * self._cast.lease_ttl_s, 0.5)
        self._place.trace(f"{worker.name} is stopped for {length:.1f} s")
        worker.pause()
        self._until_heal(length, worker.resume)

    def _stop_worker(self) -> None:
        worker = self._worker()
        if worker is not None:
            worker.stop()
            self._loop.later(self._some(3.0), self._new_worker)

    def _one_more_worker(self) -> None:
        if sum(worker.alive for worker in self._cast.workers) < 3:
            self._new_worker()

    # --------------------------------------------------------------------------------------- gateways and agents
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

    def _connected(self, agent: Agent) -> Gateway | None:
        return next((each for each in self._cast.gateways if each.alive and agent.name in each.agents), None)

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

    def _reconnect(self, agent: Agent) -> None:
        if self._connected(agent) is not None:
            return
        gateway = self._gateway()
        if gateway is None:
            self._loop.later(0.5, self._reconnect, agent)
        else:
            gateway.connect(agent)

    # --------------------------------------------------------------------------------------------------- servers
    def _server_down(self, server: Server) -> None:
        server.down = True
        if server is self._place.database.server:
            self._place.database.end_sessions()
        self._until_heal(self._some(6.0), self._place.network.revive, server)

    def _server_stalls(self, server: Server) -> None:
        server.stalls = True
        self._until_heal(self._some(8.0), self._place.network.revive, server)

    def _end_sessions(self) -> None:
        self._place.database.end_sessions()

    def _end_session(self) -> None:
        worker = self._worker()
        if worker is not None:
            self._place.trace(f"the session of {worker.name} is ended")
            self._place.database.end_session(worker.name)

    def _take_for_dead(self) -> None:
        """Its session is ended and it cannot come back at once, while Kafka, slow as it is, still takes its writes."""
        worker = self._worker()
        if worker is None:
            return
        database, network = self._place.database, self._place.network
        length = self._some(2.0, 0.5)
        self._place.trace(f"the session of {worker.name} is ended, and it is cut off from Postgres")
        database.end_session(worker.name)
        for name in (worker.name, worker.heart.name):
            network.link(name, database.server).lose_requests = True
            self._until_heal(length, self._mend, name, database.server)
        for each in self._cast.workers:
            network.link(each.name, self._place.cluster.server).slow = 2 ** self._some(7.0, 3.0)
            self._until_heal(length + 3.0, self._mend, each.name, self._place.cluster.server)

    def _lose_renewals(self) -> None:
        """A worker cannot reach Postgres until its lease has ended, and Kafka, slow as it is, takes its writes."""
        worker = self._worker()
        if worker is None:
            return
        place, length = self._place, 1.5 * self._cast.lease_ttl_s
        place.trace(f"{worker.name} is cut off from Postgres")
        for name in (worker.name, worker.heart.name):
            place.network.link(name, place.database.server).lose_requests = True
            self._until_heal(length, self._mend, name, place.database.server)
        place.network.link(worker.name, place.cluster.server).slow = 2 ** self._some(6.5, 3.0)
        self._until_heal(length, self._mend, worker.name, place.cluster.server)

    def _restore(self) -> None:
        database = self._place.database
        self._loop.later(self._some(5.0), self._put_back, database.back_up())

    def _put_back(self, backup: object) -> None:
        if self._loop.now < self._heal_at:
            self._place.trace("Postgres is restored")
            self._place.database.restore(backup)  # type: ignore[arg-type]

    def _refuse_batches(self) -> None:
        self._place.cluster.refusing = True
        self._until_heal(self._some(5.0), self._accept_batches)

    def _accept_batches(self) -> None:
        self._place.cluster.refusing = False

    def _delay_ends(self) -> None:
        """Connections break with an EndTxn under way, which the broker still gets, late."""
        self._place.cluster.breaks_at_end = True
        self._until_heal(self._some(5.0, 1.0), self._end_in_time)

    def _end_in_time(self) -> None:
        self._place.cluster.breaks_at_end = False

    def _forget_marker(self) -> None:
        self._place.cluster.forgets_marker = True

    def _set_clock(self) -> None:
        self._cast.clock_was_set = True
        self._place.cluster.clock_ms += self._random.choice([-HOUR_MS, -1_500, 1_500, HOUR_MS])

    # --------------------------------------------------------------------------------------------------- network
    def _process_name(self) -> str:
        names = [worker.name for worker in self._cast.workers if worker.alive]
        names += [f"{name}'s heart" for name in names]
        names += [gateway.name for gateway in self._cast.gateways if gateway.alive] + ["people"]
        return self._random.choice(names)

    def _servers(self) -> list[Server]:
        return [self._place.cluster.server, self._place.database.server]

    def _cut(self) -> None:
        server = self._random.choice(self._servers())
        both, name = self._random.random() < 0.5, self._process_name()
        link = self._place.network.link(name, server)
        link.lose_requests = both or self._random.random() < 0.5
        link.lose_answers = both or not link.lose_requests
        self._place.trace(f"{name} is cut off from {server.name}")
        self._until_heal(self._some(2 * self._cast.lease_ttl_s), self._mend, name, server)

    def _mend(self, name: str, server: Server) -> None:
        self._place.network.links.pop((name, server.name), None)

    def _spell(self) -> None:
        """Everything is slow, and breaks."""
        slow, hangs = 2 ** self._some(7.0), self._random.choice([0.0, 0.03, 0.1])
        breaks = self._random.choice([0.0, 0.05, 0.2])
        servers = self._random.choice([self._servers(), self._servers()[:1], self._servers()[1:]])
        names = [worker.name for worker in self._cast.workers] + [gateway.name for gateway in self._cast.gateways]
        length = self._some(8.0, 1.0)
        self._place.trace(f"{' and '.join(s.name for s in servers)} {slow:.0f} times slower for {length:.1f} s")
        for name in [*names, *(f"{name}'s heart" for name in names), "people"]:
            for server in servers:
                self._place.network.links[name, server.name] = Link(slow=slow, hangs=hangs, breaks=breaks)
                self._until_heal(length, self._mend, name, server)

    # ---------------------------------------------------------------------------------------------------- intake
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
        if origin_of(record) in self._poison.origins:
            return False
        if record.topic == place.cluster.topics.turns:
            return True
        if record.topic == place.cluster.topics.membership:
            return isinstance(place.codec.decode_membership(record, 0), Command)
        return isinstance(place.codec.decode_frames(record, 0), CommitFrame | RefuseRun)
