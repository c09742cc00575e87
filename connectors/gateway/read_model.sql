-- What a gateway asks of the projector's tables. Times are ms since the epoch.

-- position: How far the projector is in a partition.
SELECT lsn, journal_offset FROM projector_positions WHERE partition = %(partition)s;

-- conversation: One conversation.
SELECT id, channel, participant, external_id, status, head_seq, opened_at, updated_at, metadata
FROM conversations WHERE id = %(id)s;

-- conversations: A page of conversations, newest news first, after a cursor.
SELECT id, channel, participant, external_id, status, head_seq, opened_at, updated_at, metadata
FROM conversations
WHERE (%(status)s::text IS NULL OR status = %(status)s)
  AND (%(channel)s::text IS NULL OR channel = %(channel)s)
  AND (%(external_id)s::text IS NULL OR external_id = %(external_id)s)
  AND (%(before)s::bigint IS NULL OR (updated_at, id) < (%(before)s, %(before_id)s))
ORDER BY updated_at DESC, id DESC
LIMIT %(limit)s;

-- transcript: What follows a seq, in order.
SELECT conversation_id, seq, lsn, kind, id, type, sender, channel, text, key_id, data, metadata, meta, extra, reply_to,
       client_id, stream_id, done, member, group_id, run_id, run_epoch, superseded, at, timestamp, interrupt_id
FROM transcript
WHERE conversation_id = %(id)s AND seq > %(after)s
ORDER BY seq
LIMIT %(limit)s;

-- interrupts: The newest lines that open or close a question, in order.
SELECT * FROM (
  SELECT conversation_id, seq, lsn, kind, id, type, sender, channel, text, key_id, data, metadata, meta, extra, reply_to,
         client_id, stream_id, done, member, group_id, run_id, run_epoch, superseded, at, timestamp, interrupt_id
  FROM transcript
  WHERE conversation_id = %(id)s AND (type IN ('interrupt', 'interrupt_resolved') OR interrupt_id IS NOT NULL)
  ORDER BY seq DESC
  LIMIT %(limit)s
) AS newest
ORDER BY seq;

-- open_runs: Runs that nobody has ended yet.
SELECT run_id, turn_seq, group_id, member, run_epoch
FROM runs WHERE conversation_id = %(id)s AND status = 'open' ORDER BY turn_seq, group_id;

-- owners: Whom each group's next turn goes to, as far as its last one tells.
SELECT group_id, member FROM owners WHERE conversation_id = %(id)s ORDER BY group_id;

-- members: Present members, and how many partitions know them.
SELECT member, group_id, channel, gateway, min(since), count(*)
FROM members WHERE left_at IS NULL GROUP BY member, group_id, channel, gateway ORDER BY group_id, member;

-- leases: Which worker may write which partition.
SELECT partition, owner, writer_epoch, expires_at > clock_timestamp(),
       greatest(0, extract(epoch FROM expires_at - clock_timestamp()) * 1000)::bigint
FROM leases ORDER BY partition;
