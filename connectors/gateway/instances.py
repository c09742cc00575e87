"""Agent processes that declare themselves, and how one proves at any gateway that it is the one that was here before.

An `instanceId` is a name that anybody may choose; what the log knows is a *process*: the name, and a nonce of the
gateway that heard it first. The secret of the welcome is a signed statement of the two, so that a gateway needs to
remember nothing: who brings it is that process, and who brings none, or another's, is a new one of the same name.
"""

from __future__ import annotations

import secrets

import jwt
import msgspec
import structlog

from connectors.gateway.directory import Directory

log = structlog.get_logger(__name__)

ALGORITHM = "HS256"
ISSUER = "turnlog-instance"
NONCE_BYTES = 9


class Proof(msgspec.Struct, frozen=True):
    """A process of a group: its id in the log, and what it proves with that it is this one."""

    process: str
    secret: str


class Instances:
    """Tells processes apart. Any gateway believes any gateway's secrets, while the key that signed them is in use."""

    def __init__(self, directory: Directory) -> None:
        self._directory = directory

    def prove(self, group: str, name: str, secret: str | None) -> Proof:
        """The process of this name in this group that has the secret; a new one where it has none that is good."""
        process = None if secret is None else self._process_of(group, name, secret)
        if process is None or secret is None:
            process = f"{name}~{secrets.token_urlsafe(NONCE_BYTES)}"
            secret = self._sign(group, name, process)
        return Proof(process, secret)

    def _sign(self, group: str, name: str, process: str) -> str:
        ring = self._directory.ring
        body = {"iss": ISSUER, "grp": group, "sub": name, "prc": process}
        return jwt.encode(body, ring.secret, algorithm=ALGORITHM, headers={"kid": ring.kid})

    def _process_of(self, group: str, name: str, secret: str) -> str | None:
        try:
            key = self._directory.ring.keys.get(str(jwt.get_unverified_header(secret).get("kid")))
            if key is None:
                raise jwt.InvalidTokenError("it was signed by a key that is not in use")
            body = jwt.decode(secret, key, algorithms=[ALGORITHM], issuer=ISSUER, options={"require": ["sub", "prc"]})
            if (body.get("grp"), body["sub"]) != (group, name):
                raise jwt.InvalidTokenError("it is another process's")
        except jwt.InvalidTokenError as error:
            log.warning("an agent's instanceSecret is not good; it counts as new", instance=name, error=str(error))
            return None
        return str(body["prc"])
