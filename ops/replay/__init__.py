"""Time travel: the state of a partition as of any point of its history, folded from the journal by the core alone.

Nothing here writes anything but a cache of this machine, or calls anybody but the history that it reads.
"""

from ops.replay.target import Target
from ops.replay.travel import Standing, Traveller, Unreachable

__all__ = ["Standing", "Target", "Traveller", "Unreachable"]
