-- Conversations by what operators and tenants look for: whose one is, what it is called elsewhere, how its id begins. Without
-- them each search of the console reads the whole table.

CREATE INDEX conversations_of_participant ON conversations (participant) WHERE participant IS NOT NULL;
CREATE INDEX conversations_of_external_id ON conversations (external_id) WHERE external_id IS NOT NULL;
-- The primary key finds a beginning only where the database sorts by bytes.
CREATE INDEX conversations_by_beginning ON conversations (id text_pattern_ops);
