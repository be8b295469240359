-- Waiting sessions are found by their needs: a process skips all sessions that it can't run at once, however many there
-- are. Equal needs (host, tools, model, and the keeper of secrets) have equal texts.

-- A copy of the keeper in `secret` (NULL: the session has no secrets). Triggers maintain it, so that a release that
-- does not know the column maintains it too.
ALTER TABLE session ADD COLUMN keeper TEXT;
UPDATE session SET keeper = (SELECT keeper FROM secret WHERE secret.owner = session.owner AND secret.session = session.id)
 WHERE EXISTS (SELECT 1 FROM secret WHERE secret.owner = session.owner AND secret.session = session.id);
CREATE TRIGGER secret_kept AFTER INSERT ON secret BEGIN
  UPDATE session SET keeper = NEW.keeper WHERE owner = NEW.owner AND id = NEW.session;
END;
CREATE TRIGGER secret_changed AFTER UPDATE ON secret BEGIN
  UPDATE session SET keeper = NEW.keeper WHERE owner = NEW.owner AND id = NEW.session;
END;
CREATE TRIGGER secret_dropped AFTER DELETE ON secret BEGIN
  UPDATE session SET keeper = NULL WHERE owner = OLD.owner AND id = OLD.session;
END;

CREATE INDEX session_needs ON session (
  ifnull(host, char(30)) || char(31) || ifnull(model, char(30)) || char(31) || ifnull(keeper, char(30)) || char(31) || tools,
  owner)
  WHERE runnable = 1 AND lease_holder IS NULL;
CREATE INDEX session_unplaced ON session (runnable_since)
  WHERE runnable = 1 AND lease_holder IS NULL AND noted_at IS NULL;
