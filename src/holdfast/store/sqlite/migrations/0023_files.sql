-- Files of owners, the sessions that use them, and the contents whose objects are in the file store. `files` names the
-- file store that this database's files are in.
CREATE TABLE file (
  owner TEXT NOT NULL,
  id TEXT NOT NULL,
  name TEXT NOT NULL,
  media_type TEXT NOT NULL,
  size INTEGER NOT NULL,
  digest TEXT NOT NULL,
  created_at INTEGER NOT NULL,
  is_kept INTEGER NOT NULL,
  made_by TEXT NOT NULL,
  content TEXT NOT NULL,
  PRIMARY KEY (owner, id)
) STRICT, WITHOUT ROWID;
CREATE INDEX file_newest ON file (owner, created_at, id, size);
CREATE INDEX file_content ON file (content);
CREATE INDEX file_unkept ON file (created_at) WHERE is_kept = 0;

CREATE TABLE file_use (
  owner TEXT NOT NULL,
  session TEXT NOT NULL,
  file TEXT NOT NULL,
  PRIMARY KEY (owner, session, file)
) STRICT, WITHOUT ROWID;
CREATE INDEX file_use_of ON file_use (owner, file);

CREATE TABLE content (
  id TEXT PRIMARY KEY,
  owner TEXT NOT NULL,
  digest TEXT NOT NULL,
  size INTEGER NOT NULL,
  state TEXT NOT NULL,
  changed_at INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
CREATE INDEX content_of ON content (owner, digest);
CREATE INDEX content_unsettled ON content (state, changed_at) WHERE state != 'stored';

ALTER TABLE identity ADD COLUMN files TEXT;
