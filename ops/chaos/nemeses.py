"""How each fault is done, and undone: every one of them leaves the place as it found it, however it ends."""

from __future__ import annotations

import asyncio
import json
import random
import signal
from collections.abc import Awaitable, Callable, Mapping
from itertools import count
from typing import Final

from aiokafka.errors import KafkaError

from ops.chaos import clock
from ops.chaos.again import again
from ops.chaos.backups import Backups
from ops.chaos.place import PARTITIONS, Place
from ops.chaos.processes import Process
from ops.chaos.proxy import END_TXN, Mishap, Way
from ops.chaos.schedule import Fault, Nemesis
from ops.chaos.viewers import Viewer
from streams.runtime.kafka import KafkaUnavailable

MEETS_WITHIN_S: Final = 8.0
"""How long a failpoint, or a mishap of one request, waits to be met; where nothing happens it is called off."""
MET_POLL_S: Final = 0.05
STORM_EVERY_S: Final = 3.0
INTAKE_S: Final = 20.0
HOUR_S: Final = 3600.0


class Nemeses:
    """Does faults to a place."""

    def __init__(self, place: Place, backups: Backups, viewers: list[Viewer], seed: int) -> None:
        self._place = place
        self._backups = backups
        self._viewers = viewers
        self._rng = random.Random(f"turnlog-chaos-nemeses-{seed}")  # noqa: S311 -- no secret
        self._storms = count(1)
        self._servers = asyncio.Lock()
        """One hand at a time starts or stops the broker or PostgreSQL."""
        self.unmet: list[str] = []
        """Faults that waited for a moment that did not come."""

    async def do(self, fault: Fault) -> None:
        """The fault, from its beginning to its end."""
        await DEEDS[fault.nemesis](self, fault)

    def _target(self, fault: Fault) -> Process:
        return next(process for process in self._place.processes() if process.name == fault.process)

    # ----------------------------------------------------------------------------------------------- processes
    async def kill(self, fault: Fault) -> None:
        """SIGKILL, and back after a while."""
        process = self._target(fault)
        process.kill()
        await asyncio.sleep(fault.for_s)
        process.revive()

    async def drain(self, fault: Fault) -> None:
        """SIGTERM, as a rolling restart does."""
        process = self._target(fault)
        process.terminate()
        await asyncio.sleep(fault.for_s)
        process.revive()

    async def stop(self, fault: Fault) -> None:
        """SIGSTOP, and SIGCONT: the zombie of its former self."""
        process = self._target(fault)
        pid = process.pid
        process.send(signal.SIGSTOP)
        try:
            await asyncio.sleep(fault.for_s)
        finally:
            if process.pid == pid:  # another fault may have killed it meanwhile
                process.send(signal.SIGCONT)

    async def wrong_clock(self, fault: Fault) -> None:
        """The process starts again with a clock that is an hour off, and once more with a good one."""
        process = self._target(fault)
        hours = 1 if fault.nemesis is Nemesis.CLOCK_AHEAD else -1
        process.terminate()
        process.revive_with({clock.VARIABLE: str(hours * HOUR_S)})
        await asyncio.sleep(fault.for_s)
        process.terminate()
        process.revive()

    async def failpoint(self, fault: Fault) -> None:
        """The worker dies, or stops, between two lines."""
        process, dies = self._target(fault), fault.nemesis is Nemesis.FAILPOINT_KILL
        orders, pid = self._place.orders(process.name), process.pid
        orders.write_text(json.dumps({"point": fault.detail, "do": "kill" if dies else "stop"}), "utf-8")
        process.blame(fault.what)
        process.send(signal.SIGUSR1)

        async def met() -> bool:
            return process.pid != pid or not process.ready.is_set() if dies else await process.is_stopped()

        try:
            if not await _within(met, MEETS_WITHIN_S):
                self.unmet.append(fault.what)
            elif not dies:
                await asyncio.sleep(fault.for_s)
        finally:
            process.blame_no_more()
            orders.write_text("", "utf-8")
            if process.pid == pid and process.ready.is_set():
                process.send(signal.SIGCONT)
                process.send(signal.SIGUSR1)

    async def storm(self, fault: Fault) -> None:
        """A worker comes every three seconds; every second one goes again by a kill, the others in order."""
        ends_at = asyncio.get_running_loop().time() + fault.for_s
        guests: list[Process] = []
        while asyncio.get_running_loop().time() < ends_at:
            guest = Process(self._place.worker_plan(f"guest-{next(self._storms)}"), self._place.notify)
            self._place.passers_by.append(guest)
            guest.begin()
            guests.append(guest)
            await asyncio.sleep(STORM_EVERY_S)
            if len(guests) > 1:
                (guests[-2].kill if len(guests) % 2 else guests[-2].terminate)()
        for guest in guests:
            guest.terminate()

    async def reader_stops(self, fault: Fault) -> None:
        """A viewer reads nothing any more, for a while."""
        viewer = self._viewers[self._rng.randrange(len(self._viewers))]
        viewer.stop_reading()
        try:
            await asyncio.sleep(fault.for_s)
        finally:
            viewer.go_on()

    # ------------------------------------------------------------------------------------------------- servers
    async def broker_dies(self, fault: Fault) -> None:
        """SIGKILL of the broker, or an orderly stop; it is away for a while, then starts on its data."""
        servers = self._place.servers
        async with self._servers:
            if fault.nemesis is Nemesis.BROKER_KILL:
                await asyncio.to_thread(servers.kill_kafka)
                await asyncio.sleep(fault.for_s)
            await asyncio.to_thread(servers.restart_kafka)

    async def broker_pauses(self, fault: Fault) -> None:
        """The broker stands still: nobody's connection ends, nobody gets an answer."""
        async with self._servers:
            self._place.servers.signal_kafka(signal.SIGSTOP)
            try:
                await asyncio.sleep(fault.for_s)
            finally:
                self._place.servers.signal_kafka(signal.SIGCONT)

    async def postgres_dies(self, fault: Fault) -> None:
        """SIGKILL of PostgreSQL, or an orderly stop; it is away for a while, then starts on its data."""
        servers = self._place.servers
        async with self._servers:
            if fault.nemesis is Nemesis.POSTGRES_KILL:
                await asyncio.to_thread(servers.kill_postgres)
            else:
                servers.signal_postgres(signal.SIGINT)
            await asyncio.sleep(fault.for_s)
            await asyncio.to_thread(servers.restart_postgres)

    async def sessions_end(self, _fault: Fault) -> None:
        """Every session of the database is ended in the middle of what it does."""
        async with self._servers:
            await asyncio.to_thread(self._backups.end_sessions)

    async def restored(self, fault: Fault) -> None:
        """The database is what it was at the last backup; under live workers, or between two lives of all of them."""
        idle = fault.nemesis is Nemesis.POSTGRES_RESTORE_IDLE
        async with self._servers:
            for worker in self._place.workers if idle else ():
                worker.kill()
            try:
                await asyncio.to_thread(self._backups.restore)
            finally:
                for worker in self._place.workers if idle else ():
                    worker.revive()
            await asyncio.to_thread(self._backups.make)

    async def disk_fills(self, fault: Fault) -> None:
        """Nothing can be written any more under broker and database; later there is room again, and both start anew."""
        disk, servers = self._place.disk, self._place.servers
        if disk is None:
            self.unmet.append(f"{fault.what}: no disk can be mounted here (root on Linux can)")
            return
        async with self._servers:
            await asyncio.to_thread(disk.fill)
            try:
                await asyncio.sleep(fault.for_s)
            finally:
                disk.free()
            await asyncio.to_thread(servers.restart_kafka)
            await asyncio.to_thread(servers.restart_postgres)

    # ----------------------------------------------------------------------------------------------- the network
    async def kafka_cut(self, fault: Fault) -> None:
        """Nothing passes between one process and Kafka, one way or both; then all that waited does."""
        ways = {
            Nemesis.KAFKA_CUT: tuple(Way),
            Nemesis.KAFKA_CUT_SENDING: (Way.SENDING,),
            Nemesis.KAFKA_CUT_RECEIVING: (Way.RECEIVING,),
        }[fault.nemesis]
        proxy = self._place.ways[self._target(fault).name].kafka
        proxy.hold(*ways)
        try:
            await asyncio.sleep(fault.for_s)
        finally:
            proxy.release()

    async def kafka_reset(self, fault: Fault) -> None:
        """All of one process's connections to Kafka end."""
        self._place.ways[self._target(fault).name].kafka.reset()

    async def kafka_slow(self, fault: Fault) -> None:
        """Everything between one process and Kafka takes a fifth of a second longer, each way."""
        proxy = self._place.ways[self._target(fault).name].kafka
        proxy.delay_s = 0.2
        try:
            await asyncio.sleep(fault.for_s)
        finally:
            proxy.delay_s = 0.0

    async def end_txn(self, fault: Fault) -> None:
        """The next end of a transaction: its answer is lost or late, or it comes late itself."""
        mishap = {
            Nemesis.END_TXN_ANSWER_LOST: Mishap.ANSWER_LOST,
            Nemesis.END_TXN_ANSWER_LATE: Mishap.ANSWER_LATE,
            Nemesis.END_TXN_LATE: Mishap.REQUEST_LATE,
        }[fault.nemesis]
        proxy = self._place.ways[self._target(fault).name].kafka
        waiting = proxy.arm(END_TXN, mishap, fault.for_s)
        try:
            async with asyncio.timeout(MEETS_WITHIN_S):
                await waiting.happened.wait()
        except TimeoutError:
            self.unmet.append(fault.what)
        else:
            await asyncio.sleep(fault.for_s)
        finally:
            proxy.disarm(waiting)

    async def postgres_cut(self, fault: Fault) -> None:
        """Nothing passes between one process and PostgreSQL; then all that waited does."""
        proxy = self._place.ways[self._target(fault).name].postgres
        proxy.hold(*Way)
        try:
            await asyncio.sleep(fault.for_s)
        finally:
            proxy.release()

    async def postgres_reset(self, fault: Fault) -> None:
        """All of one process's connections to PostgreSQL end."""
        self._place.ways[self._target(fault).name].postgres.reset()

    async def intake_again(self, fault: Fault) -> None:
        """The last records of `turns` and `membership` come once more, in another order."""
        try:
            async with asyncio.timeout(INTAKE_S):
                await again(self._place.settings, PARTITIONS, self._rng)
        except (KafkaError, KafkaUnavailable, TimeoutError, OSError) as error:  # another fault has the broker
            self.unmet.append(f"{fault.what}: {type(error).__name__}")


