"""What goes on in conversations now: who types, who is there, what was read and delivered. Soft state, none of it kept.

Each gateway shows it to its own viewers and following agents at once, and says it to the others through the topic
`live`. Presence is the sum of what the gateways say of their own connections: one that ends takes its share along, and
one that begins to watch a conversation asks the others what they have, and what their agents have to offer.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import msgspec

from connectors.gateway.clock import wall_ms
from connectors.gateway.hub import Hub
from connectors.gateway.protocol.render import encode
from streams.runtime.live import LiveSignal, Presence, Receipt, Shown, Typing

TYPING_MS = 6_000
TYPING_EVERY_MS = 2_000


class LivePort(Protocol):
    """The topic, for writing; what it does not take now is lost."""

    def publish(self, signal: LiveSignal) -> None:
        """Hand it over. Never waits, never raises."""


class Speaker(msgspec.Struct, frozen=True):
    """Whom something is about, and where he or she (or it) is."""

    id: str
    role: str
    channel: str

    def fields(self) -> dict[str, str]:
        """As the wire has it."""
        return {"id": self.id, "role": self.role}

    @property
    def side(self) -> str:
        """The wire's `from`."""
        return "user" if self.role == "user" else "bot"


class _Typist(msgspec.Struct):
    """Somebody types: shown since `shown_at`, and until `until` unless it is said again (ms since the epoch)."""

    who: Speaker
    shown_at: int
    until: int


class _Conversation(msgspec.Struct):
    """What is known of one that somebody here watches. `here`: participant to connections; `there`: gateway to that."""

    here: dict[str, int] = msgspec.field(default_factory=dict)
    there: dict[str, dict[str, int]] = msgspec.field(default_factory=dict)
    speakers: dict[str, Speaker] = msgspec.field(default_factory=dict)
    read: dict[tuple[str, str], int] = msgspec.field(default_factory=dict)
    """Status and participant to how far."""
    catalogs: dict[str, bytes] = msgspec.field(default_factory=dict)
    """By type, what an agent showed last of what it has to offer."""
    shown_here: dict[str, Speaker] = msgspec.field(default_factory=dict)
    """By type, who showed it, where that was at this gateway: it tells the others that ask."""

    def connections(self, participant: str) -> int:
        there = sum(of.get(participant, 0) for of in self.there.values())
        return self.here.get(participant, 0) + there


