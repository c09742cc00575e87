"""What a projector tells Prometheus; `docs/reference/metrics.md` has the same table."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

# 1 ms to about 8 s, doubling.
WRITE_BUCKETS_S = tuple(0.001 * 2**n for n in range(14))


class ProjectorMetrics:
    """The metrics of one projector process, in a registry of their own."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()

        def gauge(name: str, text: str, *labels: str) -> Gauge:
            return Gauge(name, text, labels, namespace="turnlog_projector", registry=self.registry)

        def counter(name: str, text: str) -> Counter:
            return Counter(name, text, namespace="turnlog_projector", registry=self.registry)

        self.healthy = gauge("healthy", "1 while the database answers and no partition is stalled, else 0.")
        self.stalled = gauge("stalled_partitions", "Partitions whose journal does not continue the read model.")
        self.lsn = gauge("lsn", "Last lsn in the read model.", "partition")
        self.entries = counter("entries", "Journal entries written to the read model.")
        self.rereads = counter("rereads", "Times that the journal was read again from the stored position.")
        self.garbage = counter("garbage_records", "Records in the journal that are no journal entries.")
        self.canary_runs = Counter(
            "canary_runs",
            "Runs of the fence's canary, by result: refused, admitted (a zombie's write went through), unknown.",
            ("result",),
            namespace="turnlog",
            registry=self.registry,
        )
        self.canary_ok = Gauge(
            "canary_ok",
            "0 when a zombie's write went through at the last run of the fence's canary, else 1.",
            namespace="turnlog",
            registry=self.registry,
        )
        self.canary_ok.set(1)
        self.retention_erased = counter(
            "retention_erased", "Conversations that were erased as their channel keeps none for longer, as written."
        )
        self.retention_overdue = gauge(
            "retention_overdue_seconds", "How long ago the longest idle conversation was to be erased; 0: none is due."
        )
        self.unavailable = counter("unavailable", "Writes and reads that failed because a server did not answer.")
        self.write_seconds = Histogram(
            "write_seconds",
            "One batch of one partition, as one transaction.",
            namespace="turnlog_projector",
            registry=self.registry,
            buckets=WRITE_BUCKETS_S,
        )
