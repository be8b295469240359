-- The audit log. Each entry is written in the transaction of the act that it tells of. Numbers are never used again, also
-- not those of entries that were trimmed.
CREATE TABLE audit (
  number INTEGER PRIMARY KEY AUTOINCREMENT,
  at INTEGER NOT NULL,
  actor TEXT NOT NULL,
  actor_id TEXT NOT NULL,
  actor_owner TEXT NOT NULL,
  role TEXT NOT NULL,
  address TEXT NOT NULL,
  action TEXT NOT NULL,
  owner TEXT NOT NULL,
  target TEXT NOT NULL,
  result TEXT NOT NULL,
  detail TEXT NOT NULL
);

CREATE TRIGGER audit_is_append_only BEFORE UPDATE ON audit BEGIN
  SELECT RAISE(ABORT, 'the audit log is append-only');
END;
