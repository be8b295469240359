-- How many bytes the events of a session take up, for the quota of its owner. Kept in the row that every unit writes
-- anyway.
ALTER TABLE head ADD COLUMN bytes INTEGER NOT NULL DEFAULT 0;
UPDATE head SET bytes = found.bytes
  FROM (SELECT session.log AS log, sum(length(event.data)) AS bytes
          FROM event JOIN session ON session.owner = event.owner AND session.id = event.session
         GROUP BY session.log) AS found
 WHERE head.log = found.log;
