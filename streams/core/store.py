"""State to bytes and back: deterministic msgpack, the same bytes for the same state.

A checkpoint holds the partition's own state and, beside it, one row per conversation. Only what cannot be derived is
stored; `attach` and `load_partition` rebuild the rest: rosters, who holds what, what waits, timers.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec

from streams.core.membership import enrol
from streams.core.routing import parse_config
from streams.core.runs import hold, watch
from streams.core.state import (
    KEYS_IN_ROW,
    Conversation,
    EndedRun,
    Gateway,
    ImpossibleEvent,
    KeyRecord,
    Member,
    Partition,
    Run,
    Update,
    WaitingTurn,
)

FORMAT: Final = 2
"""Of both rows; a row of another format is refused, and the state rebuilt from the journal."""


class OverflowKey(msgspec.Struct, frozen=True, gc=False):
    """A key that fell out of its conversation's newest 64 and is not known to be in the table of older keys."""

    key: str
    seq: int
    id: str
    at: int
    timestamp: int
    ordinal: int


class _ConversationRow(msgspec.Struct, array_like=True):
    format: int
    id: str
    channel: str
    open: bool
    head: int
    lsn: int
    update: Update | None
    keys: dict[str, KeyRecord]
    keys_issued: int
    runs: list[Run]
    ended: dict[str, EndedRun]
    waiting: dict[str, list[WaitingTurn]]
    owners: dict[str, str]
    current: dict[str, str]


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
    window = conversation.keys_issued - KEYS_IN_ROW
    newest = conversation.keys
    overflow: tuple[OverflowKey, ...] = ()
    if len(newest) > KEYS_IN_ROW or (newest and next(iter(newest.values())).ordinal <= window):
        stored = conversation.keys_stored
        overflow = tuple(
            OverflowKey(key, record.seq, record.id, record.at, record.timestamp, record.ordinal)
            for key, record in newest.items()
            if stored < record.ordinal <= window
        )
        newest = {key: record for key, record in newest.items() if record.ordinal > window}
    row = _ConversationRow(
        FORMAT,
        conversation.id,
        conversation.channel,
        conversation.open,
        conversation.head,
        conversation.lsn,
        conversation.update,
        newest,
        conversation.keys_issued,
        list(conversation.runs.values()),
        conversation.ended,
        conversation.waiting,
        conversation.owners,
        conversation.current,
    )
    return _encoder.encode(row), overflow


def mark_stored(conversation: Conversation, overflow: Sequence[OverflowKey]) -> None:
    """The checkpoint with these overflow keys holds: do not hand them out again."""
    if overflow:
        conversation.keys_stored = max(conversation.keys_stored, overflow[-1].ordinal)


def load_conversation(row: bytes) -> Conversation:
    """A conversation from its row; `attach` it to its partition. `ImpossibleEvent`: not a row of this format."""
    try:
        stored = _conversation_decoder.decode(row)
    except msgspec.DecodeError as error:
        raise ImpossibleEvent(f"conversation row: {error}") from error
    if stored.format != FORMAT:
        raise ImpossibleEvent(f"conversation row of format {stored.format}; this release reads {FORMAT}")
    return Conversation(
        id=stored.id,
        channel=stored.channel,
        open=stored.open,
        head=stored.head,
        lsn=stored.lsn,
        update=stored.update,
        keys=stored.keys,
        keys_issued=stored.keys_issued,
        runs={run.id: run for run in stored.runs},
        ended=stored.ended,
        waiting=stored.waiting,
        owners=stored.owners,
        current=stored.current,
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
            _MemberRow(m.id, m.group, m.channel, m.gateway, m.since, m.each, m.continues, m.draining)
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
        member = Member(m.id, m.group, m.channel, m.gateway, m.since, m.each, m.continues, m.draining)
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
