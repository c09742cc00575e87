"""A gateway's world in memory: the real core decides what the intake gets, and the journal goes to every gateway.

The server is real (uvicorn on a port of 127.0.0.1); Kafka, Postgres and time are what the test says.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import httpx
import msgspec
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed
from websockets.typing import Subprotocol

from connectors.gateway.gateway import Gateway
from connectors.gateway.journal_pages import JournalPage, Placed
from connectors.gateway.ports import (
    ConversationInfo,
    Headers,
    LeaseInfo,
    ListQuery,
    MemberInfo,
    OpenRun,
    Position,
    Stored,
    StoredCall,
    StoredCheckpoint,
    Unavailable,
    Written,
)
from connectors.gateway.protocol.render import iso
from connectors.gateway.recent import as_edited, updated
from connectors.gateway.server import application, listen, server, until_listening
from streams.core.commands import Command, CommitBatch, GatewayBehind, GatewayExpired, OpenWriter, TimePassed
from streams.core.events import (
    Entry,
    FrameCommitted,
    MemberJoined,
    MemberLeft,
    RunEnded,
    RunMoved,
    TurnCommitted,
    TurnEdited,
    WriterOpened,
)
from streams.core.fold import step
from streams.core.state import Partition
from streams.fence.signing import KeyRing
from streams.projector.rows import Rows
from streams.runtime.codec import Codec
from streams.runtime.live import LiveSignal
from streams.runtime.partitioning import partition_of
from streams.runtime.signals import Goodbye, Heartbeat, Signal
from streams.settings import Settings, load_settings
from tests.support.waiting import LIMIT_S

SECRETS = {f"{channel}-secret": channel for channel in ("web", "agents", "shut", "desk", "phone")}
API_KEY = "tlk_test"
OPERATOR_TOKEN = "tlo_test"
DOCUMENT = {
    "version": 1,
    "channels": [
        {"id": "web", "kind": "web", "active": True},
        {"id": "shut", "kind": "web", "active": False},
        {"id": "agents", "kind": "websocket", "active": True, "group_settle_ms": 0},
    ],
    "routes": [{"from": "web", "to": ["agents"]}],
}
SUBPROTOCOL = Subprotocol("converger.v1")
BEGAN_MS = 1_750_000_000_000


@dataclass
class Journal:
    """One partition: its state, what it has written, and whether a sequencer works on it."""

    state: Partition
    entries: list[Entry] = field(default_factory=list)
    offsets: dict[str, int] = field(default_factory=dict)
    waiting: list[Command] = field(default_factory=list)
    running: bool = True


class World:
    """The log. It is the `Intake` and the `JournalScan` of every gateway in it."""

    def __init__(self, partitions: int = 2) -> None:
        self.partitions = partitions
        self.now = BEGAN_MS
        self.at = 1
        self.broken: Exception | None = None
        """What every send raises."""
        self.commands: list[Command | Signal] = []
        self.signals: list[LiveSignal] = []
        """What went through the topic `live`."""
        self.gateways: list[Gateway] = []
        self._codec = Codec()
        self.journals = [Journal(Partition(partition=number)) for number in range(partitions)]
        for number in range(partitions):
            self._decide(number, OpenWriter(at=self.at, timestamp=self.now, writer_epoch=1, worker="wk-test"))

    # ---------------------------------------------------------------------------------------------------- Intake
    async def send(
        self, command: Command | Signal, *, partition: int | None = None, headers: Headers = ()
    ) -> asyncio.Future[Written]:
        if self.broken is not None:
            raise self.broken
        self._codec.encode_command(command)  # what has no bytes is refused here as it is in Kafka
        conversation: str | None = getattr(command, "conversation_id", None)
        number = partition_of(conversation, self.partitions) if conversation is not None else partition
        assert number is not None
        self.commands.append(command)
        journal = self.journals[number]
        topic = type(command).__name__
        offset = journal.offsets.get(topic, 0)
        journal.offsets[topic] = offset + 1
        loop = asyncio.get_running_loop()
        written: asyncio.Future[Written] = loop.create_future()
        loop.call_soon(_set, written, Written(number, offset))
        loop.call_soon(self._take, number, command)
        return written

    async def catch_up(self, partition: int) -> None:
        """Its readers are told at once: there is nothing to catch up with."""

    async def reach(self) -> None:
        if self.broken is not None:
            raise self.broken

    async def read(self, partition: int, from_offset: int, below_lsn: int) -> AsyncIterator[Entry]:
        for entry in self.journals[partition].entries[from_offset:]:
            if entry.lsn >= below_lsn:
                return
            yield entry

    async def page(
        self, partition: int, conversation_id: str, *, offset: int | None, since_ms: int, limit: int, opened: bool
    ) -> JournalPage:
        entries, found = self.journals[partition].entries, list[Placed]()
        for place in range(offset or 0, len(entries)):
            event = entries[place].event
            if event.conversation_id == conversation_id or isinstance(event, WriterOpened):
                if len(found) == limit:
                    return JournalPage(found, place, 0, len(entries))
                found.append(Placed(place, entries[place]))
        return JournalPage(found, len(entries), 0, len(entries))

    # ------------------------------------------------------------------------------------------------------ live
    def publish(self, signal: LiveSignal) -> None:
        """Every gateway hears it, the one that says it too."""
        self.signals.append(signal)
        value = self._codec.encode_live(signal)
        asyncio.get_running_loop().call_soon(self._hear, value)

    def _hear(self, value: bytes) -> None:
        for gateway in self.gateways:
            gateway.live.heard(self._codec.decode_live(value))

    # ------------------------------------------------------------------------------------------------- sequencers
    def stop(self, partition: int) -> None:
        """No worker writes this partition: what comes waits."""
        self.journals[partition].running = False

    def go_on(self, partition: int) -> None:
        """A worker is back."""
        journal = self.journals[partition]
        journal.running = True
        waiting, journal.waiting = journal.waiting, []
        for command in waiting:
            self._decide(partition, command)

    def pass_time(self, ms: int) -> None:
        """Log time goes on, on every partition."""
        self.at += ms
        for number in range(self.partitions):
            self._decide(number, TimePassed(at=self.at, timestamp=self.now))

    def expire(self, gateway: str) -> None:
        """Every partition gives the gateway up."""
        for number in range(self.partitions):
            self._decide(number, GatewayExpired(at=self.at, timestamp=self.now, gateway=gateway))

    def end_batch(self, partition: int) -> None:
        """What the sequencer writes last: how far it is in the frames."""
        frames = self.journals[partition].offsets.get("CommitFrame", 0)
        batch = CommitBatch(at=self.at, timestamp=self.now, turns=0, frames=frames, membership=0)
        self._decide(partition, batch)

    def _take(self, partition: int, command: Command | Signal) -> None:
        match command:
            case Heartbeat():
                known = self.journals[partition].state.gateways.get(command.gateway)
                config = self.journals[partition].state.config.version
                if known is None or known.n != command.n or config < command.config_version:
                    behind = GatewayBehind(
                        at=self.at,
                        timestamp=self.now,
                        gateway=command.gateway,
                        n=command.n,
                        config_version=command.config_version,
                    )
                    self._decide(partition, behind)
            case Goodbye():
                gone = GatewayExpired(at=self.at, timestamp=self.now, gateway=command.gateway, reason="stopped")
                self._decide(partition, gone)
            case Command():
                self._decide(partition, command)

    def _decide(self, partition: int, command: Command) -> None:
        journal = self.journals[partition]
        if not journal.running:
            journal.waiting.append(command)
            return
        self.now += 1
        stamped = msgspec.structs.replace(command, at=self.at, timestamp=self.now)
        entries = list(step(journal.state, stamped, 1))
        journal.entries += entries
        # The journal is bytes to its readers.
        seen = [self._codec.decode_entry(self._codec.encode_entry(entry)) for entry in entries]
        for gateway in self.gateways:
            gateway.hub.apply(partition, seen)

    # ---------------------------------------------------------------------------------------------------- looking
    def journal_of(self, conversation: str) -> list[Entry]:
        """Entries of one conversation."""
        entries = self.journals[partition_of(conversation, self.partitions)].entries
        return [entry for entry in entries if entry.event.conversation_id == conversation]

    def kinds(self, conversation: str) -> list[str]:
        return [type(entry.event).__name__ for entry in self.journal_of(conversation)]


class MemoryReadModel:
    """A projector that is as far as the test says: `behind` entries of each partition are not read yet."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.behind = 0
        self.broken: Exception | None = None

    def _entries(self, partition: int) -> list[Entry]:
        if self.broken is not None:
            raise self.broken
        entries = self._world.journals[partition].entries
        return entries[: max(0, len(entries) - self.behind)]

    def _of(self, conversation_id: str) -> list[Entry]:
        entries = self._entries(partition_of(conversation_id, self._world.partitions))
        return [entry for entry in entries if entry.event.conversation_id == conversation_id]

    async def position(self, partition: int) -> Position:
        known = self._entries(partition)
        return Position(len(known), len(known))

    async def conversation(self, conversation_id: str) -> ConversationInfo | None:
        info: ConversationInfo | None = None
        for entry in self._of(conversation_id):
            info = updated(info, entry)
        return info

    async def transcript(self, conversation_id: str, after: int, limit: int) -> Sequence[Stored]:
        entries = self._of(conversation_id)
        superseded = {
            seq for entry in entries if isinstance(entry.event, RunMoved | RunEnded) for seq in entry.event.superseded
        }
        found = [entry for entry in entries if entry.event.seq > after]
        return [Stored(entry, superseded=entry.event.seq in superseded) for entry in found[:limit]]

    async def superseded(self, conversation_id: str, upto: int) -> Sequence[int]:
        moves = [e.event for e in self._of(conversation_id) if isinstance(e.event, RunMoved | RunEnded)]
        return sorted(seq for event in moves for seq in event.superseded if seq <= upto)

    async def last_edited(self, conversation_id: str, upto: int) -> Stored | None:
        entries = self._of(conversation_id)
        edits = {e.event.turn_seq: e for e in entries if isinstance(e.event, TurnEdited) and e.event.turn_seq <= upto}
        turn = next((e for e in entries if edits and e.event.seq == max(edits)), None)
        return None if turn is None else Stored(as_edited(turn, edits), edited_at=edits[max(edits)].timestamp)

    async def interrupts(self, conversation_id: str) -> Sequence[Stored]:
        def concerns(entry: Entry) -> bool:
            event = entry.event
            if isinstance(event, FrameCommitted):
                return event.frame.type in {"interrupt", "interrupt_resolved"}
            return isinstance(event, TurnCommitted) and event.interrupt_id is not None

        return [Stored(entry) for entry in self._of(conversation_id) if concerns(entry)]

    async def open_runs(self, conversation_id: str) -> Sequence[OpenRun]:
        conversation = self._world.journals[
            partition_of(conversation_id, self._world.partitions)
        ].state.conversations.get(conversation_id)
        runs = [] if conversation is None else list(conversation.runs.values())
        return [OpenRun(run.id, run.turn_seq, run.group, run.member, run.epoch) for run in runs]

    async def given_upto(self, conversation_id: str, channel: str) -> int:
        opened = Rows(self._of(conversation_id)).opened_runs
        return max((row.turn_seq for row in opened if row.group_id.split("/")[0] == channel), default=0)

    async def checkpoint(self, run_id: str) -> StoredCheckpoint | None:
        found: StoredCheckpoint | None = None
        for entry in self._entries(partition_of(run_id.split("/", maxsplit=1)[0], self._world.partitions)):
            event = entry.event
            if isinstance(event, FrameCommitted) and event.frame.type == "checkpoint" and event.run_id == run_id:
                found = StoredCheckpoint(entry.lsn, event.frame.data or "")
            elif isinstance(event, RunEnded) and event.run_id == run_id:
                found = None
        return found

    async def call(self, conversation_id: str, invocation: str) -> StoredCall | None:
        rows = Rows(self._of(conversation_id))
        called = [row for row in rows.opened_runs if row.invocation == invocation]
        if not called:
            return None
        row, change = called[-1], rows.changed_runs.get(called[-1].run_id)
        return StoredCall(
            id=invocation,
            run_id=row.run_id,
            turn_seq=row.turn_seq,
            group=row.group_id,
            member=row.member if change is None else change.member,
            run_epoch=row.run_epoch if change is None else change.run_epoch,
            status=row.status if change is None or change.status is None else change.status,
            cancelling=change is not None and change.cancelling is True,
            opened_at=row.timestamp,
            started_at=None if change is None else change.started_at or None,
            ended_at=None if change is None else change.ended_at,
            reason=None if change is None else change.reason,
            detail=None if change is None else change.detail,
        )

    async def open_calls(self, conversation_id: str) -> Sequence[str]:
        rows = Rows(self._of(conversation_id))
        changes = rows.changed_runs
        ended = {run_id for run_id, change in changes.items() if change.ended_at is not None}
        return [row.invocation for row in rows.opened_runs if row.invocation is not None and row.run_id not in ended]

    async def owners(self, conversation_id: str) -> dict[str, str]:
        owners: dict[str, str] = {}
        for entry in self._of(conversation_id):
            if isinstance(entry.event, TurnCommitted):
                owners.update({a.group: a.member for a in entry.event.assigned if a.member is not None})
        return owners

    async def conversations(self, query: ListQuery) -> tuple[Sequence[ConversationInfo], str | None]:
        ids = {
            entry.event.conversation_id
            for journal in self._world.journals
            for entry in journal.entries
            if entry.event.conversation_id is not None
        }
        found = [info for id_ in sorted(ids) if (info := await self.conversation(id_)) is not None]
        found = [
            info
            for info in found
            if query.status in {None, info.status}
            and query.channel in {None, info.channel}
            and query.external_id in {None, info.external_id}
            and (query.named is None or info.id.startswith(query.named) or query.named == info.participant)
            and (query.cursor is None or info.id > query.cursor)
        ]
        return found[: query.limit], found[query.limit - 1].id if len(found) > query.limit else None

    async def members(self) -> Sequence[MemberInfo]:
        present: dict[str, MemberJoined] = {}
        for entry in self._entries(0):
            if isinstance(entry.event, MemberJoined):
                present[entry.event.member] = entry.event
            elif isinstance(entry.event, MemberLeft):
                present.pop(entry.event.member, None)
        return [MemberInfo(m.member, m.group, m.channel, m.gateway, m.since, 1) for m in present.values()]

    async def leases(self) -> Sequence[LeaseInfo]:
        numbers = range(self._world.partitions)
        return [LeaseInfo(number, "wk-test", 1, live=True, expires_in_ms=9) for number in numbers]


