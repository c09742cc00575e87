"""What the gateway counts; `docs/reference/metrics.md` lists it."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from streams.core.events import RefusedReason

SECONDS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10)


class GatewayMetrics:
    """One registry per process; tests make their own."""

    def __init__(self) -> None:
        self.registry = registry = CollectorRegistry()

        def counter(name: str, text: str, *labels: str) -> Counter:
            return Counter(f"turnlog_gateway_{name}_total", text, labels, registry=registry)

        def seconds(name: str, text: str) -> Histogram:
            return Histogram(f"turnlog_{name}_seconds", text, buckets=SECONDS, registry=registry)

        def gauge(name: str, text: str, *labels: str) -> Gauge:
            return Gauge(f"turnlog_gateway_{name}", text, labels, registry=registry)

        queued = "From a turn's append to the intake (broker's clock) to its frame being queued for the agent's socket."
        self._delivery = seconds("turn_delivery", queued)
        seen = "From a command's arrival to its outcome being seen in the journal."
        self.commit_wait = seconds("gateway_commit_wait", seen)
        self._refusals = counter("refusals", "Refusals seen in the journal, by reason.", "reason")
        self.connections = gauge("connections", "Open connections, by kind.", "kind")
        self.requests = counter("requests", "HTTP requests, by status.", "status")
        looked_up = "Credentials of callers of agents that were looked up; verdicts are kept for 5 s."
        self.authorizations = counter("authorizations", looked_up)
        full = "Runs that were not given to a member since it has as many as it may."
        self.runs_refused = counter("runs_refused", full)
        self.frames_in = counter("frames_received", "Frames received, by kind of socket.", "kind")
        self.closes = counter("closes", "Sockets closed by the gateway, by code.", "code")
        self.ready = gauge("ready", "1 once the journal's tail is caught up, 0 before and while draining.")
        given_up = "How often the gateway was given up by others and went on as a new one."
        self.incarnations = counter("incarnations", given_up)
        unwritten = "Signals (typing, presence, receipts) that were not written for the other gateways."
        self.live_lost = counter("live_lost", unwritten)
        self.garbage = counter("garbage_records", "Records in the journal that are no journal entries.")

    def delivered(self, elapsed_ms: int) -> None:
        """A turn was queued for its agent."""
        self._delivery.observe(max(0, elapsed_ms) / 1000)

    def refused(self, reason: RefusedReason) -> None:
        """A refusal was seen."""
        self._refusals.labels(reason.value).inc()

    def text(self) -> bytes:
        """The exposition."""
        return generate_latest(self.registry)
