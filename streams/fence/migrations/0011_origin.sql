-- Where an answer goes that is shown only where what it answers came from (a route's `replies: origin`).

ALTER TABLE transcript ADD COLUMN origin text;
COMMENT ON COLUMN transcript.origin IS 'channel that the turn which it answers came from; null: the conversation''s own';
