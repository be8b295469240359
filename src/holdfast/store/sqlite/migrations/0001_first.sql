-- The key of a session is (owner, id), and every row that belongs to a session starts with it. `process` and `meta`
-- belong to the database itself and so have no owner.

CREATE TABLE meta (
  name TEXT PRIMARY KEY,
  value TEXT NOT NULL
) WITHOUT ROWID;

INSERT INTO meta VALUES ('format', 'holdfast');

-- Serialises the log (with its head) and execution (fence, lease_holder). A held session stays runnable until it is
-- released, so that a session whose holder died needs no special recovery. A deleted session keeps its row, so that its
-- id is never used again.
CREATE TABLE session (
  owner TEXT NOT NULL,
  id TEXT NOT NULL,
  log INTEGER NOT NULL DEFAULT 0,
  inbox_tail INTEGER NOT NULL DEFAULT 0,
  fence INTEGER NOT NULL DEFAULT 0,
  lease_holder TEXT,
  claims INTEGER NOT NULL DEFAULT 0,
  runnable INTEGER NOT NULL DEFAULT 0,
  runnable_since INTEGER,
  noted_at INTEGER,
  wake_at INTEGER,
  status TEXT NOT NULL,
  turn_id TEXT,
  title TEXT NOT NULL DEFAULT '',
  host TEXT,
  tools TEXT NOT NULL DEFAULT '[]',
  model TEXT,
  parent TEXT,
  created_at INTEGER NOT NULL,
  updated_at INTEGER NOT NULL,
  deleted_at INTEGER,
  PRIMARY KEY (owner, id)
) WITHOUT ROWID;

-- The end of a session's log: its last position, and the event there. It is the part of the session row that every
-- append changes, kept apart and under a number (`session.log`): changing it costs a fifth of changing the wide row.
CREATE TABLE head (
  log INTEGER PRIMARY KEY,
  position INTEGER NOT NULL,
  last_event INTEGER NOT NULL
);

CREATE INDEX session_runnable ON session (lease_holder, host, runnable_since) WHERE runnable = 1;
CREATE INDEX session_unnoted ON session (runnable_since)
  WHERE runnable = 1 AND lease_holder IS NULL AND noted_at IS NULL;
CREATE INDEX session_due ON session (wake_at) WHERE wake_at IS NOT NULL;
CREATE INDEX session_listed ON session (owner, updated_at DESC, id) WHERE deleted_at IS NULL;

-- Events are written at the end of the table, whatever their session: a commit for a hundred sessions then touches a
-- few pages and not a hundred, which is most of the cost of a synced commit. Each event has the number of the one
-- before it in its session's log (0: none), the session row has the number of the last, and `event_mark` has every
-- 64th, so that a page in the middle of a long log is found without walking all of it.
CREATE TABLE event (
  number INTEGER PRIMARY KEY,
  previous INTEGER NOT NULL,
  owner TEXT NOT NULL,
  session TEXT NOT NULL,
  position INTEGER NOT NULL,
  id TEXT NOT NULL,
  time INTEGER NOT NULL,
  type TEXT NOT NULL,
  version INTEGER NOT NULL,
  data BLOB NOT NULL
);

CREATE TABLE event_mark (
  owner TEXT NOT NULL,
  session TEXT NOT NULL,
  position INTEGER NOT NULL,
  number INTEGER NOT NULL,
  PRIMARY KEY (owner, session, position)
) WITHOUT ROWID;

CREATE INDEX event_said ON event (owner, session) WHERE type = 'user.message';

