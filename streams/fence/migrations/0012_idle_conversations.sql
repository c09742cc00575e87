-- Conversations by how long nothing was said in them, so that those that their channel keeps no longer (`retain_days`) are
-- found without a look at the others.

CREATE INDEX conversations_idle ON conversations (partition, channel, updated_at, id) WHERE status <> 'erased';
