-- What growing asks of the database. The move is one transaction: it locks, looks again, and replaces.

-- kept_topics: The topics that this database belongs to.
SELECT name, topic_id FROM topics ORDER BY name;

-- live_workers: Who may write now.
SELECT id FROM workers WHERE expires_at > clock_timestamp()
UNION SELECT owner FROM leases WHERE expires_at > clock_timestamp() ORDER BY 1;

-- other_sessions: Processes of Turnlog that are connected beside this one.
SELECT DISTINCT application_name FROM pg_stat_activity
WHERE datname = current_database() AND application_name LIKE 'turnlog %%' AND pid <> pg_backend_pid()
  AND application_name NOT LIKE 'turnlog grow%%'
ORDER BY 1;

-- checkpoints: How far each partition is, and what intake it consumed without a consequence.
SELECT partition, lsn, turns, frames, membership FROM checkpoints ORDER BY partition;

-- destroyed: Which of these keys are.
SELECT key_id FROM data_keys WHERE key_id = ANY(%(keys)s) AND wrapped IS NULL;

-- lock: Nobody starts, claims or stores from here on until the transaction's end.
LOCK TABLE topics, workers, leases, checkpoints, conversation_states, projector_positions IN EXCLUSIVE MODE;

-- raise_lease: A free partition, with an epoch above every one that was given or is in its new journal.
INSERT INTO leases AS held (partition, owner, writer_epoch, expires_at)
VALUES (%(partition)s, 'topic grow', %(writer_epoch)s + 1, clock_timestamp())
ON CONFLICT (partition) DO UPDATE SET
    owner = excluded.owner,
    writer_epoch = greatest(held.writer_epoch + 1, excluded.writer_epoch),
    expires_at = clock_timestamp(),
    stopped = NULL;

-- raise_fence: No checkpoint, under a token that refuses every writer of before.
INSERT INTO checkpoints AS stored
    (partition, writer_epoch, worker, lsn, journal_offset, turns, frames, membership, state, updated_at)
SELECT partition, writer_epoch, owner, 0, 0, 0, 0, 0, ''::bytea, clock_timestamp()
FROM leases WHERE partition = %(partition)s
ON CONFLICT (partition) DO UPDATE SET
    writer_epoch = greatest(stored.writer_epoch, excluded.writer_epoch), worker = excluded.worker,
    lsn = 0, journal_offset = 0, turns = 0, frames = 0, membership = 0, state = ''::bytea,
    updated_at = clock_timestamp();

-- forget_topics: The old generation's.
DELETE FROM topics;

-- keep_topic: One of the new generation's.
INSERT INTO topics (name, topic_id) VALUES (%(name)s, %(topic_id)s);
