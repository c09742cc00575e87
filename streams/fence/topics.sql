-- lock_topics: Of workers that start at the same moment, one keeps the topics and the others compare.
LOCK TABLE topics IN SHARE ROW EXCLUSIVE MODE;

-- kept_topics: The topics that this database belongs to.
SELECT name, topic_id FROM topics;

-- keep_topic: One topic of the first worker's.
INSERT INTO topics (name, topic_id) VALUES (%(name)s, %(topic_id)s);

-- database_id: The name of this database, which nothing else has.
SELECT database_id::text FROM deployment;
