-- The key of a session is (owner, id), and every row that belongs to a session starts with it. `process`, `task_host`
-- and `api_key` belong to the database itself. Keys compare by their bytes (COLLATE "C"): that is fast, and an upgrade
-- of the system's collations can't damage an index.

-- The name that identifies this database. A copy of the database has the same name.
CREATE TABLE holdfast.identity (
  name text NOT NULL
);
INSERT INTO holdfast.identity (name) VALUES (replace(gen_random_uuid()::text, '-', ''));

-- Serialises the log (head) and execution (fence, lease_holder). A held session stays runnable until it is released. A
-- deleted session keeps its row, so that its id is never used again. Pages are only partly filled, and no index has a
-- column that an append changes: so an append writes the row in place and touches no index. `host` is '' for any host.
CREATE TABLE holdfast.session (
  owner text COLLATE "C" NOT NULL,
  id text COLLATE "C" NOT NULL,
  head bigint NOT NULL DEFAULT 0,
  shown bigint NOT NULL DEFAULT 0,
  inbox_tail bigint NOT NULL DEFAULT 0,
  fence bigint NOT NULL DEFAULT 0,
  lease_holder text COLLATE "C",
  claims integer NOT NULL DEFAULT 0,
  runnable boolean NOT NULL DEFAULT false,
  runnable_since bigint,
  noted_at bigint,
  wake_at bigint,
  status text COLLATE "C" NOT NULL,
  turn_id text COLLATE "C",
  title text NOT NULL DEFAULT '',
  host text COLLATE "C" NOT NULL DEFAULT '',
  tools text[] NOT NULL DEFAULT '{}',
  model text COLLATE "C",
  parent text COLLATE "C",
  created_at bigint NOT NULL,
  updated_at bigint NOT NULL,
  deleted_at bigint,
  PRIMARY KEY (owner, id)
) WITH (fillfactor = 70);

-- The order of claims is computed owner by owner, among the sessions for one host; an unfinished turn goes before new
-- ones, and a session with a parent before that.
CREATE INDEX session_claimable ON holdfast.session (host, owner, (parent IS NULL), (turn_id IS NULL), runnable_since)
  WHERE runnable AND lease_holder IS NULL;
CREATE INDEX session_unheld ON holdfast.session (owner, runnable_since) WHERE runnable AND lease_holder IS NULL;
CREATE INDEX session_oldest ON holdfast.session (runnable_since) WHERE runnable AND lease_holder IS NULL;
CREATE INDEX session_unnoted ON holdfast.session (owner, runnable_since)
  WHERE runnable AND lease_holder IS NULL AND noted_at IS NULL;
CREATE INDEX session_held ON holdfast.session (lease_holder) WHERE lease_holder IS NOT NULL;
CREATE INDEX session_slots ON holdfast.session (owner, id) WHERE lease_holder IS NOT NULL;
CREATE INDEX session_due ON holdfast.session (wake_at) WHERE wake_at IS NOT NULL;
CREATE INDEX session_listed ON holdfast.session (owner, updated_at DESC, id) WHERE deleted_at IS NULL;
CREATE INDEX session_busy ON holdfast.session (owner, status, updated_at) WHERE deleted_at IS NULL;

-- `said` is the text that a person wrote, for searching: the data itself may hold characters that PostgreSQL's JSON
-- can't.
CREATE TABLE holdfast.event (
  owner text COLLATE "C" NOT NULL,
  session text COLLATE "C" NOT NULL,
  position bigint NOT NULL,
  id text COLLATE "C" NOT NULL,
  time bigint NOT NULL,
  type text COLLATE "C" NOT NULL,
  version integer NOT NULL,
  data bytea NOT NULL,
  said text,
  PRIMARY KEY (owner, session, position)
);

CREATE INDEX event_said ON holdfast.event (owner, session) WHERE said IS NOT NULL;

-- `place` is an item's place in the queue. `sequence` names one version of the item: an edit or a new order gives it a
-- fresh one, so that a promotion decided on an older version finds nothing.
CREATE TABLE holdfast.inbox (
  owner text COLLATE "C" NOT NULL,
  session text COLLATE "C" NOT NULL,
  item_key text COLLATE "C" NOT NULL,
  sequence bigint NOT NULL,
  place bigint NOT NULL,
  kind text COLLATE "C" NOT NULL,
  state text COLLATE "C" NOT NULL,
  outcome text NOT NULL,
  accepted_at bigint NOT NULL,
  while_running boolean NOT NULL,
  payload bytea NOT NULL,
  original bytea,
  removed_by text COLLATE "C",
  PRIMARY KEY (owner, session, item_key)
);

CREATE INDEX inbox_waiting ON holdfast.inbox (owner, session, sequence) WHERE state = 'accepted';
CREATE INDEX inbox_removed ON holdfast.inbox (owner, session, removed_by) WHERE removed_by IS NOT NULL;
CREATE INDEX inbox_stops ON holdfast.inbox (owner, session) WHERE state = 'accepted' AND kind = 'stop';

CREATE TABLE holdfast.request (
  owner text COLLATE "C" NOT NULL,
  session text COLLATE "C" NOT NULL,
  id text COLLATE "C" NOT NULL,
  state text COLLATE "C" NOT NULL,
  kind text COLLATE "C" NOT NULL,
  turn_id text COLLATE "C" NOT NULL,
  tool_call_id text COLLATE "C" NOT NULL,
  title text NOT NULL,
  opened_at bigint NOT NULL,
  PRIMARY KEY (owner, session, id)
);

