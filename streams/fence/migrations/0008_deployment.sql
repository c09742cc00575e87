-- A name of this database that nothing else has: topics say by it which database they belong to. A copy, a standby and a
-- restored backup have the same one.

CREATE TABLE deployment (
    only_one boolean PRIMARY KEY DEFAULT true CHECK (only_one),
    database_id uuid NOT NULL DEFAULT gen_random_uuid()
);
COMMENT ON TABLE deployment IS 'the name of this database, in its one row';
INSERT INTO deployment DEFAULT VALUES;
