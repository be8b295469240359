-- Every command that a session's tools started, from before its start until a day after its end.
CREATE TABLE task (
  owner TEXT NOT NULL,
  session TEXT NOT NULL,
  id TEXT NOT NULL,
  tool_call_id TEXT NOT NULL,
  call_key TEXT NOT NULL,
  command TEXT NOT NULL,
  description TEXT NOT NULL,
  directory TEXT NOT NULL,
  host TEXT NOT NULL,
  output_file TEXT NOT NULL,
  alias TEXT NOT NULL,
  foreground INTEGER NOT NULL,
  status TEXT NOT NULL,
  stalled INTEGER NOT NULL,
  exit_code INTEGER,
  detail TEXT NOT NULL,
  started_at INTEGER NOT NULL,
  ended_at INTEGER,
  kill_asked TEXT NOT NULL,
  settled INTEGER NOT NULL,
  PRIMARY KEY (owner, session, id)
) WITHOUT ROWID;

CREATE INDEX task_at_work ON task (host) WHERE settled = 0 OR kill_asked != '';
CREATE INDEX task_ended ON task (ended_at) WHERE ended_at IS NOT NULL;

-- The machines that tasks run on, and when each was last known to look after them.
CREATE TABLE task_host (
  id TEXT NOT NULL PRIMARY KEY,
  seen_at INTEGER NOT NULL
) WITHOUT ROWID;
