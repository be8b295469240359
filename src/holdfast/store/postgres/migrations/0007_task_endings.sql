-- When the end of a task was recorded, in milliseconds by the database's clock. `ended_at` is by the clock of the
-- task's machine, and with a wrong clock the row would be dropped too early or never. A trigger maintains it, so that a
-- release that does not know the column maintains it too.
ALTER TABLE holdfast.task ADD COLUMN end_noted_at bigint;
UPDATE holdfast.task SET end_noted_at = (extract(epoch FROM clock_timestamp()) * 1000)::bigint WHERE ended_at IS NOT NULL;
CREATE FUNCTION holdfast.note_end_of_task() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  NEW.end_noted_at := (extract(epoch FROM clock_timestamp()) * 1000)::bigint;
  RETURN NEW;
END $$;
CREATE TRIGGER task_ends BEFORE UPDATE OF ended_at ON holdfast.task
  FOR EACH ROW WHEN (NEW.ended_at IS NOT NULL) EXECUTE FUNCTION holdfast.note_end_of_task();

DROP INDEX holdfast.task_ended;
CREATE INDEX task_ended ON holdfast.task (end_noted_at) WHERE end_noted_at IS NOT NULL;
