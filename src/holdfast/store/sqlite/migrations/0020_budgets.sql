-- What an attempt for which money was reserved was charged, and its turn; the charges of each session, day and model together; what is
-- reserved for calls that are under way; the limits of owners. Days are numbered from 1970-01-01, in UTC.
ALTER TABLE ledger ADD COLUMN turn_id TEXT;
ALTER TABLE ledger ADD COLUMN charged INTEGER;
ALTER TABLE ledger ADD COLUMN refused INTEGER NOT NULL DEFAULT 0;
CREATE INDEX ledger_of_turn ON ledger (owner, session, turn_id, charged) WHERE turn_id IS NOT NULL;

CREATE TABLE spending (
  owner TEXT NOT NULL,
  day INTEGER NOT NULL,
  session TEXT NOT NULL,
  model TEXT NOT NULL,
  root TEXT NOT NULL,
  calls INTEGER NOT NULL,
  unknown INTEGER NOT NULL,
  input_tokens INTEGER NOT NULL,
  output_tokens INTEGER NOT NULL,
  cache_read_tokens INTEGER NOT NULL,
  cache_write_tokens INTEGER NOT NULL,
  cost INTEGER NOT NULL,
  charged INTEGER NOT NULL,
  PRIMARY KEY (owner, day, session, model)
) WITHOUT ROWID;
CREATE INDEX spending_of_session ON spending (owner, session, charged);
CREATE INDEX spending_of_tree ON spending (owner, root, charged);

INSERT INTO spending
SELECT owner, time / 86400000, session, model, session, count(*), sum(cost_microdollars IS NULL),
       coalesce(sum(input_tokens), 0), coalesce(sum(output_tokens), 0), coalesce(sum(cache_read_tokens), 0),
       coalesce(sum(cache_write_tokens), 0), coalesce(sum(cost_microdollars), 0), coalesce(sum(cost_microdollars), 0)
  FROM ledger GROUP BY owner, time / 86400000, session, model;

CREATE TABLE reservation (
  owner TEXT NOT NULL,
  session TEXT NOT NULL,
  message_id TEXT NOT NULL,
  attempt INTEGER NOT NULL,
  day INTEGER NOT NULL,
  root TEXT NOT NULL,
  turn_id TEXT,
  model TEXT NOT NULL,
  amount INTEGER NOT NULL,
  fence INTEGER NOT NULL,
  PRIMARY KEY (owner, session, message_id, attempt)
) WITHOUT ROWID;

CREATE TABLE budget (owner TEXT PRIMARY KEY, content BLOB NOT NULL) WITHOUT ROWID;

-- An entry settles the reservation of its attempt. A trigger does it, so that a release that does not know reservations
-- does it too. (An `INSERT` that may find the row there is two statements: within a trigger, the outer statement's way
-- with conflicts holds.)
CREATE TRIGGER ledger_settles AFTER INSERT ON ledger BEGIN
  INSERT OR IGNORE INTO spending
  VALUES (NEW.owner,
          coalesce((SELECT day FROM reservation WHERE owner = NEW.owner AND session = NEW.session
                       AND message_id = NEW.message_id AND attempt = NEW.attempt), NEW.time / 86400000),
          NEW.session, NEW.model,
          coalesce((SELECT root FROM reservation WHERE owner = NEW.owner AND session = NEW.session
                       AND message_id = NEW.message_id AND attempt = NEW.attempt), NEW.session),
          0, 0, 0, 0, 0, 0, 0, 0);
  UPDATE spending
     SET calls = calls + 1,
         unknown = unknown + (NEW.cost_microdollars IS NULL),
         input_tokens = input_tokens + coalesce(NEW.input_tokens, 0),
         output_tokens = output_tokens + coalesce(NEW.output_tokens, 0),
         cache_read_tokens = cache_read_tokens + coalesce(NEW.cache_read_tokens, 0),
         cache_write_tokens = cache_write_tokens + coalesce(NEW.cache_write_tokens, 0),
         cost = cost + coalesce(NEW.cost_microdollars, 0),
         charged = charged + coalesce(
           NEW.cost_microdollars,
           (SELECT amount FROM reservation WHERE owner = NEW.owner AND session = NEW.session
               AND message_id = NEW.message_id AND attempt = NEW.attempt AND NOT NEW.refused), 0)
   WHERE owner = NEW.owner AND session = NEW.session AND model = NEW.model
     AND day = coalesce((SELECT day FROM reservation WHERE owner = NEW.owner AND session = NEW.session
                            AND message_id = NEW.message_id AND attempt = NEW.attempt), NEW.time / 86400000);
  UPDATE ledger
     SET (turn_id, charged) =
         (SELECT turn_id, coalesce(NEW.cost_microdollars, CASE WHEN NEW.refused THEN 0 ELSE amount END)
            FROM reservation WHERE owner = NEW.owner AND session = NEW.session AND message_id = NEW.message_id
             AND attempt = NEW.attempt)
   WHERE owner = NEW.owner AND session = NEW.session AND message_id = NEW.message_id AND attempt = NEW.attempt
     AND EXISTS (SELECT 1 FROM reservation WHERE owner = NEW.owner AND session = NEW.session
                    AND message_id = NEW.message_id AND attempt = NEW.attempt);
  DELETE FROM reservation
   WHERE owner = NEW.owner AND session = NEW.session AND message_id = NEW.message_id AND attempt = NEW.attempt;
END;