class MemoryStore:
    """Channels, secrets and keys of the test."""

    def __init__(self) -> None:
        self.keys = {"k1": b"a" * 64}
        self.signs = "k1"
        self.version = 1
        self.document_text = json.dumps(DOCUMENT)
        self.released: list[LeaseInfo] = []
        self.broken: Exception | None = None

    def _check(self) -> None:
        if self.broken is not None:
            raise self.broken

    async def document(self) -> tuple[int, str]:
        self._check()
        return self.version, self.document_text

    async def channel_of_secret(self, secret: str) -> str | None:
        self._check()
        return SECRETS.get(secret)

    async def key_ring(self) -> KeyRing:
        self._check()
        return KeyRing(self.signs, dict(self.keys))

    async def is_api_key(self, key: str) -> bool:
        self._check()
        return key == API_KEY

    async def operator_of(self, token: str) -> str | None:
        self._check()
        return "eve" if token == OPERATOR_TOKEN else None

    async def release_lease(self, lease: LeaseInfo) -> bool:
        self._check()
        self.released.append(lease)
        return True


def settings_for(**changes: Any) -> Settings:
    """Settings of a gateway that never talks to a server."""
    return load_settings(kafka="127.0.0.1:1", postgres="postgresql://nowhere/none", **changes)


@dataclass
class Served:
    """One running gateway."""

    gateway: Gateway
    url: str
    http: httpx.AsyncClient
    store: MemoryStore
    read_model: MemoryReadModel

    @property
    def ws_url(self) -> str:
        return self.url.replace("http", "ws") + "/socket/converger/v1"

    async def token(self, secret: str = "web-secret", **body: Any) -> str:
        answer = await self.http.post(
            "/api/v1/converger/tokens/generate", headers={"authorization": f"Bearer {secret}"}, json=body
        )
        assert answer.status_code == 200, answer.text
        token: str = answer.json()["token"]
        return token

    async def conversation(self, user: str = "ann") -> tuple[str, str]:
        """A new conversation: its id and a token for it."""
        token = await self.token(user={"id": user})
        answer = await self.http.post("/api/v1/converger/conversations", headers=bearer(token))
        assert answer.status_code == 201, answer.text
        return answer.json()["conversationId"], answer.json()["token"]

    async def say(self, conversation: str, token: str, text: str, key: str | None = None) -> httpx.Response:
        headers = bearer(token) | ({"x-idempotency-key": key} if key else {})
        path = f"/api/v1/converger/conversations/{conversation}/activities"
        return await self.http.post(path, headers=headers, json={"text": text})

    @asynccontextmanager
    async def socket(self, token: str, hello: dict[str, Any] | None = None) -> AsyncIterator[Peer]:
        headers = {"authorization": f"Bearer {token}"}
        # Without bound: a peer that left frames unread would wait 10 s in `close` for the one that answers it.
        connecting = connect(self.ws_url, subprotocols=[SUBPROTOCOL], additional_headers=headers, max_queue=None)
        async with connecting as raw:
            peer = Peer(raw)
            if hello is not None:
                await peer.send({"type": "hello", "protocol": "converger/1", **hello})
            yield peer

    @asynccontextmanager
    async def agent(self, group: str | None = "bots", **hello: Any) -> AsyncIterator[Peer]:
        token = await self.token("agents-secret", scope="channel")
        named = {"group": group} if group is not None else {}
        async with self.socket(token, {**named, **hello}) as peer:
            welcome = await peer.frame()
            assert welcome["type"] == "welcome", welcome
            peer.member, peer.welcome = welcome["data"]["connectionId"], welcome["data"]
            yield peer


