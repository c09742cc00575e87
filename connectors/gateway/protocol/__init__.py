"""Converger Protocol v1 without IO: what a socket's frames mean, and what is written in answer.

Everything here is a pure function or a state machine that is fed frames, journal entries and the time, and returns
actions; sockets, Kafka and Postgres are the business of the modules above it.
"""
