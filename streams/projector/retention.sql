-- Conversations that their channel keeps no longer. `-- name: purpose` starts a statement.

-- due: Those in which nothing was said since before `before` (ms, of the broker's clock), a channel's each, in these
-- partitions (null: in all): the longest idle first, at most `each` of a channel in a partition, and `most` in all. One
-- statement, so that all of it is as of the partition's position. Who works on a run, or was given one meanwhile (an
-- edited turn say), keeps a conversation.
SELECT due.id, due.partition, due.channel, due.status, due.head_seq, position.lsn AS as_of_lsn,
    coalesce(line.at, due.opened_at) AS idle_since, due.updated_at
FROM unnest(%(channels)s::text[], %(before)s::bigint[]) AS rule (channel, before)
CROSS JOIN projector_positions position
CROSS JOIN LATERAL (
    SELECT id, partition, channel, status, head_seq, opened_at, updated_at
    FROM conversations
    WHERE partition = position.partition AND channel = rule.channel AND status <> 'erased' AND updated_at < rule.before
      AND NOT EXISTS (
          SELECT FROM runs
          WHERE runs.conversation_id = conversations.id
            AND (runs.opened_at >= rule.before OR (runs.started AND runs.status IN ('open', 'queued'))))
    ORDER BY updated_at, id LIMIT %(each)s
) due
LEFT JOIN transcript line ON line.conversation_id = due.id AND line.seq = due.head_seq
WHERE %(partitions)s::integer[] IS NULL OR position.partition = ANY(%(partitions)s)
ORDER BY due.updated_at - rule.before, due.id LIMIT %(most)s;

-- sealing: Whether somebody seals what is said: a key was ever made.
SELECT EXISTS (SELECT FROM data_keys);
