-- Who may write, whose snapshot sticks, and what gateways share: leases, checkpoints, channels, secrets and keys.
-- Times of type timestamptz are the database's clock. Columns of type bigint named `at` are a partition's log time
-- and `timestamp` the broker's append time, both in milliseconds.

CREATE TABLE leases (
    partition    integer     PRIMARY KEY CHECK (partition >= 0),
    owner        text        NOT NULL,
    writer_epoch bigint      NOT NULL CHECK (writer_epoch > 0),
    expires_at   timestamptz NOT NULL
);
COMMENT ON TABLE leases IS 'Which worker may write a partition. A row is never deleted, so that its epoch never goes back.';

CREATE TABLE workers (
    id         text        PRIMARY KEY,
    lock_key   bigint      NOT NULL,
    expires_at timestamptz NOT NULL,
    draining   boolean     NOT NULL DEFAULT false
);
COMMENT ON TABLE workers IS 'Every live worker process, with or without leases. lock_key: its session advisory lock.';

CREATE TABLE checkpoints (
    partition      integer     PRIMARY KEY CHECK (partition >= 0),
    writer_epoch   bigint      NOT NULL,
    worker         text        NOT NULL,
    lsn            bigint      NOT NULL,
    journal_offset bigint      NOT NULL,
    turns          bigint      NOT NULL,
    frames         bigint      NOT NULL,
    membership     bigint      NOT NULL,
    state          bytea       NOT NULL,
    updated_at     timestamptz NOT NULL
);
COMMENT ON TABLE checkpoints IS 'The fence of a partition (writer_epoch, worker) and its last snapshot; lsn 0: none was saved yet.';

CREATE TABLE conversation_states (
    conversation_id text    PRIMARY KEY,
    partition       integer NOT NULL,
    lsn             bigint  NOT NULL,
    hot             boolean NOT NULL,
    state           bytea   STORAGE EXTERNAL NOT NULL
) WITH (fillfactor = 60);
-- Room for the next version beside this one: saving 20,000 conversations again is then 2 to 4 times as fast.
-- Nor is a row compressed that every checkpoint writes anew: that was half of PostgreSQL's CPU of a save.
COMMENT ON TABLE conversation_states IS 'One conversation as of lsn. hot: it must be in memory of whoever writes the partition.';
CREATE INDEX conversation_states_hot ON conversation_states (partition) WHERE hot;

CREATE TABLE idempotency_keys (
    conversation_id text    NOT NULL,
    key             text    NOT NULL,
    partition       integer NOT NULL,
    seq             bigint  NOT NULL,
    id              text    NOT NULL,
    at              bigint  NOT NULL,
    timestamp       bigint  NOT NULL,
    PRIMARY KEY (conversation_id, key)
);
COMMENT ON TABLE idempotency_keys IS 'Keys that no longer fit into the row of their conversation, kept for 24 h of log time.';
CREATE INDEX idempotency_keys_at ON idempotency_keys (partition, at);

CREATE TABLE channel_documents (
    version    bigint      PRIMARY KEY CHECK (version > 0),
    document   jsonb       NOT NULL,
    created_at timestamptz NOT NULL DEFAULT clock_timestamp()
);
COMMENT ON TABLE channel_documents IS 'Channels and routes, every version; the highest is the current one.';

CREATE TABLE channel_secrets (
    channel_id    text        NOT NULL,
    secret_sha256 bytea       NOT NULL CHECK (length(secret_sha256) = 32),
    created_at    timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (channel_id, secret_sha256)
);
COMMENT ON TABLE channel_secrets IS 'Login secrets of channels, hashed; several at a time while one is being replaced.';

CREATE TABLE signing_keys (
    kid        text        PRIMARY KEY,
    secret     bytea       NOT NULL,
    wrapped    boolean     NOT NULL,
    created_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    retired_at timestamptz
);
COMMENT ON TABLE signing_keys IS 'Keys of access tokens: the newest signs, all that are not retired verify. wrapped: sealed by the master key.';

CREATE TABLE api_keys (
    sha256     bytea       PRIMARY KEY CHECK (length(sha256) = 32),
    name       text        NOT NULL UNIQUE,
    created_at timestamptz NOT NULL DEFAULT clock_timestamp()
);
COMMENT ON TABLE api_keys IS 'Keys of the tenant API, hashed.';
