-- An attachment lives no longer than the process that its client is connected to. Rows here matter only for the moment:
-- the old ones are dropped.
DROP TABLE attachment;

CREATE TABLE attachment (
  owner TEXT NOT NULL,
  session TEXT NOT NULL,
  id TEXT NOT NULL,
  process TEXT NOT NULL,
  node TEXT NOT NULL,
  tools TEXT NOT NULL,
  capabilities TEXT NOT NULL,
  declined TEXT NOT NULL,
  boot_id TEXT NOT NULL,
  expires_at INTEGER NOT NULL,
  PRIMARY KEY (owner, session, id)
) WITHOUT ROWID;

-- Permission rules that a person granted beyond one session: for a place, or everywhere (the empty place).
CREATE TABLE granted (
  owner TEXT NOT NULL,
  place TEXT NOT NULL,
  rule TEXT NOT NULL,
  PRIMARY KEY (owner, place, rule)
) WITHOUT ROWID;
