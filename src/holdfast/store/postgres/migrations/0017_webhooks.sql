-- Webhooks, and the outbox of the events that they report (docs/decisions/0026-an-outbox-by-trigger.md).
CREATE TABLE holdfast.webhook (
  id text COLLATE "C" PRIMARY KEY,
  owner text COLLATE "C" NOT NULL,
  url text NOT NULL,
  events text[] NOT NULL,
  types text[] NOT NULL,
  description text NOT NULL,
  is_active boolean NOT NULL,
  created_at bigint NOT NULL,
  keeper text COLLATE "C" NOT NULL,
  secret bytea NOT NULL,
  old_secret bytea NOT NULL,
  old_until bigint NOT NULL
);

CREATE INDEX webhook_of_owner ON holdfast.webhook (owner, created_at, id);

-- The types of the log that an active webhook reports: what the trigger below looks up.
CREATE TABLE holdfast.webhook_type (
  owner text COLLATE "C" NOT NULL,
  type text COLLATE "C" NOT NULL,
  webhook text COLLATE "C" NOT NULL,
  PRIMARY KEY (owner, type, webhook)
);

-- The deliveries of a webhook for one session are a line, in the order of their positions; those that are `single` are
-- in no line. `session` is empty for a test. `held_by` is the process that attempts the delivery.
CREATE TABLE holdfast.webhook_delivery (
  number bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  webhook text COLLATE "C" NOT NULL,
  event_id text COLLATE "C" NOT NULL,
  owner text COLLATE "C" NOT NULL,
  session text COLLATE "C" NOT NULL,
  position bigint NOT NULL,
  type text COLLATE "C" NOT NULL,
  time bigint NOT NULL,
  state text COLLATE "C" NOT NULL DEFAULT 'pending',
  single boolean NOT NULL DEFAULT false,
  attempts integer NOT NULL DEFAULT 0,
  due_at bigint NOT NULL DEFAULT 0,
  since bigint,
  tried_at bigint,
  held_by text COLLATE "C",
  status integer,
  fault text COLLATE "C",
  ended_at bigint,
  UNIQUE (webhook, event_id)
);

CREATE INDEX webhook_delivery_due ON holdfast.webhook_delivery (webhook, due_at) WHERE state = 'pending';
CREATE INDEX webhook_delivery_line ON holdfast.webhook_delivery (webhook, owner, session, position)
  WHERE state = 'pending';
CREATE INDEX webhook_delivery_of ON holdfast.webhook_delivery (owner, session);
CREATE INDEX webhook_delivery_listed ON holdfast.webhook_delivery (webhook, number);
CREATE INDEX webhook_delivery_ended ON holdfast.webhook_delivery (ended_at) WHERE ended_at IS NOT NULL;

-- Puts an event into the outbox in its own transaction, also if an older release wrote it. It runs after the statement
-- that appended the event: then the session has an event that is news to its owner, unless it was just created with all
-- of its events. Those are a copy's, and no news.
CREATE FUNCTION holdfast.report_event() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  INSERT INTO holdfast.webhook_delivery (webhook, event_id, owner, session, position, type, time)
  SELECT webhook_type.webhook, NEW.id, NEW.owner, NEW.session, NEW.position, NEW.type, NEW.time
    FROM holdfast.webhook_type
   WHERE webhook_type.owner = NEW.owner AND webhook_type.type = NEW.type
     AND EXISTS (SELECT 1 FROM holdfast.session
                  WHERE session.owner = NEW.owner AND session.id = NEW.session AND session.shown > 0)
  ON CONFLICT DO NOTHING;
  RETURN NULL;
END
$$;

-- The function is called only for types that may be reported: our own, and requests.
CREATE TRIGGER event_reported AFTER INSERT ON holdfast.event
  FOR EACH ROW WHEN (NEW.type LIKE 'holdfast.%' OR NEW.type LIKE '%.requested' OR NEW.type = 'session.error')
  EXECUTE FUNCTION holdfast.report_event();

CREATE FUNCTION holdfast.drop_deliveries() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  DELETE FROM holdfast.webhook_delivery WHERE owner = NEW.owner AND session = NEW.id;
  RETURN NULL;
END
$$;
CREATE TRIGGER session_deleted_deliveries AFTER UPDATE OF deleted_at ON holdfast.session
  FOR EACH ROW WHEN (NEW.deleted_at IS NOT NULL) EXECUTE FUNCTION holdfast.drop_deliveries();
