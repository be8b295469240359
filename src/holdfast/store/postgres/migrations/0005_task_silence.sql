-- When the row of a task was written, in milliseconds by the database's clock, as `task_host.seen_at` is from now on
-- too: a machine with a wrong clock can't make a task seem lost.
ALTER TABLE holdfast.task
  ADD COLUMN opened_at bigint NOT NULL DEFAULT (extract(epoch FROM clock_timestamp()) * 1000)::bigint;
