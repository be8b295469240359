-- How many bytes the events of a session take up, for the quota of its owner. Kept in the row that every unit writes
-- anyway.
ALTER TABLE holdfast.session ADD COLUMN bytes bigint NOT NULL DEFAULT 0;
UPDATE holdfast.session SET bytes = found.bytes
  FROM (SELECT owner, session, sum(length(data)) AS bytes FROM holdfast.event GROUP BY owner, session) AS found
 WHERE session.owner = found.owner AND session.id = found.session;
