-- When the end of a task was recorded, in milliseconds by SQLite's clock. `ended_at` is by the clock of the process
-- that recorded it, and with a wrong clock the row would be dropped too early or never. A trigger maintains it, so that
-- a release that does not know the column maintains it too.
ALTER TABLE task ADD COLUMN end_noted_at INTEGER;
UPDATE task SET end_noted_at = CAST((julianday('now') - 2440587.5) * 86400000 AS INTEGER) WHERE ended_at IS NOT NULL;
CREATE TRIGGER task_ends AFTER UPDATE OF ended_at ON task WHEN NEW.ended_at IS NOT NULL BEGIN
  UPDATE task SET end_noted_at = CAST((julianday('now') - 2440587.5) * 86400000 AS INTEGER)
   WHERE owner = NEW.owner AND session = NEW.session AND id = NEW.id;
END;

DROP INDEX task_ended;
CREATE INDEX task_ended ON task (end_noted_at) WHERE end_noted_at IS NOT NULL;
