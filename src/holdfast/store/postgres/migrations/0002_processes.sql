-- What each process says of itself, for whoever looks at them. One of the release before says nothing.
ALTER TABLE holdfast.process
  ADD COLUMN role text NOT NULL DEFAULT '',
  ADD COLUMN version text NOT NULL DEFAULT '',
  ADD COLUMN started_at bigint NOT NULL DEFAULT 0,
  ADD COLUMN max_sessions integer NOT NULL DEFAULT 0,
  ADD COLUMN renewed_at timestamptz;
