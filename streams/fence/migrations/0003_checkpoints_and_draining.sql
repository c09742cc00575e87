-- What agents keep of their open runs, so that whoever continues one begins where it stopped, and which members are
-- drained. Written by projectors alone, from the journal.

CREATE TABLE run_checkpoints (
    run_id    text    PRIMARY KEY,
    partition integer NOT NULL,
    lsn       bigint  NOT NULL,
    data      text    NOT NULL
);
COMMENT ON COLUMN run_checkpoints.lsn IS 'where the run''s last checkpoint lies in its partition''s journal';
COMMENT ON COLUMN run_checkpoints.data IS 'JSON as the agent sent it; text, since jsonb refuses \u0000';

ALTER TABLE members ADD COLUMN draining_by text, ADD COLUMN draining_reason text;
COMMENT ON COLUMN members.draining_by IS 'who wants it to get nothing new: its gateway, or an operator; null: nobody';
