"""How each fault is done, and undone: every one of them leaves the place as it found it, however it ends."""

from __future__ import annotations

import asyncio
import json
import random
import signal
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from itertools import count
from typing import Final

from ops.chaos import clock
from ops.chaos.again import again
from ops.chaos.backups import Backups
from ops.chaos.network import Wire
from ops.chaos.outages import UNREACHABLE, Outages
from ops.chaos.place import PARTITIONS, Place
from ops.chaos.processes import Process
from ops.chaos.proxy import END_TXN, Mishap, Way
from ops.chaos.schedule import DROPPED, OF_CLAIMS, Failpoint, Fault, Nemesis
from ops.chaos.viewers import Viewer
from streams.fence.lease import lock_key

MEETS_WITHIN_S: Final = 8.0
"""How long a failpoint, or a mishap of one request, waits to be met; where nothing happens it is called off."""
MET_POLL_S: Final = 0.05
LOCK_LOST_EVERY_S: Final = 0.05
REASON_EVERY_S: Final = 2.0
DISARMED_S: Final = 1.0
"""So soon a process has read that it is to meet no failpoint any more."""
STORM_EVERY_S: Final = 3.0
AGENTS_EVERY_S: Final = 1.0
AGENTS_TOGETHER: Final = 3
INTAKE_S: Final = 20.0
HOUR_S: Final = 3600.0
CUT_WAYS: Final = {
    Nemesis.KAFKA_CUT: (Wire.KAFKA, tuple(Way)),
    Nemesis.KAFKA_CUT_SENDING: (Wire.KAFKA, (Way.SENDING,)),
    Nemesis.KAFKA_CUT_RECEIVING: (Wire.KAFKA, (Way.RECEIVING,)),
    Nemesis.POSTGRES_CUT: (Wire.POSTGRES, tuple(Way)),
    Nemesis.POSTGRES_CUT_SENDING: (Wire.POSTGRES, (Way.SENDING,)),
    Nemesis.POSTGRES_CUT_RECEIVING: (Wire.POSTGRES, (Way.RECEIVING,)),
}


class Nemeses:
    """Does faults to a place."""

    def __init__(self, place: Place, backups: Backups, viewers: list[Viewer], seed: int) -> None:
        self._place = place
        self._viewers = viewers
        self._rng = random.Random(f"turnlog-chaos-nemeses-{seed}")  # noqa: S311 -- no secret
        self._storms = count(1)
        self._backups = backups
        self.unmet: list[str] = []
        """Faults that waited for a moment that did not come."""
        self.outages = Outages(place, backups, self.unmet)

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
        """The worker, or the gateway, dies or stops between two lines."""
        process, dies = self._target(fault), fault.nemesis is Nemesis.FAILPOINT_KILL
        point = Failpoint.AFTER_REPLAY if fault.nemesis is Nemesis.PAUSED_CLAIM else Failpoint(fault.detail)
        orders, pid = self._place.orders(process.name), process.pid
        orders.write_text(json.dumps({"point": point, "do": "kill" if dies else "stop"}), "utf-8")
        process.blame(fault.what)
        process.send(signal.SIGUSR1)
        reasons = asyncio.create_task(self._reasons_to_claim(process.name)) if point in OF_CLAIMS else None

        async def met() -> bool:
            return process.pid != pid or not process.ready.is_set() if dies else await process.is_stopped()

        try:
            is_met = await _within(met, MEETS_WITHIN_S)
            await _over(reasons)
            if not is_met:
                self.unmet.append(fault.what)
            elif not dies:
                await asyncio.sleep(fault.for_s)
        finally:
            await _over(reasons)
            process.blame_no_more()
            orders.write_text("", "utf-8")
            for number in (signal.SIGCONT, signal.SIGUSR1):
                if process.pid == pid and process.ready.is_set():
                    process.send(number)
            # It may have met the failpoint between the two.
            await asyncio.sleep(DISARMED_S)
            if process.pid == pid:
                process.send(signal.SIGCONT)

    async def _reasons_to_claim(self, name: str) -> None:
        """Until it is cancelled: the worker takes the others for dead, and its producers are cut off now and then."""
        while True:
            self._place.ways[name].kafka.reset()
            if not self.outages.alone.locked():
                async with self.outages.alone:
                    for other in self._place.workers:
                        if other.name != name and (worker := other.document.get("id")) is not None:
                            await asyncio.to_thread(self._backups.end_lock, lock_key(worker))
            await asyncio.sleep(REASON_EVERY_S)

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

    async def agent_storm(self, fault: Fault) -> None:
        """Agents come, one a second, and go again: one by a kill, the next in order."""
        ends_at = asyncio.get_running_loop().time() + fault.for_s
        guests: list[Process] = []
        while asyncio.get_running_loop().time() < ends_at:
            guest = self._place.guest_agent(f"guest-agent-{next(self._storms)}")
            guest.begin()
            guests.append(guest)
            await asyncio.sleep(AGENTS_EVERY_S)
            if len(guests) > AGENTS_TOGETHER:
                gone = guests[-1 - AGENTS_TOGETHER]
                (gone.kill if len(guests) % 2 else gone.terminate)()
        for guest in guests[-AGENTS_TOGETHER:]:
            guest.terminate()

    async def reader_stops(self, fault: Fault) -> None:
        """A viewer reads nothing any more, for a while."""
        viewer = self._viewers[self._rng.randrange(len(self._viewers))]
        viewer.stop_reading()
        try:
            await asyncio.sleep(fault.for_s)
        finally:
            viewer.go_on()

    # ----------------------------------------------------------------------------------------------- the network
    async def cut(self, fault: Fault) -> None:
        """Nothing passes between one process and one server, one way or both. Where the kernel drops the packets, TCP
        has to notice; where the proxy holds them, all that waited passes in the end."""
        wire, pass_no_more = CUT_WAYS[fault.nemesis]
        ways = self._place.ways[self._target(fault).name]
        await asyncio.to_thread(ways.cut, wire, pass_no_more, packets=fault.detail == DROPPED)
        try:
            await asyncio.sleep(fault.for_s)
        finally:
            ways.mend(wire)

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

    async def postgres_reset(self, fault: Fault) -> None:
        """All of one process's connections to PostgreSQL end."""
        self._place.ways[self._target(fault).name].postgres.reset()

    async def session_lost(self, fault: Fault) -> None:
        """PostgreSQL ends a worker's sessions; the worker, who does not get through, may think for a while that all is
        as it was. Others take it for dead."""
        proxy = self._place.ways[self._target(fault).name].postgres
        proxy.hold(*Way)
        proxy.reset()
        try:
            await asyncio.sleep(fault.for_s)
        finally:
            proxy.release()

    async def taken_for_dead(self, fault: Fault) -> None:
        """A worker's advisory lock is lost, again and again, and nothing else of it: others take it for dead, and it
        hears of that from none but the fences."""
        worker = self._target(fault).document.get("id")
        ends_at = asyncio.get_running_loop().time() + fault.for_s
        async with self.outages.alone:
            while worker is not None and asyncio.get_running_loop().time() < ends_at:
                await asyncio.to_thread(self._backups.end_lock, lock_key(worker))
                await asyncio.sleep(LOCK_LOST_EVERY_S)

    async def clients_cut(self, fault: Fault) -> None:
        """Nothing passes between one gateway and its people and agents: half-open sockets, on both sides."""
        door = self._place.doors[fault.process]
        door.hold(*Way)
        try:
            await asyncio.sleep(fault.for_s)
        finally:
            door.release()

    async def intake_again(self, fault: Fault) -> None:
        """The last records of all three topics of the intake come once more, in another order."""
        try:
            async with asyncio.timeout(INTAKE_S):
                await again(self._place.settings, PARTITIONS, self._rng)
        except UNREACHABLE as error:  # another fault has the broker
            self.unmet.append(f"{fault.what}: {type(error).__name__}")


