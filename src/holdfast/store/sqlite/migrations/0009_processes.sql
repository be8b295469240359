-- How each process describes itself, for operators. `renewed_at` is in milliseconds since the boot `boot_id`.
ALTER TABLE process ADD COLUMN role TEXT NOT NULL DEFAULT '';
ALTER TABLE process ADD COLUMN version TEXT NOT NULL DEFAULT '';
ALTER TABLE process ADD COLUMN started_at INTEGER NOT NULL DEFAULT 0;
ALTER TABLE process ADD COLUMN max_sessions INTEGER NOT NULL DEFAULT 0;
ALTER TABLE process ADD COLUMN renewed_at INTEGER;
