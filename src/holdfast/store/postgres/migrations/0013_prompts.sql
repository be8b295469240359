-- The content of the prompts that sessions refer to by its digest, and the part of a call that was written into its
-- provider's cache.
CREATE TABLE holdfast.prompt (digest text COLLATE "C" PRIMARY KEY, content bytea NOT NULL);
ALTER TABLE holdfast.ledger ADD COLUMN cache_write_tokens bigint;
