"""What people and agents say, sealed before it reaches Kafka by a key of its conversation: who destroys that key has
erased the words everywhere, and left order, numbers, ownership and digests as they were.
"""
