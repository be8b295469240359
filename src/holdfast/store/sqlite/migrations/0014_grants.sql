-- The person who granted a rule, the time and the session, so that the rule can be revoked there too. Older rows have
-- none of these.
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
