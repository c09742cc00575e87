-- Every statement of the lease table and the checkpoint fence. `-- name: purpose` starts one; `queries.py` loads them.
-- clock_timestamp(), not now(): a statement that waited for a row's lock must judge by the time after the wait.

-- lock_worker: Take this worker's session lock; false when a former session of this process still holds it.
SELECT pg_try_advisory_lock(%(lock_key)s);

-- locks_held: Keys of all session locks that are held in this database now. Read-only: testing a lock by taking it
-- would make its owner fail to take it.
SELECT (classid::bigint << 32) | objid::bigint
FROM pg_locks
WHERE locktype = 'advisory' AND objsubid = 1 AND granted
  AND database = (SELECT oid FROM pg_database WHERE datname = current_database());

-- register_worker: Make this worker visible, or renew it after its session broke.
INSERT INTO workers AS known (id, lock_key, expires_at, draining)
VALUES (%(worker)s, %(lock_key)s, clock_timestamp() + %(ttl)s, false)
ON CONFLICT (id) DO UPDATE SET expires_at = clock_timestamp() + %(ttl)s;

-- forget_old_workers: Drop rows of processes that ended long ago; their ids never come back.
DELETE FROM workers WHERE expires_at < clock_timestamp() - interval '1 day';

-- expire_worker: It was seen dead. One that starts after it cannot see that, and would leave it a share. One that was
-- only cut off is back with its next heartbeat.
UPDATE workers SET expires_at = least(expires_at, clock_timestamp()) WHERE id = %(worker)s;

-- unregister_worker: This worker is gone for good.
DELETE FROM workers WHERE id = %(worker)s;

-- drain_worker: From now on it counts for no share.
UPDATE workers SET draining = true WHERE id = %(worker)s;

-- set_reaching: Whether this worker reaches Kafka; said again, it counts from the first time.
UPDATE workers SET reaches_kafka_since = CASE
    WHEN %(reaches)s THEN coalesce(reaches_kafka_since, clock_timestamp())
END
WHERE id = %(worker)s;

-- list_workers: Every known worker, whether it renewed in time, and for how long it has reached Kafka.
SELECT id, expires_at > clock_timestamp(), draining,
    floor(extract(epoch FROM clock_timestamp() - reaches_kafka_since) * 1000)::bigint
FROM workers ORDER BY id;

-- claim_lease: All four cases in one statement. No row: claim. My live row: extend. An expired row (mine too), or that of
-- an owner seen dead, at the epoch it was seen dead with: take over, epoch + 1. Else no row comes back and none changed.
INSERT INTO leases AS held (partition, owner, writer_epoch, expires_at)
VALUES (%(partition)s, %(worker)s, 1, clock_timestamp() + %(ttl)s)
ON CONFLICT (partition) DO UPDATE SET
    owner = excluded.owner,
    writer_epoch = CASE
        WHEN held.owner = excluded.owner AND held.expires_at > clock_timestamp() THEN held.writer_epoch
        ELSE held.writer_epoch + 1
    END,
    expires_at = clock_timestamp() + %(ttl)s,
    stopped = NULL
WHERE held.owner = excluded.owner
   OR held.expires_at <= clock_timestamp()
   OR (held.owner = %(dead_owner)s AND held.writer_epoch = %(dead_epoch)s)
RETURNING writer_epoch;

-- set_stopped: Its holder keeps the partition without running it.
UPDATE leases SET stopped = %(why)s
WHERE partition = %(partition)s AND owner = %(worker)s AND writer_epoch = %(writer_epoch)s;

-- lease_of: Who holds one partition.
SELECT partition, owner, writer_epoch,
    greatest(0, ceil(extract(epoch FROM expires_at - clock_timestamp()) * 1000))::bigint, stopped IS NOT NULL
FROM leases WHERE partition = %(partition)s;

-- list_leases: Who holds what.
SELECT partition, owner, writer_epoch,
    greatest(0, ceil(extract(epoch FROM expires_at - clock_timestamp()) * 1000))::bigint, stopped IS NOT NULL
FROM leases ORDER BY partition;

-- next_epoch: A new epoch for the live holder, above every one that the journal has shown.
UPDATE leases SET writer_epoch = greatest(writer_epoch, %(above)s) + 1
WHERE partition = %(partition)s AND owner = %(worker)s AND writer_epoch = %(writer_epoch)s
  AND expires_at > clock_timestamp()
RETURNING writer_epoch;

-- confirm_lease: Extend it, if it is still mine.
UPDATE leases SET expires_at = clock_timestamp() + %(ttl)s
WHERE partition = %(partition)s AND owner = %(worker)s AND writer_epoch = %(writer_epoch)s
  AND expires_at > clock_timestamp();

-- hand_back_lease: Free it at once; the row stays, so that the next holder's epoch is higher.
UPDATE leases SET expires_at = least(expires_at, clock_timestamp())
WHERE partition = %(partition)s AND owner = %(worker)s AND writer_epoch = %(writer_epoch)s;

-- hand_back_all: As hand_back_lease, for all that this worker holds.
UPDATE leases SET expires_at = least(expires_at, clock_timestamp()) WHERE owner = %(worker)s;

