"""What a process sends into conversations: messages until they are acknowledged, other frames once."""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass

from turnlog.connection import Connection
from turnlog.errors import AckTimeout, InvalidRequest, TurnlogError, Unavailable, error_of
from turnlog.run import Run, RunState
from turnlog.turn import Turn
from turnlog.wire import Frame, dump

CHECKPOINT_BYTES = 256 * 1024
"""What a gateway takes of a checkpoint, as compact UTF-8 JSON; it may make its frame longer than others may be."""
PLACED_WITHIN_S = 10.0
"""How long a gateway may take to say whose a run is after a reconnect. It does at once, unless it took the old
connection for alive, or the run is another's. Then the run is given up, and begins anew where it is given here after
all. Nothing is sent to find out: without its epoch, the first half of an answer would be refused, and the second stored
where the run came here in between."""
SEND_RETRIES = 3
RETRY_STEP_S = 0.5
_TEMPORARY = frozenset({"rate_limited", "too_many_in_flight", "unavailable"})


Tenure = tuple[int, int | None]
"""Connection, by number, and epoch under which a process holds a run. In the next one, what was sent without an ack may
be lost, and the gateway says what is stored."""


@dataclass(frozen=True, slots=True)
class Ack:
    """The message is stored: in the conversation's log, for good."""

    id: str
    seq: int
    duplicate: bool = False
    """It had been stored before; this is the first one's place."""


@dataclass(slots=True)
class _Unacked:
    run: Run
    frame: Frame
    done: asyncio.Future[Ack]