-- `place` is an item's place in the queue. `sequence` names one version of the item: an edit or a new order gives it a
-- fresh one, so that a promotion decided on an older version finds nothing.
CREATE TABLE inbox (
  owner TEXT NOT NULL,
  session TEXT NOT NULL,
  item_key TEXT NOT NULL,
  sequence INTEGER NOT NULL,
  place INTEGER NOT NULL,
  kind TEXT NOT NULL,
  state TEXT NOT NULL,
  outcome TEXT NOT NULL,
  accepted_at INTEGER NOT NULL,
  while_running INTEGER NOT NULL,
  payload BLOB NOT NULL,
  original BLOB,
  removed_by TEXT,
  PRIMARY KEY (owner, session, item_key)
) WITHOUT ROWID;

CREATE UNIQUE INDEX inbox_waiting ON inbox (owner, session, sequence) WHERE state = 'accepted';
CREATE INDEX inbox_removed ON inbox (owner, session, removed_by) WHERE removed_by IS NOT NULL;
CREATE INDEX inbox_stops ON inbox (owner, session) WHERE state = 'accepted' AND kind = 'stop';

CREATE TABLE request (
  owner TEXT NOT NULL,
  session TEXT NOT NULL,
  id TEXT NOT NULL,
  state TEXT NOT NULL,
  kind TEXT NOT NULL,
  turn_id TEXT NOT NULL,
  tool_call_id TEXT NOT NULL,
  title TEXT NOT NULL,
  opened_at INTEGER NOT NULL,
  PRIMARY KEY (owner, session, id)
) WITHOUT ROWID;

CREATE INDEX request_open ON request (owner, session, opened_at, id) WHERE state = 'open';

-- The same for segments. A session has a row in `flight` while a message is in flight; its segments are those from
-- `last` back to `first`, and segments that no flight reaches are swept later. `start` is the segment's first byte in
-- its block, and `text` is UTF-8 in bytes, so that its length is in bytes too.
CREATE TABLE segment (
  number INTEGER PRIMARY KEY,
  previous INTEGER NOT NULL,
  owner TEXT NOT NULL,
  session TEXT NOT NULL,
  message_id TEXT NOT NULL,
  attempt INTEGER NOT NULL,
  block INTEGER NOT NULL,
  start INTEGER NOT NULL,
  kind TEXT NOT NULL,
  text BLOB NOT NULL,
  tool_call_id TEXT NOT NULL,
  name TEXT NOT NULL
);

CREATE TABLE flight (
  owner TEXT NOT NULL,
  session TEXT NOT NULL,
  first INTEGER NOT NULL,
  last INTEGER NOT NULL,
  PRIMARY KEY (owner, session)
) WITHOUT ROWID;

CREATE TABLE snapshot (
  owner TEXT NOT NULL,
  session TEXT NOT NULL,
  fold_version INTEGER NOT NULL,
  position INTEGER NOT NULL,
  state BLOB NOT NULL,
  PRIMARY KEY (owner, session)
);

CREATE TABLE ledger (
  owner TEXT NOT NULL,
  session TEXT NOT NULL,
  message_id TEXT NOT NULL,
  attempt INTEGER NOT NULL,
  model TEXT NOT NULL,
  input_tokens INTEGER,
  output_tokens INTEGER,
  cache_read_tokens INTEGER,
  cost_microdollars INTEGER,
  time INTEGER NOT NULL,
  PRIMARY KEY (owner, session, message_id, attempt)
) WITHOUT ROWID;

-- Expiries are milliseconds since the boot `boot_id`: changes of the wall clock do not affect them.
CREATE TABLE attachment (
  owner TEXT NOT NULL,
  session TEXT NOT NULL,
  id TEXT NOT NULL,
  node TEXT NOT NULL,
  tools TEXT NOT NULL,
  capabilities TEXT NOT NULL,
  boot_id TEXT NOT NULL,
  expires_at INTEGER NOT NULL,
  PRIMARY KEY (owner, session, id)
) WITHOUT ROWID;

CREATE TABLE process (
  token TEXT PRIMARY KEY,
  node TEXT NOT NULL,
  boot_id TEXT NOT NULL,
  expires_at INTEGER NOT NULL
) WITHOUT ROWID;
