-- The timeline of the server that wrote the database's contents: PostgreSQL starts a new timeline with each standby
-- that takes over. Empty if the server does not report it.
CREATE FUNCTION holdfast.timeline() RETURNS text LANGUAGE plpgsql STABLE AS $$
BEGIN
  RETURN substr(pg_walfile_name(pg_current_wal_insert_lsn()), 1, 8);
EXCEPTION WHEN OTHERS THEN
  RETURN '';
END $$;

-- The timeline that a process registered in. In any other timeline its leases are over.
ALTER TABLE holdfast.process ADD COLUMN timeline text NOT NULL DEFAULT '';
