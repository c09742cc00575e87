"""Faults of Kafka and Postgres, and of the network before them."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from tests.simulation.hand import Hand
from tests.simulation.network import Link, Server

HOUR_MS = 3_600_000


class ServerFaults(Hand):
    """What befalls a server, or the way to it."""

    def kinds(self) -> dict[str, Callable[[], None]]:
        """By what a seed or a shell calls them."""
        return {
            "kafka down": partial(self._server_down, self._place.cluster.server),
            "kafka stalls": partial(self._server_stalls, self._place.cluster.server),
            "postgres down": partial(self._server_down, self._place.database.server),
            "postgres stalls": partial(self._server_stalls, self._place.database.server),
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
        }

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
