-- The read model: how a batch is written, with the position it speaks of, in one transaction; and how it is asked.
-- `%(rows)s` is a JSON array of records, each field named as in the statement's record definition.

-- create_positions: A position before the first entry, for partitions that have none.
INSERT INTO projector_positions (partition, lsn, journal_offset)
SELECT unnest(%(partitions)s::integer[]), 0, 0 ON CONFLICT DO NOTHING;

-- load_positions: Where each partition is.
SELECT partition, lsn, journal_offset FROM projector_positions WHERE partition = ANY(%(partitions)s);

-- advance_position: First statement of a batch: no row means that another projector was faster.
UPDATE projector_positions SET lsn = %(lsn)s, journal_offset = %(journal_offset)s
WHERE partition = %(partition)s AND lsn = %(after)s
RETURNING lsn;

-- open_conversations: New conversations.
INSERT INTO conversations
    (id, partition, channel, participant, external_id, status, head_seq, opened_at, updated_at, last_lsn, metadata)
SELECT id, %(partition)s, channel, participant, external_id, 'open', 0, timestamp, timestamp, lsn, metadata
FROM json_to_recordset(%(rows)s::json) AS new
    (id text, channel text, participant text, external_id text, timestamp bigint, lsn bigint, metadata text)
ON CONFLICT (id) DO NOTHING;

-- change_conversations: News of conversations.
UPDATE conversations SET
    head_seq = greatest(conversations.head_seq, news.head_seq), status = coalesce(news.status, conversations.status),
    updated_at = news.timestamp, last_lsn = news.lsn
FROM json_to_recordset(%(rows)s::json) AS news (id text, head_seq bigint, status text, timestamp bigint, lsn bigint)
WHERE conversations.id = news.id;

-- add_lines: Numbered events; each (conversation, seq) once, however often it is read.
INSERT INTO transcript
    (conversation_id, seq, partition, lsn, kind, id, type, sender, role, channel, text, key_id, data, metadata, meta,
     extra, reply_to, interrupt_id, client_id, stream_id, done, member, group_id, run_id, run_epoch, at, timestamp, origin)
SELECT conversation_id, seq, %(partition)s, lsn, kind, id, type, sender, role, channel, text, key_id, data, metadata,
    meta, extra, reply_to, interrupt_id, client_id, stream_id, done, member, group_id, run_id, run_epoch, at, timestamp,
    origin
FROM json_to_recordset(%(rows)s::json) AS line
    (conversation_id text, seq bigint, lsn bigint, at bigint, timestamp bigint, kind text, id text, type text,
     sender text, role text, channel text, text text, key_id text, data text, metadata text, meta text, extra text,
     reply_to text, interrupt_id text, client_id text, stream_id text, done boolean, member text, group_id text, run_id text,
     run_epoch integer, origin text)
ON CONFLICT (conversation_id, seq) DO NOTHING;

-- hide_lines: Partial output of a lost owner.
UPDATE transcript SET superseded = true
FROM json_to_recordset(%(rows)s::json) AS hidden (conversation_id text, seq bigint)
WHERE transcript.conversation_id = hidden.conversation_id AND transcript.seq = hidden.seq;

-- edit_lines: Turns that say something else now.
UPDATE transcript SET text = edited.text, data = edited.data, edited_at = edited.edited_at
FROM json_to_recordset(%(rows)s::json)
    AS edited (conversation_id text, seq bigint, text text, data text, edited_at bigint)
WHERE transcript.conversation_id = edited.conversation_id AND transcript.seq = edited.seq;

-- open_runs: New runs.
INSERT INTO runs
    (run_id, conversation_id, partition, turn_seq, group_id, member, run_epoch, status, started, opened_at, invocation)
SELECT run_id, conversation_id, %(partition)s, turn_seq, group_id, member, run_epoch, status, false, timestamp,
    invocation
FROM json_to_recordset(%(rows)s::json) AS new
    (run_id text, conversation_id text, turn_seq bigint, group_id text, member text, run_epoch integer,
     timestamp bigint, status text, invocation text)
ON CONFLICT (run_id) DO NOTHING;

-- change_runs: Runs that came to their turn, were started, moved, told to stop or ended.
UPDATE runs SET
    member = news.member, run_epoch = news.run_epoch, started = coalesce(news.started, runs.started),
    status = coalesce(news.status, runs.status), ended_at = coalesce(news.ended_at, runs.ended_at),
    reason = coalesce(news.reason, runs.reason), detail = coalesce(news.detail, runs.detail),
    started_at = nullif(coalesce(news.started_at, runs.started_at), 0),
    cancelling = coalesce(news.cancelling, runs.cancelling)
FROM json_to_recordset(%(rows)s::json) AS news
    (run_id text, member text, run_epoch integer, started boolean, status text, ended_at bigint, reason text,
     detail text, started_at bigint, cancelling boolean)
