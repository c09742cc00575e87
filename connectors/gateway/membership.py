"""This gateway's members, told to every partition: joins, leaves, heartbeats, lists and the document of channels.

Each change is (incarnation, n) and goes to all partitions in the order of n, by one task. A partition that missed one
asks for the list in the journal and gets it. When a partition has ended the incarnation (it believed the gateway dead),
every member is gone for good: their sockets are closed and the gateway goes on as a new incarnation.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from functools import partial
from typing import Any

import msgspec
import structlog

from connectors.gateway.ports import Intake, Unavailable, Written
from streams.core.commands import ApplyConfig, ApplyList, Command, Drain, Join, Leave, ListedMember
from streams.core.events import GatewayEnded, ListWanted
from streams.runtime.partitioning import partition_of
from streams.runtime.signals import Goodbye, Heartbeat, Signal

log = structlog.get_logger(__name__)

WRITES_MAX = 1_000
"""Records that are on their way at the same time. A thousand agents that come at once are as many joins on each
partition: they wait for each other, and what people say has room beside them."""

REPEATED = "repeated"
"""Reason of a drain that is said again, since Kafka did not take it before."""

Message = Command | Signal
Job = Callable[[], Iterator[tuple[int, Message]]]
"""Makes its records as they are written, each with its partition."""


class Member(msgspec.Struct, kw_only=True):
    """One agent connection. `frames_end`: per partition, the offset after its last frame there."""

    id: str
    channel: str
    group: str
    each: bool
    watermarks: dict[str, int]
    continues: bool = False
    instance: str = ""
    draining: bool = False
    untold: set[int] = msgspec.field(default_factory=set)
    """Partitions that are to be told that it drains, and are not."""
    joined: set[int] = msgspec.field(default_factory=set)
    frames_end: dict[int, int] = msgspec.field(default_factory=dict)
    unwritten: set[asyncio.Future[Written]] = msgspec.field(default_factory=set)

    def wrote(self, written: asyncio.Future[Written]) -> None:
        """A frame of this member is on its way; it counts into `frames_end` once it is written."""
        self.unwritten.add(written)
        written.add_done_callback(self._written)

    def _written(self, written: asyncio.Future[Written]) -> None:
        self.unwritten.discard(written)
        if not written.cancelled() and written.exception() is None:
            where = written.result()
            self.frames_end[where.partition] = max(self.frames_end.get(where.partition, 0), where.offset + 1)


def group_of(channel: str, group: str | None, member: str, *, each: bool) -> str:
    """The qualified group: the channel's implicit one, a named one, or one of the member's own."""
    if group is not None:
        return f"{channel}/{group}"
    return f"{channel}/~{member}" if each else channel


class Membership:
    """See the module. `on_ended` closes all agent connections; it is called after the new incarnation is there."""

    def __init__(self, intake: Intake, *, heartbeat_ms: int, on_ended: Callable[[], None]) -> None:
        self._intake = intake
        self._heartbeat_s = heartbeat_ms / 1000
        self._on_ended = on_ended
        self._members: dict[str, Member] = {}
        self._jobs: asyncio.Queue[tuple[Job, asyncio.Future[None] | None]] = asyncio.Queue()
        self._count = 0
        self._n = 0
        self._frames_end: dict[int, int] = {}
        """Per partition, the offset after the last frame of all members that left."""
        self._config: tuple[int, str] = (0, "")
        self._stopping = False
        self._on_their_way = 0
        self._room = asyncio.Event()
        self.incarnation = _incarnation()

    @property
    def members(self) -> Mapping[str, Member]:
        """Members of the current incarnation, by id."""
        return self._members

    def new_member_id(self) -> str:
        """An id that was never used and never will be."""
        self._count += 1
        return f"{self.incarnation}.{self._count}"

    # ------------------------------------------------------------------------------------------------- changes
    def is_mine(self, member_id: str) -> bool:
        """Whether it is connected here."""
        return member_id in self._members

    async def join(self, member: Member) -> None:
        """Tell every partition; returns once the brokers have it. Raises `Unavailable`."""
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._jobs.put_nowait((lambda: self._joined(member), done))
        await done

    async def leave(self, member_id: str, reason: str) -> None:
        """Tell every partition, after the member's last frame is written. Unknown members have left already."""
        member = self._members.get(member_id)
        if member is None:
            return
        if member.unwritten:
            await asyncio.wait(member.unwritten)
        if member_id in self._members:
            self._jobs.put_nowait((lambda: self._left(member, reason), None))

    def drain(self, member_ids: Iterable[str], reason: str) -> None:
        """Tell every partition that these members get nothing new. Those that drain already, or have left, are no news.

        A partition that Kafka does not let be told gives them turns still; it is told again with the next heartbeat.
        """
        for member_id in member_ids:
            member = self._members.get(member_id)
            if member is not None and not member.draining:
                member.draining = True
                member.untold.update(range(self._intake.partitions))
                self._jobs.put_nowait((partial(self._drains, member, reason), None))

    def member_draining(self, member_id: str) -> bool:
        """A partition says that a member drains; whether that is news, since somebody else wants it."""
        member = self._members.get(member_id)
        if member is None or member.draining:
            return False
        member.draining = True
        return True

    def set_config(self, version: int, document: str) -> None:
        """A newer document: broadcast it, and carry its version from now on."""
        self._config = (version, document)
        everywhere = ApplyConfig(at=0, timestamp=0, version=version, document=document)
        self._jobs.put_nowait((lambda: self._to_all(everywhere), None))

    async def run(self) -> None:
        """Write what is asked for, in order, and a heartbeat every interval."""
        loop = asyncio.get_running_loop()
        next_beat = loop.time()
        while True:
            job, done = await self._next_job(next_beat)
            await self._write(job or self._beat, done)
            if job is None:
                next_beat = loop.time() + self._heartbeat_s  # of when it was written: those who queue come in between

    async def _next_job(self, beat_at: float) -> tuple[Job | None, asyncio.Future[None] | None]:
        """What is to be written next; None: a heartbeat, whose time does not wait for those who queue."""
        if asyncio.get_running_loop().time() < beat_at:
            with suppress(TimeoutError):
                async with asyncio.timeout_at(beat_at):
                    return await self._jobs.get()
        return None, None

    async def goodbye(self) -> None:
        """The last words, after all that is queued: Goodbye on every partition. `run` must be running.

        A partition that does not get it gives this gateway up when it hears no more of it.
        """
        self._stopping = True
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._jobs.put_nowait((lambda: self._to_all(Goodbye(gateway=self.incarnation)), done))
        try:
            await done
        except Unavailable as error:
            log.warning("the goodbye did not reach every partition", error=str(error))

    # ------------------------------------------------------------------------------------------------- journal
    def list_wanted(self, partition: int, event: ListWanted) -> None:
        """A partition asks for the members, or for the document."""
        if event.gateway != self.incarnation:
            return
        if event.of == "config":
            version, document = self._config
            if version > event.have:
                config = ApplyConfig(at=0, timestamp=0, version=version, document=document)
                self._jobs.put_nowait((lambda: iter([(partition, config)]), None))
        else:
            self._jobs.put_nowait((lambda: self._list(partition), None))

    def member_joined(self, member_id: str, partition: int) -> None:
        """A partition took the member."""
        member = self._members.get(member_id)
        if member is None:
            return
        member.joined.add(partition)
        if len(member.joined) == self._intake.partitions:
            member.watermarks = {}  # every partition has them now

    def gateway_ended(self, event: GatewayEnded) -> None:
        """A partition ended an incarnation; see the module when it is this one."""
        if event.gateway == self.incarnation and not self._stopping:
            self.restart(event.reason)

    def restart(self, reason: str) -> None:
        """Go on as a new incarnation: all members of this one are over, on every partition."""
        ended = self.incarnation
        self.incarnation = _incarnation()
        self._members = {}
        self._n = 0
        self._frames_end = {}
        self._jobs.put_nowait((lambda: self._to_all(Goodbye(gateway=ended)), None))
        log.warning("this gateway was given up by others; going on as a new one", ended=ended, reason=reason)
        self._on_ended()

    # ------------------------------------------------------------------------------------------------- records
    def _joined(self, member: Member) -> Iterator[tuple[int, Message]]:
        if not member.id.startswith(f"{self.incarnation}."):
            raise Unavailable("the gateway's incarnation ended meanwhile")
        self._n += 1
        self._members[member.id] = member
        gateway, n, split = self.incarnation, self._n, self._split(member.watermarks)
        for partition in range(self._intake.partitions):
            yield (
                partition,
                Join(
                    at=0,
                    timestamp=0,
                    gateway=gateway,
                    n=n,
                    member=member.id,
                    channel=member.channel,
                    group=member.group,
                    each=member.each,
                    watermarks=split.get(partition, {}),
                    continues=member.continues,
                    instance=member.instance,
                ),
            )

    def _left(self, member: Member, reason: str) -> Iterator[tuple[int, Message]]:
        if self._members.pop(member.id, None) is None:
            return
        self._n += 1
        gateway, n = self.incarnation, self._n
        for partition, end in member.frames_end.items():
            self._frames_end[partition] = max(self._frames_end.get(partition, 0), end)
        for partition in range(self._intake.partitions):
            yield (
                partition,
                Leave(
                    at=0,
                    timestamp=0,
                    gateway=gateway,
                    n=n,
                    member=member.id,
                    reason=reason,
                    frames_end=member.frames_end.get(partition, 0),
                ),
            )

    def _list(self, partition: int) -> Iterator[tuple[int, Message]]:
        members = tuple(
            ListedMember(
                member=member.id,
                channel=member.channel,
                group=member.group,
                each=member.each,
                watermarks=self._split(member.watermarks).get(partition, {}),
                continues=member.continues,
                draining=member.draining,
                instance=member.instance,
            )
            for member in self._members.values()
        )
        end = self._frames_end.get(partition, 0)
        yield (
            partition,
            ApplyList(at=0, timestamp=0, gateway=self.incarnation, n=self._n, members=members, frames_end=end),
        )

    def _drains(self, member: Member, reason: str) -> Iterator[tuple[int, Message]]:
        drain = Drain(at=0, timestamp=0, member=member.id, by=self.incarnation, reason=reason)
        return ((partition, drain) for partition in sorted(member.untold))

    def _beat(self) -> Iterator[tuple[int, Message]]:
        yield from self._to_all(Heartbeat(gateway=self.incarnation, n=self._n, config_version=self._config[0]))
        for member in list(self._members.values()):
            if member.untold:
                yield from self._drains(member, REPEATED)

    def _to_all(self, message: Message) -> Iterator[tuple[int, Message]]:
        return ((partition, message) for partition in range(self._intake.partitions))

    def _split(self, watermarks: Mapping[str, int]) -> dict[int, dict[str, int]]:
        split: dict[int, dict[str, int]] = {}
        for conversation_id, seq in watermarks.items():
            split.setdefault(partition_of(conversation_id, self._intake.partitions), {})[conversation_id] = seq
        return split

    async def _write(self, job: Job, done: asyncio.Future[None] | None) -> None:
        if done is not None and done.cancelled():
            return  # whose join it is has gone: nobody would ever write its leave
        futures: list[asyncio.Future[Written]] = []
        failure: Unavailable | None = None
        try:
            for partition, message in job():
                written = await self._sent_on(message, partition)
                futures.append(written)
                if isinstance(message, Drain):
                    self._sent(message.member, partition, written)
        except Unavailable as error:
            # What a partition misses, it asks for: its count of this gateway's changes is behind.
            failure = error
            log.warning("partitions were not told of a membership change; they will ask", error=str(error))
        if done is None or done.done():
            return
        if failure is not None:
            done.set_exception(failure)
        else:
            _when_written(futures, done)

    async def _sent_on(self, message: Message, partition: int) -> asyncio.Future[Written]:
        while self._on_their_way >= WRITES_MAX:
            self._room.clear()
            await self._room.wait()
        written = await self._intake.send(message, partition=partition)
        self._on_their_way += 1
        written.add_done_callback(self._arrived)
        return written

    def _arrived(self, _: asyncio.Future[Written]) -> None:
        self._on_their_way -= 1
        self._room.set()

    def _sent(self, member_id: str, partition: int, written: asyncio.Future[Written]) -> None:
        """A drain is on its way: it counts as told unless Kafka does not confirm it."""
        member = self._members.get(member_id)
        if member is None:
            return
        member.untold.discard(partition)

        def settled(future: asyncio.Future[Written]) -> None:
            if future.cancelled() or future.exception() is not None:
                member.untold.add(partition)

        written.add_done_callback(settled)


def _when_written(futures: list[asyncio.Future[Written]], done: asyncio.Future[None]) -> None:
    all_written: asyncio.Future[Any] = asyncio.gather(*futures, return_exceptions=True)

    def finish(gathered: asyncio.Future[Any]) -> None:
        if done.done():
            return
        failed = next((outcome for outcome in gathered.result() if isinstance(outcome, Exception)), None)
        if failed is not None:
            done.set_exception(failed)
        else:
            done.set_result(None)

    all_written.add_done_callback(finish)


def _incarnation() -> str:
    return f"gw-{secrets.token_hex(6)}"
