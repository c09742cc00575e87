"""The history of a deployment: its whole journal, from Kafka, from an archive, or from both joined.

`port.History` is what everything that looks back is written against; `open_history` opens the right one. Records are
given as Kafka has them, byte for byte, so that what is said of them (`ops.digest`) can be said of any copy.
"""

from ops.history.opening import open_history
from ops.history.port import History, HistoryUnavailable, Missing, Range, Recorded

__all__ = ["History", "HistoryUnavailable", "Missing", "Range", "Recorded", "open_history"]
