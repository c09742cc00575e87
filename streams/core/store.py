"""State to bytes and back: deterministic msgpack, the same bytes for the same state.

A checkpoint holds the partition's own state and, beside it, one row per conversation. Only what cannot be derived is
stored; `attach` and `load_partition` rebuild the rest: rosters, who holds what, what waits, timers.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec
from msgspec import structs

from streams.core import keys
from streams.core.due import watch
from streams.core.ended import EndedRuns, packed_runs, unpacked_runs
from streams.core.ids import key_digest
from streams.core.latest import latest_of
from streams.core.membership import enrol
from streams.core.routing import parse_config
from streams.core.run_events import hold
from streams.core.state import (
    KEYS_IN_ROW,
    Conversation,
    EndedRun,
    Gateway,
    ImpossibleEvent,
    KeyRecord,
    Latest,
    Member,
    Partition,
    Run,
    Update,
    WaitingTurn,
)
from streams.core.unassigned import watch_waits

FORMAT: Final = 7
"""Of both rows; a row of another format is refused, and the state rebuilt from the journal."""


class OverflowKey(msgspec.Struct, frozen=True, gc=False):
    """A key that fell out of its conversation's newest 64 and is not known to be in the table of older keys."""

    fingerprint: bytes
    seq: int
    id: str
    at: int
    timestamp: int
    ordinal: int


class _ConversationRow(msgspec.Struct, array_like=True):
    format: int
    channel: str
    open: bool
    erased: bool
    head: int
    lsn: int
    update: Update | None
    keys: dict[str, KeyRecord]
    fingerprints: bytes
    key_facts: bytes
    odd_keys: dict[int, KeyRecord]
    keys_packed: int
    keys_issued: int
    runs: list[Run]
    ended: EndedRuns | None
    odd_ended: dict[str, EndedRun]
    """Ended runs as they are, where one of them does not fit into `ended`."""
    waiting: dict[str, list[WaitingTurn]]
    owners: dict[str, str]
    current: dict[str, str]
    handed_over: bool
    handover: Update | None
    pins: dict[str, str] | None
    latest: Latest | None
    """Its id is empty where the last of the ended runs has it."""


class _GatewayRow(msgspec.Struct, array_like=True):
    id: str
    n: int
    list_wanted_at: int
    config_wanted_at: int
    members: list[str]


class _MemberRow(msgspec.Struct, array_like=True):
    id: str
    group: str
    channel: str
    gateway: str
    since: int
    each: bool
    continues: bool
    draining: bool
    heard: int = 0
    heard_bits: bytes = b""
    instance: str = ""


class _PartitionRow(msgspec.Struct, array_like=True):
    format: int
    partition: int
    lsn: int
    at: int
    writer_epoch: int
    restarted_at: int
    turns: int
    frames: int
    membership: int
    config_version: int
    document: str
    gateways: list[_GatewayRow]
    members: list[_MemberRow]
    ended_gateways: dict[str, int]
    refusals: dict[str, int]


_encoder = msgspec.msgpack.Encoder()
_conversation_decoder = msgspec.msgpack.Decoder(_ConversationRow)
_partition_decoder = msgspec.msgpack.Decoder(_PartitionRow)


def is_hot(conversation: Conversation) -> bool:
    """It must stay loaded: a run (with its asks and timers) is open, or a turn waits."""
    return bool(conversation.runs or conversation.waiting)


