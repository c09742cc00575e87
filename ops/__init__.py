"""What operators run: the `turnlog` command, the embedded Kafka and Postgres, the audit, benches and reports."""
