"""The audit: what the design promises, checked from the journal, the intake and the checkpoints alone.

One class an invariant, numbered as in the design: an entry in, what is wrong with it out. They are pure, and each has
a test in which it finds the fault that it is for. `verify` reads a live cluster through them.
"""
