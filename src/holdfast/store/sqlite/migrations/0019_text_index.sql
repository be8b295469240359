-- The text index of logs. It follows each log at a distance (`head.indexed` is the position up to which it does), so
-- existing logs, and events of a release that does not know it, are indexed before the next search needs them.
ALTER TABLE head ADD COLUMN indexed INTEGER NOT NULL DEFAULT 0;

-- What was said, and results of tools, without what a rewind undid. `number` is the row in `passage_words`.
CREATE TABLE passage (
  number INTEGER PRIMARY KEY,
  log INTEGER NOT NULL,
  position INTEGER NOT NULL,
  tool_call_id TEXT NOT NULL
);
CREATE UNIQUE INDEX passage_of_log ON passage (log, position);
CREATE INDEX passage_of_call ON passage (log, tool_call_id) WHERE tool_call_id <> '';

-- The distinct words of each passage, as `store/text_index.py` writes them. It keeps them to be able to delete them: an
-- index without its content could be deleted from only by the words that it was made from, and before SQLite 3.43.
CREATE VIRTUAL TABLE passage_words USING fts5 (tokens, tokenize = 'ascii', detail = none, columnsize = 0);

-- The rows of `passage_words` whose sessions are deleted. This release removes them in the deletion, and those that an
-- older release left before it indexes more. (No trigger may change a virtual table here.)
CREATE TABLE passage_gone (number INTEGER PRIMARY KEY);
CREATE TRIGGER session_deleted AFTER UPDATE OF deleted_at ON session WHEN NEW.deleted_at IS NOT NULL BEGIN
  INSERT INTO passage_gone SELECT number FROM passage WHERE log = NEW.log;
  DELETE FROM passage WHERE log = NEW.log;
END;