class Peer:
    """A client's end of a socket. Every frame that it gets is checked against the schemas, where they are."""

    check: Callable[[dict[str, Any]], None] | None = None

    def __init__(self, raw: ClientConnection) -> None:
        self.raw = raw
        self.member = ""
        self.welcome: dict[str, Any] = {}

    async def send(self, frame: dict[str, Any]) -> None:
        await self.raw.send(json.dumps(frame))

    async def say(self, conversation: str, frame: dict[str, Any]) -> None:
        """An agent's frame, in its envelope."""
        await self.send({"conversationId": conversation, "frame": frame})

    async def frame(self, within_s: float = LIMIT_S) -> dict[str, Any]:
        """The next frame, whatever it is. A machine may stand still for seconds: a test that means a bound names it."""
        async with asyncio.timeout(within_s):
            frame: dict[str, Any] = json.loads(await self.raw.recv())
        if Peer.check is not None:
            Peer.check(frame)
        return frame

    async def until(self, kind: str) -> dict[str, Any]:
        """The next frame of this type; an enveloped one is unwrapped. Others before it are dropped, errors are not."""
        while True:
            frame = await self.frame()
            inner: dict[str, Any] = frame.get("frame", frame)
            if inner["type"] == kind:
                return inner
            assert inner["type"] != "error", inner

    async def until_refused(self) -> dict[str, Any]:
        """The data of the next error."""
        while True:
            frame = await self.frame()
            inner: dict[str, Any] = frame.get("frame", frame)
            if inner["type"] == "error":
                data: dict[str, Any] = inner["data"]
                return data

    async def ended(self) -> tuple[int | None, str, list[dict[str, Any]]]:
        """Read until the connection ends: the close's code and reason, and the frames before it."""
        frames: list[dict[str, Any]] = []
        try:
            while True:
                frames.append(await self.frame())
        except ConnectionClosed:
            return self.raw.close_code, self.raw.close_reason or "", frames

    async def settled(self) -> list[dict[str, Any]]:
        """All frames up to the answer to a ping: what the gateway wrote so far."""
        await self.send({"type": "ping", "nonce": "settled"})
        frames: list[dict[str, Any]] = []
        while True:
            frame = await self.frame()
            if frame.get("type") == "heartbeat" and frame.get("nonce") == "settled":
                return frames
            frames.append(frame.get("frame", frame))


