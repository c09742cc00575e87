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

-- server_clock: The database's clock, ms since the epoch.
SELECT round(extract(epoch FROM clock_timestamp()) * 1000)::bigint AS now_ms;

-- server_version: What the database is.
SELECT current_setting('server_version') AS version, current_setting('max_connections')::int AS max_connections;

-- journal_positions: From where on checkpoints and the read model need the journal of each partition.
SELECT coalesce(saved.partition, read.partition) AS partition,
    saved.journal_offset AS checkpoint, read.journal_offset AS projector
FROM (SELECT partition, journal_offset FROM checkpoints WHERE lsn > 0) saved
FULL JOIN projector_positions read ON read.partition = saved.partition;
