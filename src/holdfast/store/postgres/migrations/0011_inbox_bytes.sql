-- How many bytes the items of a session's inbox take up, for the quota of its owner. Their rows stay when they are
-- promoted or removed. This locks the table for a moment; the next migration counts, with readers at work.
ALTER TABLE holdfast.session ADD COLUMN inbox_bytes bigint NOT NULL DEFAULT 0;
