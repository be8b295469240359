-- A rule that a person granted is known with who granted it, when, and in which session: so that it can be taken back there
-- too. Rows from before have nothing of it.
CREATE TABLE granted_with_origin (
  owner TEXT NOT NULL,
  place TEXT NOT NULL,
  rule TEXT NOT NULL,
  session TEXT NOT NULL DEFAULT '',
  granted_by TEXT NOT NULL DEFAULT '',
  granted_at INTEGER NOT NULL DEFAULT 0,
  PRIMARY KEY (owner, place, rule, session)
) WITHOUT ROWID;

INSERT INTO granted_with_origin (owner, place, rule) SELECT owner, place, rule FROM granted;

DROP TABLE granted;

ALTER TABLE granted_with_origin RENAME TO granted;
