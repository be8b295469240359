-- Webhooks, and the outbox of the events that they report (docs/decisions/0026-an-outbox-by-trigger.md).
CREATE TABLE webhook (
  id TEXT PRIMARY KEY,
  owner TEXT NOT NULL,
  url TEXT NOT NULL,
  events TEXT NOT NULL,
  types TEXT NOT NULL,
  description TEXT NOT NULL,
  is_active INTEGER NOT NULL,
  created_at INTEGER NOT NULL,
  keeper TEXT NOT NULL,
  secret BLOB NOT NULL,
  old_secret BLOB NOT NULL,
  old_until INTEGER NOT NULL
) WITHOUT ROWID;

CREATE INDEX webhook_of_owner ON webhook (owner, created_at, id);

-- The types of the log that an active webhook reports: what the trigger below looks up for every event.
CREATE TABLE webhook_type (
  owner TEXT NOT NULL,
  type TEXT NOT NULL,
  webhook TEXT NOT NULL,
  PRIMARY KEY (owner, type, webhook)
) WITHOUT ROWID;

-- The deliveries of a webhook for one session are a line, in the order of their positions; those that are `single` are
-- in no line. `session` is empty for a test. `held_by` is the process that attempts the delivery.
CREATE TABLE webhook_delivery (
  number INTEGER PRIMARY KEY,
  webhook TEXT NOT NULL,
  event_id TEXT NOT NULL,
  owner TEXT NOT NULL,
  session TEXT NOT NULL,
  position INTEGER NOT NULL,
  type TEXT NOT NULL,
  time INTEGER NOT NULL,
  state TEXT NOT NULL DEFAULT 'pending',
  single INTEGER NOT NULL DEFAULT 0,
  attempts INTEGER NOT NULL DEFAULT 0,
  due_at INTEGER NOT NULL DEFAULT 0,
  since INTEGER,
  tried_at INTEGER,
  held_by TEXT,
  status INTEGER,
  fault TEXT,
  ended_at INTEGER,
  UNIQUE (webhook, event_id)
);

CREATE INDEX webhook_delivery_due ON webhook_delivery (webhook, due_at) WHERE state = 'pending';
CREATE INDEX webhook_delivery_line ON webhook_delivery (webhook, owner, session, position) WHERE state = 'pending';
CREATE INDEX webhook_delivery_of ON webhook_delivery (owner, session);
CREATE INDEX webhook_delivery_listed ON webhook_delivery (webhook, number);
CREATE INDEX webhook_delivery_ended ON webhook_delivery (ended_at) WHERE ended_at IS NOT NULL;

-- Puts an event into the outbox in its own transaction, also if an older release wrote it. The head of a session moves
-- after its events are written, so that it is 0 only for those that the session is created with: a copy's are no news.
CREATE TRIGGER event_reported AFTER INSERT ON event
WHEN EXISTS (SELECT 1 FROM webhook_type WHERE owner = NEW.owner AND type = NEW.type) BEGIN
  INSERT INTO webhook_delivery (webhook, event_id, owner, session, position, type, time)
  SELECT webhook_type.webhook, NEW.id, NEW.owner, NEW.session, NEW.position, NEW.type, NEW.time
    FROM webhook_type
    JOIN session ON session.owner = NEW.owner AND session.id = NEW.session
    JOIN head ON head.log = session.log
   WHERE webhook_type.owner = NEW.owner AND webhook_type.type = NEW.type AND head.position > 0
  ON CONFLICT DO NOTHING;
END;

CREATE TRIGGER session_deleted_deliveries AFTER UPDATE OF deleted_at ON session WHEN NEW.deleted_at IS NOT NULL BEGIN
  DELETE FROM webhook_delivery WHERE owner = NEW.owner AND session = NEW.id;
END;
