-- Older keys by fingerprint: the first 8 bytes, as hex, of what the message id of the key is made of. What is there by
-- text goes: states of before are not readable either, and with the states their keys are made anew from the journal.
DELETE FROM idempotency_keys;
COMMENT ON COLUMN idempotency_keys.key IS 'Fingerprint of the key in its conversation, 16 hex digits.';
COMMENT ON COLUMN idempotency_keys.id IS 'Message id; empty where it follows from the key.';
