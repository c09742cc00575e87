-- What operators' commands read from Postgres, beside the read model's own queries. `-- name: purpose` starts one.

-- leases: Who may write each partition, and how far its checkpoint is.
SELECT lease.partition, lease.owner AS worker, lease.writer_epoch,
    lease.expires_at > clock_timestamp() AS live,
    greatest(0, ceil(extract(epoch FROM lease.expires_at - clock_timestamp()) * 1000))::bigint AS expires_in_ms,
    coalesce(worker.draining, false) AS draining,
    saved.lsn AS checkpoint_lsn,
    round(extract(epoch FROM clock_timestamp() - saved.updated_at) * 1000)::bigint AS checkpoint_age_ms
FROM leases lease
LEFT JOIN workers worker ON worker.id = lease.owner
LEFT JOIN checkpoints saved ON saved.partition = lease.partition
ORDER BY lease.partition;

-- workers: Every worker that renewed in time.
SELECT id AS worker, draining FROM workers WHERE expires_at > clock_timestamp() ORDER BY id;

-- epoch_of: The writer epoch of a partition's lease.
SELECT writer_epoch FROM leases WHERE partition = %(partition)s;

-- checkpoint: One partition's checkpoint.
SELECT lsn, turns, frames, membership, state
FROM checkpoints WHERE partition = %(partition)s;

-- conversation_rows: Every conversation of a partition's checkpoint.
SELECT conversation_id, hot, state FROM conversation_states WHERE partition = %(partition)s;

-- key_rows: Idempotency keys of a partition that lie outside its conversations' rows.
SELECT conversation_id, key, seq, id, at, timestamp FROM idempotency_keys WHERE partition = %(partition)s;

-- projector_lag: How far the read model is, a row each partition.
SELECT partition, lsn, journal_offset FROM projector_positions ORDER BY partition;

-- server_clock: The database's clock, ms since the epoch.
SELECT round(extract(epoch FROM clock_timestamp()) * 1000)::bigint AS now_ms;

-- server_version: What the database is.
SELECT current_setting('server_version') AS version, current_setting('max_connections')::int AS max_connections;

-- members: Members that are there, by the read model: those that no partition has seen leave.
SELECT member, group_id AS "group", channel, gateway, count(*) AS partitions, min(since) AS since
FROM members WHERE left_at IS NULL
GROUP BY member, group_id, channel, gateway
ORDER BY group_id, member;

-- conversations: The latest conversations of the read model.
SELECT id, channel, participant, external_id, status, head_seq, opened_at, updated_at, partition
FROM conversations
WHERE (%(status)s::text IS NULL OR status = %(status)s) AND (%(channel)s::text IS NULL OR channel = %(channel)s)
ORDER BY updated_at DESC, id DESC
LIMIT %(limit)s;

-- projected: How far the read model is in one partition.
SELECT lsn, journal_offset FROM projector_positions WHERE partition = %(partition)s;

-- conversation: One conversation with its owners and open runs, as of one lsn.
SELECT conversation.head_seq, conversation.status, position.lsn AS as_of_lsn,
    coalesce((SELECT json_object_agg(group_id, member) FROM owners WHERE conversation_id = conversation.id), '{}')
        AS owners,
    coalesce((
        SELECT json_agg(
            json_build_object('run_id', run_id, 'turn_seq', turn_seq, 'group', group_id, 'member', member,
                'run_epoch', run_epoch)
            ORDER BY turn_seq, group_id)
        FROM runs WHERE conversation_id = conversation.id AND status = 'open'), '[]') AS open_runs
FROM conversations conversation
LEFT JOIN projector_positions position USING (partition)
WHERE conversation.id = %(conversation)s;
