-- The session that a client made another one from: a fork, or a session that the client calls a child. Only a session
-- that the runtime starts in the turn of a session has that session as its parent, and runs in its slot; so far the
-- runtime starts none.
ALTER TABLE holdfast.session ADD COLUMN made_from text COLLATE "C";
UPDATE holdfast.session SET made_from = parent, parent = NULL WHERE parent IS NOT NULL;
