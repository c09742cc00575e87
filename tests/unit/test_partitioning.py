"""One place for every conversation, the same that other Kafka clients compute."""

from __future__ import annotations

import pytest
from aiokafka.partitioner import DefaultPartitioner
from hypothesis import given
from hypothesis import strategies as st

from streams.runtime.partitioning import partition_of


# From Apache Kafka's own UtilsTest.testMurmur2: key and signed 32-bit hash.
@pytest.mark.parametrize(
    ("key", "java_hash"),
    [
        ("21", -973932308),
        ("foobar", -790332482),
        ("a-little-bit-long-string", -985981536),
        ("a-little-bit-longer-string", -1486304829),
        ("lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8", -58897971),
        ("abc", 479470107),
    ],
)
def test_a_partition_is_the_java_clients(key: str, java_hash: int) -> None:
    for count in (1, 2, 8, 32, 97):
        assert partition_of(key, count) == (java_hash & 0x7FFFFFFF) % count


@given(st.text(st.characters(codec="utf-8"), max_size=60), st.integers(1, 100))
def test_a_partition_is_what_a_producer_chooses_by_itself(conversation_id: str, count: int) -> None:
    partitions = list(range(count))
    assert partition_of(conversation_id, count) == DefaultPartitioner()(
        conversation_id.encode(), partitions, partitions
    )
