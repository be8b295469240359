-- A fenced group commit with nothing else: no lock is passed over, and no server's history is asked for. It stays as it
-- is when the store's own statement learns more, so that the ratio shows what that costs.
WITH given AS (
  SELECT * FROM unnest($1::text[], $2::text[], $3::bigint[], $4::bigint[], $5::integer[], $6::integer[], $7::text[],
                       $8::text[], $9::text[], $10::text[], $11::boolean[], $12::boolean[], $13::boolean[])
    WITH ORDINALITY AS given (owner, session, fence, supposes, events, shown, status, turn_id, title, model, progress,
                              described, drops, number)
), locked AS MATERIALIZED (
  SELECT given.* FROM given CROSS JOIN LATERAL (
    SELECT 1 FROM holdfast.session WHERE owner = given.owner AND id = given.session FOR UPDATE) AS session
), advanced AS (
  UPDATE holdfast.session
     SET head = head + locked.events,
         shown = CASE WHEN locked.shown > 0 THEN head + locked.shown ELSE session.shown END,
         status = coalesce(locked.status, session.status),
         turn_id = CASE WHEN locked.status IS NULL THEN session.turn_id ELSE locked.turn_id END,
         title = coalesce(locked.title, session.title),
         model = coalesce(locked.model, session.model),
         claims = CASE WHEN locked.progress THEN 0 ELSE claims END,
         updated_at = CASE WHEN locked.described OR (locked.events > 0 AND updated_at <= $15::bigint - 1000)
                           THEN $15::bigint ELSE updated_at END
    FROM locked
   WHERE session.owner = locked.owner AND session.id = locked.session AND deleted_at IS NULL
     AND (locked.fence IS NULL OR (session.fence = locked.fence AND lease_holder = $14::text))
     AND (locked.supposes IS NULL OR head = locked.supposes)
  RETURNING locked.number, session.owner, session.id, head, inbox_tail, locked.events, locked.drops
), appended AS (
INSERT INTO holdfast.event (owner, session, position, id, time, type, version, data, said)
SELECT advanced.owner, advanced.id, advanced.head - advanced.events + event.place, event.id, event.time, event.type,
       event.version, event.data, event.said
  FROM unnest($16::integer[], $17::integer[], $18::text[], $19::bigint[], $20::text[], $21::integer[], $22::bytea[],
              $23::text[])
    AS event (number, place, id, time, type, version, data, said)
  JOIN advanced ON advanced.number = event.number
)
SELECT number, head, inbox_tail FROM advanced;
