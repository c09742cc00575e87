"""Cuts by the kernel: packets of one process's wire are dropped, one way or both, and nobody else's."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import closing

import pytest

from ops.chaos.network import Network, Wire, why_not

IMPOSSIBLE = why_not()
pytestmark = pytest.mark.skipif(IMPOSSIBLE is not None, reason=str(IMPOSSIBLE))

SOON_S = 0.3
"""Long enough for what is not cut to arrive, which takes some ten microseconds."""
PATIENCE_S = 10.0


@pytest.fixture
def network() -> Iterator[Network]:
    made = Network()
    yield made
    made.close()


def connected(network: Network, wire: Wire) -> tuple[socket.socket, socket.socket]:
    """The process's end, and the proxy's."""
    with closing(network.proxies.listening(network.address(wire))) as listener:
        listener.settimeout(PATIENCE_S)
        mine = network.process.new_socket()
        mine.settimeout(PATIENCE_S)
        mine.connect(listener.getsockname())
        theirs, _ = listener.accept()
    return mine, theirs


def arrives(sender: socket.socket, receiver: socket.socket, within_s: float = PATIENCE_S) -> bool:
    sender.send(b"x")
    receiver.settimeout(within_s)
    try:
        return receiver.recv(1) == b"x"
    except TimeoutError:
        return False


@pytest.mark.parametrize(("sending", "receiving"), [(True, False), (False, True), (True, True)])
def test_a_cut_takes_the_ways_it_is_told_of_one_wire_only_and_all_arrives_once_it_is_mended(
    network: Network, *, sending: bool, receiving: bool
) -> None:
    mine, theirs = connected(network, Wire.KAFKA)
    others_mine, others_theirs = connected(network, Wire.POSTGRES)
    with closing(mine), closing(theirs), closing(others_mine), closing(others_theirs):
        network.cut(Wire.KAFKA, sending=sending, receiving=receiving)
        # Without the answers of the other side what was sent arrives all the same.
        assert arrives(mine, theirs, SOON_S if sending else PATIENCE_S) is not sending
        assert arrives(theirs, mine, SOON_S if receiving else PATIENCE_S) is not receiving
        assert arrives(others_mine, others_theirs)
        network.mend(Wire.KAFKA)
        mine.settimeout(PATIENCE_S)
        theirs.settimeout(PATIENCE_S)
        if sending:
            assert theirs.recv(1) == b"x"
        if receiving:
            assert mine.recv(1) == b"x"
        assert arrives(mine, theirs)


def test_a_network_is_made_and_this_process_stays_in_its_own(network: Network) -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        with closing(network.process.new_socket()) as inside:
            inside.settimeout(PATIENCE_S)
            with pytest.raises(ConnectionRefusedError):
                inside.connect(listener.getsockname())
        with socket.create_connection(listener.getsockname(), PATIENCE_S):
            pass
