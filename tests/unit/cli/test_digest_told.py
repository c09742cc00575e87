"""What people are told of digests: also that there are none of a partition, as when somebody took them away."""

from __future__ import annotations

import pytest

from ops.cli.digest import told_of
from ops.digest.against import Evidence, Kind, Tampering
from ops.history import Range

pytestmark = pytest.mark.unit


def test_a_partition_of_which_nothing_is_sealed_is_named() -> None:
    sealed = Evidence(0, records=5, sealed=Range(0, 6), unsealed=2)
    bare = Evidence(1, unsealed=1_200)
    empty = Evidence(2)
    (line,) = told_of([sealed, bare, empty])
    assert line.startswith("NOT SEALED: partition 1, all of its 1,200 offsets")


def test_what_is_missing_comes_first_and_then_what_was_meddled_with() -> None:
    evidence = Evidence(0, missing=[Range(4, 9)], sealed=Range(0, 20), unsealed=3)
    evidence.add([Tampering(kind=Kind.REMOVED, partition=0, problem="partition 0, offset 2: the event is gone")])
    unreadable = Evidence(1, unsealed=7)
    unreadable.add([Tampering(kind=Kind.DIGEST, partition=1, problem="x.json is no digest")])
    assert told_of([evidence, unreadable]) == [
        "MISSING: offsets 4 to 8 of partition 0",
        "VIOLATION: partition 0, offset 2: the event is gone",
        "VIOLATION: x.json is no digest",
    ]
