"""The keys that sign digests (Ed25519), and the public ones that are trusted. No key is ever written into a digest.

A private key is a PEM file (PKCS 8) that its owner alone may read, or such text in `TURNLOG_DIGEST_KEY`. A key's id is
the beginning of the SHA-256 of its public half. Rotation: sign with a new key, and go on trusting the old public one
for as long as what it signed is to be believed.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_pem_private_key,
    load_pem_public_key,
)

KEY_VARIABLE: Final = "TURNLOG_DIGEST_KEY"
TRUST_VARIABLE: Final = "TURNLOG_DIGEST_TRUST"
ID_CHARACTERS: Final = 16
PUBLIC_SUFFIX: Final = ".pub"


class DigestKeyError(ValueError):
    """A key that cannot be used; the message never holds any of it."""


@dataclass(frozen=True, slots=True)
class SigningKey:
    """What signs."""

    id: str
    private: Ed25519PrivateKey

    def sign(self, text: bytes) -> bytes:
        """64 bytes."""
        return self.private.sign(text)

    @property
    def public(self) -> Ed25519PublicKey:
        """What others verify with."""
        return self.private.public_key()


class Trust:
    """The public keys that are believed, by id."""

    def __init__(self, keys: Iterable[Ed25519PublicKey]) -> None:
        self._keys: Mapping[str, Ed25519PublicKey] = {id_of(key): key for key in keys}

    @property
    def ids(self) -> list[str]:
        """Of all of them, sorted."""
        return sorted(self._keys)

    def knows(self, key_id: str) -> bool:
        """Whether it is one of them."""
        return key_id in self._keys

    def verifies(self, key_id: str, signature: bytes, text: bytes) -> bool:
        """Whether the key of this id, which is known, signed `text`."""
        try:
            self._keys[key_id].verify(signature, text)
        except InvalidSignature:
            return False
        return True


def id_of(key: Ed25519PublicKey) -> str:
    """The id of a key, from its public half."""
    return hashlib.sha256(key.public_bytes(Encoding.Raw, PublicFormat.Raw)).hexdigest()[:ID_CHARACTERS]


def signing_key(given: str | None = None) -> SigningKey:
    """The key in the file `given`, or of `TURNLOG_DIGEST_KEY`: a file's name, or the PEM text itself.

    Raises `DigestKeyError`.
    """
    where = given or os.environ.get(KEY_VARIABLE, "")
    if not where:
        raise DigestKeyError(
            f"no key to sign with: make one with `turnlog key digest new FILE`, then give it with --key FILE or "
            f"{KEY_VARIABLE} (the file's name, or its text)"
        )
    text, name = (where, KEY_VARIABLE) if where.lstrip().startswith("-----BEGIN") else (_read(where), where)
    try:
        private = load_pem_private_key(text.encode(), password=None)
    except (ValueError, TypeError):
        raise DigestKeyError(f"{name} is no private key in PEM (PKCS 8) without a password") from None
    if not isinstance(private, Ed25519PrivateKey):
        raise DigestKeyError(f"{name} is a key of another kind: digests are signed with Ed25519")
    return SigningKey(id_of(private.public_key()), private)


def trusted(given: Iterable[str] = (), signer: SigningKey | None = None) -> Trust:
    """The public keys in these files and folders, or else in those of `TURNLOG_DIGEST_TRUST` (separated as in PATH).

    Beside them the one of `signer`. A folder gives all its `*.pub`. Raises `DigestKeyError`, also when there is none.
    """
    places = [*given] or [place for place in os.environ.get(TRUST_VARIABLE, "").split(os.pathsep) if place]
    keys = [public_key(file) for place in places for file in _files(place)]
    if signer is not None:
        keys.append(signer.public)
    if not keys:
        raise DigestKeyError(
            f"no key is trusted: name public keys with --trust FILE, or in {TRUST_VARIABLE}. They must come from "
            "somewhere else than the digests: whoever can write there could sign with a key of their own"
        )
    return Trust(keys)


def public_key(file: Path) -> Ed25519PublicKey:
    """The public key in a PEM file. Raises `DigestKeyError`."""
    text = _read(str(file))
    try:
        key = load_pem_public_key(text.encode())
    except ValueError:
        raise DigestKeyError(f"{file} is no public key in PEM") from None
    if not isinstance(key, Ed25519PublicKey):
        raise DigestKeyError(f"{file} is a key of another kind: digests are signed with Ed25519")
    return key


def new_key(file: Path) -> SigningKey:
    """Make a key: the private one in `file`, which nobody else may read, the public one in `file` + `.pub`.

    Raises `DigestKeyError` when either is there already.
    """
    private = Ed25519PrivateKey.generate()
    pem = private.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    public = private.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    try:
        for path, content, mode in ((file, pem, 0o600), (Path(f"{file}{PUBLIC_SUFFIX}"), public, 0o644)):
            with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as written:
                written.write(content)
    except FileExistsError as error:
        raise DigestKeyError(f"{error.filename} is there already, and stays as it is") from error
    except OSError as error:
        raise DigestKeyError(f"{error.filename} cannot be written: {error.strerror}") from error
    return SigningKey(id_of(private.public_key()), private)


def _files(place: str) -> list[Path]:
    path = Path(place)
    if not path.is_dir():
        return [path]
    found = sorted(path.glob(f"*{PUBLIC_SUFFIX}"))
    if not found:
        raise DigestKeyError(f"{place} holds no *{PUBLIC_SUFFIX}")
    return found


def _read(name: str) -> str:
    try:
        return Path(name).read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise DigestKeyError(f"the key {name} cannot be read: {getattr(error, 'strerror', 'it is no text')}") from error
