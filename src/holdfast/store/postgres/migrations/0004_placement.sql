-- Waiting sessions are found by their needs: a process skips all sessions that it can't run at once, however many there
-- are. The needs of a session are its host, and a number made of its tools, its model and the keeper of its secrets;
-- equal needs have equal numbers.

-- A copy of the keeper in `secret` (NULL: the session has no secrets). A trigger maintains it, so that a release that
-- does not know the column maintains it too.
ALTER TABLE holdfast.session ADD COLUMN keeper text COLLATE "C";
UPDATE holdfast.session SET keeper = secret.keeper FROM holdfast.secret
 WHERE secret.owner = session.owner AND secret.session = session.id;

CREATE FUNCTION holdfast.note_keeper() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  IF TG_OP = 'DELETE' THEN
    UPDATE holdfast.session SET keeper = NULL WHERE owner = OLD.owner AND id = OLD.session;
  ELSE
    UPDATE holdfast.session SET keeper = NEW.keeper WHERE owner = NEW.owner AND id = NEW.session;
  END IF;
  RETURN NULL;
END
$$;
CREATE TRIGGER secret_keeper AFTER INSERT OR UPDATE OR DELETE ON holdfast.secret
  FOR EACH ROW EXECUTE FUNCTION holdfast.note_keeper();

-- Sessions with the same needs, owner by owner: those with a parent first, then unfinished turns, then in order of
-- arrival.
CREATE INDEX session_needs ON holdfast.session
  (host, hash_array_extended((ARRAY[model, keeper] || tools) COLLATE "C", 0), owner, (parent IS NULL),
   (turn_id IS NULL), runnable_since)
  WHERE runnable AND lease_holder IS NULL;

-- Waiting sessions in order of arrival: each session that no process could run for long is reported once.
CREATE INDEX session_unplaced ON holdfast.session (runnable_since, owner, id)
  WHERE runnable AND lease_holder IS NULL AND noted_at IS NULL;
CREATE INDEX session_noted ON holdfast.session (runnable_since)
  WHERE runnable AND lease_holder IS NULL AND noted_at IS NOT NULL;
DROP INDEX holdfast.session_claimable;
DROP INDEX holdfast.session_unnoted;
DROP INDEX holdfast.session_oldest;
