-- The content of the prompts that sessions refer to by its digest, and the part of a call that was written into its
-- provider's cache.
CREATE TABLE prompt (digest TEXT PRIMARY KEY, content BLOB NOT NULL) WITHOUT ROWID;
ALTER TABLE ledger ADD COLUMN cache_write_tokens INTEGER;
