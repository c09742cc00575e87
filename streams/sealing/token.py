"""A sealed text: one ASCII token that says which key opens it.

`tls1:<key id>:<base64url of nonce, ciphertext and tag>`, by AES-256-GCM (NIST SP 800-38D) with a random nonce of 96
bits; the conversation's id is authenticated with it, so that a token moved to another conversation does not open. The
key id is in it because some texts travel without the record that `key_id` is a field of (an edit, an answer).
"""

from __future__ import annotations

import base64
import binascii
import secrets
from dataclasses import dataclass, field
from typing import Final

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

PREFIX: Final = "tls1:"
KEY_ID_LENGTH: Final = 16
SECRET_BYTES: Final = 256 // 8
NONCE_BYTES: Final = 96 // 8  # what AES-GCM is specified for (NIST SP 800-38D, section 8.2)
_BODY: Final = len(PREFIX) + KEY_ID_LENGTH + 1


class NotSealed(ValueError):
    """The token was not made by this key for this conversation, or was changed since."""


@dataclass(frozen=True, slots=True)
class DataKey:
    """The key of one conversation's words. Its secret is in no repr."""

    id: str
    conversation_id: str
    secret: bytes = field(repr=False)
    cipher: AESGCM = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "cipher", AESGCM(self.secret))

    def seal(self, text: str) -> str:
        """The token of `text`; another one each time. Raises `UnicodeEncodeError` for a lone surrogate."""
        nonce = secrets.token_bytes(NONCE_BYTES)
        sealed = nonce + self.cipher.encrypt(nonce, text.encode(), self.conversation_id.encode())
        return f"{PREFIX}{self.id}:{base64.urlsafe_b64encode(sealed).decode()}"

    def open(self, token: str) -> str:
        """The text of a token. Raises `NotSealed`."""
        if key_id_of(token) != self.id:
            raise NotSealed(f"no token of data key {self.id}")
        try:
            sealed = base64.b64decode(token[_BODY:], altchars=b"-_", validate=True)
            nonce, body = sealed[:NONCE_BYTES], sealed[NONCE_BYTES:]
            return self.cipher.decrypt(nonce, body, self.conversation_id.encode()).decode()
        except (binascii.Error, InvalidTag, ValueError):
            raise NotSealed(f"a token of data key {self.id} does not open") from None


def new_key(conversation_id: str) -> DataKey:
    """A fresh random key."""
    return DataKey(secrets.token_hex(KEY_ID_LENGTH // 2), conversation_id, secrets.token_bytes(SECRET_BYTES))


def key_id_of(text: str) -> str | None:
    """The id of the key that opens this token; None: it does not look like one."""
    if not text.startswith(PREFIX) or len(text) <= _BODY or text[_BODY - 1] != ":":
        return None
    return text[len(PREFIX) : _BODY - 1]
