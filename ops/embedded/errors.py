"""The errors of the embedded stack."""


class StackUnavailable(Exception):
    """Kafka or Postgres cannot be had here; the message says why and what to do about it."""


class GivenUp(Exception):
    """Whoever asked for the start does not want it any more; what it had begun is undone."""


class FolderUnusable(StackUnavailable):
    """The data folder cannot be used: another one can, and no other server is needed for that."""
