-- API keys. Only a digest of a key's secret part is stored, so a reader of the database can't use the keys. A revoked
-- key keeps its row, so that people see that it existed.
CREATE TABLE api_key (
  id TEXT PRIMARY KEY,
  name TEXT NOT NULL,
  owner TEXT NOT NULL,
  role TEXT NOT NULL,
  digest BLOB NOT NULL,
  created_at INTEGER NOT NULL,
  revoked_at INTEGER
) WITHOUT ROWID;
