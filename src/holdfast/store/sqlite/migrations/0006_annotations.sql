-- What owners note about their sessions, beside the log. A row of its own: it is written seldom, and the session row often.
CREATE TABLE annotation (
  owner TEXT NOT NULL,
  session TEXT NOT NULL,
  seen INTEGER NOT NULL DEFAULT 0,
  pinned INTEGER NOT NULL DEFAULT 0,
  metadata BLOB NOT NULL DEFAULT '{}',
  PRIMARY KEY (owner, session)
) WITHOUT ROWID;

-- The last position that tells the owner of a session something. It is in the row that every append writes anyway.
ALTER TABLE head ADD COLUMN shown INTEGER NOT NULL DEFAULT 0;
