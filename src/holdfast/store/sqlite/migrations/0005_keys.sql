-- API keys. What is kept of one is a digest of its secret part: whoever reads the database can't use them. A revoked one
-- stays, so that people see that it was there.
CREATE TABLE api_key (
  id TEXT PRIMARY KEY,
  name TEXT NOT NULL,
  owner TEXT NOT NULL,
  role TEXT NOT NULL,
  digest BLOB NOT NULL,
  created_at INTEGER NOT NULL,
  revoked_at INTEGER
) WITHOUT ROWID;
