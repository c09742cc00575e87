"""Faults of the servers: the broker, PostgreSQL, the disk under both."""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

from aiokafka.errors import KafkaError

from ops.chaos.backups import Backups
from ops.chaos.databases import restarted
from ops.chaos.place import Place
from ops.chaos.proxy import LOOPBACK, TcpProxy, Way
from ops.chaos.proxy import running as proxies_running
from ops.chaos.refusing import refusing
from ops.chaos.schedule import Fault, Nemesis
from ops.chaos.writers import Loss, Losses
from ops.embedded.errors import StackUnavailable
from ops.embedded.stack import EmbeddedStack
from streams.runtime.kafka import KafkaUnavailable
from streams.topics import Topics

UNREACHABLE: Final = (KafkaError, KafkaUnavailable, TimeoutError, OSError)


class Broker:
    """The broker as a server among others (`databases.Server`)."""

    def __init__(self, stack: EmbeddedStack) -> None:
        self.kill, self.signal, self.restart = stack.kill_kafka, stack.signal_kafka, stack.restart_kafka


class Outages:
    """Does them, one at a time: they start and stop what another one would."""

    def __init__(self, place: Place, backups: Backups, unmet: list[str]) -> None:
        """`unmet`: where faults go that could not be done."""
        self._place = place
        self._backups = backups
        self._broker = Broker(place.servers)
        self.alone = asyncio.Lock()
        """Whoever has it may count on the servers' not being touched."""
        self._backed_up_at = 0.0
        self.unmet = unmet
        self.losses = Losses()
        """When PostgreSQL became what it had been."""

    async def broker_dies(self, fault: Fault) -> None:
        """SIGKILL of the broker, or an orderly stop; it is away for a while, then starts on its data."""
        servers = self._place.servers
        async with self.alone:
            if fault.nemesis is Nemesis.BROKER_KILL:
                await asyncio.to_thread(servers.kill_kafka)
                await asyncio.sleep(fault.for_s)
            await asyncio.to_thread(restarted, self._broker)

    async def broker_pauses(self, fault: Fault) -> None:
        """The broker stands still: nobody's connection ends, nobody gets an answer."""
        async with self.alone:
            self._place.servers.signal_kafka(signal.SIGSTOP)
            try:
                await asyncio.sleep(fault.for_s)
            finally:
                self._place.servers.signal_kafka(signal.SIGCONT)

    async def postgres_dies(self, fault: Fault) -> None:
        """SIGKILL of PostgreSQL, or an orderly stop; it is away for a while, then starts on its data."""
        database = self._place.database
        async with self.alone:
            if fault.nemesis is Nemesis.POSTGRES_KILL:
                await asyncio.to_thread(database.kill)
            else:
                database.signal(signal.SIGINT)
            await asyncio.sleep(fault.for_s)
            await asyncio.to_thread(database.restart)

    async def sessions_end(self, _fault: Fault) -> None:
        """Every session of the database is ended in the middle of what it does."""
        async with self.alone:
            await asyncio.to_thread(self._backups.end_sessions)

    async def restored(self, fault: Fault) -> None:
        """The database is what it was at the last backup; under live workers, or between two lives of all of them."""
        idle = fault.nemesis is Nemesis.POSTGRES_RESTORE_IDLE
        async with self.alone, self._between_workers(idle=idle):
            await asyncio.to_thread(self._backups.restore)
            self.losses.known.append(Loss(self._backed_up_at, time.monotonic()))
        async with self.alone:
            await self.back_up()

    async def back_up(self) -> None:
        """What the next restore goes back to."""
        at = time.monotonic()
        await asyncio.to_thread(self._backups.make)
        self._backed_up_at = at

    @asynccontextmanager
    async def _between_workers(self, *, idle: bool) -> AsyncIterator[None]:
        """Under live workers; or, if `idle`, after the death of all and before the next ones."""
        for worker in self._place.workers if idle else ():
            worker.kill()
        try:
            yield
        finally:
            for worker in self._place.workers if idle else ():
                worker.revive()

    async def fails_over(self, fault: Fault) -> None:
        """The primary is killed, and a standby takes its place that lacks the last seconds; under live workers, or
        between two lives of all of them."""
        place, idle = self._place, fault.nemesis is Nemesis.POSTGRES_FAILOVER_IDLE
        link = TcpProxy(LOOPBACK, place.database.port)
        async with self.alone, proxies_running(link):
            try:
                standby = await asyncio.to_thread(place.database.standby, link.port)
            except StackUnavailable as error:
                first, _, log = str(error).partition("\n")
                self.unmet.append(f"{fault.what}: {first} {log.rstrip().rpartition(chr(10))[2]}".rstrip())
                return
            link.hold(*Way)
            lacks_from = time.monotonic()
            await asyncio.sleep(fault.for_s)
            async with self._between_workers(idle=idle):
                await asyncio.to_thread(place.database.fail_over, standby)
                place.lead_to_primary()
                self.losses.known.append(Loss(lacks_from, time.monotonic()))

    async def disk_fills(self, fault: Fault) -> None:
        """Nothing can be written any more under broker and database; later there is room again, and both start anew."""
        disk = self._place.disk
        if disk is None:
            self.unmet.append(f"{fault.what}: no disk can be mounted here (root on Linux can)")
            return
        async with self.alone:
            await asyncio.to_thread(disk.fill)
            try:
                await asyncio.sleep(fault.for_s)
            finally:
                disk.free()
            await asyncio.to_thread(restarted, self._broker)
            await asyncio.to_thread(self._place.database.restart)

    async def journal_refuses(self, fault: Fault) -> None:
        """The broker takes no record of the journal: each send in a transaction fails, its end would not."""
        settings, met = self._place.settings, False
        async with self.alone:
            try:
                async with refusing(settings.kafka, Topics(settings.namespace).conversations):
                    met = True
                    await asyncio.sleep(fault.for_s)
            except UNREACHABLE as error:
                if met:
                    raise  # it was not undone: nothing can be said of this run
                self.unmet.append(f"{fault.what}: {type(error).__name__}")  # another fault has the broker
