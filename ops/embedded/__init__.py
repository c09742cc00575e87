"""Real Kafka and real Postgres without Docker, for `turnlog up`, the demo, benches and tests."""
