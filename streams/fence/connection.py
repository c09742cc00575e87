"""One connection to Postgres whose every use is bounded in time, and whose failures have one name.

A hung server, a frozen proxy or a cancelled caller must not hold a worker past its lease. Cancelling a query asks the
server first, which is what cannot answer then; so a call that takes too long has its socket shut down, and the server
rolls back whatever it had not committed.
"""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import psycopg
from psycopg import AsyncConnection
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from psycopg.errors import IdleInTransactionSessionTimeout, ReadOnlySqlTransaction

from streams.fence.port import FenceUnavailable

APPLICATION_NAME = "turnlog"
CONNECT_TIMEOUT_S = 5
# A socket that was shut down wakes whoever waits on it at the loop's next turn.
NOTICE_S = 1.0

T = TypeVar("T")
Work = Callable[[AsyncConnection[Any]], Awaitable[T]]

# What a server says when it cannot serve now: lost or refused connections, time-outs, shutdown, no room, and a primary
# that became a standby. Anything else (a missing table, a wrong type) is a mistake and passes as it is.
UNAVAILABLE = (
    psycopg.OperationalError,
    psycopg.InterfaceError,
    IdleInTransactionSessionTimeout,
    ReadOnlySqlTransaction,
)

# A dead peer is noticed by TCP in about 2 + 3 * 1 s even when nothing is sent.
TCP_DEFAULTS = {
    "connect_timeout": CONNECT_TIMEOUT_S,
    "keepalives_idle": 2,
    "keepalives_interval": 1,
    "keepalives_count": 3,
}


def bounded_dsn(dsn: str, purpose: str) -> str:
    """`dsn` with time limits on connecting and dead peers where it sets none; `purpose` names the session."""
    given = conninfo_to_dict(dsn)
    defaults = {name: value for name, value in TCP_DEFAULTS.items() if name not in given}
    return make_conninfo(dsn, application_name=f"{APPLICATION_NAME} {purpose}", **defaults)


def shut_down(connection: AsyncConnection[Any]) -> None:
    """Break the connection's socket, so that whoever waits on it gets an error at once. Works on a hung server."""
    if connection.closed:
        return
    duplicate = socket.socket(fileno=os.dup(connection.fileno()))
    try:
        duplicate.shutdown(socket.SHUT_RDWR)
    except OSError:  # the peer was faster: the socket is down already
        return
    finally:
        duplicate.close()


class Session:
    """A connection opened when first needed and again after it broke; one caller at a time.

    `number` counts the server sessions so far: what was learnt about other sessions holds only while it is the same.
    """

    def __init__(self, dsn: str, purpose: str, *, limit_s: float, on_connect: Work[None] | None = None) -> None:
        """`limit_s`: longest time of one call, connecting included. `on_connect` prepares each new server session."""
        self._dsn = bounded_dsn(dsn, purpose)
        self._limit_s = limit_s
        self._on_connect = on_connect
        self._lock = asyncio.Lock()
        self._connection: AsyncConnection[Any] | None = None
        self.number = 0

    async def run(self, work: Work[T]) -> T:
        """`work` on the connection, autocommit. Raises `FenceUnavailable` when the server does not answer in time.

        After that error the call may have taken effect, or not: callers ask in a way that a repeat cannot double.
        """
        async with self._lock:
            task = asyncio.ensure_future(self._work(work))
            try:
                done, _ = await asyncio.wait({task}, timeout=self._limit_s)
            except asyncio.CancelledError:
                await self._stop(task)
                raise
            if not done:
                await self._stop(task)
                raise FenceUnavailable(f"PostgreSQL did not answer within {self._limit_s:g} s")
            try:
                return task.result()
            except UNAVAILABLE as error:
                await self._drop_if_broken()
                raise FenceUnavailable(f"PostgreSQL is not available: {reason_of(error)}") from error

    async def close(self) -> None:
        """Close the connection; the next `run` opens another."""
        async with self._lock:
            if self._connection is not None:
                await self._connection.close()
                self._connection = None

    async def _work(self, work: Work[T]) -> T:
        if self._connection is None or self._connection.closed:
            self._connection = None
            connection = await AsyncConnection.connect(self._dsn, autocommit=True)
            self._connection = connection
            self.number += 1
            # The server ends what a frozen process cannot end: its statement, its open transaction.
            limit_ms = str(round(self._limit_s * 1000))
            await connection.execute(
                "SELECT set_config('statement_timeout', %(limit)s, false),"
                " set_config('lock_timeout', %(limit)s, false),"
                " set_config('idle_in_transaction_session_timeout', %(limit)s, false)",
                {"limit": limit_ms},
            )
            if self._on_connect is not None:
                await self._on_connect(connection)
        return await work(self._connection)

    async def _stop(self, task: asyncio.Future[T]) -> None:
        """End a call that may hang in the server, and drop the connection it hung on."""
        if self._connection is not None:
            shut_down(self._connection)
            await asyncio.wait({task}, timeout=NOTICE_S)
        # Still connecting, or waiting for something else than the server.
        task.cancel()
        await asyncio.wait({task})
        if not task.cancelled():
            task.exception()  # seen: the caller gets the time-out or the cancellation instead
        if self._connection is not None:
            await self._connection.close()
            self._connection = None

    async def _drop_if_broken(self) -> None:
        if self._connection is not None and self._connection.closed:
            await self._connection.close()
            self._connection = None


class SessionPool:
    """Several sessions, for callers that may ask at the same time; the one used last is used first."""

    def __init__(self, dsn: str, purpose: str, *, size: int, limit_s: float) -> None:
        self._sessions = [Session(dsn, purpose, limit_s=limit_s) for _ in range(size)]
        self._idle: asyncio.LifoQueue[Session] = asyncio.LifoQueue()
        self._limit_s = limit_s
        for session in self._sessions:
            self._idle.put_nowait(session)

    async def run(self, work: Work[T]) -> T:
        """As `Session.run`; waiting for a session that is free is limited too."""
        try:
            session = await asyncio.wait_for(self._idle.get(), self._limit_s)
        except TimeoutError:
            raise FenceUnavailable(f"all {len(self._sessions)} connections were busy for {self._limit_s:g} s") from None
        try:
            return await session.run(work)
        finally:
            self._idle.put_nowait(session)

    async def close(self) -> None:
        """Close all of them."""
        for session in self._sessions:
            await session.close()


def reason_of(error: Exception) -> str:
    """First line of the error: the rest of libpq's message repeats addresses and hints, and the server's the row that
    it did not take, with what was said in it."""
    return str(error).strip().partition("\n")[0] or type(error).__name__
