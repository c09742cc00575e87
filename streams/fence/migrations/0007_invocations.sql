-- Invocations in the read model: which run executes which, whether it was told to stop, when it began, and more of why a
-- run ended. A run that waits in line has the status `queued`. Written by projectors alone, from the journal.

ALTER TABLE runs
    ADD COLUMN invocation text,
    ADD COLUMN started_at bigint,
    ADD COLUMN cancelling boolean NOT NULL DEFAULT false,
    ADD COLUMN detail     text;
COMMENT ON COLUMN runs.invocation IS 'the id that its caller gave the call that it executes; null: it answers a turn';
COMMENT ON COLUMN runs.started_at IS 'when its member said that it works on it; null: it has not, or was given to another since';
COMMENT ON COLUMN runs.cancelling IS 'somebody wants it to stop, and its member was told to';
COMMENT ON COLUMN runs.detail IS 'why it ended, for people';
CREATE INDEX runs_of_invocation ON runs (conversation_id, invocation) WHERE invocation IS NOT NULL;
DROP INDEX runs_open;
CREATE INDEX runs_open ON runs (conversation_id) WHERE status IN ('open', 'queued');
