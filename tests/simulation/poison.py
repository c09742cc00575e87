"""What lies in the intake and should not: records that nobody can decode, or that the core fails on; and the words of
zombies, in the name of members that are gone or with tokens that are old."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import count
from random import Random

import msgspec

from streams.core.commands import Command, CommitFrame, CommitTurn, Leave
from streams.core.events import Entry, Frame, GatewayEnded, MemberLeft, RunMoved, Turn
from streams.core.ids import channel_of_group
from streams.runtime.intake import origin_of
from streams.runtime.partitioning import partition_of
from tests.simulation.cluster import LogRecord, Name
from tests.simulation.place import CURSED, Place

FAR = 1_000_000_000


class Poison:
    """Writes them. `origins`: those that have to end in `dead-letters`."""

    def __init__(self, place: Place, random: Random) -> None:
        self.origins: list[str] = []
        self.cursed = False
        """Whether the core was made to fail."""
        self._place = place
        self._random = random
        self._numbers = count(1)
        self._kinds: tuple[Callable[[Name], None], ...] = (
            self._garbage,
            self._nothing,
            self._cut_off,
            self._other_key,
            self._other_topic,
            self._other_partition,
            self._far_leave,
        )

    def spill(self) -> None:
        """A few of different kinds."""
        topics = self._place.cluster.topics
        for _ in range(self._random.randint(1, 4)):
            topic = self._random.choice((topics.turns, topics.frames, topics.membership))
            self._random.choice(self._kinds)((topic, self._random.randrange(self._place.partitions)))

    def curse(self) -> None:
        """A turn on which the core fails, each time; one, for each costs a partition two pauses between epochs."""
        if self.cursed:
            return
        partition = self._random.randrange(self._place.partitions)
        (conversation,) = self._place.conversation_ids(partition, 1)
        turn = Turn(id=f"cursed-{next(self._numbers)}", sender="eve", channel="web", type="text", text=CURSED)
        command = CommitTurn(at=0, timestamp=0, ref=turn.id, conversation_id=conversation, turn=turn)
        self.cursed = True
        self._write((self._place.cluster.topics.turns, partition), conversation.encode(), self._encoded(command))

    def late_words(self) -> None:
        """What zombies say: each is signed with what was true once."""
        for partition in range(self._place.partitions):
            entries = self._place.journal(partition)
            said = list(_outdated(entries))
            for frame in self._random.sample(said, min(len(said), self._random.randint(1, 4))):
                number = next(self._numbers)
                words = Frame(id=f"z{number}", type="text", text="late", client_id=f"zombie.m{number}")
                late = msgspec.structs.replace(frame, ref=f"zombie-{number}", frame=words)
                where = (self._place.cluster.topics.frames, partition)
                self._place.cluster.write(where, late.conversation_id.encode(), self._encoded(late))

    # ----------------------------------------------------------------------------------------------------- kinds
    def _garbage(self, where: Name) -> None:
        self._write(where, b"c0", self._random.randbytes(self._random.randint(0, 60)))

    def _nothing(self, where: Name) -> None:
        self._write(where, b"c0", None)

    def _cut_off(self, where: Name) -> None:
        record = self._some(where)
        if record is not None and record.value:
            self._write(where, record.key, record.value[: self._random.randrange(len(record.value))])

    def _other_key(self, where: Name) -> None:
        record = self._some(where)
        if record is not None and record.key is not None:
            self._write(where, record.key + b"-", record.value)

    def _other_topic(self, where: Name) -> None:
        topics = self._place.cluster.topics
        other = self._some((topics.frames if where[0] == topics.turns else topics.turns, where[1]))
        if other is not None:
            self._write(where, other.key, other.value)

    def _other_partition(self, where: Name) -> None:
        """As a client with another partitioner does it."""
        others = [name for name in ("c0", "c1", "c2", "c3") if partition_of(name, self._place.partitions) != where[1]]
        if others and where[0] != self._place.cluster.topics.membership:
            turn = Turn(id="stray", sender="eve", channel="web", type="text", text="stray")
            frame = Frame(id="stray", type="text", text="stray")
            command: Command = CommitTurn(at=0, timestamp=0, ref="stray", conversation_id=others[0], turn=turn)
            if where[0] == self._place.cluster.topics.frames:
                command = _signed(others[0], frame, "gw-x.1", "gw-x.1.1", "agents/bots", None, None)
            self._write(where, others[0].encode(), self._encoded(command))

    def _far_leave(self, where: Name) -> None:
        """A Leave that waits for what is never written: all behind it would wait for ever."""
        number = next(self._numbers)
        leave = Leave(at=0, timestamp=0, gateway=f"gw-x{number}.1", n=1, member="nobody", reason="left", frames_end=FAR)
        self._write((self._place.cluster.topics.membership, where[1]), None, self._encoded(leave))

    # ---------------------------------------------------------------------------------------------------- within
    def _some(self, where: Name) -> LogRecord | None:
        known = set(self.origins)
        records = [each for each in self._place.cluster.logs[where].records if origin_of(each) not in known]
        return self._random.choice(records) if records else None

    def _encoded(self, command: Command) -> bytes:
        return self._place.codec.encode_command(command)

    def _write(self, where: Name, key: bytes | None, value: bytes | None) -> None:
        origin = origin_of(self._place.cluster.write(where, key, value))
        self.origins.append(origin)
        self._place.trace(f"{origin} is poison")


def _outdated(entries: list[tuple[int, Entry]]) -> Iterator[CommitFrame]:
    """Frames, but for their words, that nobody may write any more."""
    gone: dict[str, None] = {}
    moves: list[RunMoved] = []
    members: dict[str, list[str]] = {}
    for _, entry in entries:
        match entry.event:
            case MemberLeft(member=member, gateway=gateway):
                gone[member] = None
                members.setdefault(gateway, []).append(member)
            case GatewayEnded(gateway=gateway):
                gone.update(dict.fromkeys(members.get(gateway, ())))
            case RunMoved() as moved:
                moves.append(moved)
            case _:
                pass
    for moved in moves:
        conversation, words = str(moved.conversation_id), Frame(id="", type="text")
        for holder in (moved.from_member, moved.to_member):
            if holder is not None:  # the loser's, and the winner's with the loser's token
                gateway = holder.rpartition(".")[0]
                yield _signed(conversation, words, gateway, holder, moved.group, moved.run_id, moved.run_epoch - 1)
        if moved.from_member is not None and moved.from_member in gone:
            gateway = moved.from_member.rpartition(".")[0]
            yield _signed(conversation, words, gateway, moved.from_member, moved.group, None, None)


def _signed(
    conversation: str,
    frame: Frame,
    gateway: str,
    member: str,
    group: str,
    run_id: str | None,
    run_epoch: int | None,
) -> CommitFrame:
    return CommitFrame(
        at=0,
        timestamp=0,
        ref="stray",
        conversation_id=conversation,
        frame=frame,
        sender="zombie",
        channel=channel_of_group(group),
        group=group,
        member=member,
        gateway=gateway,
        run_id=run_id,
        run_epoch=run_epoch,
        delivered_seq=FAR,
    )
