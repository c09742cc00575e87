"""Measurements of the real thing: the floor that Kafka and Avro alone allow, the sequencer on it, and the latency.

Every figure comes from one run on one broker; nothing is estimated.
"""