def dump_conversation(conversation: Conversation) -> tuple[bytes, tuple[OverflowKey, ...]]:
    """Its row, and the keys that belong into the table of older keys with it (see `mark_stored`)."""
    fingerprints, facts = keys.newest(conversation)
    taken, odd_keys = conversation.keys, conversation.odd_keys
    window = conversation.keys_issued - KEYS_IN_ROW
    if taken and next(iter(taken.values())).ordinal <= window:
        taken = {key: record for key, record in taken.items() if record.ordinal > window}
    if odd_keys and window > 0:
        odd_keys = {ordinal: record for ordinal, record in odd_keys.items() if ordinal > window}
    ended = packed_runs(conversation) if conversation.ended else None
    latest = conversation.latest = latest_of(conversation)
    row = _ConversationRow(
        FORMAT,
        conversation.channel,
        conversation.open,
        conversation.erased,
        conversation.head,
        conversation.lsn,
        conversation.update,
        taken,
        fingerprints,
        facts,
        odd_keys,
        conversation.keys_packed,
        conversation.keys_issued,
        list(conversation.runs.values()),
        ended,
        conversation.ended if ended is None else {},
        conversation.waiting,
        conversation.owners,
        conversation.current,
        conversation.handed_over,
        conversation.handover,
        conversation.pins,
        latest if latest is None or latest.id != _last_turn(conversation.ended) else structs.replace(latest, id=""),
    )
    return _encoder.encode(row), _overflow(conversation)


def _last_turn(ended: dict[str, EndedRun]) -> str | None:
    """The turn that the last of the ended runs answered: nearly always the latest."""
    return ended[next(reversed(ended))].turn_id if ended else None


def _overflow(conversation: Conversation) -> tuple[OverflowKey, ...]:
    stored, window = conversation.keys_stored, conversation.keys_issued - KEYS_IN_ROW
    if window <= stored:
        return ()
    found: list[tuple[bytes, KeyRecord]] = []
    for fingerprint, record in reversed(conversation.older.items()):
        if record.ordinal <= stored:
            break
        found.append((fingerprint, record))
    found.reverse()
    found += [each for each in keys.beyond(conversation) if each[1].ordinal > stored]
    for key, record in conversation.keys.items():
        if record.ordinal > window:
            break
        if record.ordinal > stored:
            digest = key_digest(conversation.id, key)
            found.append((digest[: keys.FINGERPRINT_BYTES], keys.without_id(digest, record)))
    return tuple(
        OverflowKey(fingerprint, record.seq, record.id, record.at, record.timestamp, record.ordinal)
        for fingerprint, record in dict(found).items()  # of a key taken twice, the later
    )


def mark_stored(conversation: Conversation, overflow: Sequence[OverflowKey]) -> None:
    """The checkpoint with these overflow keys holds: do not hand them out again."""
    if overflow:
        conversation.keys_stored = max(conversation.keys_stored, overflow[-1].ordinal)


def load_conversation(conversation_id: str, row: bytes) -> Conversation:
    """A conversation from its id and its row, to be attached. `ImpossibleEvent`: not a row of this format."""
    try:
        stored = _conversation_decoder.decode(row)
    except msgspec.DecodeError as error:
        raise ImpossibleEvent(f"conversation row: {error}") from error
    if stored.format != FORMAT:
        raise ImpossibleEvent(f"conversation row of format {stored.format}; this release reads {FORMAT}")
    if len(stored.fingerprints) // keys.FINGERPRINT_BYTES != len(stored.key_facts) // keys.FACTS_BYTES:
        raise ImpossibleEvent("conversation row: its keys and what they stand for are not as many")
    ended = stored.odd_ended if stored.ended is None else unpacked_runs(conversation_id, stored.ended)
    latest = stored.latest
    if latest is not None and not latest.id:
        latest = structs.replace(latest, id=_last_turn(ended) or "")
    return Conversation(
        id=conversation_id,
        channel=stored.channel,
        open=stored.open,
        erased=stored.erased,
        head=stored.head,
        lsn=stored.lsn,
        update=stored.update,
        keys=stored.keys,
        fingerprints=stored.fingerprints,
        key_facts=stored.key_facts,
        odd_keys=stored.odd_keys,
        keys_packed=stored.keys_packed,
        keys_issued=stored.keys_issued,
        runs={run.id: run for run in stored.runs},
        ended=ended,
        waiting=stored.waiting,
        owners=stored.owners,
        current=stored.current,
        handed_over=stored.handed_over,
        handover=stored.handover,
        pins=stored.pins,
        latest=latest,
        asking=sum(len(run.progress.asks) for run in stored.runs if run.progress is not None),
        older_keys=stored.keys_issued > KEYS_IN_ROW,
        keys_stored=max(0, stored.keys_issued - KEYS_IN_ROW),
    )


