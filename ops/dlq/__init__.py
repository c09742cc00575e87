"""Dead letters, for operators: what lies there, and settling it once, by a replay into its intake or by dropping it.

- `letters`: reading the topic, which holds letters and the marks that settle them;
- `settling`: writing marks, and what is replayed, in one transaction.
"""
