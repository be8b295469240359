-- Counts the inboxes of before. Processes of the release before this one may go on writing; they count nothing.
UPDATE holdfast.session SET inbox_bytes = found.bytes
  FROM (SELECT owner, session, sum(length(payload) + coalesce(length(original), 0)) AS bytes
          FROM holdfast.inbox GROUP BY owner, session) AS found
 WHERE session.owner = found.owner AND session.id = found.session;
