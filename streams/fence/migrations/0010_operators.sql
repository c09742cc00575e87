-- Tokens of operators: what they do by the API of a gateway is written into the journal under their name. A token that
-- was revoked keeps its row, so that its name is never another person's.

CREATE TABLE operator_tokens (
    name       text        PRIMARY KEY,
    sha256     bytea       NOT NULL UNIQUE,
    created_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    revoked_at timestamptz
);
COMMENT ON TABLE operator_tokens IS 'who may act as an operator by the API';
