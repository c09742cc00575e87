-- Statements on the document of channels and routes, and on the credentials kept beside it.

-- lock_documents: One writer of the document at a time; readers are not held up.
LOCK TABLE channel_documents IN SHARE ROW EXCLUSIVE MODE;

-- current_document: The version in force.
SELECT version, document FROM channel_documents ORDER BY version DESC LIMIT 1;

-- store_document: A new version.
INSERT INTO channel_documents (version, document) VALUES (%(version)s, %(document)s);

-- add_channel_secret: One more secret of a channel; adding it twice is adding it once.
INSERT INTO channel_secrets (channel_id, secret_sha256) VALUES (%(channel)s, %(sha256)s) ON CONFLICT DO NOTHING;

-- drop_other_channel_secrets: End a rotation: only this one is left.
DELETE FROM channel_secrets WHERE channel_id = %(channel)s AND secret_sha256 <> %(sha256)s;

-- drop_channel_secrets: These open nothing any more.
DELETE FROM channel_secrets WHERE secret_sha256 = ANY(%(sha256)s);

-- find_channel_secret: The channels that a secret logs in to.
SELECT channel_id, secret_sha256 FROM channel_secrets WHERE secret_sha256 = %(sha256)s ORDER BY channel_id;

-- count_channel_secrets: How many secrets each channel has.
SELECT channel_id, count(*) FROM channel_secrets GROUP BY channel_id ORDER BY channel_id;

-- add_api_key: A key of the tenant API.
INSERT INTO api_keys (sha256, name) VALUES (%(sha256)s, %(name)s);

-- drop_api_key: It opens nothing any more.
DELETE FROM api_keys WHERE name = %(name)s;

-- find_api_key: Whose key it is.
SELECT name, sha256 FROM api_keys WHERE sha256 = %(sha256)s;

-- list_api_keys: Names and ages; the keys themselves are not known here.
SELECT name, (extract(epoch FROM created_at) * 1000)::bigint FROM api_keys ORDER BY name;

-- add_operator_token: It acts under this name.
INSERT INTO operator_tokens (name, sha256) VALUES (%(name)s, %(sha256)s);

-- revoke_operator_token: It opens nothing any more; its name stays taken.
UPDATE operator_tokens SET revoked_at = clock_timestamp() WHERE name = %(name)s AND revoked_at IS NULL;

-- find_operator_token: Whose it is, unless it was revoked.
SELECT name, sha256 FROM operator_tokens WHERE sha256 = %(sha256)s AND revoked_at IS NULL;

-- list_operator_tokens: Names and ages; the tokens themselves are not known here.
SELECT name, (extract(epoch FROM created_at) * 1000)::bigint, (extract(epoch FROM revoked_at) * 1000)::bigint
FROM operator_tokens ORDER BY created_at, name;

-- lock_signing_keys: One rotation at a time, so that processes started together agree on the first key.
LOCK TABLE signing_keys IN SHARE ROW EXCLUSIVE MODE;

-- list_signing_keys: All keys that verify, the newest first.
SELECT kid, secret, wrapped FROM signing_keys WHERE retired_at IS NULL ORDER BY created_at DESC, kid;

-- add_signing_key: It signs from now on.
INSERT INTO signing_keys (kid, secret, wrapped) VALUES (%(kid)s, %(secret)s, %(wrapped)s);

-- retire_signing_keys: A key signed until the next one was made; once that is longer ago than a token lives, it verifies
-- nothing any more.
UPDATE signing_keys SET retired_at = clock_timestamp()
WHERE retired_at IS NULL AND EXISTS (
    SELECT FROM signing_keys newer
    WHERE newer.created_at > signing_keys.created_at AND newer.created_at < clock_timestamp() - %(older_than)s
);
