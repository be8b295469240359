-- When the row of a task was written, in milliseconds by the database's clock, as `task_host.seen_at` is now too: a machine
-- whose clock is wrong makes nobody's task lost.
ALTER TABLE holdfast.task
  ADD COLUMN opened_at bigint NOT NULL DEFAULT (extract(epoch FROM clock_timestamp()) * 1000)::bigint;
