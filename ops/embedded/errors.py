"""The one error of the embedded stack."""


class StackUnavailable(Exception):  # noqa: N818 - the name says what is the matter
    """Kafka or Postgres cannot be had here; the message says why and what to do about it."""
