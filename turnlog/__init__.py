"""Turnlog's public API for agents and clients: light, with no Kafka and no Postgres in it.

Agents run behind a Turnlog gateway and answer the turns that they own. This package imports none of `streams`,
`connectors`, `ops` and `schemas`, which are the server's rooms.
"""
