-- What workers must know of each other to share the partitions well: who reaches Kafka, and which partition nobody can run.

ALTER TABLE workers ADD COLUMN reaches_kafka_since timestamptz DEFAULT clock_timestamp() - interval '1 hour';
COMMENT ON COLUMN workers.reaches_kafka_since IS
    'since when it has reached Kafka without a break, an hour ago at its start; null: it does not reach it now';

ALTER TABLE leases ADD COLUMN stopped text;
COMMENT ON COLUMN leases.stopped IS 'why the holder stopped the partition until an operator looks; null: it did not';
