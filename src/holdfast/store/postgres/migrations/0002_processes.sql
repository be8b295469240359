-- How each process describes itself, for operators. A process of the release before this one has no description.
ALTER TABLE holdfast.process
  ADD COLUMN role text NOT NULL DEFAULT '',
  ADD COLUMN version text NOT NULL DEFAULT '',
  ADD COLUMN started_at bigint NOT NULL DEFAULT 0,
  ADD COLUMN max_sessions integer NOT NULL DEFAULT 0,
  ADD COLUMN renewed_at timestamptz;
