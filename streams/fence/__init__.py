"""The Postgres side of who may write: leases, checkpoints and the tokens that refuse a zombie.

A port (Protocol) with two implementations, Postgres and memory, held to one contract suite. Every sign of "someone
newer writes here" becomes the one exception `Fenced`.
"""
