"""The pure core: `decide(state, command) -> events` and `evolve(state, event) -> state`.

No IO, no clock, no randomness and no ids made inside: times and ids come with the command, so that the same journal
gives the same state on any machine, for any split into batches.
"""
