"""Access tokens: JWTs with a key id, for one person's conversations or for a channel's agents."""

from __future__ import annotations

import time
from collections import OrderedDict
from typing import Any
from uuid import uuid4

import jwt

from connectors.gateway.directory import AGENT_KIND, Directory, takes
from connectors.gateway.ports import Unavailable
from connectors.gateway.protocol.errors import ProtocolError
from connectors.gateway.protocol.parse import MAX_ID
from connectors.gateway.protocol.session import Claims, Scope
from streams.core.limits import ID_MAX_BYTES

ALGORITHM = "HS256"
ISSUER = "turnlog"
# Gateways' clocks may differ by so much.
LEEWAY_S = 5
# A storm of tokens with unknown keys must not become a storm of queries.
KEY_RELOAD_S = 1.0
# Tokens whose signature was checked already.
VERIFIED_MAX = 10_000


class Tokens:
    """Makes and checks tokens. Any gateway takes any gateway's."""

    def __init__(self, directory: Directory, ttl_s: int) -> None:
        self._directory = directory
        self._reloaded_at = 0.0
        self._verified: OrderedDict[str, tuple[str, Claims]] = OrderedDict()
        self.ttl_s = ttl_s

    def issue(self, claims: Claims) -> str:
        """A token for these claims; its life starts now, whatever they say."""
        now = int(time.time())
        ring = self._directory.ring
        body: dict[str, Any] = {
            "iss": ISSUER,
            "sub": claims.user,
            "chn": claims.channel,
            "scp": claims.scope.value,
            "nmd": claims.named,
            "iat": now,
            "exp": now + self.ttl_s,
            "jti": uuid4().hex,
        }
        if claims.conversation_id is not None:
            body["cid"] = claims.conversation_id
        return jwt.encode(body, ring.secret, algorithm=ALGORITHM, headers={"kid": ring.kid})

    def verify(self, token: str) -> Claims:
        """The claims of a good token of an active channel; raises the `ProtocolError` that refuses it."""
        known = self._verified.get(token)
        if known is None or known[0] not in self._directory.ring.keys:
            known = self._verify(token)
            self._verified[token] = known
            if len(self._verified) > VERIFIED_MAX:
                self._verified.popitem(last=False)
        claims = known[1]
        if time.time() * 1000 >= claims.expires_at + LEEWAY_S * 1000:
            raise ProtocolError("token_expired", "the token has expired; ask for a new one")
        self._directory.channel_for(claims.channel, claims.scope)
        return claims

    def _verify(self, token: str) -> tuple[str, Claims]:
        """The key's id and the claims."""
        try:
            kid = str(jwt.get_unverified_header(token).get("kid"))
            secret = self._directory.ring.keys.get(kid)
            if secret is None:
                raise ProtocolError("unauthorized", "the token was signed by a key that is not in use")
            body = jwt.decode(
                token,
                secret,
                algorithms=[ALGORITHM],
                issuer=ISSUER,
                leeway=LEEWAY_S,
                # When it was issued is no reason to refuse it: a clock that is behind would refuse what others sign.
                options={"require": ["exp", "sub", "chn", "scp"], "verify_iat": False},
            )
            claims = Claims(
                channel=body["chn"],
                scope=Scope(body["scp"]),
                user=body["sub"],
                conversation_id=body.get("cid"),
                named=bool(body.get("nmd")),
                expires_at=int(body["exp"]) * 1000,
            )
        except jwt.ExpiredSignatureError:
            raise ProtocolError("token_expired", "the token has expired; ask for a new one") from None
        except (jwt.InvalidTokenError, ValueError, TypeError):
            raise ProtocolError("unauthorized", "the token is not valid") from None
        return kid, claims

    async def prepare(self, token: str) -> None:
        """Load the signing keys anew when this token names one that is not known: another gateway may have rotated."""
        if token in self._verified:
            return
        try:
            kid = jwt.get_unverified_header(token).get("kid")
        except jwt.InvalidTokenError:
            return
        if kid in self._directory.ring.keys or time.monotonic() - self._reloaded_at < KEY_RELOAD_S:
            return
        self._reloaded_at = time.monotonic()
        try:
            await self._directory.refresh_keys()
        except Unavailable as error:
            raise ProtocolError("unavailable", "tokens cannot be checked now", retry_after_ms=1_000) from error

    async def login(self, secret: str, *, scope: Scope, user: str | None) -> Claims:
        """The claims that a channel's secret is good for; raises the `ProtocolError` that refuses it."""
        try:
            channel_id = await self._directory.channel_of_secret(secret)
        except Unavailable as error:
            raise ProtocolError("unavailable", "logins cannot be checked now", retry_after_ms=1_000) from error
        if channel_id is None:
            way_out = "`turnlog channel secret CHANNEL` makes one"
            raise ProtocolError("unauthorized", f"no channel has this secret; {way_out}")
        channel = self._directory.channel(channel_id)
        if not takes(channel, scope):
            wanted = Scope.CHANNEL if channel.kind == AGENT_KIND else Scope.CONVERSATION
            raise ProtocolError(
                "forbidden", f"scope: channel {channel_id} is of kind {channel.kind}; its tokens have scope {wanted}"
            )
        if user is not None:
            check_user(user)
        minted = channel_id if scope is Scope.CHANNEL else f"guest-{uuid4().hex}"
        return Claims(
            channel=channel_id, scope=scope, user=user or minted, named=user is not None, expires_at=self.expires_at()
        )

    def expires_at(self) -> int:
        """When a token issued now ends, ms since the epoch."""
        return (int(time.time()) + self.ttl_s) * 1000


def check_user(user: str, field: str = "user.id") -> str:
    """The id of a person, as a channel's backend names them in `field`; raises `invalid_message`."""
    if not (0 < len(user) <= MAX_ID and len(user.encode()) <= ID_MAX_BYTES):
        rule = f"a string of 1 to {MAX_ID} characters, at most {ID_MAX_BYTES} bytes as UTF-8"
        raise ProtocolError("invalid_message", f"{field}: {rule}", details={"field": field})
    return user
