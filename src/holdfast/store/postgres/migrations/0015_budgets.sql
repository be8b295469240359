-- What an attempt for which money was reserved was charged, and its turn; the charges of each session, day and model
-- together; what is reserved for calls that are under way; the limits of owners. Days are numbered from 1970-01-01, in
-- UTC, by the database's clock: those of the processes may differ.
CREATE FUNCTION holdfast.wall_ms() RETURNS bigint LANGUAGE sql VOLATILE AS $$
  SELECT (extract(epoch FROM clock_timestamp()) * 1000)::bigint
$$;

ALTER TABLE holdfast.ledger ADD COLUMN turn_id text COLLATE "C";
ALTER TABLE holdfast.ledger ADD COLUMN charged bigint;
ALTER TABLE holdfast.ledger ADD COLUMN refused boolean NOT NULL DEFAULT false;
CREATE INDEX ledger_of_turn ON holdfast.ledger (owner, session, turn_id) INCLUDE (charged) WHERE turn_id IS NOT NULL;

CREATE TABLE holdfast.spending (
  owner text COLLATE "C" NOT NULL,
  day integer NOT NULL,
  session text COLLATE "C" NOT NULL,
  model text NOT NULL,
  root text COLLATE "C" NOT NULL,
  calls bigint NOT NULL,
  unknown bigint NOT NULL,
  input_tokens bigint NOT NULL,
  output_tokens bigint NOT NULL,
  cache_read_tokens bigint NOT NULL,
  cache_write_tokens bigint NOT NULL,
  cost bigint NOT NULL,
  charged bigint NOT NULL,
  PRIMARY KEY (owner, day, session, model)
) WITH (fillfactor = 70);
CREATE INDEX spending_of_session ON holdfast.spending (owner, session);
CREATE INDEX spending_of_tree ON holdfast.spending (owner, root);

INSERT INTO holdfast.spending
SELECT owner, time / 86400000, session, model, session, count(*), count(*) FILTER (WHERE cost_microdollars IS NULL),
       coalesce(sum(input_tokens), 0), coalesce(sum(output_tokens), 0), coalesce(sum(cache_read_tokens), 0),
       coalesce(sum(cache_write_tokens), 0), coalesce(sum(cost_microdollars), 0), coalesce(sum(cost_microdollars), 0)
  FROM holdfast.ledger GROUP BY owner, time / 86400000, session, model;

CREATE TABLE holdfast.reservation (
  owner text COLLATE "C" NOT NULL,
  session text COLLATE "C" NOT NULL,
  message_id text COLLATE "C" NOT NULL,
  attempt integer NOT NULL,
  day integer NOT NULL,
  root text COLLATE "C" NOT NULL,
  turn_id text COLLATE "C",
  model text NOT NULL,
  amount bigint NOT NULL,
  fence bigint NOT NULL,
  PRIMARY KEY (owner, session, message_id, attempt)
);

CREATE TABLE holdfast.budget (owner text COLLATE "C" PRIMARY KEY, content bytea NOT NULL);

-- An entry settles the reservation of its attempt. A trigger does it, so that a release that does not know reservations
-- does it too.
CREATE FUNCTION holdfast.settle() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
  kept holdfast.reservation;
  charge bigint;
BEGIN
  DELETE FROM holdfast.reservation
   WHERE owner = NEW.owner AND session = NEW.session AND message_id = NEW.message_id AND attempt = NEW.attempt
  RETURNING * INTO kept;
  charge := coalesce(NEW.cost_microdollars, CASE WHEN NEW.refused THEN 0 ELSE kept.amount END, 0);
  INSERT INTO holdfast.spending AS spending
  VALUES (NEW.owner, coalesce(kept.day, holdfast.wall_ms() / 86400000), NEW.session, NEW.model,
          coalesce(kept.root, NEW.session), 1, (NEW.cost_microdollars IS NULL)::integer,
          coalesce(NEW.input_tokens, 0), coalesce(NEW.output_tokens, 0), coalesce(NEW.cache_read_tokens, 0),
          coalesce(NEW.cache_write_tokens, 0), coalesce(NEW.cost_microdollars, 0), charge)
  ON CONFLICT (owner, day, session, model) DO UPDATE
     SET calls = spending.calls + 1,
         unknown = spending.unknown + excluded.unknown,
         input_tokens = spending.input_tokens + excluded.input_tokens,
         output_tokens = spending.output_tokens + excluded.output_tokens,
         cache_read_tokens = spending.cache_read_tokens + excluded.cache_read_tokens,
         cache_write_tokens = spending.cache_write_tokens + excluded.cache_write_tokens,
         cost = spending.cost + excluded.cost,
         charged = spending.charged + excluded.charged;
  IF kept.owner IS NOT NULL THEN
    UPDATE holdfast.ledger SET turn_id = kept.turn_id, charged = charge
     WHERE owner = NEW.owner AND session = NEW.session AND message_id = NEW.message_id AND attempt = NEW.attempt;
  END IF;
  RETURN NULL;
END
$$;
CREATE TRIGGER ledger_settles AFTER INSERT ON holdfast.ledger FOR EACH ROW EXECUTE FUNCTION holdfast.settle();
