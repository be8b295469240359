-- Who has what a client entrusted to a session: the process with the token `keeper`, in its memory; or every process
-- with the key of that name, which `sealed` is sealed under; or nobody (the empty name). While a session has a row here,
-- it is run by its keeper and by nobody else.
CREATE TABLE secret (
  owner TEXT NOT NULL,
  session TEXT NOT NULL,
  keeper TEXT NOT NULL,
  sealed BLOB NOT NULL,
  PRIMARY KEY (owner, session)
) WITHOUT ROWID;
