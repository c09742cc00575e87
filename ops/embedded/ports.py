"""Free TCP ports on 127.0.0.1 for servers that clients reconnect to."""

from __future__ import annotations

import random
import socket

from ops.embedded.errors import StackUnavailable

# Below the range that Linux and macOS give to outgoing connections (32768 and 49152 upwards): a client that redials a
# port of that range while its server restarts can be given that very port, connect to itself, and keep the server out.
CHOICE = range(20_000, 32_000)
TRIES = 200


def choose(asked: int, last: int, taken: frozenset[int] = frozenset()) -> int:
    """The port asked for; for 0 the one of the last start if it is free, else any free one that is not in `taken`.

    Raises `StackUnavailable` when the port asked for is in use. Another process may take the port before the server
    binds it: the caller tries again then.
    """
    if asked:
        if not _is_free(asked):
            raise StackUnavailable(f"port {asked} on 127.0.0.1 is in use: choose another one, or 0 for any free one")
        return asked
    if last and last not in taken and _is_free(last):
        return last
    for port in random.SystemRandom().sample(CHOICE, TRIES):
        if port not in taken and _is_free(port):
            return port
    raise StackUnavailable(f"no free port on 127.0.0.1 among {TRIES} tried from {CHOICE.start} to {CHOICE.stop}")


def _is_free(port: int) -> bool:
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        # As the servers do: connections of an earlier run that are still closing keep nobody out.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
        return True
