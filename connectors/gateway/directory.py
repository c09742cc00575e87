"""Channels, secrets and keys as this gateway last saw them, and how it sees them anew.

Reads are answered from memory while Postgres is away, so that who is logged in stays so; only what was never seen
waits for it.
"""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections import OrderedDict
from collections.abc import Callable

import structlog

from connectors.gateway.ports import LeaseInfo, Store, Unavailable
from connectors.gateway.protocol.errors import ProtocolError
from connectors.gateway.protocol.session import Scope
from streams.core.routing import Channel, Config, parse_config
from streams.fence.channels import ChannelStore
from streams.fence.credentials import CredentialStore
from streams.fence.lease import LeaseTable
from streams.fence.port import FenceUnavailable, HeldBy
from streams.fence.signing import KeyRing, SigningKeyStore
from streams.settings import Settings

log = structlog.get_logger(__name__)

DOCUMENT_POLL_S = 1.0
KEYS_POLL_S = 30.0
# A secret that was good is taken from memory for so long; a wrong one is asked for again at once.
SECRET_FRESH_S = 10.0
SECRETS_KEPT = 1_000
AGENT_KIND = "websocket"


class PostgresStore:
    """`Store` on the tables that `turnlog channel apply` and `turnlog up` write."""

    def __init__(self, settings: Settings) -> None:
        self._postgres = settings.postgres
        self._channels = ChannelStore(settings.postgres)
        self._credentials = CredentialStore(settings.postgres)
        self._keys = SigningKeyStore(settings.postgres, settings.master_key)

    async def close(self) -> None:
        """Close the connections."""
        await self._channels.close()
        await self._credentials.close()
        await self._keys.close()

    async def document(self) -> tuple[int, str]:
        """See `Store`."""
        try:
            current = await self._channels.current()
        except FenceUnavailable as error:
            raise Unavailable(str(error)) from error
        return (0, "") if current is None else (current.version, current.broadcast())

    async def channel_of_secret(self, secret: str) -> str | None:
        """See `Store`."""
        try:
            return await self._credentials.channel_of(secret)
        except FenceUnavailable as error:
            raise Unavailable(str(error)) from error

    async def key_ring(self) -> KeyRing:
        """See `Store`."""
        try:
            return await self._keys.load()
        except FenceUnavailable as error:
            raise Unavailable(str(error)) from error

    async def is_api_key(self, key: str) -> bool:
        """See `Store`."""
        try:
            return await self._credentials.api_key_name(key) is not None
        except FenceUnavailable as error:
            raise Unavailable(str(error)) from error

    async def operator_of(self, token: str) -> str | None:
        """See `Store`."""
        try:
            return await self._credentials.operator_of(token)
        except FenceUnavailable as error:
            raise Unavailable(str(error)) from error

    async def release_lease(self, lease: LeaseInfo) -> bool:
        """See `Store`."""
        held = HeldBy(lease.partition, lease.worker, lease.writer_epoch, lease.live, lease.expires_in_ms)
        table = LeaseTable(self._postgres)
        try:
            return await table.release(held)
        except FenceUnavailable as error:
            raise Unavailable(str(error)) from error
        finally:
            await table.close()


def takes(channel: Channel, scope: Scope) -> bool:
    """Whether tokens of this scope are for channels of that kind: agents' are of scope `channel`, no others."""
    return (channel.kind == AGENT_KIND) is (scope is Scope.CHANNEL)


class Directory:
    """What is known of channels and keys. `start` loads it, `run` keeps it fresh."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._secrets: OrderedDict[bytes, tuple[str, float]] = OrderedDict()
        self._ring: KeyRing | None = None
        self._keys_at = 0.0
        self.error = ""
        """Why Postgres did not answer when it was last asked; empty: it did."""
        self.config = Config()
        self.on_document: list[Callable[[int, str], None]] = []
        """Called with each new version of the document."""

    async def start(self) -> None:
        """Load all; raises `Unavailable`."""
        await self.refresh_keys()
        await self._refresh_document()

    async def run(self) -> None:
        """Look for a new document every second, for new keys at times; Postgres may be away meanwhile."""
        while True:
            await asyncio.sleep(DOCUMENT_POLL_S)
            try:
                await self._refresh_document()
                if time.monotonic() - self._keys_at >= KEYS_POLL_S:
                    await self.refresh_keys()
                self.error = ""
            except Unavailable as error:
                self.error = str(error)
                log.warning("channels and keys cannot be read; going on with what is known", error=str(error))

    async def refresh_keys(self) -> None:
        """Load the signing keys; raises `Unavailable`."""
        self._ring = await self._store.key_ring()
        self._keys_at = time.monotonic()

    async def _refresh_document(self) -> None:
        version, document = await self._store.document()
        if version > self.config.version:
            self.config = parse_config(version, document)
            log.info("channels and routes loaded", version=version, channels=sorted(self.config.channels))
            for tell in self.on_document:
                tell(version, document)

    @property
    def ring(self) -> KeyRing:
        """The signing keys."""
        if self._ring is None:
            raise RuntimeError("the directory was not started")
        return self._ring

    def channel(self, channel_id: str) -> Channel:
        """An active channel; raises `channel_inactive` for one that is not, or that is gone."""
        channel = self.config.channels.get(channel_id)
        if channel is None or not channel.active:
            raise ProtocolError("channel_inactive", f"channel {channel_id} is not active")
        return channel

    def channel_for(self, channel_id: str, scope: Scope) -> Channel:
        """The active channel of a token of this scope; raises `channel_inactive` also for one that is of another kind
        now, whose tokens have the other scope."""
        channel = self.channel(channel_id)
        if not takes(channel, scope):
            raise ProtocolError("channel_inactive", f"channel {channel.id} is of kind {channel.kind} now")
        return channel

    async def channel_of_secret(self, secret: str) -> str | None:
        """The channel that a login secret belongs to; raises `Unavailable` when it cannot be known now."""
        digest = hashlib.sha256(secret.encode("utf-8", "surrogatepass")).digest()
        known = self._secrets.get(digest)
        if known is not None and time.monotonic() - known[1] < SECRET_FRESH_S:
            return known[0]
        try:
            channel = await self._store.channel_of_secret(secret)
        except Unavailable:
            if known is None:
                raise
            return known[0]
        self._secrets.pop(digest, None)
        if channel is not None:
            self._secrets[digest] = (channel, time.monotonic())
            if len(self._secrets) > SECRETS_KEPT:
                self._secrets.popitem(last=False)
        return channel

    async def is_api_key(self, key: str) -> bool:
        """Whether it is a key of the tenant API; raises `Unavailable`."""
        return await self._store.is_api_key(key)

    async def operator_of(self, token: str) -> str | None:
        """The name of the operator with this token; raises `Unavailable`. Asked for each time: a revoked one is void at
        once."""
        return await self._store.operator_of(token)

    async def release_lease(self, lease: LeaseInfo) -> bool:
        """Take a lease from the worker that was seen to hold it; raises `Unavailable`."""
        return await self._store.release_lease(lease)
