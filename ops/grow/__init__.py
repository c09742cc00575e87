"""Partition growth: a deployment's journal moved to topics with more partitions, a new generation of them.

Within one generation the count is fixed, for a conversation's partition is computed from it. `split` is the pure part:
what of an old partition's journal is a new one's. `plan` looks whether it may be done, `copying` writes, `switch` makes
the new topics those that the database belongs to, in one transaction: that is the moment of the move.
"""
