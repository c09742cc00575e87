-- When a turn was edited: who was away then is told what it says now.

ALTER TABLE transcript ADD COLUMN edited_at bigint;
COMMENT ON COLUMN transcript.edited_at IS 'of a turn: when what it says was last edited, broker append time, ms since the epoch';
CREATE INDEX transcript_edited ON transcript (conversation_id, seq) WHERE edited_at IS NOT NULL;
