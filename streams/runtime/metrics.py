"""What a worker tells Prometheus, counted per batch; `docs/reference/metrics.md` has the same table."""

from __future__ import annotations

from collections import Counter as Tally
from collections.abc import Sequence
from operator import attrgetter

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from streams.core.events import Duplicate, Entry, FrameCommitted, Refused, Rejected, RunMoved, TurnCommitted
from streams.fence.port import Positions

# 0.5 ms to about 8 s, doubling.
COMMIT_BUCKETS_S = tuple(0.0005 * 2**n for n in range(15))
# 1 to 16,384 records, four steps apart.
BATCH_BUCKETS = tuple(4**n for n in range(8))
# 10 ms to about 20 s, doubling.
TAKEOVER_BUCKETS_S = tuple(0.01 * 2**n for n in range(12))
INTAKES = ("turns", "frames", "membership")

_event = attrgetter("event")


class WorkerMetrics:
    """The metrics of one worker process, in a registry of their own."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()

        def counter(name: str, text: str, *labels: str) -> Counter:
            return Counter(name, text, labels, namespace="turnlog", registry=self.registry)

        def gauge(name: str, text: str, *labels: str) -> Gauge:
            return Gauge(name, text, labels, namespace="turnlog", registry=self.registry)

        def histogram(name: str, text: str, buckets: Sequence[float]) -> Histogram:
            return Histogram(name, text, namespace="turnlog", registry=self.registry, buckets=buckets)

        self.turns = counter("turns", "Turns committed.")
        self.frames = counter("frames", "Frames of agents committed.")
        self.events = counter("journal_events", "Events committed to the journal, of every type.")
        self.duplicates = counter("duplicates", "Repeats answered with the first one's ack.")
        self.refusals = counter("refusals", "Commands that changed nothing, by reason.", "reason")
        self.runs_moved = counter("runs_moved", "Runs that changed hands, by reason.", "reason")
        self.dead_letters = counter("dead_letters", "Intake records that went to dead-letters, by reason.", "reason")
        self.batch_records = histogram("batch_records", "Intake records decided in one transaction.", BATCH_BUCKETS)
        self.commit_seconds = histogram("commit_seconds", "From begin to committed, one transaction.", COMMIT_BUCKETS_S)
        self.lag = gauge("lag_records", "Intake records not yet covered by the journal.", "topic", "partition")
        self.unstable = gauge(
            "lso_behind_seconds", "How long a topic's last stable offset has been behind its end.", "topic", "partition"
        )
        self.leases = gauge("leases_held", "Partitions that this worker holds the lease of.")
        self.state = gauge("partition_state", "1 for the state that a held partition is in.", "partition", "state")
        self.takeovers = counter("takeovers", "Partitions opened by this worker.")
        self.takeover_seconds = histogram(
            "takeover_seconds", "From the lease's new epoch to WriterOpened.", TAKEOVER_BUCKETS_S
        )
        self.fenced = counter("fenced", "Writer epochs of this worker that ended as fenced.")
        self.doubts = counter("doubts", "Writer epochs that ended because a request's outcome was not known.")
        self.hanging = counter(
            "hanging_transactions_ended",
            "Transactions that Kafka had left open and a claim ended, by outcome.",
            "outcome",
        )
        self.stale_leases = counter("stale_lease_store", "Claims that found their epoch used already: restored?")
        self.checkpoint_age = gauge("checkpoint_age_seconds", "Since the last checkpoint was stored.", "partition")
        self.checkpoints = counter("checkpoints", "Checkpoints stored.")
        self.conversations = gauge("conversations_resident", "Conversations in memory.", "partition")
        self.evictions = counter("evictions", "Idle conversations that left memory.")

    def batch(self, entries: Sequence[Entry], records: int, seconds: float) -> None:
        """Count a committed batch: its entries, the intake records it covers, and how long the transaction took."""
        self.batch_records.observe(records)
        self.commit_seconds.observe(seconds)
        self.events.inc(len(entries))
        kinds = Tally(map(type, map(_event, entries)))
        self.turns.inc(kinds[TurnCommitted])
        self.frames.inc(kinds[FrameCommitted])
        self.duplicates.inc(kinds[Duplicate])
        if not kinds.keys().isdisjoint((Refused, RunMoved, Rejected)):
            self._by_reason(entries)

    def positions(self, partition: int, covered: Positions, ends: Positions) -> None:
        """Set the lag of a partition's three intakes."""
        for topic in INTAKES:
            behind = getattr(ends, topic) - getattr(covered, topic)
            self.lag.labels(topic, str(partition)).set(max(behind, 0))

    def forget(self, partition: int) -> None:
        """Another worker has the partition now: its gauges are that worker's."""
        label = str(partition)
        for topic in INTAKES:
            self._drop(self.lag, topic, label)
        for gauge in (self.checkpoint_age, self.conversations):
            self._drop(gauge, label)

    @staticmethod
    def _drop(gauge: Gauge, *labels: str) -> None:
        gauge.labels(*labels)  # remove() knows only what was labelled once
        gauge.remove(*labels)

    def _by_reason(self, entries: Sequence[Entry]) -> None:
        for entry in entries:
            event = entry.event
            if isinstance(event, Refused):
                self.refusals.labels(event.reason).inc()
            elif isinstance(event, RunMoved):
                self.runs_moved.labels(event.reason).inc()
            elif isinstance(event, Rejected):
                self.dead_letters.labels(event.reason).inc()
