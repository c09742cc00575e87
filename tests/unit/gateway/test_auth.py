"""Tokens: what they are good for, and for how long."""

from __future__ import annotations

import time

import jwt
import pytest

from connectors.gateway.auth import LEEWAY_S, Tokens
from connectors.gateway.directory import Directory
from connectors.gateway.ports import Unavailable
from connectors.gateway.protocol.errors import ProtocolError
from connectors.gateway.protocol.session import Claims, Scope
from tests.support.gateway_world import MemoryStore

TTL_S = 60


@pytest.fixture
async def store() -> MemoryStore:
    return MemoryStore()


@pytest.fixture
async def tokens(store: MemoryStore) -> Tokens:
    directory = Directory(store)
    await directory.start()
    return Tokens(directory, TTL_S)


def claims(conversation: str | None = None) -> Claims:
    return Claims(
        channel="web", scope=Scope.CONVERSATION, user="ann", conversation_id=conversation, named=True, expires_at=0
    )


async def test_a_token_says_what_it_was_made_for(tokens: Tokens) -> None:
    read = tokens.verify(tokens.issue(claims("c1")))
    assert (read.channel, read.scope, read.user, read.conversation_id, read.named) == (
        "web", Scope.CONVERSATION, "ann", "c1", True,
    )  # fmt: skip
    assert abs(read.expires_at - (time.time() + TTL_S) * 1000) < 2_000


async def test_a_token_that_was_good_expires(tokens: Tokens, monkeypatch: pytest.MonkeyPatch) -> None:
    token = tokens.issue(claims())
    tokens.verify(token)
    later = time.time() + TTL_S + LEEWAY_S + 1
    monkeypatch.setattr("connectors.gateway.auth.time.time", lambda: later)
    with pytest.raises(ProtocolError) as refused:
        tokens.verify(token)
    assert refused.value.code == "token_expired"


async def test_a_token_of_a_gateway_whose_clock_is_ahead_is_good_here(
    tokens: Tokens, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as there:
        ahead = time.time() + 60 * 60
        there.setattr("connectors.gateway.auth.time.time", lambda: ahead)
        token = tokens.issue(claims("c1"))
    assert tokens.verify(token).conversation_id == "c1"


async def test_a_token_that_was_good_ends_with_its_key(tokens: Tokens, store: MemoryStore) -> None:
    token = tokens.issue(claims())
    tokens.verify(token)
    store.keys, store.signs = {"k2": b"b" * 32}, "k2"
    await tokens._directory.refresh_keys()
    with pytest.raises(ProtocolError) as refused:
        tokens.verify(token)
    assert refused.value.code == "unauthorized"


async def test_a_token_that_was_good_ends_with_its_channel(tokens: Tokens) -> None:
    token = tokens.issue(claims())
    tokens.verify(token)
    tokens._directory.config.channels.pop("web")
    with pytest.raises(ProtocolError) as refused:
        tokens.verify(token)
    assert refused.value.code == "channel_inactive"


async def test_a_token_of_another_issuer_or_without_a_signature_is_refused(tokens: Tokens) -> None:
    body = {"iss": "other", "sub": "ann", "chn": "web", "scp": "conversation", "exp": int(time.time()) + 60}
    key = tokens._directory.ring.secret
    for token in (
        jwt.encode(body, key, algorithm="HS256", headers={"kid": "k1"}),
        jwt.encode(body | {"iss": "turnlog"}, key, algorithm="HS512", headers={"kid": "k1"}),
        jwt.encode(body | {"iss": "turnlog"}, "", algorithm="none", headers={"kid": "k1"}),
        jwt.encode(body | {"iss": "turnlog", "scp": "root"}, key, algorithm="HS256", headers={"kid": "k1"}),
    ):
        with pytest.raises(ProtocolError) as refused:
            tokens.verify(token)
        assert refused.value.code == "unauthorized"


async def test_unknown_keys_are_asked_for_at_most_once_a_second(tokens: Tokens, store: MemoryStore) -> None:
    store.keys["k2"], store.signs = b"b" * 32, "k2"
    other = Directory(store)
    await other.start()
    token = Tokens(other, TTL_S).issue(claims())
    await tokens.prepare(token)
    assert tokens.verify(token).user == "ann"
    store.broken = Unavailable("asked again")
    forged = jwt.encode({"x": 1}, "k" * 32, algorithm="HS256", headers={"kid": "k3"})
    await tokens.prepare(forged)


async def test_keys_that_cannot_be_asked_for_are_no_refusal_of_the_token(tokens: Tokens, store: MemoryStore) -> None:
    forged = jwt.encode({"x": 1}, "k" * 32, algorithm="HS256", headers={"kid": "k3"})
    store.broken = Unavailable("PostgreSQL is away")
    with pytest.raises(ProtocolError) as refused:
        await tokens.prepare(forged)
    assert refused.value.code == "unavailable"
