"""The Kafka side of a partition: intake in, one transaction of journal events out, in the numbered commit order.

A runtime owns one partition at a time under a lease and a producer epoch, and knows nothing of the rules: it feeds
commands to `streams.core` and makes the events that come back durable.
"""
