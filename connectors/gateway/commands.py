"""People's commands: written to the intake, answered once the journal shows what became of them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable
from typing import Final, TypedDict
from uuid import uuid4, uuid5

import msgspec

from connectors.gateway.hub import Hub
from connectors.gateway.metrics import GatewayMetrics
from connectors.gateway.ports import Headers, Intake, Unavailable, Written
from connectors.gateway.protocol.errors import RETRY_AFTER_MS, RETRY_BUDGET_MS, ProtocolError, refusal
from connectors.gateway.protocol.parse import UserMessage
from connectors.gateway.protocol.session import Claims
from streams.core.commands import (
    CancelRun,
    CloseConversation,
    Command,
    CommitTurn,
    Drain,
    HandBack,
    HandOver,
    MoveConversation,
    NoteAction,
    OpenConversation,
    ReleaseRun,
    ReopenConversation,
)
from streams.core.events import (
    ConversationOpened,
    Duplicate,
    Entry,
    Refused,
    RefusedReason,
    Turn,
    TurnCommitted,
)
from streams.core.ids import SEPARATOR, TURNLOG_NAMESPACE_UUID, message_id, turn_key
from streams.runtime.codec import Unencodable

NOT_TAKEN: Final = (Unavailable, Unencodable)
"""What `Intake.send` raises."""


class _When(TypedDict):
    at: int
    timestamp: int


class _New(_When):
    ref: str


_UNPLACED: Final[_When] = {"at": 0, "timestamp": 0}
"""When a command is decided, Kafka and the log say, once it is read there."""


class Receipt(msgspec.Struct, frozen=True):
    """Where a message is stored."""

    id: str
    seq: int
    timestamp: int
    duplicate: bool = False


class Commands:
    """Sends; waits at most `commit_wait_ms` for the outcome."""

    def __init__(
        self, intake: Intake, hub: Hub, metrics: GatewayMetrics, mint: Callable[[], str], commit_wait_ms: int
    ) -> None:
        self._intake = intake
        self._hub = hub
        self._metrics = metrics
        self._mint = mint
        self._commit_wait_s = commit_wait_ms / 1000

    def _new(self, ref: str | None = None) -> _New:
        """What every command begins with whose outcome is waited for."""
        return {**_UNPLACED, "ref": ref or self._mint()}

    async def open_conversation(
        self, claims: Claims, *, key: str | None = None, metadata: str | None = None, headers: Headers = ()
    ) -> str:
        """A new conversation of this person; the same one for the same key. Raises `ProtocolError`."""
        conversation_id = str(uuid4())
        if key is not None:
            parts = SEPARATOR.join(("open", claims.channel, claims.user, key))
            conversation_id = str(uuid5(TURNLOG_NAMESPACE_UUID, parts))
        command = OpenConversation(
            **self._new(),
            conversation_id=conversation_id,
            channel=claims.channel,
            participant=claims.user,
            external_id=claims.user if claims.named else None,  # as the channel's own backend calls the person
            key=key or conversation_id,
            metadata=metadata,
        )
        outcome = await self._ask(command, headers, key=key)
        if not isinstance(outcome.event, ConversationOpened | Duplicate):
            raise self._unexpected(outcome)
        return conversation_id

    async def commit_turn(self, command: CommitTurn, headers: Headers = ()) -> Receipt:
        """Store a turn; of a repeat, the first one's receipt. Raises `ProtocolError`."""
        outcome = await self._ask(command, headers, key=command.turn.key)
        match outcome.event:
            case TurnCommitted() as event:
                return Receipt(event.turn.id, event.seq, outcome.timestamp)
            case Duplicate() as event:
                return Receipt(event.id, event.of_seq, event.of_timestamp, duplicate=True)
            case _:
                raise self._unexpected(outcome)

    def turn(
        self, conversation_id: str, claims: Claims, sender: str, message: UserMessage, *, ref: str | None = None
    ) -> CommitTurn:
        """The command for a person's message. Its idempotency key is the message's `client_id`."""
        key = message.client_id
        minted = str(uuid4()) if key is None else message_id(conversation_id, turn_key(sender, key))
        turn = Turn(
            id=minted,
            sender=sender,
            channel=claims.channel,
            type=message.type,
            key=key,
            client_id=message.client_id,
            text=message.text,
            data=message.data,
            metadata=message.metadata,
            meta=message.meta,
            reply_to=message.reply_to,
            client_at=message.client_at,
        )
        return CommitTurn(**self._new(ref), conversation_id=conversation_id, turn=turn)

    async def close_conversation(
        self, conversation_id: str, by: str, headers: Headers = (), *, reason: str = "manual"
    ) -> None:
        """Close it; closing a closed one changes nothing. Raises `ProtocolError`."""
        command = CloseConversation(
            **self._new(), conversation_id=conversation_id, by=by, reason=reason, id=str(uuid4())
        )
        await self._ask(command, headers, accepted=RefusedReason.CONVERSATION_CLOSED)

    async def reopen_conversation(self, conversation_id: str, by: str, headers: Headers = ()) -> None:
        """Open it again; reopening an open one changes nothing. Raises `ProtocolError`."""
        command = ReopenConversation(**self._new(), conversation_id=conversation_id, by=by, id=str(uuid4()))
        await self._ask(command, headers)

    async def hand_over(self, conversation_id: str, *, by: str, to: str, reason: str, headers: Headers = ()) -> None:
        """A human answers from here on; one that is handed over already stays so. Raises `ProtocolError`."""
        command = HandOver(**self._new(), conversation_id=conversation_id, by=by, to=to, reason=reason, id=str(uuid4()))
        await self._ask(command, headers)

    async def hand_back(self, conversation_id: str, *, by: str, reason: str, headers: Headers = ()) -> None:
        """Agents answer again; one that is not handed over stays so. Raises `ProtocolError`."""
        command = HandBack(**self._new(), conversation_id=conversation_id, by=by, reason=reason, id=str(uuid4()))
        await self._ask(command, headers)

    # -------------------------------------------------------------------------------------------------- operators
    async def move_conversation(
        self, conversation_id: str, *, to: str | None, group: str, by: str, reason: str, headers: Headers = ()
    ) -> None:
        """Give it to a member, or (`to` None) release it from who has it. Raises `ProtocolError`."""
        command = MoveConversation(
            **self._new(), conversation_id=conversation_id, to=to, group=group, by=by, reason=reason
        )
        await self._ask(command, headers)

    async def drain_member(self, member: str, *, by: str, reason: str) -> None:
        """Tell every partition that the member gets nothing new. Raises `ProtocolError` unless all were told."""
        command = Drain(**_UNPLACED, member=member, by=by, reason=reason)
        await self._tell(command, range(self._intake.partitions))

    async def note_action(self, partition: int, *, action: str, subject: str, by: str, reason: str) -> None:
        """Write into a partition's journal what an operator does. Raises `ProtocolError` unless Kafka has it."""
        note = NoteAction(**_UNPLACED, action=action, subject=subject, by=by, reason=reason, id=str(uuid4()))
        await self._tell(note, [partition])

    async def _tell(self, command: Command, partitions: Iterable[int]) -> None:
        try:
            sent = [await self._intake.send(command, partition=partition) for partition in partitions]
            async with asyncio.timeout(self._commit_wait_s):
                await asyncio.gather(*sent)
        except (*NOT_TAKEN, TimeoutError) as error:
            raise not_taken(error) from error

    # ------------------------------------------------------------------------------------------------ invocations
    async def open_thread(self, thread: str, claims: Claims) -> None:
        """A conversation of this id, of these claims' channel and user. One that is there stays. Raises
        `ProtocolError`."""
        command = OpenConversation(
            **self._new(),
            conversation_id=thread,
            channel=claims.channel,
            participant=claims.user,
            key=thread,
        )
        await self._ask(command, (), key=thread, accepted=RefusedReason.CONVERSATION_EXISTS)

    async def invoke(self, thread: str, turn: Turn, headers: Headers = ()) -> None:
        """Store an invocation's turn, or find that it is stored. Raises `ProtocolError`."""
        command = CommitTurn(**self._new(), conversation_id=thread, turn=turn)
        key = None if turn.invocation is None else turn.invocation.id
        outcome = await self._ask(command, headers, key=key)
        if not isinstance(outcome.event, TurnCommitted | Duplicate):
            raise self._unexpected(outcome)

    async def cancel_run(self, thread: str, run_id: str, by: str, reason: str, headers: Headers = ()) -> None:
        """Ask a run to stop; one that is over, or was asked already, stays as it is. Raises `ProtocolError`."""
        command = CancelRun(**self._new(), conversation_id=thread, run_id=run_id, by=by, reason=reason)
        await self._ask(command, headers)

    async def release_run(
        self, thread: str, run_id: str, *, by: str, reason: str, proof: str, headers: Headers = ()
    ) -> None:
        """End a run whose worker is known to have stopped. Raises `ProtocolError`."""
        command = ReleaseRun(**self._new(), conversation_id=thread, run_id=run_id, by=by, reason=reason, proof=proof)
        await self._ask(command, headers)

    async def _ask(
        self, command: Command, headers: Headers, *, key: str | None = None, accepted: RefusedReason | None = None
    ) -> Entry:
        ref = command.ref or ""
        outcome: asyncio.Future[Entry] = asyncio.get_running_loop().create_future()
        self._hub.wait(ref, lambda entry: None if outcome.done() else outcome.set_result(entry))
        began = time.monotonic()
        try:
            written = await self._send(command, headers)
            entry = await self._outcome(outcome, written, key)
        finally:
            self._hub.forget(ref)
        self._metrics.commit_wait.observe(time.monotonic() - began)
        event = entry.event
        if isinstance(event, Refused) and event.reason is not accepted:
            raise refusal(event.reason, event.detail)
        return entry

    async def _send(self, command: Command, headers: Headers) -> asyncio.Future[Written]:
        try:
            return await self._intake.send(command, headers=headers)
        except NOT_TAKEN as error:
            raise not_taken(error) from error

    async def _outcome(
        self, outcome: asyncio.Future[Entry], written: asyncio.Future[Written], key: str | None
    ) -> Entry:
        deadline = time.monotonic() + self._commit_wait_s
        pending: set[asyncio.Future[Entry] | asyncio.Future[Written]] = {outcome, written}
        while pending:
            done, pending = await asyncio.wait(
                pending, timeout=max(0.0, deadline - time.monotonic()), return_when=asyncio.FIRST_COMPLETED
            )
            if outcome in done:
                return outcome.result()
            if not done:
                break
            error = written.exception()
            if error is not None:
                raise unavailable(error) from error
        if not written.done():
            raise unavailable(TimeoutError("Kafka has not confirmed it"))
        raise ProtocolError(
            "pending",
            "accepted, but not committed yet: it will be. Repeating it with the same key is safe",
            retry_after_ms=RETRY_AFTER_MS,
            details={"key": key, "budgetMs": RETRY_BUDGET_MS},
        )

    def _unexpected(self, outcome: Entry) -> ProtocolError:
        return ProtocolError("internal", f"the journal answered with {type(outcome.event).__name__}")


def not_taken(error: BaseException) -> ProtocolError:
    """Why the intake did not take a command."""
    return ProtocolError("invalid_message", str(error)) if isinstance(error, Unencodable) else unavailable(error)


def unavailable(error: BaseException) -> ProtocolError:
    """The intake does not have the command, as far as is known."""
    return ProtocolError(
        "unavailable",
        f"not taken, as far as is known: {error}",
        retry_after_ms=RETRY_AFTER_MS,
        details={"budgetMs": RETRY_BUDGET_MS},
    )
