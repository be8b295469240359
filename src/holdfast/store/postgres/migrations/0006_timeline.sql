-- Which of the servers that have stood in for each other wrote what is in the database: PostgreSQL begins a new timeline
-- with each standby that takes over. Empty where the server does not say.
CREATE FUNCTION holdfast.timeline() RETURNS text LANGUAGE plpgsql STABLE AS $$
BEGIN
  RETURN substr(pg_walfile_name(pg_current_wal_insert_lsn()), 1, 8);
EXCEPTION WHEN OTHERS THEN
  RETURN '';
END $$;

-- The timeline that a process registered in. In any other its leases are over.
ALTER TABLE holdfast.process ADD COLUMN timeline text NOT NULL DEFAULT '';
