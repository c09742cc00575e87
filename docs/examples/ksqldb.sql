-- Turns out of Turnlog's journal, in ksqlDB, with the deployment's schema registry.
-- A union of records is a struct with one field for each of its records, of which one is not null.
SET 'auto.offset.reset' = 'earliest';
SET 'isolation.level' = 'read_committed';

CREATE STREAM journal (
  k VARCHAR KEY,
  CONVERSATION_ID VARCHAR,
  SEQ BIGINT,
  LSN BIGINT,
  `AT` BIGINT,
  `TIMESTAMP` BIGINT,
  WRITER_EPOCH BIGINT,
  EVENT STRUCT<
    TurnCommitted STRUCT<turn STRUCT<id VARCHAR, sender VARCHAR, channel VARCHAR, type VARCHAR, text VARCHAR>>,
    RunEnded STRUCT<run_id VARCHAR, turn_seq BIGINT, `group` VARCHAR, member VARCHAR, run_epoch BIGINT, status VARCHAR,
                    reason VARCHAR>>
) WITH (KAFKA_TOPIC = 'conversations', KEY_FORMAT = 'KAFKA', VALUE_FORMAT = 'AVRO');

CREATE STREAM turns AS
  SELECT k, CONVERSATION_ID, SEQ, EVENT->TurnCommitted->turn->sender AS sender, EVENT->TurnCommitted->turn->text AS text
  FROM journal WHERE EVENT->TurnCommitted IS NOT NULL EMIT CHANGES;

CREATE TABLE outcomes AS
  SELECT EVENT->RunEnded->status AS status, COUNT(*) AS runs
  FROM journal WHERE EVENT->RunEnded IS NOT NULL GROUP BY EVENT->RunEnded->status EMIT CHANGES;