async def _over(task: asyncio.Task[None] | None) -> None:
    """Cancel it, if there is one; raises what it ended by, if it did."""
    if task is not None:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


async def _within(condition: Callable[[], Awaitable[bool]], limit_s: float) -> bool:
    """Whether another process came to be so in time: nothing tells, it has to be looked at."""
    try:
        async with asyncio.timeout(limit_s):
            while not await condition():  # noqa: ASYNC110
                await asyncio.sleep(MET_POLL_S)
    except TimeoutError:
        return False
    return True


def of_servers(deed: Callable[[Outages, Fault], Awaitable[None]]) -> Callable[[Nemeses, Fault], Awaitable[None]]:
    """A deed of `Outages` as one of `Nemeses`."""
    return lambda nemeses, fault: deed(nemeses.outages, fault)


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
    Nemesis.BROKER_KILL: of_servers(Outages.broker_dies),
    Nemesis.BROKER_STOP: of_servers(Outages.broker_dies),
    Nemesis.BROKER_PAUSE: of_servers(Outages.broker_pauses),
    Nemesis.POSTGRES_KILL: of_servers(Outages.postgres_dies),
    Nemesis.POSTGRES_STOP: of_servers(Outages.postgres_dies),
    Nemesis.POSTGRES_SESSIONS: of_servers(Outages.sessions_end),
    Nemesis.POSTGRES_RESTORE: of_servers(Outages.restored),
    Nemesis.POSTGRES_RESTORE_IDLE: of_servers(Outages.restored),
    Nemesis.POSTGRES_FAILOVER: of_servers(Outages.fails_over),
    Nemesis.POSTGRES_FAILOVER_IDLE: of_servers(Outages.fails_over),
    Nemesis.KAFKA_CUT: N.cut,
    Nemesis.KAFKA_CUT_SENDING: N.cut,
    Nemesis.KAFKA_CUT_RECEIVING: N.cut,
    Nemesis.KAFKA_RESET: N.kafka_reset,
    Nemesis.KAFKA_SLOW: N.kafka_slow,
    Nemesis.END_TXN_ANSWER_LOST: N.end_txn,
    Nemesis.END_TXN_ANSWER_LATE: N.end_txn,
    Nemesis.END_TXN_LATE: N.end_txn,
    Nemesis.JOURNAL_REFUSES: of_servers(Outages.journal_refuses),
    Nemesis.POSTGRES_CUT: N.cut,
    Nemesis.POSTGRES_CUT_SENDING: N.cut,
    Nemesis.POSTGRES_CUT_RECEIVING: N.cut,
    Nemesis.SESSION_LOST: N.session_lost,
    Nemesis.TAKEN_FOR_DEAD: N.taken_for_dead,
    Nemesis.CLIENTS_CUT: N.clients_cut,
    Nemesis.POSTGRES_RESET: N.postgres_reset,
    Nemesis.FAILPOINT_KILL: N.failpoint,
    Nemesis.FAILPOINT_STOP: N.failpoint,
    Nemesis.PAUSED_CLAIM: N.failpoint,
    Nemesis.WORKER_STORM: N.storm,
    Nemesis.AGENT_STORM: N.agent_storm,
    Nemesis.CLOCK_AHEAD: N.wrong_clock,
    Nemesis.CLOCK_BEHIND: N.wrong_clock,
    Nemesis.INTAKE_AGAIN: N.intake_again,
    Nemesis.READER_STOPS: N.reader_stops,
    Nemesis.DISK_FULL: of_servers(Outages.disk_fills),
}
