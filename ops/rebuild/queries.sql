-- What a rebuild asks of the database, beside the statements of the parts that it writes with.

-- wait_shortly: For a lock, in this transaction: long enough for the session of a rebuild that was just stopped to end.
SET LOCAL lock_timeout = '2s';

-- take: Be the only session that rebuilds, from here on until it ends.
SELECT pg_advisory_lock(hashtextextended('turnlog rebuild', 0));

-- about: What the tables beside are of; no row: a rebuild began and was interrupted before it said.
SELECT identity, columns FROM rebuild.about;

-- begin_about: Note it.
INSERT INTO rebuild.about (identity, columns) VALUES (%(identity)s, %(columns)s);

-- exists: Whether there are tables beside.
SELECT to_regclass('rebuild.about') IS NOT NULL;

-- columns: The columns of tables, by which it is seen that a migration changed them.
SELECT table_name || '.' || column_name || ' ' || data_type FROM information_schema.columns
WHERE table_schema = 'public' AND table_name = ANY(%(tables)s) ORDER BY table_name, ordinal_position;

-- lock_positions: The read model's positions, which no projector moves from here on until the transaction's end.
SELECT partition, lsn FROM public.projector_positions ORDER BY partition FOR UPDATE;

-- beside_positions: How far the tables beside are.
SELECT partition, lsn FROM rebuild.projector_positions ORDER BY partition;

-- lock_leases: Who holds which partition; nobody claims one from here on until the transaction's end.
SELECT partition, owner, writer_epoch, expires_at > clock_timestamp() AS live FROM public.leases
ORDER BY partition FOR UPDATE;

-- live_leases: Who holds which partition now.
SELECT partition, owner FROM public.leases WHERE expires_at > clock_timestamp() ORDER BY partition;

-- replace_checkpoints: What was made anew under the fence that is there: a token is never lowered, whatever is rebuilt.
INSERT INTO public.checkpoints AS stored
    (partition, writer_epoch, worker, lsn, journal_offset, turns, frames, membership, state, updated_at)
SELECT partition, writer_epoch, worker, lsn, journal_offset, turns, frames, membership, state, clock_timestamp()
FROM rebuild.checkpoints
ON CONFLICT (partition) DO UPDATE SET
    writer_epoch = greatest(stored.writer_epoch, excluded.writer_epoch),
    worker = CASE WHEN stored.writer_epoch >= excluded.writer_epoch THEN stored.worker ELSE excluded.worker END,
    lsn = excluded.lsn, journal_offset = excluded.journal_offset, turns = excluded.turns, frames = excluded.frames,
    membership = excluded.membership, state = excluded.state, updated_at = excluded.updated_at;

-- journal_topic: Kafka's id of the journal that this database belongs to; no row: nothing was ever started with it.
SELECT topic_id FROM public.topics WHERE name = 'conversations' OR name LIKE '%%.conversations';