WHERE runs.run_id = news.run_id;

-- set_checkpoints: The last checkpoint of runs that are open.
INSERT INTO run_checkpoints (run_id, partition, lsn, data)
SELECT run_id, %(partition)s, lsn, data
FROM json_to_recordset(%(rows)s::json) AS new (run_id text, lsn bigint, data text)
ON CONFLICT (run_id) DO UPDATE SET lsn = excluded.lsn, data = excluded.data;

-- drop_checkpoints: Runs that are over: nobody continues them.
DELETE FROM run_checkpoints USING json_to_recordset(%(rows)s::json) AS ended (run_id text)
WHERE run_checkpoints.run_id = ended.run_id;

-- set_owners: Who the next turn goes to.
INSERT INTO owners (conversation_id, group_id, member)
SELECT conversation_id, group_id, member
FROM json_to_recordset(%(rows)s::json) AS owner (conversation_id text, group_id text, member text)
WHERE member IS NOT NULL
ON CONFLICT (conversation_id, group_id) DO UPDATE SET member = excluded.member
WHERE owners.member <> excluded.member;

-- drop_owners: Nobody owns these now.
DELETE FROM owners USING json_to_recordset(%(rows)s::json) AS gone
    (conversation_id text, group_id text, member text)
WHERE gone.member IS NULL AND owners.conversation_id = gone.conversation_id AND owners.group_id = gone.group_id;

-- add_members: Members that joined.
INSERT INTO members (partition, member, group_id, channel, gateway, since, joined_at)
SELECT %(partition)s, member, group_id, channel, gateway, since, timestamp
FROM json_to_recordset(%(rows)s::json) AS new
    (member text, group_id text, channel text, gateway text, since bigint, timestamp bigint)
ON CONFLICT (partition, member) DO NOTHING;

-- drain_members: Members that get nothing new.
UPDATE members SET draining_by = news.draining_by, draining_reason = news.draining_reason
FROM json_to_recordset(%(rows)s::json) AS news (member text, draining_by text, draining_reason text)
WHERE members.partition = %(partition)s AND members.member = news.member;

-- end_members: Members that left.
UPDATE members SET left_at = news.timestamp, reason = news.reason
FROM json_to_recordset(%(rows)s::json) AS news (member text, timestamp bigint, reason text)
WHERE members.partition = %(partition)s AND members.member = news.member;

-- erase_conversations: What erased conversations were opened with.
UPDATE conversations SET metadata = NULL
FROM json_to_recordset(%(rows)s::json) AS erased (id text) WHERE conversations.id = erased.id;

-- erase_lines: What was said in them; who spoke, when, and in which order, stays.
UPDATE transcript SET
    text = CASE WHEN text IS NOT NULL THEN '[erased]' END, key_id = NULL,
    data = CASE WHEN data IS NOT NULL THEN '{"text":"[erased]"}' END, metadata = NULL, meta = NULL, extra = NULL
FROM json_to_recordset(%(rows)s::json) AS erased (id text)
WHERE transcript.conversation_id = erased.id AND transcript.kind <> 'update';

-- erase_handovers: Why they were handed to a human, or back, in the words of who did; `reason` is the last field.
UPDATE transcript SET data = regexp_replace(data, '"reason":"(?:\\.|[^"\\])+"\}$', '"reason":"[erased]"}')
FROM json_to_recordset(%(rows)s::json) AS erased (id text)
WHERE transcript.conversation_id = erased.id AND transcript.kind = 'update'
    AND starts_with(transcript.data, '{"status":"handed_');

-- erase_runs: Why calls were cancelled, in the words of who did. Of a released one it is the operator's proof.
UPDATE runs SET detail = NULL
FROM json_to_recordset(%(rows)s::json) AS erased (id text)
WHERE runs.conversation_id = erased.id AND runs.detail IS NOT NULL AND runs.reason IS DISTINCT FROM 'released';

-- erase_checkpoints: What agents kept of it.
DELETE FROM run_checkpoints USING runs, json_to_recordset(%(rows)s::json) AS erased (id text)
WHERE runs.conversation_id = erased.id AND run_checkpoints.run_id = runs.run_id;

-- destroy_keys: What was said cannot be read any more, wherever it is stored. The topic of keys is told next.
UPDATE data_keys SET wrapped = NULL, current = false, copied = false, erased_at = clock_timestamp()
FROM json_to_recordset(%(rows)s::json) AS erased (id text)
WHERE data_keys.conversation_id = erased.id AND data_keys.wrapped IS NOT NULL;

-- forget_members: Members that had left a week before the latest of these did; the journal still knows them.
DELETE FROM members USING (
    SELECT max(timestamp) AS latest FROM json_to_recordset(%(rows)s::json) AS news (timestamp bigint)
) AS news
WHERE members.partition = %(partition)s AND members.left_at < news.latest - 7 * 24 * 60 * 60 * 1000::bigint;
