-- How long a machine has been silent is counted in milliseconds since the boot `boot_id`, so that neither changes of
-- the wall clock nor differences between processes make a task lost. `opened_at` is when its row was written, by the
-- same clock.
ALTER TABLE task ADD COLUMN boot_id TEXT NOT NULL DEFAULT '';
ALTER TABLE task ADD COLUMN opened_at INTEGER NOT NULL DEFAULT 0;
ALTER TABLE task_host ADD COLUMN boot_id TEXT NOT NULL DEFAULT '';
