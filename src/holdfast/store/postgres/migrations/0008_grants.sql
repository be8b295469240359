-- The person who granted a rule, the time and the session, so that the rule can be revoked there too. Older rows have
-- none of these.
ALTER TABLE holdfast.granted
  ADD COLUMN session text COLLATE "C" NOT NULL DEFAULT '',
  ADD COLUMN granted_by text NOT NULL DEFAULT '',
  ADD COLUMN granted_at bigint NOT NULL DEFAULT 0,
  DROP CONSTRAINT granted_pkey,
  ADD PRIMARY KEY (owner, place, rule, session);