async def _within(condition: Callable[[], Awaitable[bool]], limit_s: float) -> bool:
    """Whether another process came to be so in time: nothing tells, it has to be looked at."""
    try:
        async with asyncio.timeout(limit_s):
            while not await condition():  # noqa: ASYNC110
                await asyncio.sleep(MET_POLL_S)
    except TimeoutError:
        return False
    return True


N = Nemeses
DEEDS: Final[Mapping[Nemesis, Callable[[Nemeses, Fault], Awaitable[None]]]] = {
    Nemesis.KILL_WORKER: N.kill,
    Nemesis.STOP_WORKER: N.stop,
    Nemesis.KILL_GATEWAY: N.kill,
    Nemesis.STOP_GATEWAY: N.stop,
    Nemesis.KILL_AGENT: N.kill,
    Nemesis.STOP_AGENT: N.stop,
    Nemesis.KILL_PROJECTOR: N.kill,
    Nemesis.DRAIN: N.drain,
    Nemesis.BROKER_KILL: N.broker_dies,
    Nemesis.BROKER_STOP: N.broker_dies,
    Nemesis.BROKER_PAUSE: N.broker_pauses,
    Nemesis.POSTGRES_KILL: N.postgres_dies,
    Nemesis.POSTGRES_STOP: N.postgres_dies,
    Nemesis.POSTGRES_SESSIONS: N.sessions_end,
    Nemesis.POSTGRES_RESTORE: N.restored,
    Nemesis.POSTGRES_RESTORE_IDLE: N.restored,
    Nemesis.KAFKA_CUT: N.kafka_cut,
    Nemesis.KAFKA_CUT_SENDING: N.kafka_cut,
    Nemesis.KAFKA_CUT_RECEIVING: N.kafka_cut,
    Nemesis.KAFKA_RESET: N.kafka_reset,
    Nemesis.KAFKA_SLOW: N.kafka_slow,
    Nemesis.END_TXN_ANSWER_LOST: N.end_txn,
    Nemesis.END_TXN_ANSWER_LATE: N.end_txn,
    Nemesis.END_TXN_LATE: N.end_txn,
    Nemesis.POSTGRES_CUT: N.postgres_cut,
    Nemesis.POSTGRES_RESET: N.postgres_reset,
    Nemesis.FAILPOINT_KILL: N.failpoint,
    Nemesis.FAILPOINT_STOP: N.failpoint,
    Nemesis.WORKER_STORM: N.storm,
    Nemesis.CLOCK_AHEAD: N.wrong_clock,
    Nemesis.CLOCK_BEHIND: N.wrong_clock,
    Nemesis.INTAKE_AGAIN: N.intake_again,
    Nemesis.READER_STOPS: N.reader_stops,
    Nemesis.DISK_FULL: N.disk_fills,
}
