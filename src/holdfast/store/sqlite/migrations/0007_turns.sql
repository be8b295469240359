-- The order of claims is computed owner by owner, and needs the number of held sessions of an owner. An unfinished turn
-- goes before new ones, and a session with a parent before that.
DROP INDEX session_runnable;
DROP INDEX session_unnoted;

CREATE INDEX session_claimable ON session (owner, parent IS NULL, turn_id IS NULL, runnable_since)
  WHERE runnable = 1 AND lease_holder IS NULL;
CREATE INDEX session_unnoted ON session (owner, runnable_since)
  WHERE runnable = 1 AND lease_holder IS NULL AND noted_at IS NULL;
CREATE INDEX session_held ON session (owner, lease_holder) WHERE lease_holder IS NOT NULL;
