-- Which session a client made another one of: a fork, or one that it calls a child. Only what the runtime starts in the turn
-- of a session has that session as its parent, and runs in its slot; so far it starts none.
ALTER TABLE session ADD COLUMN made_from TEXT;
UPDATE session SET made_from = parent, parent = NULL WHERE parent IS NOT NULL;
