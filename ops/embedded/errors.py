"""The one error of the embedded stack."""


class StackUnavailable(Exception):
    """Kafka or Postgres cannot be had here; the message says why and what to do about it."""
