-- The lowest inbox version that can go on with a session which older releases can't: its holder found only items in its
-- inbox that a newer release put. NULL: every release can.
ALTER TABLE holdfast.session ADD COLUMN needs_inbox integer;
CREATE INDEX session_left ON holdfast.session (needs_inbox) WHERE needs_inbox IS NOT NULL;
