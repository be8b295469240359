-- A rule that a person granted is known with who granted it, when, and in which session: so that it can be taken back there
-- too. Rows from before have nothing of it.
ALTER TABLE holdfast.granted
  ADD COLUMN session text COLLATE "C" NOT NULL DEFAULT '',
  ADD COLUMN granted_by text NOT NULL DEFAULT '',
  ADD COLUMN granted_at bigint NOT NULL DEFAULT 0,
  DROP CONSTRAINT granted_pkey,
  ADD PRIMARY KEY (owner, place, rule, session);