CREATE INDEX request_open ON holdfast.request (owner, session, opened_at, id) WHERE state = 'open';

-- The messages in flight. `start` is the segment's first byte in its block, and `text` is UTF-8 in bytes, so that its
-- length is in bytes too.
CREATE TABLE holdfast.segment (
  owner text COLLATE "C" NOT NULL,
  session text COLLATE "C" NOT NULL,
  number bigint GENERATED ALWAYS AS IDENTITY,
  message_id text COLLATE "C" NOT NULL,
  attempt integer NOT NULL,
  block integer NOT NULL,
  start bigint NOT NULL,
  kind text COLLATE "C" NOT NULL,
  text bytea NOT NULL,
  tool_call_id text NOT NULL,
  name text NOT NULL,
  PRIMARY KEY (owner, session, number)
) WITH (autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_threshold = 1000);

CREATE TABLE holdfast.snapshot (
  owner text COLLATE "C" NOT NULL,
  session text COLLATE "C" NOT NULL,
  fold_version integer NOT NULL,
  position bigint NOT NULL,
  state bytea NOT NULL,
  PRIMARY KEY (owner, session)
);

CREATE TABLE holdfast.ledger (
  owner text COLLATE "C" NOT NULL,
  session text COLLATE "C" NOT NULL,
  message_id text COLLATE "C" NOT NULL,
  attempt integer NOT NULL,
  model text NOT NULL,
  input_tokens bigint,
  output_tokens bigint,
  cache_read_tokens bigint,
  cost_microdollars bigint,
  time bigint NOT NULL,
  PRIMARY KEY (owner, session, message_id, attempt)
);

-- Owners' annotations of their sessions, outside the log.
CREATE TABLE holdfast.annotation (
  owner text COLLATE "C" NOT NULL,
  session text COLLATE "C" NOT NULL,
  seen bigint NOT NULL DEFAULT 0,
  pinned boolean NOT NULL DEFAULT false,
  metadata bytea NOT NULL DEFAULT '{}',
  PRIMARY KEY (owner, session)
);

-- The keeper of a session's secrets: the process with the token `keeper`, in its memory; or every process with the key
-- of that name, under which `sealed` is encrypted; or no process (the empty name).
CREATE TABLE holdfast.secret (
  owner text COLLATE "C" NOT NULL,
  session text COLLATE "C" NOT NULL,
  keeper text COLLATE "C" NOT NULL,
  sealed bytea NOT NULL,
  PRIMARY KEY (owner, session)
);

-- Attachments: the clients that are present at a session. Rows here matter only for the moment.
CREATE TABLE holdfast.attachment (
  owner text COLLATE "C" NOT NULL,
  session text COLLATE "C" NOT NULL,
  id text COLLATE "C" NOT NULL,
  process text COLLATE "C" NOT NULL,
  node text NOT NULL,
  tools text[] NOT NULL,
  capabilities text[] NOT NULL,
  declined text[] NOT NULL,
  expires_at timestamptz NOT NULL,
  PRIMARY KEY (owner, session, id)
);

CREATE INDEX attachment_process ON holdfast.attachment (process);

-- Permission rules that a person granted beyond one session: for a place, or everywhere (the empty place).
CREATE TABLE holdfast.granted (
  owner text COLLATE "C" NOT NULL,
  place text COLLATE "C" NOT NULL,
  rule text COLLATE "C" NOT NULL,
  PRIMARY KEY (owner, place, rule)
);

-- Every command that a session's tools started, from before its start until a day after its end.
CREATE TABLE holdfast.task (
  owner text COLLATE "C" NOT NULL,
  session text COLLATE "C" NOT NULL,
  id text COLLATE "C" NOT NULL,
  tool_call_id text NOT NULL,
  call_key text NOT NULL,
  command text NOT NULL,
  description text NOT NULL,
  directory text NOT NULL,
  host text COLLATE "C" NOT NULL,
  output_file text NOT NULL,
  alias text NOT NULL,
  foreground boolean NOT NULL,
  status text COLLATE "C" NOT NULL,
  stalled boolean NOT NULL,
  exit_code bigint,
  detail text NOT NULL,
  started_at bigint NOT NULL,
  ended_at bigint,
  kill_asked text COLLATE "C" NOT NULL,
  settled boolean NOT NULL,
  PRIMARY KEY (owner, session, id)
);

CREATE INDEX task_at_work ON holdfast.task (host) WHERE NOT settled OR kill_asked <> '';
CREATE INDEX task_ended ON holdfast.task (ended_at) WHERE ended_at IS NOT NULL;

-- The machines that tasks run on, and when each was last known to look after them.
CREATE TABLE holdfast.task_host (
  id text COLLATE "C" PRIMARY KEY,
  seen_at bigint NOT NULL
);

-- The processes that have this database open. Until `alive_until` the process counts as alive; until `leases_until` it
-- may go on with the sessions that it holds. Both are by the clock of this database only.
CREATE TABLE holdfast.process (
  token text COLLATE "C" PRIMARY KEY,
  node text NOT NULL,
  alive_until timestamptz NOT NULL,
  leases_until timestamptz NOT NULL
);

-- API keys. Only a digest of a key's secret part is stored, so a reader of the database can't use the keys. A revoked
-- key keeps its row, so that people see that it existed.
CREATE TABLE holdfast.api_key (
  id text COLLATE "C" PRIMARY KEY,
  name text NOT NULL,
  owner text COLLATE "C" NOT NULL,
  role text COLLATE "C" NOT NULL,
  digest bytea NOT NULL,
  created_at bigint NOT NULL,
  revoked_at bigint
);
