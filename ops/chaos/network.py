"""Network namespaces: each process with wires of its own to Kafka and to PostgreSQL, which the kernel can cut.

A process under test lives in a namespace where nothing else is; its proxies listen in another one, of which this
process holds sockets only. Between the two lies a pair of virtual interfaces for each server:

```
   the process's namespace                      its proxies' namespace          this process's own
   10.99.1.2 ─────────────── kafka ───────────▶ 10.99.1.1, the proxy's socket ─────▶ the broker
   10.99.2.2 ─────────────── postgres ────────▶ 10.99.2.1, the proxy's socket ─────▶ PostgreSQL
```

A cut is a queue that drops every packet, at the end that sends (`tc qdisc … blackhole`): TCP repeats what was lost, as
in a real cut, and nobody is told. Every process has the same addresses, since nobody else sees them. The namespaces are
nameless: they end with the last process and socket in them, however this process ends.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from enum import StrEnum
from typing import Final

CLONE_NEWNET: Final = 0x40000000
"""linux/sched.h"""
TOOLS: Final = ("ip", "tc", "nsenter")


class Wire(StrEnum):
    """What a process reaches over a wire of its own."""

    KAFKA = "kafka"
    POSTGRES = "postgres"


ADDRESSES: Final = {Wire.KAFKA: "10.99.1", Wire.POSTGRES: "10.99.2"}
"""As long as 127.0.0.1 with the last number: Kafka's answers, which name it, keep their length."""


class NotPossible(RuntimeError):
    """This machine, or this user, has no network namespaces; the message says why."""


class Namespace:
    """An empty network namespace, for as long as it is held open here or anything is in it."""

    def __init__(self) -> None:
        self.descriptor = _unshared()

    @property
    def path(self) -> str:
        """Under which other processes of this user find it."""
        return f"/proc/{os.getpid()}/fd/{self.descriptor}"

    def close(self) -> None:
        """Hold it no more."""
        os.close(self.descriptor)

    def run(self, *command: str) -> None:
        """Run a command in it. Raises `NotPossible` with what the command said."""
        ended = subprocess.run([*self.prefix, *command], capture_output=True, text=True, check=False)
        if ended.returncode:
            raise NotPossible(f"{' '.join(command)}: {ended.stderr.strip()}")

    @property
    def prefix(self) -> Sequence[str]:
        """In front of a command that is to run in it; the process is the command's own, no child of another one."""
        return "nsenter", f"--net={self.path}", "--"

    @contextmanager
    def entered(self) -> Iterator[None]:
        """Sockets made by this thread are its sockets. Nothing may be awaited meanwhile."""
        home = os.open("/proc/thread-self/ns/net", os.O_RDONLY)
        try:
            _system_call("setns", self.descriptor, CLONE_NEWNET)
            try:
                yield
            finally:
                _system_call("setns", home, CLONE_NEWNET)
        finally:
            os.close(home)

    def new_socket(self) -> socket.socket:
        """A TCP socket of it, which does not block."""
        with self.entered():
            made = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        made.setblocking(False)  # noqa: FBT003 -- the standard library's
        return made

    def listening(self, host: str) -> socket.socket:
        """A TCP socket that listens on a free port of it."""
        made = self.new_socket()
        made.bind((host, 0))
        made.listen()
        return made


class Network:
    """The two namespaces of one process, and the wires between them."""

    def __init__(self) -> None:
        """Raises `NotPossible`."""
        self.process, self.proxies = Namespace(), Namespace()
        try:
            self.process.run("ip", "link", "set", "lo", "up")
            for wire in Wire:
                self._lay(wire)
        except BaseException:
            self.close()
            raise

    def _lay(self, wire: Wire) -> None:
        here, there = f"{wire}-to", f"{wire}-from"
        self.process.run("ip", "link", "add", here, "type", "veth", "peer", "name", there, "netns", self.proxies.path)
        for side, name, last in ((self.process, here, 2), (self.proxies, there, 1)):
            side.run("ip", "address", "add", f"{ADDRESSES[wire]}.{last}/30", "dev", name)
            side.run("ip", "link", "set", name, "up")

    def address(self, wire: Wire) -> str:
        """Where the process finds this proxy."""
        return f"{ADDRESSES[wire]}.1"

    def cut(self, wire: Wire, *, sending: bool, receiving: bool) -> None:
        """Drop what the process sends on this wire, or what comes back, or both. Once more changes nothing."""
        if sending:
            self.process.run("tc", "qdisc", "replace", "dev", f"{wire}-to", "root", "blackhole")
        if receiving:
            self.proxies.run("tc", "qdisc", "replace", "dev", f"{wire}-from", "root", "blackhole")

    def mend(self, wire: Wire) -> None:
        """Packets pass again, both ways."""
        self.process.run("tc", "qdisc", "replace", "dev", f"{wire}-to", "root", "pfifo")
        self.proxies.run("tc", "qdisc", "replace", "dev", f"{wire}-from", "root", "pfifo")

    def close(self) -> None:
        """Let go of both."""
        self.process.close()
        self.proxies.close()


def why_not() -> str | None:
    """Why there are no networks of one's own here; None: there are."""
    if sys.platform != "linux":
        return "network namespaces are Linux's"
    if missing := [tool for tool in TOOLS if shutil.which(tool) is None]:
        return f"network namespaces need {', '.join(missing)}, which this machine does not have"
    try:
        tried = Network()
    except (NotPossible, OSError) as error:
        return f"network namespaces are not to be had: {error}"
    try:
        tried.cut(Wire.KAFKA, sending=True, receiving=True)
        tried.mend(Wire.KAFKA)
    except NotPossible as error:
        return f"packets cannot be dropped here: {error}"
    finally:
        tried.close()
    return None


def _unshared() -> int:
    """A descriptor of a new namespace. A thread makes it, so that this one stays where it is."""
    found: list[int] = []
    failed: list[OSError] = []

    def make() -> None:
        try:
            _system_call("unshare", CLONE_NEWNET)
            found.append(os.open(f"/proc/self/task/{threading.get_native_id()}/ns/net", os.O_RDONLY))
        except OSError as error:
            failed.append(error)

    thread = threading.Thread(target=make, name="new network")
    thread.start()
    thread.join()
    if failed:
        raise failed[0]
    return found[0]


def _system_call(name: str, *arguments: int) -> None:
    if getattr(ctypes.CDLL(None, use_errno=True), name)(*arguments):
        number = ctypes.get_errno()
        raise OSError(number, f"{name}: {os.strerror(number)}")
