"""Where conversations meet the outside: each connector is one folder behind one contract.

A connector turns what a person or an agent sends into intake records and delivers what the journal committed.
"""
