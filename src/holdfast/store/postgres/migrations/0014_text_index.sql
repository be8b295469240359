-- The text index of logs. It follows each log at a distance, so existing logs, and events of a release that does not know
-- it, are indexed before the next search needs them.

-- What was said, and results of tools, without what a rewind undid. The words are those of `store/text_index.py`: the
-- database's own parser would find other words than the other stores do, and other ones with every locale.
CREATE TABLE holdfast.passage (
  owner text COLLATE "C" NOT NULL,
  session text COLLATE "C" NOT NULL,
  position bigint NOT NULL,
  tool_call_id text COLLATE "C" NOT NULL,
  words tsvector NOT NULL,
  PRIMARY KEY (owner, session, position)
);
CREATE INDEX passage_words ON holdfast.passage USING gin (words);
CREATE INDEX passage_of_call ON holdfast.passage (owner, session, tool_call_id, position) WHERE tool_call_id <> '';

-- The position up to which the index follows a log. It is not in the session's row: indexing must not lock that.
CREATE TABLE holdfast.indexed (
  owner text COLLATE "C" NOT NULL,
  session text COLLATE "C" NOT NULL,
  position bigint NOT NULL,
  PRIMARY KEY (owner, session)
);

-- Deletes the index with the session, also if an older release deletes it. The mark of a deleted session is past every
-- position: a process that indexes it at the same time waits for this transaction, or this one for its, and then neither
-- adds a passage nor leaves one.
CREATE FUNCTION holdfast.drop_passages() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  INSERT INTO holdfast.indexed AS known (owner, session, position) VALUES (NEW.owner, NEW.id, 9223372036854775807)
  ON CONFLICT (owner, session) DO UPDATE SET position = excluded.position;
  DELETE FROM holdfast.passage WHERE owner = NEW.owner AND session = NEW.id;
  RETURN NULL;
END
$$;
CREATE TRIGGER session_deleted AFTER UPDATE OF deleted_at ON holdfast.session
  FOR EACH ROW WHEN (NEW.deleted_at IS NOT NULL) EXECUTE FUNCTION holdfast.drop_passages();
