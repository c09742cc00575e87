-- Runs, in Flink SQL, from the Parquet files that `turnlog export parquet /data/tables --follow` keeps up to date.
-- Flink's Avro formats have no type for the journal's union of events.
CREATE TABLE runs (
  `partition` INT,
  journal_offset BIGINT,
  lsn BIGINT,
  committed_at TIMESTAMP_LTZ(6),
  conversation_id STRING,
  run_id STRING,
  turn_seq BIGINT,
  group_name STRING,
  outcome STRING,
  member STRING,
  takeovers BIGINT,
  latency_ms BIGINT
) WITH (
  'connector' = 'filesystem',
  'path' = 'file:///data/tables/runs',
  'format' = 'parquet',
  'source.monitor-interval' = '1 min'
);

SELECT group_name, outcome, COUNT(*) AS runs, AVG(latency_ms) AS latency_ms, SUM(takeovers) AS takeovers
FROM runs
GROUP BY group_name, outcome;
