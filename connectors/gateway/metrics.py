"""What the gateway counts; `docs/reference/metrics.md` lists it."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from streams.core.events import RefusedReason

SECONDS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10)


class GatewayMetrics:
    """One registry per process; tests make their own."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._delivery = Histogram(
            "turnlog_turn_delivery_seconds",
            "From a turn's append to the intake (broker's clock) to its frame being queued for the agent's socket.",
            buckets=SECONDS,
            registry=self.registry,
        )
        self.commit_wait = Histogram(
            "turnlog_gateway_commit_wait_seconds",
            "From a command's arrival to its outcome being seen in the journal.",
            buckets=SECONDS,
            registry=self.registry,
        )
        self._refusals = Counter(
            "turnlog_gateway_refusals_total",
            "Refusals seen in the journal, by reason.",
            ["reason"],
            registry=self.registry,
        )
        self.connections = Gauge(
            "turnlog_gateway_connections", "Open connections, by kind.", ["kind"], registry=self.registry
        )
        self.requests = Counter(
            "turnlog_gateway_requests_total", "HTTP requests, by status.", ["status"], registry=self.registry
        )
        self.authorizations = Counter(
            "turnlog_gateway_authorizations_total",
            "Credentials of callers of agents that were looked up; verdicts are kept for 5 s.",
            registry=self.registry,
        )
        self.runs_refused = Counter(
            "turnlog_gateway_runs_refused_total",
            "Runs that were not given to a member since it has as many as it may.",
            registry=self.registry,
        )
        self.frames_in = Counter(
            "turnlog_gateway_frames_received_total",
            "Frames received, by kind of socket.",
            ["kind"],
            registry=self.registry,
        )
        self.closes = Counter(
            "turnlog_gateway_closes_total", "Sockets closed by the gateway, by code.", ["code"], registry=self.registry
        )
        self.ready = Gauge(
            "turnlog_gateway_ready",
            "1 once the journal's tail is caught up, 0 before and while draining.",
            registry=self.registry,
        )
        self.incarnations = Counter(
            "turnlog_gateway_incarnations_total",
            "How often the gateway was given up by others and went on as a new one.",
            registry=self.registry,
        )

        self.live_lost = Counter(
            "turnlog_gateway_live_lost_total",
            "Signals (typing, presence, receipts) that were not written for the other gateways.",
            registry=self.registry,
        )
        self.garbage = Counter(
            "turnlog_gateway_garbage_records_total",
            "Records in the journal that are no journal entries.",
            registry=self.registry,
        )

    def delivered(self, elapsed_ms: int) -> None:
        """A turn was queued for its agent."""
        self._delivery.observe(max(0, elapsed_ms) / 1000)

    def refused(self, reason: RefusedReason) -> None:
        """A refusal was seen."""
        self._refusals.labels(reason.value).inc()

    def text(self) -> bytes:
        """The exposition."""
        return generate_latest(self.registry)
