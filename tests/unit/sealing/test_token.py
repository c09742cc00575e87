"""A sealed text opens with its key, in its conversation, unchanged; with anything else it does not."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streams.core.limits import sealed_bytes
from streams.sealing.token import DataKey, NotSealed, key_id_of, new_key

pytestmark = pytest.mark.unit

KEY = new_key("c1")


@given(st.text(st.characters(exclude_categories=["Cs"])))
def test_a_sealed_text_opens_as_it_was(text: str) -> None:
    token = KEY.seal(text)
    assert token.isascii()
    assert KEY.open(token) == text
    assert key_id_of(token) == KEY.id


@given(st.binary(max_size=200))
def test_a_token_is_as_long_as_the_cores_limits_say(text: bytes) -> None:
    plain = text.decode("latin-1")
    assert len(KEY.seal(plain)) == sealed_bytes(len(plain.encode()))


def test_the_same_text_is_sealed_otherwise_each_time() -> None:
    assert KEY.seal("yes") != KEY.seal("yes")


def test_a_token_does_not_open_in_another_conversation() -> None:
    stolen = DataKey(KEY.id, "c2", KEY.secret)
    with pytest.raises(NotSealed):
        stolen.open(KEY.seal("a secret"))


@pytest.mark.parametrize("at", [5, 20, 24, -1])
def test_a_token_that_was_changed_does_not_open(at: int) -> None:
    token = list(KEY.seal("a secret"))
    token[at] = "A" if token[at] != "A" else "B"
    with pytest.raises(NotSealed):
        KEY.open("".join(token))


@pytest.mark.parametrize("text", ["", "hello", "tls1:", "tls1:0123456789abcdef", "tls1:0123456789abcdef;body"])
def test_what_is_no_token_names_no_key(text: str) -> None:
    assert key_id_of(text) is None


def test_a_lone_surrogate_is_not_sealed() -> None:
    with pytest.raises(UnicodeEncodeError):
        KEY.seal("\ud800")


def test_a_key_shows_no_secret() -> None:
    assert KEY.secret.hex() not in repr(KEY)
    assert repr(KEY.secret) not in repr(KEY)