class Outbox:
    """Sends over a link. Messages wait for their ack and are sent again, with the same id, on every new connection.

    As many wait at a time as the gateway allows (`limits.maxInFlight`); the others wait for one of them.
    """

    def __init__(self, link: Connection, *, ack_timeout: float) -> None:
        self._link = link
        self._ack_timeout = ack_timeout
        self._room = asyncio.Event()
        self._unacked: dict[tuple[str, str], _Unacked] = {}

    @property
    def generation(self) -> int:
        """Number of the connection; a change means that what was sent without an ack may be lost."""
        return self._link.generation

    async def wait_up(self) -> None:
        """Until there is a connection. Raises `Unavailable` when there is none within the ack time-out."""
        if not await self._link.wait_up(self._ack_timeout):
            raise Unavailable(f"no connection to the gateway for {self._ack_timeout:g} s", code="unavailable")

    async def wait_placed(self, run: Run) -> None:
        """Until the gateway of a new connection has said whose the run is, or there is no connection, on which nothing
        can be sent. Raises `Fenced`, also where it has not said so in time."""
        while run.unplaced_since is not None and not run.placed.is_set():
            since = run.unplaced_since
            try:
                async with asyncio.timeout_at(since + PLACED_WITHIN_S):
                    await run.placed.wait()
            except TimeoutError:
                if not await self._link.wait_up(0):
                    break
                if run.unplaced_since == since and run.open:  # else there is another connection by now
                    run.stop(RunState.FENCED)
        run.check()

    def tenure(self, run: Run) -> Tenure:
        """The run's present one."""
        return self.generation, run.epoch

    async def frame(self, run: Run, frame: Frame, *, within: Tenure | None = None) -> bool:
        """A frame that gets no ack. False: there is no connection, and it was not sent; nor is one that goes on behind
        what was sent before, and so holds `within` one tenure of the run only. Raises `Fenced`."""
        await self._link.pace()
        await self.wait_placed(run)
        if not run.placed.is_set() or within not in {None, self.tenure(run)}:
            return False
        return await self._link.send(self._envelope(run, frame))

    async def structured(self, run: Run, frame: Frame) -> Ack | None:
        """A tool call, a question or its end: as `message`, but None behind a server that gives no ack for these."""
        if run.turn.run is None:
            await self.frame(run, {name: value for name, value in frame.items() if name != "clientId"})
            return None
        return await self.message(run, frame)

    @property
    def may_refuse(self) -> bool:
        """Whether the gateway gives to others what this process refuses."""
        return self._link.limits.runs is not None

    async def refuse(self, turn: Turn) -> None:
        """This process does not take the turn's run. Where that is lost, the turn is given to it once more."""
        frame = {"type": "refuse", "reason": "busy", "run": turn.run, "runEpoch": turn.run_epoch}
        await self._link.send({"conversationId": turn.conversation, "frame": frame})

    async def last(self, run: Run, frame: Frame) -> None:
        """A word on how the run ended. Where no connection takes it, the server tells from the member's leaving; where
        the gateway has not said whose it is, from the member's silence."""
        if run.unplaced_since is None:
            await self._link.send(self._envelope(run, frame))

    async def message(self, run: Run, frame: Frame) -> Ack:
        """A message, until it is stored. Raises `Fenced`, `AckTimeout` or what the gateway refused it for."""
        for attempt in range(SEND_RETRIES + 1):
            try:
                return await self._attempt(run, frame)
            except TurnlogError as error:
                if error.code not in _TEMPORARY or attempt == SEND_RETRIES:
                    raise
                await asyncio.sleep(error.retry_after or RETRY_STEP_S * (attempt + 1))
        raise AssertionError("unreachable: the last attempt returns or raises")

    async def _attempt(self, run: Run, frame: Frame) -> Ack:
        key = (run.turn.conversation, str(frame["clientId"]))
        while len(self._unacked) >= self._link.limits.in_flight:
            self._room.clear()
            await self._room.wait()
            run.check()
        entry = _Unacked(run, frame, asyncio.get_running_loop().create_future())
        self._unacked[key] = entry
        try:
            await self.frame(run, frame)
            async with asyncio.timeout(self._ack_timeout):
                return await entry.done
        except TimeoutError as error:
            raise AckTimeout(
                f"no acknowledgement within {self._ack_timeout:g} s: the message may or may not be stored",
                code="ack_timeout",
                conversation=run.turn.conversation,
            ) from error
        finally:
            del self._unacked[key]
            self._room.set()

    async def resend(self, run: Run) -> None:
        """On a new connection: what is unacknowledged of the run, in the order in which it was first sent."""
        for entry in [entry for entry in self._unacked.values() if entry.run is run]:
            try:
                await self.frame(entry.run, entry.frame)
            except TurnlogError as error:  # fenced, or too large for the gateway of this connection
                _settle(entry.done, error)

    def acked(self, conversation: str, ack: Frame) -> None:
        """An ack came in. One that nobody waits for any more (resent, timed out) is nothing to do."""
        entry = self._unacked.get((conversation, str(ack.get("clientId"))))
        if entry is not None and not entry.done.done():
            entry.done.set_result(
                Ack(id=str(ack.get("id")), seq=int(ack.get("seq") or 0), duplicate=ack.get("duplicate") is True)
            )

    def refused(self, conversation: str, data: Frame) -> TurnlogError | None:
        """An error came in. Returned when no waiting message is meant by it."""
        error = error_of(data, conversation=conversation)
        entry = self._unacked.get((conversation, str(data.get("clientId"))))
        if entry is None:
            return error
        _settle(entry.done, error)
        return None

    def _envelope(self, run: Run, frame: Frame) -> Frame:
        envelope = run.stamp(frame, self._link.generation)
        if frame["type"] == "checkpoint":
            _check_checkpoint(frame["data"])
            return envelope
        size, most = len(dump(envelope)), self._link.limits.frame_bytes
        if size > most:
            raise InvalidRequest(f"frame: {size} bytes, the gateway takes at most {most}", code="payload_too_large")
        return envelope


def _check_checkpoint(data: object) -> None:
    size = len(json.dumps(data, ensure_ascii=False, separators=(",", ":")).encode(errors="surrogatepass"))
    if size > CHECKPOINT_BYTES:
        raise InvalidRequest(
            f"checkpoint: {size} bytes as JSON, at most {CHECKPOINT_BYTES} are taken", code="payload_too_large"
        )


def _settle(done: asyncio.Future[Ack], error: TurnlogError) -> None:
    if not done.done():
        done.set_exception(error)
