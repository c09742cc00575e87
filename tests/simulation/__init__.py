"""The whole of the sequencers' side in one process, under one seeded clock: `python -m tests.simulation --help`."""
