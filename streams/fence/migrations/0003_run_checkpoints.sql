-- What agents keep of their open runs, so that whoever continues one begins where it stopped. Written by projectors alone,
-- from the journal.

CREATE TABLE run_checkpoints (
    run_id    text    PRIMARY KEY,
    partition integer NOT NULL,
    lsn       bigint  NOT NULL,
    data      text    NOT NULL
);
COMMENT ON COLUMN run_checkpoints.lsn IS 'where the run''s last checkpoint lies in its partition''s journal';
COMMENT ON COLUMN run_checkpoints.data IS 'JSON as the agent sent it; text, since jsonb refuses \u0000';
