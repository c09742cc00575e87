-- What people and programs ask for: conversations, transcript, runs, owners, members. Written by projectors alone, from the
-- journal alone; it can be dropped and built again from offset 0. `at` is log time, `timestamp` and the columns ending in
-- `_at` the broker's append time, all in milliseconds.

CREATE TABLE projector_positions (
    partition      integer PRIMARY KEY CHECK (partition >= 0),
    lsn            bigint  NOT NULL,
    journal_offset bigint  NOT NULL
);
COMMENT ON TABLE projector_positions IS 'Last lsn that the read model holds, and the next journal offset to read. Moves with the rows, in one transaction.';

CREATE TABLE conversations (
    id          text    PRIMARY KEY,
    partition   integer NOT NULL,
    channel     text    NOT NULL,
    participant text,
    external_id text,
    status      text    NOT NULL CHECK (status IN ('open', 'closed')),
    head_seq    bigint  NOT NULL,
    opened_at   bigint  NOT NULL,
    updated_at  bigint  NOT NULL,
    last_lsn    bigint  NOT NULL,
    metadata    text
);
CREATE INDEX conversations_recent ON conversations (updated_at DESC, id DESC);

CREATE TABLE transcript (
    conversation_id text    NOT NULL,
    seq             bigint  NOT NULL CHECK (seq > 0),
    partition       integer NOT NULL,
    lsn             bigint  NOT NULL,
    kind            text    NOT NULL CHECK (kind IN ('turn', 'frame', 'update')),
    id              text    NOT NULL,
    type            text    NOT NULL,
    sender          text    NOT NULL,
    role            text    NOT NULL CHECK (role IN ('user', 'agent', 'system')),
    channel         text    NOT NULL,
    text            text,
    key_id          text,
    data            text,
    metadata        text,
    meta            text,
    extra           text,
    reply_to        text,
    interrupt_id    text,
    client_id       text,
    stream_id       text,
    done            boolean NOT NULL DEFAULT false,
    member          text,
    group_id        text,
    run_id          text,
    run_epoch       integer,
    superseded      boolean NOT NULL DEFAULT false,
    at              bigint  NOT NULL,
    timestamp       bigint  NOT NULL,
    PRIMARY KEY (conversation_id, seq)
);
COMMENT ON COLUMN transcript.interrupt_id IS 'the question that a turn answers';
CREATE INDEX transcript_interrupts ON transcript (conversation_id, seq)
    WHERE interrupt_id IS NOT NULL OR type IN ('interrupt', 'interrupt_resolved');
COMMENT ON COLUMN transcript.data IS 'JSON as the client sent it; text, since jsonb refuses \u0000';

CREATE TABLE runs (
    run_id          text    PRIMARY KEY,
    conversation_id text    NOT NULL,
    partition       integer NOT NULL,
    turn_seq        bigint  NOT NULL,
    group_id        text    NOT NULL,
    member          text,
    run_epoch       integer NOT NULL,
    status          text    NOT NULL,
    started         boolean NOT NULL DEFAULT false,
    opened_at       bigint  NOT NULL,
    ended_at        bigint,
    reason          text
);
COMMENT ON COLUMN runs.status IS '`open`, or how it ended: answered, failed, cancelled, timed_out, owner_gone';
CREATE INDEX runs_of_conversation ON runs (conversation_id, turn_seq);
CREATE INDEX runs_open ON runs (conversation_id) WHERE status = 'open';

CREATE TABLE owners (
    conversation_id text NOT NULL,
    group_id        text NOT NULL,
    member          text NOT NULL,
    PRIMARY KEY (conversation_id, group_id)
);

CREATE TABLE members (
    partition integer NOT NULL,
    member    text    NOT NULL,
    group_id  text    NOT NULL,
    channel   text    NOT NULL,
    gateway   text    NOT NULL,
    since     bigint  NOT NULL,
    joined_at bigint  NOT NULL,
    left_at   bigint,
    reason    text,
    PRIMARY KEY (partition, member)
);
COMMENT ON COLUMN members.since IS 'log time from which turns count it as eligible';
CREATE INDEX members_present ON members (member) WHERE left_at IS NULL;
