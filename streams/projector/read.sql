-- What the read model is asked. Everything is as of the partition's position; callers compare it with what they need.

-- position: How far the read model is in a partition.
SELECT lsn, journal_offset FROM projector_positions WHERE partition = %(partition)s;

-- positions: How far it is in every partition.
SELECT partition, lsn, journal_offset FROM projector_positions ORDER BY partition;

-- conversation: One conversation.
SELECT id, partition, channel, participant, external_id, status, head_seq, opened_at, updated_at, last_lsn, metadata
FROM conversations WHERE id = %(conversation)s;

-- conversations: A page, the newest first; a filter that is null takes all.
SELECT id, partition, channel, participant, external_id, status, head_seq, opened_at, updated_at, last_lsn, metadata
FROM conversations
WHERE (%(status)s::text IS NULL OR status = %(status)s OR (%(status)s = 'closed' AND status = 'erased'))
  AND (%(channel)s::text IS NULL OR channel = %(channel)s)
  AND (%(external_id)s::text IS NULL OR external_id = %(external_id)s)
  AND (%(named)s::text IS NULL OR starts_with(id, %(named)s) OR external_id = %(named)s OR participant = %(named)s)
  AND (%(before_at)s::bigint IS NULL OR (updated_at, id) < (%(before_at)s, %(before_id)s))
ORDER BY updated_at DESC, id DESC LIMIT %(limit)s;

-- lines: Numbered events of a conversation after a seq, ascending.
SELECT seq, lsn, at, timestamp, kind, id, type, sender, channel, text, key_id, data, metadata, meta, extra, reply_to,
    interrupt_id, client_id, stream_id, done, member, group_id, run_id, run_epoch, superseded, origin, edited_at
FROM transcript WHERE conversation_id = %(conversation)s AND seq > %(after)s ORDER BY seq LIMIT %(limit)s;

-- last_edited: Of a conversation's turns up to a seq that were edited, the last one.
SELECT seq, lsn, at, timestamp, kind, id, type, sender, channel, text, key_id, data, metadata, meta, extra, reply_to,
    interrupt_id, client_id, stream_id, done, member, group_id, run_id, run_epoch, superseded, origin, edited_at
FROM transcript WHERE conversation_id = %(conversation)s AND seq <= %(upto)s AND edited_at IS NOT NULL
ORDER BY seq DESC LIMIT 1;

-- superseded: Seqs of a conversation, up to one, that viewers may hide, ascending.
SELECT seq FROM transcript WHERE conversation_id = %(conversation)s AND seq <= %(upto)s AND superseded ORDER BY seq;

-- interrupts: Questions of a conversation, their ends, and the turns that answered them, ascending.
SELECT seq, lsn, at, timestamp, kind, id, type, sender, channel, text, key_id, data, metadata, meta, extra, reply_to,
    interrupt_id, client_id, stream_id, done, member, group_id, run_id, run_epoch, superseded, origin, edited_at
FROM transcript
WHERE conversation_id = %(conversation)s
  AND (interrupt_id IS NOT NULL OR type IN ('interrupt', 'interrupt_resolved'))
ORDER BY seq;

-- runs: Runs of a conversation in the order of their turns; `open_only` leaves out those that ended.
SELECT run_id, turn_seq, group_id, member, run_epoch, status, started, opened_at, ended_at, reason
FROM runs WHERE conversation_id = %(conversation)s AND (NOT %(open_only)s OR status IN ('open', 'queued'))
ORDER BY turn_seq, group_id;

-- given_upto: The highest turn of a conversation with a run of a group of this channel, in line or not; 0: none.
SELECT coalesce(max(turn_seq), 0) FROM runs
WHERE conversation_id = %(conversation)s AND split_part(group_id, '/', 1) = %(channel)s;

-- call: The run of an invocation. Its id may be used again after a day: the last one counts.
SELECT invocation, run_id, turn_seq, group_id, member, run_epoch, status, cancelling, opened_at, started_at, ended_at,
    reason, detail
FROM runs WHERE conversation_id = %(conversation)s AND invocation = %(invocation)s ORDER BY turn_seq DESC LIMIT 1;

-- open_calls: Invocations of a conversation that have not ended, in the order of their turns.
SELECT invocation FROM runs
WHERE conversation_id = %(conversation)s AND invocation IS NOT NULL AND status IN ('open', 'queued') ORDER BY turn_seq;

-- live_calls: Invocations that have not ended, the newest first: all, or those that have no member to work on them.
SELECT conversation_id, invocation, run_id, turn_seq, group_id, member, run_epoch, status, cancelling, opened_at,
    started_at, ended_at, reason, detail
FROM runs
WHERE invocation IS NOT NULL AND status IN ('open', 'queued')
    AND (NOT %(orphaned)s OR (member IS NULL AND status = 'open'))
ORDER BY opened_at DESC, run_id DESC LIMIT %(limit)s;

-- calls_of: Invocations of a conversation, the newest first; the same choice.
SELECT conversation_id, invocation, run_id, turn_seq, group_id, member, run_epoch, status, cancelling, opened_at,
    started_at, ended_at, reason, detail
FROM runs
WHERE conversation_id = %(conversation)s AND invocation IS NOT NULL
    AND (NOT %(orphaned)s OR (member IS NULL AND status = 'open'))
ORDER BY turn_seq DESC LIMIT %(limit)s;

-- handed: The last time that a conversation was handed to a human, or back.
SELECT data FROM transcript
WHERE conversation_id = %(conversation)s AND kind = 'update' AND starts_with(data, '{"status":"handed_')
ORDER BY seq DESC LIMIT 1;

-- checkpoint: The last checkpoint of an open run.
SELECT lsn, data FROM run_checkpoints WHERE run_id = %(run)s;

-- owners: Who the conversation's next turn goes to, by group.
SELECT group_id, member FROM owners WHERE conversation_id = %(conversation)s ORDER BY group_id;

-- members: Members that are present somewhere, with the number of partitions that know them, and that know they drain.
SELECT member, min(group_id), min(channel), min(gateway), max(since), count(*), count(draining_by)
FROM members WHERE left_at IS NULL GROUP BY member ORDER BY member;