def attach(state: Partition, conversation: Conversation) -> None:
    """Make a loaded conversation part of the partition, with all that is indexed of it."""
    if conversation.id in state.conversations:
        raise ImpossibleEvent(f"conversation {conversation.id} is loaded already")
    state.conversations[conversation.id] = conversation
    for run in conversation.runs.values():
        hold(state, conversation, run)
        watch(state, conversation, run)
    for channel in conversation.waiting:
        state.waiting.setdefault(channel, set()).add(conversation.id)
    watch_waits(state, conversation)


def detach(state: Partition, conversation_id: str) -> None:
    """Forget an idle conversation that a checkpoint holds. `ValueError`: it is hot, or changed since the checkpoint."""
    conversation = state.conversations[conversation_id]
    if is_hot(conversation):
        raise ValueError(f"conversation {conversation_id} is hot: it stays loaded")
    if conversation_id in state.dirty:
        raise ValueError(f"conversation {conversation_id} changed since the last checkpoint: it stays loaded")
    del state.conversations[conversation_id]


def dump_partition(state: Partition) -> bytes:
    """The partition's own state, without its conversations."""
    row = _PartitionRow(
        FORMAT,
        state.partition,
        state.lsn,
        state.at,
        state.writer_epoch,
        state.restarted_at,
        state.turns,
        state.frames,
        state.membership,
        state.config.version,
        state.config.document,
        [
            _GatewayRow(g.id, g.n, g.list_wanted_at, g.config_wanted_at, list(g.members))
            for g in state.gateways.values()
        ],
        [
            _MemberRow(
                m.id,
                m.group,
                m.channel,
                m.gateway,
                m.since,
                m.each,
                m.continues,
                m.draining,
                m.heard,
                m.heard_bits.to_bytes((m.heard_bits.bit_length() + 7) // 8),
                m.instance,
            )
            for m in state.members.values()
        ],
        state.ended_gateways,
        state.refusals,
    )
    return _encoder.encode(row)


def load_partition(row: bytes, partition: int) -> Partition:
    """A partition without conversations. `ImpossibleEvent`: not a row of this format, or of another partition."""
    try:
        stored = _partition_decoder.decode(row)
    except msgspec.DecodeError as error:
        raise ImpossibleEvent(f"partition row: {error}") from error
    if stored.format != FORMAT or stored.partition != partition:
        raise ImpossibleEvent(f"partition row of format {stored.format}, partition {stored.partition}, not {partition}")
    state = Partition(
        partition=partition,
        lsn=stored.lsn,
        at=stored.at,
        writer_epoch=stored.writer_epoch,
        restarted_at=stored.restarted_at,
        turns=stored.turns,
        frames=stored.frames,
        membership=stored.membership,
        gateways={
            g.id: Gateway(g.id, g.n, g.list_wanted_at, g.config_wanted_at, dict.fromkeys(g.members))
            for g in stored.gateways
        },
        ended_gateways=stored.ended_gateways,
        refusals=stored.refusals,
    )
    if stored.config_version:
        state.config = parse_config(stored.config_version, stored.document)
    for m in stored.members:
        member = Member(
            m.id, m.group, m.channel, m.gateway, m.since, m.each, m.continues, m.draining,
            m.heard, int.from_bytes(m.heard_bits), m.instance,
        )  # fmt: skip
        state.members[m.id] = member
        enrol(state, member)
    return state


__all__ = [
    "OverflowKey",
    "attach",
    "detach",
    "dump_conversation",
    "dump_partition",
    "is_hot",
    "load_conversation",
    "load_partition",
    "mark_stored",
]