class Live:
    """See the module. `identity` gives this gateway's incarnation."""

    def __init__(self, hub: Hub, port: LivePort, identity: Callable[[], str]) -> None:
        self._hub = hub
        self._port = port
        self._identity = identity
        self._own: set[str] = set()
        """Every incarnation that this process was."""
        self._typists: dict[tuple[str, str], _Typist] = {}
        self._conversations: dict[str, _Conversation] = {}
        hub.on_unwatched.append(self._unwatched)

    # -------------------------------------------------------------------------------------------------- from here
    def announce(self, who: Speaker, conversation_id: str, signal: Typing | Receipt | Shown, origin: object) -> None:
        """Somebody at this gateway says something; `origin` is the connection, which is not told itself."""
        now = wall_ms()
        if self._take(who, conversation_id, signal, origin, now):
            self._publish(who, conversation_id, signal, now)

    def came(self, who: Speaker, conversation_id: str, viewer: object) -> list[bytes]:
        """A participant connected; gives the presence of the others."""
        asks = conversation_id not in self._conversations
        known = self._known(conversation_id)
        before = known.connections(who.id)
        known.here[who.id] = known.here.get(who.id, 0) + 1
        known.speakers[who.id] = who
        self._show_presence(conversation_id, known, who.id, before, but=viewer)
        self._publish(who, conversation_id, Presence(online=True, connections=known.here[who.id], asks=asks), wall_ms())
        return self._present(known, but=who.id)

    def left(self, who: Speaker, conversation_id: str, *, quietly: bool = False) -> None:
        """One of its connections ended. `quietly`: the others hear that this gateway ends."""
        known = self._known(conversation_id)
        before = known.connections(who.id)
        left = known.here.pop(who.id, 1) - 1
        if left:
            known.here[who.id] = left
        self._show_presence(conversation_id, known, who.id, before)
        if not quietly:
            self._publish(who, conversation_id, Presence(online=left > 0, connections=left), wall_ms())
        if not self._hub.concerned(conversation_id):
            self._unwatched(conversation_id)

    def follows(self, conversation_id: str) -> list[bytes]:
        """An agent begins to follow it; gives the presence that is known, and asks the others where nothing is."""
        known = self._asked_for(conversation_id)
        return [] if known is None else self._present(known)

    def streams(self, conversation_id: str) -> list[bytes]:
        """An event stream begins to show it; gives the catalogs that are known, or asks the others."""
        self._asked_for(conversation_id)
        return self.catalogs(conversation_id)

    def _asked_for(self, conversation_id: str) -> _Conversation | None:
        """What is known of it; None: nothing, and the others are asked."""
        known = self._conversations.get(conversation_id)
        if known is None:
            self._known(conversation_id)
            self._publish(Speaker("", "bot", ""), conversation_id, Presence(online=False, asks=True), wall_ms())
        return known

    def catalogs(self, conversation_id: str) -> list[bytes]:
        """What agents have shown of what they have to offer, for who came later."""
        known = self._conversations.get(conversation_id)
        return [] if known is None else list(known.catalogs.values())

    def announce_all(self) -> None:
        """This gateway goes on as a new incarnation: what the old one said ended with it."""
        for conversation_id, known in self._conversations.items():
            self._say_present(conversation_id, known)

    def tick(self, now: int) -> None:
        """Whoever did not say again that it types has stopped."""
        for (conversation_id, _), typist in [item for item in self._typists.items() if item[1].until <= now]:
            self._stop_typing(conversation_id, typist.who, None)

    # ------------------------------------------------------------------------------------------------ from elsewhere
    def heard(self, signal: LiveSignal) -> None:
        """A record of the topic."""
        if signal.gateway in self._own or not self._hub.concerned(signal.conversation_id):
            return
        who = Speaker(signal.sender, signal.role, signal.channel)
        match signal.signal:
            case Presence() as presence:
                self._presence(who, signal, presence)
            case said:
                self._take(who, signal.conversation_id, said, None, wall_ms())

    def gateway_ended(self, gateway: str) -> None:
        """Whom it had is not there any more, unless at another one."""
        for conversation_id, known in self._conversations.items():
            for participant, number in known.there.pop(gateway, {}).items():
                self._show_presence(conversation_id, known, participant, known.connections(participant) + number)

    # --------------------------------------------------------------------------------------------------- details
    def _take(
        self, who: Speaker, conversation_id: str, signal: Typing | Receipt | Shown, origin: object, now: int
    ) -> bool:
        """Show it; whether it was news."""
        match signal:
            case Typing():
                return self._type(who, conversation_id, active=signal.active, origin=origin, now=now)
            case Receipt():
                return self._receipt(who, conversation_id, signal, origin, now)
            case Shown():
                return self._catalog(who, conversation_id, signal, origin)

    def _catalog(self, who: Speaker, conversation_id: str, signal: Shown, origin: object) -> bool:
        known, kind, frame = self._known(conversation_id), _type_of(signal), signal.frame.encode()
        if origin is not None:
            known.shown_here[kind] = who
        elif known.catalogs.get(kind) == frame:
            return False  # somebody else had asked for it
        else:
            known.shown_here.pop(kind, None)
        known.catalogs[kind] = frame
        self._hub.relay(conversation_id, frame, origin, agents=False)
        return True

    def _type(self, who: Speaker, conversation_id: str, *, active: bool, origin: object, now: int) -> bool:
        typist = self._typists.get((conversation_id, who.id))
        if not active:
            if typist is None:
                return False
            self._stop_typing(conversation_id, who, origin)
            return True
        if typist is not None and now - typist.shown_at < TYPING_EVERY_MS:
            typist.until = now + TYPING_MS
            return False
        self._typists[conversation_id, who.id] = _Typist(who, now, now + TYPING_MS)
        self._show(conversation_id, _typing(who, active=True), origin, who.channel)
        return True

    def _stop_typing(self, conversation_id: str, who: Speaker, origin: object) -> None:
        del self._typists[conversation_id, who.id]
        self._show(conversation_id, _typing(who, active=False), origin, who.channel)

    def _receipt(self, who: Speaker, conversation_id: str, receipt: Receipt, origin: object, now: int) -> bool:
        known = self._known(conversation_id)
        mark = (receipt.status, who.id)
        if receipt.up_to_seq <= known.read.get(mark, 0):
            return False  # a mark never goes back
        known.read[mark] = receipt.up_to_seq
        data: dict[str, Any] = {"upToSeq": receipt.up_to_seq, "status": receipt.status, "timestamp": now}
        if receipt.status == "delivered":
            data["channelId"] = who.channel
            if receipt.message_id is not None:
                data |= {"activityId": receipt.message_id, "seq": receipt.up_to_seq}
        else:
            data["by"] = who.fields()
        frame = {"type": "deliveryStatus", "data": data}
        # What came to a person is news to those who wrote it.
        self._show(conversation_id, frame, origin, who.channel, people=receipt.status != "delivered")
        return True

    def _presence(self, who: Speaker, signal: LiveSignal, presence: Presence) -> None:
        conversation_id = signal.conversation_id
        known = self._known(conversation_id)
        if who.id:
            before = known.connections(who.id)
            of = known.there.setdefault(signal.gateway, {})
            if presence.connections > 0:
                of[who.id] = presence.connections
                known.speakers[who.id] = who
            else:
                of.pop(who.id, None)
            self._show_presence(conversation_id, known, who.id, before)
        if presence.asks:
            self._say_present(conversation_id, known)
            for kind, agent in known.shown_here.items():
                self._publish(agent, conversation_id, Shown(known.catalogs[kind].decode()), wall_ms())

    def _say_present(self, conversation_id: str, known: _Conversation) -> None:
        for participant, number in known.here.items():
            who = known.speakers[participant]
            self._publish(who, conversation_id, Presence(online=True, connections=number), wall_ms())

    def _present(self, known: _Conversation, but: str | None = None) -> list[bytes]:
        others = {*known.here}.union(*known.there.values()) - {but}
        return [encode(_presence(known.speakers[each], known.connections(each))) for each in sorted(others)]

    def _show_presence(
        self, conversation_id: str, known: _Conversation, participant: str, before: int, but: object = None
    ) -> None:
        """Show that it came or went, if it did: `before` it had so many connections."""
        number = known.connections(participant)
        who = known.speakers.get(participant)
        if who is None or (number > 0) == (before > 0):
            return
        if not number:
            del known.speakers[participant]
        self._show(conversation_id, _presence(who, number), but, who.channel)

    def _show(
        self, conversation_id: str, frame: dict[str, Any], origin: object, channel: str, *, people: bool = True
    ) -> None:
        self._hub.relay(conversation_id, encode(frame), origin, channel=channel, people=people)

    def _publish(
        self, who: Speaker, conversation_id: str, signal: Typing | Presence | Receipt | Shown, now: int
    ) -> None:
        gateway = self._identity()
        self._own.add(gateway)
        self._port.publish(
            LiveSignal(
                conversation_id=conversation_id,
                sender=who.id,
                at=now,
                gateway=gateway,
                role=who.role,
                channel=who.channel,
                signal=signal,
            )
        )

    def _known(self, conversation_id: str) -> _Conversation:
        known = self._conversations.get(conversation_id)
        if known is None:
            known = self._conversations[conversation_id] = _Conversation()
        return known

    def _unwatched(self, conversation_id: str) -> None:
        known = self._conversations.get(conversation_id)
        if known is not None and not known.here:
            del self._conversations[conversation_id]


def _type_of(signal: Shown) -> str:
    kind: str = msgspec.json.decode(signal.frame).get("type", "")
    return kind


def _typing(who: Speaker, *, active: bool) -> dict[str, Any]:
    return {"type": "typing", "isTyping": active, "from": who.side, "sender": who.fields()}


def _presence(who: Speaker, number: int) -> dict[str, Any]:
    status = "online" if number else "offline"
    return {"type": "presence", "data": {"participant": who.fields(), "status": status, "connections": number}}
