-- Which topics this database belongs to, so that positions and epochs are never taken for those of others.

CREATE TABLE topics (
    name text PRIMARY KEY,
    topic_id text NOT NULL,
    kept_at timestamptz NOT NULL DEFAULT clock_timestamp()
);
COMMENT ON TABLE topics IS 'the topics of the deployment that this database belongs to, as its first worker found them';
COMMENT ON COLUMN topics.topic_id IS 'Kafka''s id of the topic: another one once it was deleted and made anew';
