-- The keeper of a session's secrets: the process with the token `keeper`, in its memory; or every process with the key
-- of that name, under which `sealed` is encrypted; or no process (the empty name). While a session has a row here, only
-- its keeper runs it.
CREATE TABLE secret (
  owner TEXT NOT NULL,
  session TEXT NOT NULL,
  keeper TEXT NOT NULL,
  sealed BLOB NOT NULL,
  PRIMARY KEY (owner, session)
) WITHOUT ROWID;