def _set(future: asyncio.Future[Written], written: Written) -> None:
    if not future.done():
        future.set_result(written)


def bearer(token: str) -> dict[str, str]:
    return {"authorization": f"Bearer {token}"}


@asynccontextmanager
async def serve(
    world: World, settings: Settings | None = None, *, ready: bool = True, store: MemoryStore | None = None
) -> AsyncIterator[Served]:
    """A gateway in the world, on a port of its own."""
    store, read_model = store or MemoryStore(), MemoryReadModel(world)
    gateway = Gateway(
        settings or settings_for(),
        intake=world,
        read_model=read_model,
        scan=world,
        pages=world,
        horizon=world,
        store=store,
        live=world,
    )
    await gateway.directory.start()
    for number, journal in enumerate(world.journals):
        gateway.hub.apply(number, journal.entries)
    world.gateways.append(gateway)
    listener = listen("127.0.0.1", 0)
    web = server(application(gateway))
    url = f"http://127.0.0.1:{listener.getsockname()[1]}"
    tasks = [asyncio.create_task(gateway.run()), asyncio.create_task(web.serve(sockets=[listener]))]
    await until_listening(web)
    if ready:
        gateway.ready()
    try:
        async with httpx.AsyncClient(base_url=url) as client:
            yield Served(gateway, url, client, store, read_model)
    finally:
        world.gateways.remove(gateway)
        web.should_exit = True
        web.force_exit = True
        await tasks[1]
        tasks[0].cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        listener.close()


__all__ = ["API_KEY", "BEGAN_MS", "Peer", "Served", "Unavailable", "World", "bearer", "iso", "serve", "settings_for"]
