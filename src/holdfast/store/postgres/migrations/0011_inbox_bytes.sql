-- How many bytes the items of a session's inbox take up, for the quota of its owner. Their rows stay when they are
-- promoted or removed.
ALTER TABLE holdfast.session ADD COLUMN inbox_bytes bigint NOT NULL DEFAULT 0;
UPDATE holdfast.session SET inbox_bytes = found.bytes
  FROM (SELECT owner, session, sum(length(payload) + coalesce(length(original), 0)) AS bytes
          FROM holdfast.inbox GROUP BY owner, session) AS found
 WHERE session.owner = found.owner AND session.id = found.session;
