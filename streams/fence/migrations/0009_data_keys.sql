-- Keys that seal what is said (TURNLOG_SEAL), themselves sealed by the master key. Erasing a conversation takes its keys
-- out of their rows; the rows stay, so that what they sealed is known to be erased, and not merely unreadable.

CREATE TABLE data_keys (
    key_id          text        PRIMARY KEY,
    conversation_id text        NOT NULL,
    wrapped         bytea,
    current         boolean     NOT NULL,
    copied          boolean     NOT NULL,
    created_at      timestamptz NOT NULL DEFAULT clock_timestamp(),
    erased_at       timestamptz,
    CHECK ((wrapped IS NULL) = (erased_at IS NOT NULL)),
    CHECK (NOT current OR wrapped IS NOT NULL)
);
COMMENT ON TABLE data_keys IS 'keys that seal the words of conversations';
COMMENT ON COLUMN data_keys.wrapped IS 'the key, sealed by the master key; null: it was destroyed';
COMMENT ON COLUMN data_keys.current IS 'what is said now is sealed by it; an earlier one only opens what it sealed';
COMMENT ON COLUMN data_keys.copied IS 'the topic of keys agrees: it has the key, or has its tombstone once it is destroyed';
CREATE UNIQUE INDEX data_keys_current ON data_keys (conversation_id) WHERE current;
CREATE INDEX data_keys_of_conversation ON data_keys (conversation_id);
CREATE INDEX data_keys_to_copy ON data_keys (key_id) WHERE NOT copied;

-- An erased conversation is closed for ever.
ALTER TABLE conversations DROP CONSTRAINT conversations_status_check;
ALTER TABLE conversations ADD CONSTRAINT conversations_status_check CHECK (status IN ('open', 'closed', 'erased'));
CREATE INDEX conversations_erased ON conversations (updated_at) WHERE status = 'erased';
