-- Files of owners, the sessions that use them, and the contents whose objects are in the file store. `files` names the
-- file store that this database's files are in.
CREATE TABLE holdfast.file (
  owner text COLLATE "C" NOT NULL,
  id text COLLATE "C" NOT NULL,
  name text NOT NULL,
  media_type text NOT NULL,
  size bigint NOT NULL,
  digest text COLLATE "C" NOT NULL,
  created_at bigint NOT NULL,
  is_kept boolean NOT NULL,
  made_by text NOT NULL,
  content text COLLATE "C" NOT NULL,
  PRIMARY KEY (owner, id)
);
CREATE INDEX file_newest ON holdfast.file (owner, created_at, id, size);
CREATE INDEX file_content ON holdfast.file (content);
CREATE INDEX file_unkept ON holdfast.file (created_at) WHERE NOT is_kept;

CREATE TABLE holdfast.file_use (
  owner text COLLATE "C" NOT NULL,
  session text COLLATE "C" NOT NULL,
  file text COLLATE "C" NOT NULL,
  PRIMARY KEY (owner, session, file)
);
CREATE INDEX file_use_of ON holdfast.file_use (owner, file);

CREATE TABLE holdfast.content (
  id text COLLATE "C" PRIMARY KEY,
  owner text COLLATE "C" NOT NULL,
  digest text COLLATE "C" NOT NULL,
  size bigint NOT NULL,
  state text NOT NULL,
  changed_at bigint NOT NULL
);
CREATE INDEX content_of ON holdfast.content (owner, digest);
CREATE INDEX content_unsettled ON holdfast.content (state, changed_at) WHERE state <> 'stored';

ALTER TABLE holdfast.identity ADD COLUMN files text;
