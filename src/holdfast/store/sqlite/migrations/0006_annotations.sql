-- Owners' annotations of their sessions, outside the log. They have a row of their own, because they are written seldom
-- and the session row often.
CREATE TABLE annotation (
  owner TEXT NOT NULL,
  session TEXT NOT NULL,
  seen INTEGER NOT NULL DEFAULT 0,
  pinned INTEGER NOT NULL DEFAULT 0,
  metadata BLOB NOT NULL DEFAULT '{}',
  PRIMARY KEY (owner, session)
) WITHOUT ROWID;

-- The last position that is news to the owner of a session. It is in the row that every append writes anyway.
ALTER TABLE head ADD COLUMN shown INTEGER NOT NULL DEFAULT 0;
