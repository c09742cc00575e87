-- current_key: The key that a conversation's words are sealed by now.
SELECT key_id, wrapped, copied FROM data_keys WHERE conversation_id = %(conversation)s AND current;

-- add_key: The first one that comes is the conversation's; an erased one gets none.
INSERT INTO data_keys (key_id, conversation_id, wrapped, current, copied)
SELECT %(key)s, %(conversation)s, %(wrapped)s, true, false
WHERE NOT EXISTS (SELECT FROM conversations WHERE id = %(conversation)s AND status = 'erased')
ON CONFLICT DO NOTHING;

-- is_erased: Whether a conversation has no key because it may have none.
SELECT EXISTS (SELECT FROM conversations WHERE id = %(conversation)s AND status = 'erased');

-- keys: What is known of these keys.
SELECT key_id, conversation_id, wrapped FROM data_keys WHERE key_id = ANY(%(keys)s);

-- copied: The topic of keys has this key. Where it was destroyed meanwhile, its tombstone may lie before the copy, and
-- is to be written again.
UPDATE data_keys SET copied = wrapped IS NOT NULL, erased_at = CASE WHEN wrapped IS NULL THEN clock_timestamp() END
WHERE key_id = %(key)s RETURNING wrapped IS NOT NULL;

-- doubtful: Whether the topic of keys has it nobody knows; of one that was destroyed the tombstone is written again.
UPDATE data_keys SET copied = false, erased_at = clock_timestamp() WHERE key_id = %(key)s AND wrapped IS NULL;

-- gone: The topic of keys has the tombstones of these, unless a copy came since they were read.
UPDATE data_keys SET copied = true
FROM unnest(%(keys)s::text[], %(erased_at)s::timestamptz[]) AS written (key_id, erased_at)
WHERE data_keys.key_id = written.key_id AND data_keys.erased_at = written.erased_at;

-- destroy_late: Keys that were made, or came back, for a conversation while it was being erased; of the last so many ms.
UPDATE data_keys SET wrapped = NULL, current = false, copied = false, erased_at = clock_timestamp()
FROM conversations erased
WHERE erased.status = 'erased' AND erased.updated_at > (extract(epoch FROM now()) * 1000)::bigint - %(age_ms)s::bigint
  AND data_keys.conversation_id = erased.id AND data_keys.wrapped IS NOT NULL;

-- erased_to_copy: Destroyed keys that the topic of keys may still have.
SELECT key_id, erased_at FROM data_keys WHERE wrapped IS NULL AND NOT copied ORDER BY key_id LIMIT 1000;

-- restore_keys: What the topic of keys has and this table lost. It seals nothing new; of a conversation that was erased
-- it comes back destroyed, and its tombstone is still to be written.
INSERT INTO data_keys (key_id, conversation_id, wrapped, current, copied, erased_at)
SELECT
    lost.key_id, lost.conversation_id, CASE WHEN erased.id IS NULL THEN lost.wrapped END, false, erased.id IS NULL,
    CASE WHEN erased.id IS NOT NULL THEN clock_timestamp() END
FROM unnest(%(keys)s::text[], %(conversations)s::text[], %(wrapped)s::bytea[]) AS lost (key_id, conversation_id, wrapped)
LEFT JOIN conversations erased ON erased.id = lost.conversation_id AND erased.status = 'erased'
ON CONFLICT DO NOTHING;
