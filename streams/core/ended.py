"""A conversation's ended runs as its row holds them: by column, and back."""

from __future__ import annotations

import re
from typing import Final

import msgspec

from streams.core.ids import run_id
from streams.core.state import Conversation, EndedRun

_SEQ: Final = re.compile(r"0|[1-9][0-9]{0,17}")
"""As `run_id` writes one; of more than 18 digits it does not fit into a row's integers."""
_UUID: Final = r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}"
_TURN_IDS: Final = re.compile(f"{_UUID}(?:,{_UUID})*")


class EndedRuns(msgspec.Struct, array_like=True):
    """Ended runs by column, for nearly all of it repeats: 16 of them are 0.3 KB instead of 1.5."""

    turn_seqs: list[int]
    turn_ids: bytes
    """16 bytes each."""
    groups: list[str]
    group_of: list[int]
    """Empty: all are of the first group."""
    generations: list[int]
    """Empty: all are 0."""
    joined: dict[int, tuple[str, ...]]
    """By index, where there are any."""


def packed_runs(conversation: Conversation) -> EndedRuns | None:
    """By column; None: one of them has a run id or a turn id of another form than ours."""
    start, ended = f"{conversation.id}/", conversation.ended
    seqs, groups, turn_ids = [], [], []
    for id_, run in ended.items():
        text, slash, group = id_[len(start) :].partition("/")
        if not (slash and id_.startswith(start) and _SEQ.fullmatch(text)):
            return None
        seqs.append(int(text))
        groups.append(group)
        turn_ids.append(run.turn_id)
    joined_ids = ",".join(turn_ids)
    if not _TURN_IDS.fullmatch(joined_ids) or joined_ids.count(",") != len(turn_ids) - 1:
        return None
    named = list(dict.fromkeys(groups))
    generations = [run.generation for run in ended.values()]
    return EndedRuns(
        seqs,
        bytes.fromhex(joined_ids.replace("-", "").replace(",", "")),
        named,
        [] if len(named) == 1 else [named.index(group) for group in groups],
        generations if any(generations) else [],
        {index: run.joined for index, run in enumerate(ended.values()) if run.joined},
    )


def unpacked_runs(conversation_id: str, packed: EndedRuns) -> dict[str, EndedRun]:
    """By run id, oldest first, as they were before `packed_runs`."""
    found: dict[str, EndedRun] = {}
    ids = packed.turn_ids.hex()
    for index, seq in enumerate(packed.turn_seqs):
        group = packed.groups[packed.group_of[index] if packed.group_of else 0]
        generation = packed.generations[index] if packed.generations else 0
        text = ids[32 * index : 32 * (index + 1)]
        turn_id = f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"
        found[run_id(conversation_id, seq, group)] = EndedRun(turn_id, generation, packed.joined.get(index, ()))
    return found
