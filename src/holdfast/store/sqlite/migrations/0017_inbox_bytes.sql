-- How many bytes the items of a session's inbox take up, for the quota of its owner. Their rows stay when they are
-- promoted or removed.
ALTER TABLE session ADD COLUMN inbox_bytes INTEGER NOT NULL DEFAULT 0;
UPDATE session SET inbox_bytes = found.bytes
  FROM (SELECT owner, session, sum(length(payload) + coalesce(length(original), 0)) AS bytes
          FROM inbox GROUP BY owner, session) AS found
 WHERE session.owner = found.owner AND session.id = found.session;
