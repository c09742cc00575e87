-- What operators' commands read from Postgres, beside the read model's own queries. `-- name: purpose` starts one.

-- leases: Who may write each partition, why it does not where an operator must look, and how far its checkpoint is.
SELECT lease.partition, lease.owner AS worker, lease.writer_epoch,
    lease.expires_at > clock_timestamp() AS live,
    greatest(0, ceil(extract(epoch FROM lease.expires_at - clock_timestamp()) * 1000))::bigint AS expires_in_ms,
    coalesce(worker.draining, false) AS draining,
    lease.stopped,
    saved.lsn AS checkpoint_lsn,
    round(extract(epoch FROM clock_timestamp() - saved.updated_at) * 1000)::bigint AS checkpoint_age_ms
FROM leases lease
LEFT JOIN workers worker ON worker.id = lease.owner
LEFT JOIN checkpoints saved ON saved.partition = lease.partition
ORDER BY lease.partition;

-- workers: Every worker that renewed in time.
SELECT id AS worker, draining, reaches_kafka_since IS NOT NULL AS reaches_kafka FROM workers WHERE expires_at > clock_timestamp() ORDER BY id;

-- epoch_of: The writer epoch of a partition's lease.
SELECT writer_epoch FROM leases WHERE partition = %(partition)s;

-- checkpoint: One partition's checkpoint.
SELECT lsn, turns, frames, membership, state
FROM checkpoints WHERE partition = %(partition)s;

-- conversation_rows: Every conversation of a partition's checkpoint.
SELECT conversation_id, hot, state FROM conversation_states WHERE partition = %(partition)s;

-- older_keys: Idempotency keys of a partition that are not in their conversation's row, of this log time or later.
SELECT conversation_id, key, seq, id, at, timestamp
FROM idempotency_keys WHERE partition = %(partition)s AND at >= %(not_before)s;

-- server_clock: The database's clock, ms since the epoch.
SELECT round(extract(epoch FROM clock_timestamp()) * 1000)::bigint AS now_ms;

-- server_version: What the database is.
SELECT current_setting('server_version') AS version, current_setting('max_connections')::int AS max_connections;

-- journal_topic: Kafka's id of the journal that this database belongs to; no row: nothing was ever started with it.
SELECT topic_id FROM topics WHERE name = 'conversations' OR name LIKE '%%.conversations';

-- journal_positions: From where on checkpoints and the read model need the journal of each partition.
SELECT coalesce(saved.partition, read.partition) AS partition,
    saved.journal_offset AS checkpoint, read.journal_offset AS projector
FROM (SELECT partition, journal_offset FROM checkpoints WHERE lsn > 0) saved
FULL JOIN projector_positions read ON read.partition = saved.partition;

-- erasable: A conversation as an erasure finds it: how much of it was stored before sealing was on. What the sequencer
-- itself wrote, to close what a lost member had left open, is never sealed.
SELECT c.id AS conversation, c.partition, c.status, c.head_seq,
    CASE WHEN c.status = 'erased' THEN 0 ELSE
        (c.metadata IS NOT NULL AND NOT starts_with(c.metadata, 'tls1:'))::integer
        + (SELECT count(*) FROM transcript line
           WHERE line.conversation_id = c.id AND line.kind <> 'update' AND line.role <> 'system' AND EXISTS (
               SELECT FROM unnest(ARRAY[line.text, line.data, line.metadata, line.meta, line.extra]) word
               WHERE NOT starts_with(word, 'tls1:')))
    END AS plain
FROM conversations c WHERE c.id = %(conversation)s;

-- conversations_of: Conversations that a person opened, or spoke in, the oldest first. People of another channel may
-- speak in a conversation too: `channel` is the one that they come from.
SELECT id FROM conversations
WHERE ((participant = %(participant)s OR external_id = %(participant)s)
       AND (%(channel)s::text IS NULL OR channel = %(channel)s))
   OR EXISTS (
      SELECT FROM transcript line
      WHERE line.conversation_id = conversations.id AND line.role = 'user' AND line.sender = %(participant)s
        AND (%(channel)s::text IS NULL OR line.channel = %(channel)s))
ORDER BY opened_at, id;

-- data_keys_of: The keys that seal a conversation's words; what became of each.
SELECT key_id AS key, wrapped IS NULL AS destroyed, wrapped IS NULL AND copied AS gone_from_topic
FROM data_keys WHERE conversation_id = %(conversation)s ORDER BY created_at, key_id;

-- runs_held: How many open runs each member holds; those that nobody holds count for null.
SELECT member, count(*) AS runs FROM runs WHERE status IN ('open', 'queued') GROUP BY member;

-- longest_runs: Runs that have not ended, the longest open first.
SELECT conversation_id AS conversation, turn_seq, group_id AS "group", member, run_epoch, status, opened_at
FROM runs WHERE status IN ('open', 'queued') ORDER BY opened_at, run_id LIMIT %(limit)s;