-- renew: The heartbeat: this worker's row and every lease it watches that is still its own and live. A lease that does
-- not come back is lost. The owner's id is that of one process, so the epoch needs no condition here.
WITH worker AS (
    INSERT INTO workers (id, lock_key, expires_at) VALUES (%(worker)s, %(lock_key)s, clock_timestamp() + %(ttl)s)
    ON CONFLICT (id) DO UPDATE SET expires_at = excluded.expires_at
)
UPDATE leases SET expires_at = clock_timestamp() + %(ttl)s
WHERE partition = ANY(%(partitions)s) AND owner = %(worker)s AND expires_at > clock_timestamp()
RETURNING partition, writer_epoch;

-- take_checkpoint: Put my token where the stored one is older, or mine. From here on every other snapshot is refused.
INSERT INTO checkpoints AS stored
    (partition, writer_epoch, worker, lsn, journal_offset, turns, frames, membership, state, updated_at)
VALUES (%(partition)s, %(writer_epoch)s, %(worker)s, 0, 0, 0, 0, 0, ''::bytea, clock_timestamp())
ON CONFLICT (partition) DO UPDATE SET writer_epoch = excluded.writer_epoch, worker = excluded.worker
WHERE stored.writer_epoch < excluded.writer_epoch
   OR (stored.writer_epoch = excluded.writer_epoch AND stored.worker = excluded.worker)
RETURNING lsn, journal_offset, turns, frames, membership, state;

-- checkpoint_epoch: Whose token it is that refused mine.
SELECT writer_epoch, worker FROM checkpoints WHERE partition = %(partition)s;

-- discard_checkpoint: As if there were none. Its conversations stay, with an lsn beyond that of any checkpoint until it
-- has replaced them: one that changed up to there is in it.
UPDATE checkpoints SET
    lsn = 0, journal_offset = 0, turns = 0, frames = 0, membership = 0, state = ''::bytea,
    updated_at = clock_timestamp()
WHERE partition = %(partition)s AND writer_epoch = %(writer_epoch)s AND worker = %(worker)s;

-- load_hot: The partition's token and lsn, with all its hot conversations, as one snapshot.
SELECT fence.writer_epoch, fence.worker, fence.lsn, kept.conversation_id, kept.lsn, kept.hot, kept.state
FROM checkpoints fence
LEFT JOIN conversation_states kept ON kept.partition = fence.partition AND kept.hot AND kept.lsn <= fence.lsn
WHERE fence.partition = %(partition)s;

-- load_conversations: The partition's token and lsn, with the conversations asked for, as one snapshot.
SELECT fence.writer_epoch, fence.worker, fence.lsn, kept.conversation_id, kept.lsn, kept.hot, kept.state
FROM checkpoints fence
LEFT JOIN conversation_states kept
    ON kept.partition = fence.partition AND kept.conversation_id = ANY(%(conversations)s) AND kept.lsn <= fence.lsn
WHERE fence.partition = %(partition)s;

-- load_keys: The partition's token and lsn, with the older keys of the conversations asked for, as one snapshot.
SELECT fence.writer_epoch, fence.worker, fence.lsn, old.conversation_id, old.key, old.seq, old.id, old.at, old.timestamp
FROM checkpoints fence
LEFT JOIN idempotency_keys old
    ON old.partition = fence.partition AND old.conversation_id = ANY(%(conversations)s) AND old.at >= %(not_before)s
WHERE fence.partition = %(partition)s;

-- advance_checkpoint: First statement of every save: the fence. No row: somebody else's token is there, or a newer lsn;
-- or an older one than this writer has stored, so that rows which are in no later snapshot are gone with it.
UPDATE checkpoints SET
    lsn = %(lsn)s, journal_offset = %(journal_offset)s, turns = %(turns)s, frames = %(frames)s,
    membership = %(membership)s, state = %(state)s, updated_at = clock_timestamp()
WHERE partition = %(partition)s AND writer_epoch = %(writer_epoch)s AND worker = %(worker)s
  AND lsn BETWEEN %(stored_lsn)s AND %(lsn)s;

-- create_staging: Tables of this session that COPY fills; empty again at the end of each transaction.
CREATE TEMPORARY TABLE staged_states
    (conversation_id text, lsn bigint, hot boolean, state bytea STORAGE EXTERNAL) ON COMMIT DELETE ROWS;
CREATE TEMPORARY TABLE staged_keys
    (conversation_id text, key text, seq bigint, id text, at bigint, timestamp bigint) ON COMMIT DELETE ROWS;

-- copy_states: Stage conversations.
COPY staged_states (conversation_id, lsn, hot, state) FROM STDIN (FORMAT BINARY);

-- copy_keys: Stage idempotency keys.
COPY staged_keys (conversation_id, key, seq, id, at, timestamp) FROM STDIN (FORMAT BINARY);

-- store_states: Staged conversations replace the stored ones.
INSERT INTO conversation_states (conversation_id, partition, lsn, hot, state)
SELECT conversation_id, %(partition)s, lsn, hot, state FROM staged_states
ON CONFLICT (conversation_id) DO UPDATE SET
    partition = excluded.partition, lsn = excluded.lsn, hot = excluded.hot, state = excluded.state;

-- store_keys: Staged keys; a key freed by a superseded frame and used again is replaced.
INSERT INTO idempotency_keys (conversation_id, key, partition, seq, id, at, timestamp)
SELECT conversation_id, key, %(partition)s, seq, id, at, timestamp FROM staged_keys
ON CONFLICT (conversation_id, key) DO UPDATE SET
    partition = excluded.partition, seq = excluded.seq, id = excluded.id, at = excluded.at,
    timestamp = excluded.timestamp;

-- drop_keys: Keys too old to be asked for.
DELETE FROM idempotency_keys WHERE partition = %(partition)s AND at < %(before)s;
