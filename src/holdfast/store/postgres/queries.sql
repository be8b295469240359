-- Every statement of the PostgreSQL store, by name. Many rows are passed as arrays, one for each column. `{counted}`,
-- `{needs}` and `{fits}` stand for the fragments of these names.

-- The log

-- name: commit_units
-- One statement for a batch of units of many sessions, one row of $3 to $16 for each session. It waits for no lock: a
-- process that is frozen in a transaction delays the units of the sessions that it locked, and no others. A unit whose
-- session is locked elsewhere, whose fence is not the session's, whose holder is another, or which supposes another
-- head, changes nothing and is not among the returned rows: the caller must find out which ones are missing, and why.
-- Most units only append to the log: lines marked as described are left out of batches that change no other column of
-- a session's row.
WITH given AS (
  SELECT * FROM unnest($3::text[], $4::text[], $5::bigint[], $6::bigint[], $7::integer[], $8::integer[], $9::bigint[]
                       , $10::text[], $11::text[], $12::text[], $13::text[], $14::boolean[] -- described
                       , $15::boolean[], $16::boolean[] -- described
                      )
    WITH ORDINALITY AS given (owner, session, fence, supposes, events, shown, bytes,
                              status, turn_id, title, model, progress, described, drops, -- described
                              number)
), locked AS MATERIALIZED (
  SELECT given.* FROM given CROSS JOIN LATERAL (
    SELECT 1 FROM holdfast.session WHERE owner = given.owner AND id = given.session
       FOR UPDATE SKIP LOCKED) AS session
), advanced AS (
  UPDATE holdfast.session
     SET head = head + locked.events,
         bytes = session.bytes + locked.bytes,
         shown = CASE WHEN locked.shown > 0 THEN head + locked.shown ELSE session.shown END,
         status = coalesce(locked.status, session.status), -- described
         turn_id = CASE WHEN locked.status IS NULL THEN session.turn_id ELSE locked.turn_id END, -- described
         title = coalesce(locked.title, session.title), -- described
         model = coalesce(locked.model, session.model), -- described
         claims = CASE WHEN locked.progress THEN 0 ELSE claims END, -- described
         updated_at = CASE WHEN
                           locked.described OR -- described
                           (locked.events > 0 AND updated_at <= $2::bigint - 1000)
                           THEN $2::bigint ELSE updated_at END
    FROM locked
   WHERE session.owner = locked.owner AND session.id = locked.session AND deleted_at IS NULL
     AND (locked.fence IS NULL OR (session.fence = locked.fence AND lease_holder = $1::text
                                   AND (SELECT {is_same_timeline} FROM holdfast.process WHERE token = $1::text)))
     AND (locked.supposes IS NULL OR head = locked.supposes)
  RETURNING locked.number, session.owner, session.id, head, inbox_tail, locked.events
            , locked.drops -- described
){parts}
SELECT number, head, inbox_tail FROM advanced;

-- The next statements are parts of it, each included only if the batch has such rows: {0}, {1} and so on are its
-- parameters.

-- name: appended
INSERT INTO holdfast.event (owner, session, position, id, time, type, version, data, said)
SELECT advanced.owner, advanced.id, advanced.head - advanced.events + event.place, event.id, event.time, event.type,
       event.version, event.data, event.said
  FROM unnest({0}::integer[], {1}::integer[], {2}::text[], {3}::bigint[], {4}::text[], {5}::integer[], {6}::bytea[],
              {7}::text[])
    AS event (number, place, id, time, type, version, data, said)
  JOIN advanced ON advanced.number = event.number;

-- name: dropped
DELETE FROM holdfast.segment USING advanced
 WHERE advanced.drops AND segment.owner = advanced.owner AND segment.session = advanced.id;

-- name: streamed
INSERT INTO holdfast.segment (owner, session, message_id, attempt, block, start, kind, text, tool_call_id, name)
SELECT advanced.owner, advanced.id, message_id, attempt, block, start, kind, text, tool_call_id, name
  FROM unnest({0}::integer[], {1}::text[], {2}::integer[], {3}::integer[], {4}::bigint[], {5}::text[], {6}::bytea[],
              {7}::text[], {8}::text[])
    WITH ORDINALITY AS segment (number, message_id, attempt, block, start, kind, text, tool_call_id, name, place)
  JOIN advanced ON advanced.number = segment.number
 ORDER BY place;

-- name: used
INSERT INTO holdfast.ledger
  (owner, session, message_id, attempt, model, input_tokens, output_tokens, cache_read_tokens, cost_microdollars, time,
   cache_write_tokens, refused)
SELECT advanced.owner, advanced.id, message_id, attempt, model, input_tokens, output_tokens, cache_read_tokens,
       cost_microdollars, time, cache_write_tokens, refused
  FROM unnest({0}::integer[], {1}::text[], {2}::integer[], {3}::text[], {4}::bigint[], {5}::bigint[], {6}::bigint[],
              {7}::bigint[], {8}::bigint[], {9}::bigint[], {10}::boolean[])
    AS entry (number, message_id, attempt, model, input_tokens, output_tokens, cache_read_tokens, cost_microdollars,
              time, cache_write_tokens, refused)
  JOIN advanced ON advanced.number = entry.number
ON CONFLICT DO NOTHING;

-- name: try_lock_budgets
-- Only one transaction at a time reserves money of an owner. Those whose lock another one has are left out.
SELECT given.owner FROM unnest($1::text[]) WITH ORDINALITY AS given (owner, number)
 WHERE pg_try_advisory_xact_lock(1752132709, hashtext(given.owner));

-- name: lock_budget
SELECT pg_advisory_xact_lock(1752132709, hashtext($1::text));

-- name: wall_ms
SELECT holdfast.wall_ms();

-- name: reserve
-- An attempt that is reserved again keeps the larger amount.
INSERT INTO holdfast.reservation AS kept
  (owner, session, message_id, attempt, day, root, turn_id, model, amount, fence)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10)
ON CONFLICT (owner, session, message_id, attempt) DO UPDATE
   SET amount = greatest(kept.amount, excluded.amount), fence = excluded.fence;

-- name: money
-- What was charged in a day, in the days of a week, to a session, a turn and a tree of sessions, with each reservation of
-- the owner. One statement reads all of it: what is settled meanwhile would be missing from both, or be in both.
SELECT charged.*, kept.session, kept.message_id, kept.attempt, kept.day, kept.root, kept.turn_id, kept.amount
  FROM (SELECT (SELECT coalesce(sum(charged), 0) FROM holdfast.spending WHERE owner = $1 AND day = $2)::bigint AS day_sum,
               (SELECT coalesce(sum(charged), 0) FROM holdfast.spending
                 WHERE owner = $1 AND day BETWEEN $3 AND $4)::bigint AS week_sum,
               (SELECT coalesce(sum(charged), 0) FROM holdfast.spending WHERE owner = $1 AND session = $5)::bigint
                 AS session_sum,
               (SELECT coalesce(sum(charged), 0) FROM holdfast.ledger
                 WHERE owner = $1 AND session = $5 AND turn_id = $6)::bigint AS turn_sum,
               (SELECT coalesce(sum(charged), 0) FROM holdfast.spending WHERE owner = $1 AND root = $7)::bigint
                 AS tree_sum) AS charged
  LEFT JOIN holdfast.reservation AS kept ON kept.owner = $1;

-- name: reservations_left
-- Those whose session nobody holds, or that an earlier holder made.
SELECT reservation.owner, reservation.session, message_id, attempt, reservation.model
  FROM holdfast.reservation
  LEFT JOIN holdfast.session ON session.owner = reservation.owner AND session.id = reservation.session
 WHERE session.id IS NULL OR deleted_at IS NOT NULL OR lease_holder IS NULL OR session.fence <> reservation.fence
 ORDER BY 1, 2, 3, 4 LIMIT $1;

-- name: add_unknown
INSERT INTO holdfast.ledger (owner, session, message_id, attempt, model, time) VALUES ($1, $2, $3, $4, $5, $6)
ON CONFLICT DO NOTHING;

-- name: drop_reservation
DELETE FROM holdfast.reservation WHERE owner = $1 AND session = $2 AND message_id = $3 AND attempt = $4;

-- name: budget
SELECT content FROM holdfast.budget WHERE owner = $1;

-- name: set_budget
INSERT INTO holdfast.budget (owner, content) VALUES ($1, $2)
ON CONFLICT (owner) DO UPDATE SET content = excluded.content;

-- name: budgets
SELECT owner, content FROM holdfast.budget ORDER BY owner;

-- name: spending
SELECT owner, day, session, model, calls, unknown, input_tokens, output_tokens, cache_read_tokens, cache_write_tokens,
       cost, charged
  FROM holdfast.spending
 WHERE ($1::text IS NULL OR owner = $1) AND day BETWEEN $2 AND $3 AND ($4::text IS NULL OR session = $4)
 ORDER BY owner, day, session, model;

-- name: spending_by
-- The groups that were charged the most, with each of their models. A group is an owner, a day, a session or a model.
WITH part AS (
  SELECT CASE WHEN $5::text IN ('owner', 'session') THEN owner ELSE '' END AS owner,
         CASE WHEN $5 = 'day' THEN day ELSE 0 END AS day,
         CASE WHEN $5 = 'session' THEN session ELSE '' END AS session,
         model COLLATE "C" AS model,
         sum(calls)::bigint AS calls, sum(unknown)::bigint AS unknown,
         sum(input_tokens)::bigint AS input_tokens, sum(output_tokens)::bigint AS output_tokens,
         sum(cache_read_tokens)::bigint AS cache_read_tokens, sum(cache_write_tokens)::bigint AS cache_write_tokens,
         sum(cost)::bigint AS cost, sum(charged)::bigint AS charged
    FROM holdfast.spending
   WHERE ($1::text IS NULL OR owner = $1) AND day BETWEEN $2 AND $3
     AND ($4::text IS NULL OR session = $4)
   GROUP BY 1, 2, 3, 4
), most AS (
  SELECT owner, day, session, CASE WHEN $5 = 'model' THEN model ELSE '' END AS model, sum(charged) AS charged
    FROM part GROUP BY 1, 2, 3, 4 ORDER BY 5 DESC, 1, 2, 3, 4 LIMIT $6
)
SELECT part.owner, part.day, part.session, part.model, calls, unknown, input_tokens, output_tokens, cache_read_tokens,
       cache_write_tokens, cost, part.charged
  FROM most JOIN part ON part.owner = most.owner AND part.day = most.day AND part.session = most.session
                     AND ($5 <> 'model' OR part.model = most.model)
 ORDER BY most.charged DESC, 1, 2, 3, 4;

-- name: keep_snapshot
-- Only the holder writes it, only of events in the log, and never an older snapshot over a newer one.
INSERT INTO holdfast.snapshot AS kept (owner, session, fold_version, position, state)
SELECT owner, id, $5::integer, $6::bigint, $7::bytea FROM holdfast.session
 WHERE owner = $1 AND id = $2 AND fence = $3 AND lease_holder = $4 AND deleted_at IS NULL AND head >= $6::bigint
   AND (SELECT {is_same_timeline} FROM holdfast.process WHERE token = $4)
ON CONFLICT (owner, session) DO UPDATE
   SET fold_version = excluded.fold_version, position = excluded.position, state = excluded.state
 WHERE excluded.fold_version <> kept.fold_version OR excluded.position > kept.position;

-- name: is_not_deleted
-- No other process can delete the session until this transaction ends. Returns nothing if another transaction has it
-- locked.
SELECT 1 FROM holdfast.session WHERE owner = $1 AND id = $2 AND deleted_at IS NULL FOR KEY SHARE SKIP LOCKED;

-- name: units_sessions
-- The sessions as they are now, to find out why a unit was refused.
SELECT given.number, fence,
       lease_holder IS NOT DISTINCT FROM $3::text
         AND (SELECT {is_same_timeline} FROM holdfast.process WHERE token = $3::text) IS TRUE,
       head, deleted_at IS NOT NULL
  FROM unnest($1::text[], $2::text[]) WITH ORDINALITY AS given (owner, session, number)
  CROSS JOIN LATERAL (
    SELECT fence, lease_holder, head, deleted_at FROM holdfast.session
     WHERE owner = given.owner AND id = given.session) AS session;

-- name: lock_sessions
-- Of these, the ones that no other transaction has locked.
SELECT given.number
  FROM unnest($1::text[], $2::text[]) WITH ORDINALITY AS given (owner, session, number)
  CROSS JOIN LATERAL (
    SELECT 1 FROM holdfast.session WHERE owner = given.owner AND id = given.session
       FOR UPDATE SKIP LOCKED) AS session;

-- name: create_sessions
INSERT INTO holdfast.session (owner, id, status, title, host, tools, model, parent, made_from, created_at, updated_at)
SELECT owner, id, status, title, host, coalesce(string_to_array(nullif(tools, ''), E'\x1f'), '{}'), model, parent, made_from,
       created_at, $11::bigint
  FROM unnest($1::text[], $2::text[], $3::text[], $4::text[], $5::text[], $6::text[], $7::text[], $8::text[],
              $9::text[], $10::bigint[])
    AS given (owner, id, status, title, host, tools, model, parent, made_from, created_at)
ON CONFLICT DO NOTHING
RETURNING owner, id;

-- name: stored
SELECT count(*), coalesce(sum(bytes + inbox_bytes), 0)::bigint
  FROM holdfast.session WHERE owner = $1 AND deleted_at IS NULL;

-- name: still_waiting
SELECT given.number
  FROM unnest($1::text[], $2::text[], $3::bigint[]) WITH ORDINALITY AS given (owner, session, sequence, number)
  CROSS JOIN LATERAL (
    SELECT 1 FROM holdfast.inbox
     WHERE owner = given.owner AND session = given.session AND sequence = given.sequence AND state = 'accepted')
    AS inbox;

-- name: waiting_answers
SELECT given.number, inbox.sequence
  FROM unnest($1::text[], $2::text[], $3::text[]) WITH ORDINALITY AS given (owner, session, item_key, number)
  CROSS JOIN LATERAL (
    SELECT sequence FROM holdfast.inbox
     WHERE owner = given.owner AND session = given.session AND item_key = given.item_key AND state = 'accepted')
    AS inbox;

-- name: promote
UPDATE holdfast.inbox SET state = given.state, outcome = given.outcome
  FROM unnest($1::text[], $2::text[], $3::bigint[], $4::text[], $5::text[])
    AS given (owner, session, sequence, state, outcome)
 WHERE inbox.owner = given.owner AND inbox.session = given.session AND inbox.sequence = given.sequence
   AND inbox.state = 'accepted';

-- name: open_requests
INSERT INTO holdfast.request (owner, session, id, state, kind, turn_id, tool_call_id, title, opened_at)
SELECT owner, session, id, 'open', kind, turn_id, tool_call_id, title, opened_at
  FROM unnest($1::text[], $2::text[], $3::text[], $4::text[], $5::text[], $6::text[], $7::text[], $8::bigint[])
    AS given (owner, session, id, kind, turn_id, tool_call_id, title, opened_at);

-- name: close_requests
UPDATE holdfast.request SET state = 'closed'
  FROM unnest($1::text[], $2::text[], $3::text[]) AS given (owner, session, id)
 WHERE request.owner = given.owner AND request.session = given.session AND request.id = given.id;

-- The inbox

-- name: lock_session
-- After the tail, the columns are the fields of SessionFacts (admission.py). Other callers only need the lock.
SELECT inbox_tail, turn_id, head, status, runnable, lease_holder IS NOT NULL, {counted} FROM holdfast.session
 WHERE owner = $1 AND id = $2 AND deleted_at IS NULL FOR UPDATE;

-- name: lock_owners
-- Only one transaction at a time counts the turns of an owner and acts on the count. Locks in the order given.
SELECT pg_advisory_xact_lock(1752132708, hashtext(given.owner))
  FROM unnest($1::text[]) WITH ORDINALITY AS given (owner, number);

-- name: try_lock_owners
-- The same for a claim, which skips the owners whose turns another process is counting right now.
SELECT given.owner FROM unnest($1::text[]) WITH ORDINALITY AS given (owner, number)
 WHERE pg_try_advisory_xact_lock(1752132708, hashtext(given.owner));

-- name: last_in_line
SELECT max(runnable_since) FROM holdfast.session
 WHERE owner = $1 AND runnable AND lease_holder IS NULL AND turn_id IS NULL;

-- name: rest
-- A session without a holder that has nothing left to do must not stay claimable: claiming it would take up a place.
UPDATE holdfast.session
   SET runnable = false, runnable_since = NULL, noted_at = NULL, status = 'idle'
 WHERE owner = $1 AND id = $2 AND runnable AND lease_holder IS NULL AND turn_id IS NULL AND deleted_at IS NULL
   AND NOT EXISTS (SELECT 1 FROM holdfast.inbox
                    WHERE inbox.owner = $1 AND inbox.session = $2 AND inbox.state = 'accepted');

-- name: item
SELECT sequence, item_key, state, outcome, accepted_at, while_running, payload, original
  FROM holdfast.inbox WHERE owner = $1 AND session = $2 AND item_key = $3;

-- name: waiting_items
SELECT sequence, item_key, state, outcome, accepted_at, while_running, payload
  FROM holdfast.inbox WHERE owner = $1 AND session = $2 AND state = 'accepted' ORDER BY place;

-- name: waiting_messages
SELECT sequence, item_key, state, outcome, accepted_at, while_running, payload, place
  FROM holdfast.inbox WHERE owner = $1 AND session = $2 AND state = 'accepted' AND kind = 'message' ORDER BY place;

-- name: count_waiting
SELECT count(*) FROM holdfast.inbox
 WHERE owner = $1 AND session = $2 AND state = 'accepted' AND kind = 'message';

-- name: answer_bytes
SELECT coalesce(sum(octet_length(payload)), 0)::bigint FROM holdfast.inbox
 WHERE owner = $1 AND state = 'accepted' AND kind = 'answer';

-- name: is_stopping
SELECT 1 FROM holdfast.inbox WHERE owner = $1 AND session = $2 AND state = 'accepted' AND kind = 'stop' LIMIT 1;

-- name: request_state
SELECT state FROM holdfast.request WHERE owner = $1 AND session = $2 AND id = $3;

-- name: insert_item
INSERT INTO holdfast.inbox (owner, session, item_key, sequence, place, kind, state, outcome, accepted_at, while_running,
                            payload, original)
VALUES ($1, $2, $3, $4, $4, $5, $6, $7, $8, $9, $10, $11);

-- name: wake
UPDATE holdfast.session
   SET inbox_tail = $3,
       runnable_since = CASE WHEN runnable THEN runnable_since ELSE $5 END,
       runnable = true,
       status = CASE WHEN status = 'idle' THEN 'queued' ELSE status END,
       updated_at = $4,
       inbox_bytes = greatest(0, inbox_bytes + $6)
 WHERE owner = $1 AND id = $2;

-- name: raise_tail
UPDATE holdfast.session SET inbox_tail = $3, inbox_bytes = greatest(0, inbox_bytes + $4) WHERE owner = $1 AND id = $2;

-- name: removed_by
-- The messages that a stop returned, to be returned again to a sender that lost the response.
SELECT sequence, item_key, state, outcome, accepted_at, while_running, payload
  FROM holdfast.inbox WHERE owner = $1 AND session = $2 AND removed_by = $3 ORDER BY place;

-- name: remove_items
UPDATE holdfast.inbox SET state = 'removed', outcome = $4, removed_by = $5
 WHERE owner = $1 AND session = $2 AND item_key = ANY ($3::text[]) AND state = 'accepted' AND kind = 'message';

-- name: edit_item
UPDATE holdfast.inbox SET sequence = $4, payload = $5, original = coalesce(original, payload)
 WHERE owner = $1 AND session = $2 AND item_key = $3;

-- name: move_items
UPDATE holdfast.inbox SET sequence = given.sequence, place = given.place
  FROM unnest($3::text[], $4::bigint[], $5::bigint[]) AS given (item_key, sequence, place)
 WHERE owner = $1 AND session = $2 AND inbox.item_key = given.item_key;

-- Processes. Every comparison with an expiry uses this database's clock.

-- name: register
INSERT INTO holdfast.process
       (token, node, alive_until, leases_until, renewed_at, role, version, started_at, max_sessions, timeline)
VALUES ($1, $2, clock_timestamp() + $3 * interval '1 second', clock_timestamp() + $4 * interval '1 second',
        clock_timestamp(), $5, $6, $7, $8, holdfast.timeline())
ON CONFLICT (token) DO UPDATE
   SET alive_until = excluded.alive_until, leases_until = excluded.leases_until, renewed_at = excluded.renewed_at,
       timeline = excluded.timeline;

-- name: is_same_timeline
-- A fragment: no standby has taken over since this process registered. A standby that did may have lost what the
-- process wrote: the state in the process's memory is then ahead of the log, and its leases are over, whatever the rows
-- say.
timeline = holdfast.timeline();

-- name: renew
UPDATE holdfast.process
   SET leases_until = clock_timestamp() + $2 * interval '1 second',
       alive_until = greatest(alive_until, clock_timestamp() + $2 * interval '1 second'),
       renewed_at = clock_timestamp()
 WHERE token = $1 AND leases_until > clock_timestamp() AND {is_same_timeline};

-- name: show_life
UPDATE holdfast.process
   SET alive_until = greatest(alive_until, clock_timestamp() + $2 * interval '1 second'), renewed_at = clock_timestamp()
 WHERE token = $1;

-- name: is_alive
SELECT 1 FROM holdfast.process WHERE token = $1 AND alive_until > clock_timestamp();

-- name: may_claim
-- The lock keeps other processes from declaring this one dead until its claim is committed. Renewals don't wait for it.
SELECT 1 FROM holdfast.process WHERE token = $1 AND leases_until > clock_timestamp() AND {is_same_timeline}
   FOR KEY SHARE SKIP LOCKED;

-- name: gone
-- Processes whose leases are free: they ended, or stopped renewing while they hold sessions. Rows that another
-- transaction is already handling are skipped, not waited for.
SELECT token, alive_until <= clock_timestamp() FROM holdfast.process
 WHERE token <> $1
   AND (alive_until <= clock_timestamp()
        OR (leases_until <= clock_timestamp()
            AND EXISTS (SELECT 1 FROM holdfast.session WHERE lease_holder = token)))
   FOR UPDATE SKIP LOCKED;

-- name: free_leases
-- A session that is locked elsewhere, or was changed this moment, is freed at a later look. Also clears `noted_at`,
-- whatever the dead process was about to do: a session that was noted as waiting for another process is checked once
-- more.
UPDATE holdfast.session SET lease_holder = NULL, noted_at = NULL
 WHERE ctid = ANY (ARRAY(SELECT ctid FROM holdfast.session
                          WHERE lease_holder = ANY ($1::text[]) FOR UPDATE SKIP LOCKED));

-- name: free_own_leases
-- All of them: a process that goes on under the same token must not seem to hold leases that it gave up.
UPDATE holdfast.session SET lease_holder = NULL, noted_at = NULL WHERE lease_holder = $1;

-- name: expire
UPDATE holdfast.process SET alive_until = clock_timestamp(), leases_until = clock_timestamp() WHERE token = $1;

-- name: forget_processes
-- Processes that hold nothing any more, and whose clients' attachments could all be ended. The others stay, as dead
-- ones, for the next process that looks.
DELETE FROM holdfast.process
 WHERE token = ANY ($1::text[]) AND NOT EXISTS (SELECT 1 FROM holdfast.session WHERE lease_holder = token)
   AND NOT EXISTS (SELECT 1 FROM holdfast.attachment WHERE attachment.process = token);

-- Claiming

-- name: is_anything_to_claim
-- Most looks find nothing that this process may take, and cost no transaction. Returns whether a session waits that it
-- may run, and whether there is anything else to do. $1 to $4 are as in `fits`, $5 is the process, $6 the time, $7 the
-- number of kinds to check (see `kinds_waiting`, if there are more, some may fit), and $8 the time before which a
-- waiting session has waited too long for any process. $9 is the inbox version.
WITH RECURSIVE kind AS (
  SELECT 1 AS number, place.host, found.* FROM unnest(ARRAY['', $1::text]) AS place (host)
   CROSS JOIN LATERAL (
     SELECT {needs} AS needs, {fits} AS fits FROM holdfast.session
      WHERE runnable AND lease_holder IS NULL AND host = place.host ORDER BY {needs} LIMIT 1) AS found
  UNION ALL
  SELECT kind.number + 1, kind.host, found.* FROM kind
   CROSS JOIN LATERAL (
     SELECT {needs} AS needs, {fits} AS fits FROM holdfast.session
      WHERE runnable AND lease_holder IS NULL AND host = kind.host AND {needs} > kind.needs
      ORDER BY {needs} LIMIT 1) AS found
   WHERE kind.number < $7::bigint AND NOT kind.fits
)
SELECT EXISTS (SELECT 1 FROM kind WHERE fits OR number = $7::bigint),
       coalesce((SELECT wake_at <= $6::bigint FROM holdfast.session
                  WHERE wake_at IS NOT NULL AND NOT runnable AND deleted_at IS NULL ORDER BY wake_at LIMIT 1), false)
    OR coalesce((SELECT runnable_since <= $8::bigint FROM holdfast.session
                  WHERE runnable AND lease_holder IS NULL AND noted_at IS NULL ORDER BY runnable_since LIMIT 1), false)
    OR (SELECT true FROM holdfast.session
         WHERE needs_inbox IS NOT NULL AND needs_inbox <= $9::integer AND NOT runnable AND deleted_at IS NULL
           AND {fits} ORDER BY needs_inbox LIMIT 1) IS NOT NULL
    OR EXISTS (SELECT 1 FROM holdfast.inbox
                 JOIN holdfast.session ON session.owner = inbox.owner AND session.id = inbox.session
                WHERE inbox.state = 'accepted' AND inbox.kind = 'stop' AND runnable AND lease_holder IS NULL)
    OR EXISTS (SELECT 1 FROM holdfast.process
                WHERE token <> $5::text
                  AND (alive_until <= clock_timestamp()
                       OR (leases_until <= clock_timestamp()
                           AND EXISTS (SELECT 1 FROM holdfast.session WHERE lease_holder = token))));

-- name: wake_due
UPDATE holdfast.session SET runnable = true, runnable_since = coalesce(runnable_since, wake_at)
  FROM (SELECT owner, id FROM holdfast.session
         WHERE wake_at <= $1::bigint AND NOT runnable AND deleted_at IS NULL
         ORDER BY wake_at LIMIT 100 FOR UPDATE SKIP LOCKED) AS due
 WHERE session.owner = due.owner AND session.id = due.id;

-- name: wake_left
-- Sessions that older releases left because of items that they could not read ($5: the inbox version, $6: the time). A
-- session that this process may not run stays for a process that may: an older one would only leave it again, and
-- again.
UPDATE holdfast.session SET runnable = true, runnable_since = $6::bigint, needs_inbox = NULL
  FROM (SELECT owner, id FROM holdfast.session
         WHERE needs_inbox <= $5::integer AND NOT runnable AND deleted_at IS NULL AND {fits}
         ORDER BY needs_inbox LIMIT 100 FOR UPDATE SKIP LOCKED) AS left_ones
 WHERE session.owner = left_ones.owner AND session.id = left_ones.id;

-- name: counted
-- A fragment: whether a running session takes up a slot of its owner. A sub-session uses the slot of its parent's turn.
(session.parent IS NULL OR NOT EXISTS (
    SELECT 1 FROM holdfast.session AS above
     WHERE above.owner = session.owner AND above.id = session.parent AND above.turn_id IS NOT NULL));

-- name: needs
-- A fragment: the needs of a session besides its host, as a number. An index has it.
hash_array_extended((ARRAY[session.model, session.keeper] || session.tools) COLLATE "C", 0);

-- name: fits
-- A fragment: whether a process on node $1 may run a session: on no particular host or on this one, with tools that it
-- has ($2), a model that it can use (none of $3), and secrets that it keeps ($4: under these keepers' names).
(session.host IN ('', $1::text) AND session.tools <@ $2::text[]
 AND (session.model IS NULL OR session.model <> ALL ($3::text[]))
 AND (session.keeper IS NULL OR session.keeper = ANY ($4::text[])));

-- name: kinds_waiting
-- The kinds of sessions that wait on each of the hosts $5, and whether each fits. One kind is all sessions that have
-- the same needs. Each is found by one step in the index, starting after kind $6, at most $7 of them on each host.
WITH RECURSIVE kind AS (
  SELECT 1 AS number, place.host, found.* FROM unnest($5::text[], $6::bigint[]) AS place (host, after)
   CROSS JOIN LATERAL (
     SELECT {needs} AS needs, {fits} AS fits FROM holdfast.session
      WHERE runnable AND lease_holder IS NULL AND host = place.host AND {needs} > place.after
      ORDER BY {needs} LIMIT 1) AS found
  UNION ALL
  SELECT kind.number + 1, kind.host, found.* FROM kind
   CROSS JOIN LATERAL (
     SELECT {needs} AS needs, {fits} AS fits FROM holdfast.session
      WHERE runnable AND lease_holder IS NULL AND host = kind.host AND {needs} > kind.needs
      ORDER BY {needs} LIMIT 1) AS found
   WHERE kind.number < $7::bigint
)
SELECT host, needs, fits FROM kind;

-- name: owners_waiting
-- Owners with sessions of these kinds ($1, $2) that have something to do and no holder: of each kind the owners after
-- $3, each found by one step in the index, at most $4 of them. Returned with their kinds, whether the list of one kind
-- was cut off after this owner, since when the first in their line waits, whether it may need no slot, how many of
-- their sessions are held, and how many slots those take.
WITH RECURSIVE waiting AS (
  SELECT 1 AS number, kind.host, kind.needs, kind.place, found.*
    FROM unnest($1::text[], $2::bigint[]) WITH ORDINALITY AS kind (host, needs, place)
   CROSS JOIN LATERAL (
     SELECT session.owner, runnable_since, parent IS NOT NULL AS is_inner FROM holdfast.session
      WHERE runnable AND lease_holder IS NULL AND host = kind.host AND {needs} = kind.needs AND session.owner > $3::text
      ORDER BY session.owner, parent IS NULL, turn_id IS NULL, runnable_since LIMIT 1) AS found
  UNION ALL
  SELECT waiting.number + 1, waiting.host, waiting.needs, waiting.place, found.*
    FROM waiting
   CROSS JOIN LATERAL (
     SELECT session.owner, runnable_since, parent IS NOT NULL AS is_inner FROM holdfast.session
      WHERE runnable AND lease_holder IS NULL AND host = waiting.host AND {needs} = waiting.needs
        AND session.owner > waiting.owner
      ORDER BY session.owner, parent IS NULL, turn_id IS NULL, runnable_since LIMIT 1) AS found
   WHERE waiting.number < $4::bigint
), of_owner AS (
  SELECT owner, array_agg(place) AS places, bool_or(number = $4::bigint) AS is_cut, min(runnable_since) AS since,
         bool_or(is_inner) AS is_inner
    FROM waiting GROUP BY owner
)
SELECT owner, places, is_cut, since, is_inner,
       (SELECT count(*) FROM holdfast.session WHERE session.owner = of_owner.owner AND lease_holder IS NOT NULL),
       (SELECT count(*) FROM holdfast.session
         WHERE session.owner = of_owner.owner AND lease_holder IS NOT NULL AND {counted})
  FROM of_owner;

-- name: longest_waiting
-- Since when each owner's sessions without a holder wait: of the owners after $1, each found by one step in the index,
-- at most $2 of them. Returned with the number of slots that they have taken.
WITH RECURSIVE waiting AS (
  SELECT 1 AS number,
         (SELECT session.owner FROM holdfast.session
           WHERE runnable AND lease_holder IS NULL AND session.owner > $1::text ORDER BY session.owner LIMIT 1) AS owner
  UNION ALL
  SELECT waiting.number + 1,
         (SELECT session.owner FROM holdfast.session
           WHERE runnable AND lease_holder IS NULL AND session.owner > waiting.owner
           ORDER BY session.owner LIMIT 1)
    FROM waiting WHERE waiting.owner IS NOT NULL AND waiting.number < $2::bigint
)
SELECT owner,
       (SELECT count(*) FROM holdfast.session
         WHERE session.owner = waiting.owner AND lease_holder IS NOT NULL AND {counted}),
       (SELECT min(runnable_since) FROM holdfast.session
         WHERE session.owner = waiting.owner AND runnable AND lease_holder IS NULL)
  FROM waiting WHERE owner IS NOT NULL ORDER BY owner;

-- name: slots_of
SELECT given.owner,
       (SELECT count(*) FROM holdfast.session
         WHERE session.owner = given.owner AND lease_holder IS NOT NULL AND {counted})
  FROM unnest($1::text[]) AS given (owner);

-- name: claimable
-- Sessions of some owners ($5, each with a kind of sessions, $6 and $7) that this process may run. Without a free slot
-- ($8), only those that need none. Sessions that another process is claiming or changing right now are skipped.
SELECT given.owner, found.counted, found.is_new, found.runnable_since, found.id
  FROM unnest($5::text[], $6::text[], $7::bigint[], $8::boolean[]) AS given (owner, host, needs, has_slot)
  CROSS JOIN LATERAL (
    SELECT id, {counted} AS counted, turn_id IS NULL AS is_new, runnable_since FROM holdfast.session
     WHERE runnable AND lease_holder IS NULL AND host = given.host AND {needs} = given.needs
       AND session.owner = given.owner AND (given.has_slot OR NOT {counted}) AND {fits}
     ORDER BY parent IS NULL, turn_id IS NULL, runnable_since LIMIT $9::bigint
     FOR UPDATE OF session SKIP LOCKED) AS found;

-- name: stopping
-- Sessions to be stopped. Any process may stop them.
SELECT session.owner, session.id
  FROM holdfast.inbox
  JOIN holdfast.session ON session.owner = inbox.owner AND session.id = inbox.session
 WHERE inbox.state = 'accepted' AND inbox.kind = 'stop' AND runnable AND lease_holder IS NULL
 LIMIT $1::bigint FOR UPDATE OF session SKIP LOCKED;

-- name: unplaced
-- Sessions that no process has run since $5, longest-waiting first, starting after the one that $6 to $8 name, at most
-- $9 of them. Returned with whether this process may run them: then they wait for a place, and not for a process.
SELECT runnable_since, session.owner, session.id, {fits} FROM holdfast.session
 WHERE runnable AND lease_holder IS NULL AND noted_at IS NULL AND runnable_since <= $5::bigint
   AND (runnable_since, session.owner, session.id) > ($6::bigint, $7::text, $8::text)
 ORDER BY runnable_since, session.owner, session.id LIMIT $9::bigint;

-- name: lock_waiting
-- Of these sessions, those that still wait and that no other process is claiming or changing right now.
SELECT given.owner, given.id
  FROM unnest($1::text[], $2::text[]) AS given (owner, id)
  CROSS JOIN LATERAL (
    SELECT 1 FROM holdfast.session
     WHERE session.owner = given.owner AND session.id = given.id AND runnable AND lease_holder IS NULL
       AND noted_at IS NULL
     FOR UPDATE SKIP LOCKED) AS session;

-- name: take
-- The sessions are locked, in the order in which they are given. The step is random, so that the fence of a claim that
-- the database forgot is not used again.
UPDATE holdfast.session SET fence = fence + $4::bigint, lease_holder = $3::text, claims = claims + 1
  FROM unnest($1::text[], $2::text[]) WITH ORDINALITY AS given (owner, id, number)
 WHERE session.owner = given.owner AND session.id = given.id
RETURNING given.number, fence, claims;

-- name: held
SELECT owner, id, fence FROM holdfast.session WHERE lease_holder = $1 ORDER BY owner, id;

-- name: turns
SELECT
  (SELECT count(*) FROM holdfast.session
    WHERE owner = $1 AND lease_holder IS NOT NULL AND status <> 'waiting' AND {counted}),
  (SELECT count(*) FROM holdfast.session
    WHERE owner = $1 AND lease_holder IS NOT NULL AND status = 'waiting' AND {counted}),
  (SELECT count(*) FROM holdfast.session
    WHERE owner = $1 AND runnable AND lease_holder IS NULL AND {counted});

-- name: release
UPDATE holdfast.session
   SET lease_holder = NULL, claims = 0, runnable = false, runnable_since = NULL, noted_at = NULL,
       needs_inbox = $6,
       status = CASE WHEN status = 'queued' AND turn_id IS NULL THEN 'idle' ELSE status END
 WHERE owner = $1 AND id = $2 AND fence = $3 AND lease_holder = $4 AND inbox_tail = $5 AND deleted_at IS NULL
   AND (SELECT {is_same_timeline} FROM holdfast.process WHERE token = $4);

-- name: hand_over
UPDATE holdfast.session
   SET lease_holder = NULL,
       claims = CASE WHEN $5::text = 'failed' THEN claims ELSE 0 END,
       noted_at = CASE WHEN $5::text = 'for_another' THEN $6 ELSE noted_at END,
       runnable_since = CASE WHEN $5::text = 'gave_way' THEN $7::bigint ELSE runnable_since END
 WHERE owner = $1 AND id = $2 AND fence = $3 AND lease_holder = $4 AND deleted_at IS NULL
   AND (SELECT {is_same_timeline} FROM holdfast.process WHERE token = $4);

-- Presence

-- name: attach
-- The row's id starts with the process's token: the same id at two processes names two attachments.
INSERT INTO holdfast.attachment (owner, session, id, process, node, tools, capabilities, declined, expires_at)
VALUES ($1, $2, $3, $4, $5, $6::text[], $7::text[], $8::text[], clock_timestamp() + $9 * interval '1 second')
ON CONFLICT (owner, session, id) DO UPDATE
   SET process = excluded.process, node = excluded.node, tools = excluded.tools,
       capabilities = excluded.capabilities, expires_at = excluded.expires_at;

-- name: detach
DELETE FROM holdfast.attachment WHERE owner = $1 AND session = $2 AND id = ANY ($3::text[]);

-- name: decline
UPDATE holdfast.attachment
   SET declined = CASE WHEN $4::text = ANY (declined) THEN declined ELSE array_append(declined, $4::text) END
 WHERE owner = $1 AND session = $2 AND id = $3;

-- name: wake_declined
-- The holder of the session sees that the tail has changed, and looks again for a client that could answer.
UPDATE holdfast.session
   SET inbox_tail = inbox_tail + 1,
       runnable_since = CASE WHEN runnable THEN runnable_since ELSE $3 END,
       runnable = true
 WHERE owner = $1 AND id = $2 AND turn_id IS NOT NULL AND deleted_at IS NULL
   AND EXISTS (SELECT 1 FROM holdfast.attachment
                WHERE attachment.owner = $1 AND attachment.session = $2 AND declined <> '{}');

-- name: attachments
SELECT id, process, node, tools, capabilities, declined,
       expires_at > clock_timestamp() AND (process = $3::text OR EXISTS (
         SELECT 1 FROM holdfast.process WHERE token = attachment.process AND alive_until > clock_timestamp()))
  FROM holdfast.attachment WHERE owner = $1 AND session = $2 ORDER BY id;

-- name: attached
SELECT owner, session, id FROM holdfast.attachment WHERE process = $1 AND expires_at > clock_timestamp();

-- name: end_attachments
-- Ends expired attachments, and those of dead processes. Their sessions are woken if a remaining client has declined a
-- request. A session that another transaction has locked is skipped: this statement never waits for one.
WITH ending AS (
  SELECT owner, session, id FROM holdfast.attachment
   WHERE process = ANY ($1::text[]) OR expires_at <= clock_timestamp()
), locked AS MATERIALIZED (
  SELECT owner, id FROM holdfast.session
   WHERE (owner, id) IN (SELECT owner, session FROM ending) ORDER BY owner, id FOR UPDATE SKIP LOCKED
), ended AS (
  DELETE FROM holdfast.attachment USING ending, locked
   WHERE attachment.owner = ending.owner AND attachment.session = ending.session AND attachment.id = ending.id
     AND locked.owner = ending.owner AND locked.id = ending.session
  RETURNING attachment.owner, attachment.session, attachment.id
)
UPDATE holdfast.session
   SET inbox_tail = inbox_tail + 1,
       runnable_since = CASE WHEN runnable THEN runnable_since ELSE $2 END,
       runnable = true
  FROM (SELECT DISTINCT owner, session FROM ended) AS left_by
 WHERE session.owner = left_by.owner AND session.id = left_by.session AND turn_id IS NOT NULL AND deleted_at IS NULL
   AND EXISTS (SELECT 1 FROM holdfast.attachment
                WHERE attachment.owner = session.owner AND attachment.session = session.id AND declined <> '{}'
                  AND NOT EXISTS (SELECT 1 FROM ended
                                   WHERE ended.owner = attachment.owner AND ended.session = attachment.session
                                     AND ended.id = attachment.id));

-- name: grant
INSERT INTO holdfast.granted (owner, place, rule, session, granted_by, granted_at)
SELECT $1, $2, rule, $4, $5, $6 FROM unnest($3::text[]) AS rule
ON CONFLICT DO NOTHING;

-- name: granted
SELECT DISTINCT rule FROM holdfast.granted WHERE owner = $1 AND place IN ('', $2) ORDER BY rule;

-- name: grants
SELECT place, rule, session, granted_by, granted_at FROM holdfast.granted WHERE owner = $1
ORDER BY place, rule, granted_at, session;

-- name: revoke_grant
DELETE FROM holdfast.granted WHERE owner = $1 AND place = $2 AND rule = $3;

-- Secrets that clients entrusted to their sessions. The session's row is locked when these run.

-- name: keep_secret
INSERT INTO holdfast.secret (owner, session, keeper, sealed) VALUES ($1, $2, $3, $4)
ON CONFLICT (owner, session) DO UPDATE SET keeper = excluded.keeper, sealed = excluded.sealed;

-- name: lose_secret
-- Only if the session has got no other keeper meanwhile.
INSERT INTO holdfast.secret (owner, session, keeper, sealed) VALUES ($1, $2, '', '')
ON CONFLICT (owner, session) DO UPDATE SET keeper = '' WHERE secret.keeper = $3 AND secret.sealed = $4;

-- name: drop_secret
DELETE FROM holdfast.secret WHERE owner = $1 AND session = $2;

-- name: secret
SELECT keeper, sealed FROM holdfast.secret WHERE owner = $1 AND session = $2;

-- The text index

-- name: behind
SELECT session.id FROM holdfast.session
  LEFT JOIN holdfast.indexed ON indexed.owner = session.owner AND indexed.session = session.id
 WHERE session.owner = $1 AND deleted_at IS NULL AND head > coalesce(indexed.position, 0)
 ORDER BY updated_at DESC, session.id LIMIT $2;

-- name: index_marks
SELECT given.number, coalesce(indexed.position, 0), session.head
  FROM unnest($1::text[], $2::text[]) WITH ORDINALITY AS given (owner, session, number)
  CROSS JOIN LATERAL (
    SELECT head FROM holdfast.session
     WHERE owner = given.owner AND id = given.session AND deleted_at IS NULL OFFSET 0) AS session
  LEFT JOIN holdfast.indexed ON indexed.owner = given.owner AND indexed.session = given.session
 WHERE session.head > coalesce(indexed.position, 0)
 ORDER BY given.number;

-- name: move_index_mark
INSERT INTO holdfast.indexed AS known (owner, session, position)
SELECT owner, id, $4::bigint FROM holdfast.session WHERE owner = $1 AND id = $2 AND deleted_at IS NULL
ON CONFLICT (owner, session) DO UPDATE SET position = excluded.position WHERE known.position = $3::bigint
RETURNING position;

-- name: unindex
DELETE FROM holdfast.passage WHERE owner = $1 AND session = $2 AND position > $3 AND position < $4;

-- name: index_passages
INSERT INTO holdfast.passage (owner, session, position, tool_call_id, words)
SELECT $1, $2, position, tool_call_id, array_to_tsvector(string_to_array(tokens, ' '))
  FROM unnest($3::bigint[], $4::text[], $5::text[]) AS given (position, tool_call_id, tokens);

-- name: search_log
SELECT position FROM holdfast.passage
 WHERE owner = $1 AND session = $2 AND words @@ $3::text::tsquery AND position < $4
 ORDER BY position DESC LIMIT $5;

-- name: passages
SELECT position FROM holdfast.passage
 WHERE owner = $1 AND session = $2 AND position BETWEEN $3 AND $4 ORDER BY position LIMIT $5;

-- name: tool_result
SELECT position FROM holdfast.passage
 WHERE owner = $1 AND session = $2 AND tool_call_id = $3 AND tool_call_id <> '' ORDER BY position DESC LIMIT 1;

-- Annotations of owners

-- name: annotated
SELECT head, coalesce(seen, 0), coalesce(pinned, false), metadata
  FROM holdfast.session
  LEFT JOIN holdfast.annotation ON annotation.owner = session.owner AND annotation.session = session.id
 WHERE session.owner = $1 AND session.id = $2 AND deleted_at IS NULL;

-- name: annotate
INSERT INTO holdfast.annotation (owner, session, seen, pinned, metadata) VALUES ($1, $2, $3, $4, $5)
ON CONFLICT (owner, session) DO UPDATE
   SET seen = excluded.seen, pinned = excluded.pinned, metadata = excluded.metadata;

-- Deleting

-- name: delete_session
UPDATE holdfast.session
   SET deleted_at = $3, fence = fence + $4::bigint, lease_holder = NULL, runnable = false, runnable_since = NULL, wake_at = NULL,
       status = 'idle', turn_id = NULL, title = '', bytes = 0
 WHERE owner = $1 AND id = $2 AND deleted_at IS NULL;

-- name: delete_events
DELETE FROM holdfast.event WHERE owner = $1 AND session = $2;

-- name: delete_segments
DELETE FROM holdfast.segment WHERE owner = $1 AND session = $2;

-- name: delete_inbox
DELETE FROM holdfast.inbox WHERE owner = $1 AND session = $2;

-- name: delete_requests
DELETE FROM holdfast.request WHERE owner = $1 AND session = $2;

-- name: delete_snapshot
DELETE FROM holdfast.snapshot WHERE owner = $1 AND session = $2;

-- name: delete_attachments
DELETE FROM holdfast.attachment WHERE owner = $1 AND session = $2;

-- name: delete_annotation
DELETE FROM holdfast.annotation WHERE owner = $1 AND session = $2;

-- Reading

-- name: sessions
-- The rows of many sessions, in the order in which they are given.
SELECT session.owner, session.id, head, inbox_tail, status, turn_id, title, host, created_at, updated_at,
       (SELECT count(*) FROM holdfast.request
         WHERE request.owner = session.owner AND request.session = session.id AND request.state = 'open'
           AND NOT EXISTS (SELECT 1 FROM holdfast.inbox
                            WHERE inbox.owner = request.owner AND inbox.session = request.session
                              AND inbox.item_key = 'answer:' || request.id)),
       (SELECT count(*) FROM holdfast.inbox
         WHERE inbox.owner = session.owner AND inbox.session = session.id AND inbox.state = 'accepted'
           AND inbox.kind = 'message'),
       lease_holder, model, coalesce(parent, made_from), shown, coalesce(seen, 0), coalesce(pinned, false), metadata
  FROM unnest($1::text[], $2::text[]) WITH ORDINALITY AS given (owner, id, number)
  CROSS JOIN LATERAL (
    SELECT * FROM holdfast.session
     WHERE owner = given.owner AND id = given.id AND deleted_at IS NULL OFFSET 0) AS session
  LEFT JOIN holdfast.annotation ON annotation.owner = session.owner AND annotation.session = session.id
 ORDER BY number;

-- name: listed
-- A page, newest first.
SELECT session.id FROM holdfast.session
  LEFT JOIN holdfast.annotation ON annotation.owner = session.owner AND annotation.session = session.id
 WHERE session.owner = $1 AND deleted_at IS NULL AND updated_at <= $2 AND (updated_at < $2 OR session.id > $3)
   AND ($6::boolean IS NULL OR coalesce(pinned, false) = $6)
   AND ($4::text = '' OR title ILIKE $4 OR session.id IN (
     SELECT passage.session FROM holdfast.passage
      WHERE passage.owner = $1 AND tool_call_id = '' AND words @@ $7::text::tsquery))
 ORDER BY updated_at DESC, session.id LIMIT $5;

-- name: events_after
SELECT position, id, time, type, version, data FROM holdfast.event
 WHERE owner = $1 AND session = $2 AND position > $3 ORDER BY position LIMIT $4;

-- name: events_page
-- The same, cut after a number of bytes of data. Of all events only the sizes are read, and the data only of those that
-- fit.
SELECT position, id, time, type, version, data FROM (
  SELECT position, id, time, type, version, data, sum(octet_length(data)) OVER (ORDER BY position) AS so_far FROM (
    SELECT position, id, time, type, version, data FROM holdfast.event
     WHERE owner = $1 AND session = $2 AND position > $3 ORDER BY position LIMIT $4) AS page) AS sized
 WHERE so_far <= $5 OR position = $3 + 1 ORDER BY position;

-- name: turn_start
SELECT position FROM holdfast.event
 WHERE owner = $1 AND session = $2 AND type = $3 ORDER BY position DESC LIMIT 1;

-- name: load_sizes
-- How many rows, and how many bytes, each session's load has to read. Rows of each kind are counted up to $4, and no
-- data is read.
SELECT given.number,
       greatest(log.rows, pieces.rows, items.rows),
       coalesce(octet_length(kept.state), 0) + log.bytes + pieces.bytes + items.bytes
  FROM unnest($1::text[], $2::text[]) WITH ORDINALITY AS given (owner, session, number)
  LEFT JOIN holdfast.snapshot AS kept
    ON kept.owner = given.owner AND kept.session = given.session AND kept.fold_version = $3
  CROSS JOIN LATERAL (
    SELECT count(*) AS rows, coalesce(sum(octet_length(data)), 0) AS bytes FROM (
      SELECT data FROM holdfast.event
       WHERE owner = given.owner AND session = given.session AND position > coalesce(kept.position, 0)
       ORDER BY position LIMIT $4) AS found) AS log
  CROSS JOIN LATERAL (
    SELECT count(*) AS rows, coalesce(sum(octet_length(text)), 0) AS bytes FROM (
      SELECT text FROM holdfast.segment WHERE owner = given.owner AND session = given.session LIMIT $4) AS found) AS pieces
  CROSS JOIN LATERAL (
    SELECT count(*) AS rows, coalesce(sum(octet_length(payload)), 0) AS bytes FROM (
      SELECT payload FROM holdfast.inbox
       WHERE owner = given.owner AND session = given.session AND state = 'accepted' LIMIT $4) AS found) AS items;

-- name: events_of
-- The events of many sessions, each after a position of its own.
SELECT given.number, event.position, event.id, event.time, event.type, event.version, event.data
  FROM unnest($1::text[], $2::text[], $3::bigint[]) WITH ORDINALITY AS given (owner, session, after, number)
  CROSS JOIN LATERAL (
    SELECT * FROM holdfast.event
     WHERE owner = given.owner AND session = given.session AND position > given.after
     ORDER BY position) AS event;

-- name: snapshots_of
SELECT given.number, snapshot.fold_version, snapshot.position, snapshot.state
  FROM unnest($1::text[], $2::text[]) WITH ORDINALITY AS given (owner, session, number)
  CROSS JOIN LATERAL (
    SELECT * FROM holdfast.snapshot
     WHERE owner = given.owner AND session = given.session AND fold_version = $3 OFFSET 0) AS snapshot;

-- name: inbox_of
SELECT given.number, item.sequence, item.item_key, item.state, item.outcome, item.accepted_at, item.while_running,
       item.payload
  FROM unnest($1::text[], $2::text[]) WITH ORDINALITY AS given (owner, session, number)
  CROSS JOIN LATERAL (
    SELECT * FROM holdfast.inbox
     WHERE owner = given.owner AND session = given.session AND state = 'accepted' ORDER BY place) AS item;

-- name: segments_of
SELECT given.number, segment.message_id, segment.attempt, segment.block, segment.start, segment.kind, segment.text,
       segment.tool_call_id, segment.name
  FROM unnest($1::text[], $2::text[]) WITH ORDINALITY AS given (owner, session, number)
  CROSS JOIN LATERAL (
    SELECT * FROM holdfast.segment WHERE owner = given.owner AND session = given.session
     ORDER BY message_id, attempt, block, start) AS segment;

-- name: segments
SELECT message_id, attempt, block, start, kind, text, tool_call_id, name FROM holdfast.segment
 WHERE owner = $1 AND session = $2
   AND (message_id IS DISTINCT FROM $3::text OR block > $4
        OR (block = $4 AND (start + length(text) > $5 OR (length(text) = 0 AND start >= $5))))
 ORDER BY message_id, attempt, block, start;

-- name: requests
-- A request with an accepted answer that is not promoted yet asks for nothing any more: it is returned only with $3.
SELECT id, kind, turn_id, tool_call_id, title, opened_at FROM holdfast.request
 WHERE owner = $1 AND session = $2 AND state = 'open'
   AND ($3::boolean OR NOT EXISTS (
     SELECT 1 FROM holdfast.inbox
      WHERE inbox.owner = request.owner AND inbox.session = request.session
        AND inbox.item_key = 'answer:' || request.id))
 ORDER BY opened_at, id;

-- name: glance
SELECT status, count(*), count(*) FILTER (WHERE updated_at >= $2)
  FROM holdfast.session WHERE owner = $1 AND deleted_at IS NULL GROUP BY status;

-- name: glance_first
-- Sessions that wait for a person or client first, the longest wait first. Then the others, latest first.
SELECT id FROM (
  (SELECT id, 0 AS need, updated_at AS since FROM holdfast.session
    WHERE owner = $1 AND deleted_at IS NULL AND status = 'waiting' ORDER BY updated_at LIMIT $2)
  UNION ALL
  (SELECT id, 1, -updated_at FROM holdfast.session
    WHERE owner = $1 AND deleted_at IS NULL AND status = 'running' ORDER BY updated_at DESC LIMIT $2)
  UNION ALL
  (SELECT id, 2, -updated_at FROM holdfast.session
    WHERE owner = $1 AND deleted_at IS NULL AND status = 'queued' ORDER BY updated_at DESC LIMIT $2)
  UNION ALL
  (SELECT id, 3, -updated_at FROM holdfast.session
    WHERE owner = $1 AND deleted_at IS NULL AND status = 'idle' ORDER BY updated_at DESC LIMIT $2)
) AS first ORDER BY need, since, id LIMIT $2;

-- name: oldest_unclaimed
SELECT least(
  (SELECT min(runnable_since) FROM holdfast.session WHERE runnable AND lease_holder IS NULL AND noted_at IS NULL),
  (SELECT min(runnable_since) FROM holdfast.session WHERE runnable AND lease_holder IS NULL AND noted_at IS NOT NULL));

-- name: identity
SELECT name FROM holdfast.identity;

-- name: tails
SELECT given.number, session.fence, session.inbox_tail
  FROM unnest($1::text[], $2::text[]) WITH ORDINALITY AS given (owner, session, number)
  CROSS JOIN LATERAL (
    SELECT fence, inbox_tail FROM holdfast.session WHERE owner = given.owner AND id = given.session OFFSET 0) AS session;

-- name: keep_prompt
INSERT INTO holdfast.prompt (digest, content) VALUES ($1, $2) ON CONFLICT DO NOTHING;

-- name: prompt
SELECT content FROM holdfast.prompt WHERE digest = $1;

-- name: ledger
SELECT message_id, attempt, model, input_tokens, output_tokens, cache_read_tokens, cost_microdollars, time,
       cache_write_tokens, refused
  FROM holdfast.ledger WHERE owner = $1 AND ($2::text IS NULL OR session = $2)
 ORDER BY time, session, message_id, attempt;

-- Tasks

-- name: open_tasks
-- A second attempt at the same call finds the row of the first.
INSERT INTO holdfast.task
  (owner, session, id, tool_call_id, call_key, command, description, directory, host, output_file, alias, foreground,
   status, stalled, exit_code, detail, started_at, ended_at, kill_asked, settled)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, 'running', false, NULL, '', $13, NULL, '', false)
ON CONFLICT DO NOTHING;

-- name: task_to_background
UPDATE holdfast.task SET foreground = false WHERE owner = $1 AND session = $2 AND id = $3;

-- name: end_foreground_task
UPDATE holdfast.task SET status = $4, exit_code = $5, detail = $6, ended_at = $7, kill_asked = '', settled = true
 WHERE owner = $1 AND session = $2 AND id = $3 AND status = 'running';

-- name: end_foreground_tasks
UPDATE holdfast.task SET kill_asked = 'stop'
 WHERE owner = $1 AND session = $2 AND ($3::text IS NULL OR id = $3) AND foreground AND status = 'running';

-- name: end_task
-- Only the task's own machine settles it. A task that another machine gave up as lost may turn out to have ended
-- otherwise.
UPDATE holdfast.task
   SET status = $4, exit_code = $5, detail = $6, ended_at = $7, stalled = false, settled = (host = $8),
       kill_asked = CASE WHEN kill_asked = 'deletion' THEN kill_asked ELSE '' END
 WHERE owner = $1 AND session = $2 AND id = $3
   AND NOT settled AND (status = 'running' OR host = $8);

-- name: stall_task
UPDATE holdfast.task SET stalled = true
 WHERE owner = $1 AND session = $2 AND id = $3 AND status = 'running' AND NOT stalled AND NOT foreground;

-- name: unstall_task
UPDATE holdfast.task SET stalled = false WHERE owner = $1 AND session = $2 AND id = $3 AND stalled;

-- name: kill_task
UPDATE holdfast.task SET kill_asked = $4
 WHERE owner = $1 AND session = $2 AND id = $3 AND status = 'running' AND kill_asked = '';

-- name: delete_tasks
-- The rows stay until their commands are killed and forgotten: the task keeper that does so must find them.
UPDATE holdfast.task SET kill_asked = 'deletion', command = '', description = '' WHERE owner = $1 AND session = $2;

-- name: drop_task
DELETE FROM holdfast.task WHERE owner = $1 AND session = $2 AND id = $3;

-- name: drop_old_tasks
DELETE FROM holdfast.task
 WHERE end_noted_at <= (extract(epoch FROM clock_timestamp()) * 1000)::bigint - $1::bigint
   AND kill_asked = '' AND status <> 'running';

-- name: see_host
INSERT INTO holdfast.task_host (id, seen_at) VALUES ($1, (extract(epoch FROM clock_timestamp()) * 1000)::bigint)
ON CONFLICT (id) DO UPDATE SET seen_at = excluded.seen_at;

-- name: silent_ms
-- A fragment: how long the machine of a task has been silent, or the task's row has existed if that is less.
greatest(0, (extract(epoch FROM clock_timestamp()) * 1000)::bigint - greatest(coalesce(seen_at, 0), opened_at));

-- name: session_tasks
SELECT task.owner, session, task.id, tool_call_id, call_key, command, description, directory, host, output_file, alias,
       foreground, status, stalled, exit_code, detail, started_at, ended_at, kill_asked, {silent_ms}
  FROM holdfast.task LEFT JOIN holdfast.task_host ON task_host.id = host
 WHERE owner = $1 AND session = $2 AND kill_asked <> 'deletion' AND ($3::text IS NULL OR task.id = $3)
   AND (NOT $4::boolean OR status = 'running')
 ORDER BY started_at, task.id;

-- name: owner_tasks
SELECT task.owner, session, task.id, tool_call_id, call_key, command, description, directory, host, output_file, alias,
       foreground, status, stalled, exit_code, detail, started_at, ended_at, kill_asked, {silent_ms}
  FROM holdfast.task LEFT JOIN holdfast.task_host ON task_host.id = host
 WHERE owner = $1 AND kill_asked <> 'deletion'
 ORDER BY started_at, task.id;

-- name: host_tasks
SELECT task.owner, session, task.id, tool_call_id, call_key, command, description, directory, host, output_file, alias,
       foreground, status, stalled, exit_code, detail, started_at, ended_at, kill_asked, {silent_ms}
  FROM holdfast.task LEFT JOIN holdfast.task_host ON task_host.id = host
 WHERE host = $1 AND (NOT settled OR kill_asked <> '') AND (NOT foreground OR kill_asked <> '');

-- name: stray_tasks
SELECT task.owner, session, task.id, tool_call_id, call_key, command, description, directory, host, output_file, alias,
       foreground, status, stalled, exit_code, detail, started_at, ended_at, kill_asked, {silent_ms}
  FROM holdfast.task LEFT JOIN holdfast.task_host ON task_host.id = host
 WHERE host <> $1 AND (NOT settled OR kill_asked <> '') AND (status = 'running' OR kill_asked <> '')
   AND (NOT foreground OR kill_asked <> '') AND {silent_ms} >= $2::bigint;

-- API keys

-- name: add_key
INSERT INTO holdfast.api_key (id, name, owner, role, digest, created_at) VALUES ($1, $2, $3, $4, $5, $6);

-- name: revoke_key
UPDATE holdfast.api_key SET revoked_at = $2 WHERE id = $1 AND revoked_at IS NULL;

-- name: valid_key
SELECT id, name, owner, role, digest, created_at, revoked_at
  FROM holdfast.api_key WHERE id = $1 AND digest = $2 AND revoked_at IS NULL;

-- name: keys
SELECT id, name, owner, role, digest, created_at, revoked_at
  FROM holdfast.api_key WHERE $1::text IS NULL OR id = $1 ORDER BY created_at, id;

-- The audit log

-- name: share_audit
-- Held until the commit. The statements after it number their entries.
SELECT pg_advisory_xact_lock_shared(1752132709, 0);

-- name: add_audit
INSERT INTO holdfast.audit (at, actor, actor_id, actor_owner, role, address, action, owner, target, result, detail)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11);

-- name: audit_head
SELECT CASE WHEN is_called THEN last_value ELSE 0 END FROM holdfast.audit_number;

-- name: settle_audit
-- Waits until every transaction has ended that had numbered an entry before.
SELECT pg_advisory_xact_lock(1752132709, 0);

-- name: audit_log
SELECT number, at, actor, actor_id, actor_owner, role, address, action, owner, target, result, detail
  FROM holdfast.audit WHERE number > $1 AND number <= $2 ORDER BY number LIMIT $3;

-- name: trim_audit
-- Looks at the oldest entries only, so that it needs no index by time.
DELETE FROM holdfast.audit
 WHERE at < $1 AND number IN (SELECT number FROM holdfast.audit ORDER BY number LIMIT $2);
-- Webhooks

-- name: count_webhooks
SELECT count(*) FROM holdfast.webhook WHERE owner = $1;

-- name: add_webhook
INSERT INTO holdfast.webhook
  (id, owner, url, events, types, description, is_active, created_at, keeper, secret, old_secret, old_until)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12);

-- name: change_webhook
UPDATE holdfast.webhook
   SET url = $3, events = $4, types = $5, description = $6, is_active = $7, created_at = $8, keeper = $9, secret = $10,
       old_secret = $11, old_until = $12
 WHERE id = $1 AND owner = $2;

-- name: webhook_types
INSERT INTO holdfast.webhook_type (owner, type, webhook) SELECT $1, type, $2 FROM unnest($3::text[]) AS type
ON CONFLICT DO NOTHING;

-- name: drop_webhook_types
DELETE FROM holdfast.webhook_type WHERE webhook = $2 AND owner = $1;

-- name: webhook_due_now
UPDATE holdfast.webhook_delivery SET due_at = 0 WHERE webhook = $1 AND state = 'pending' AND due_at > 0;

-- name: delete_webhook
DELETE FROM holdfast.webhook WHERE owner = $1 AND id = $2;

-- name: delete_deliveries
DELETE FROM holdfast.webhook_delivery WHERE webhook = $1;

-- name: webhooks
SELECT id, owner, url, events, types, description, is_active, created_at, keeper, secret, old_secret, old_until
  FROM holdfast.webhook WHERE owner = $1 AND ($2::text IS NULL OR id = $2) ORDER BY created_at, id;

-- name: webhook
SELECT id, owner, url, events, types, description, is_active, created_at, keeper, secret, old_secret, old_until
  FROM holdfast.webhook WHERE id = $1;

-- name: lock_webhook
SELECT id, owner, url, events, types, description, is_active, created_at, keeper, secret, old_secret, old_until
  FROM holdfast.webhook WHERE owner = $1 AND id = $2 FOR UPDATE;

-- name: webhook_backlog
SELECT count(*), min(since) FILTER (WHERE fault IS NOT NULL)
  FROM holdfast.webhook_delivery WHERE webhook = $1 AND state = 'pending';

-- name: delivery_fields
-- A fragment: the columns of a delivery.
webhook, event_id, owner, session, position, type, time, state, single, attempts, due_at, since, tried_at, status,
fault, ended_at;

-- name: deliveries
SELECT {delivery_fields} FROM holdfast.webhook_delivery
 WHERE webhook = $1 AND owner = $2 AND ($3::text IS NULL OR state = $3)
   AND ($4::text IS NULL OR number < (SELECT last.number FROM holdfast.webhook_delivery AS last
                                       WHERE last.webhook = $1 AND last.event_id = $4))
 ORDER BY number DESC LIMIT $5;

-- name: delivery
SELECT {delivery_fields} FROM holdfast.webhook_delivery WHERE webhook = $1 AND event_id = $3 AND owner = $2;

-- name: add_delivery
INSERT INTO holdfast.webhook_delivery (webhook, event_id, owner, session, position, type, time, single)
SELECT id, $3, owner, '', 0, $4, $5, true FROM holdfast.webhook WHERE id = $1 AND owner = $2;

-- name: count_tests
SELECT count(*) FROM holdfast.webhook_delivery WHERE webhook = $1 AND owner = $2 AND session = '' AND state = 'pending';

-- name: send_again
-- A delivery that has ended is attempted once more, outside its line: it must not hold up what followed it.
UPDATE holdfast.webhook_delivery
   SET single = single OR state <> 'pending',
       since = CASE WHEN state = 'pending' THEN since END,
       state = 'pending', due_at = 0, ended_at = NULL
 WHERE webhook = $1 AND event_id = $3 AND owner = $2;

-- name: due_deliveries
-- Of each webhook one delivery that is due, that no living process holds, and that is the first in its line. $4 is this
-- process, $5 the deliveries that it attempts: others that it holds come from a claim whose outcome it never learnt. A
-- delivery that another process claims right now is skipped. The lock checks the conditions once more.
WITH RECURSIVE waiting (webhook) AS (
  (SELECT min(webhook) FROM holdfast.webhook_delivery WHERE state = 'pending')
  UNION ALL
  SELECT (SELECT min(next.webhook) FROM holdfast.webhook_delivery AS next
           WHERE next.state = 'pending' AND next.webhook > waiting.webhook)
    FROM waiting WHERE waiting.webhook IS NOT NULL)
SELECT found.*
  FROM waiting
  JOIN holdfast.webhook ON webhook.id = waiting.webhook AND webhook.is_active AND webhook.keeper IN ('', $2)
  CROSS JOIN LATERAL (
    SELECT {delivery_fields} FROM holdfast.webhook_delivery AS due
     WHERE due.webhook = waiting.webhook AND due.state = 'pending' AND due.due_at <= $1
       AND CASE WHEN due.held_by = $4::text THEN due.webhook || ' ' || due.event_id <> ALL ($5::text[])
                ELSE due.held_by IS NULL OR NOT EXISTS (
                  SELECT 1 FROM holdfast.process WHERE token = due.held_by AND alive_until > clock_timestamp()) END
       AND (due.single OR NOT EXISTS (
         SELECT 1 FROM holdfast.webhook_delivery AS earlier
          WHERE earlier.webhook = due.webhook AND earlier.owner = due.owner AND earlier.session = due.session
            AND earlier.state = 'pending' AND NOT earlier.single AND earlier.position < due.position))
     ORDER BY due.due_at LIMIT 1 FOR UPDATE SKIP LOCKED) AS found
 WHERE waiting.webhook <> ALL ($3::text[])
   AND EXISTS (SELECT 1 FROM holdfast.process WHERE token = $4::text AND alive_until > clock_timestamp())
 LIMIT $6;

-- name: has_due_deliveries
-- Most looks find nothing pending, and cost no transaction.
SELECT 1 FROM holdfast.webhook_delivery WHERE state = 'pending' LIMIT 1;

-- name: hold_delivery
UPDATE holdfast.webhook_delivery
   SET held_by = $3, attempts = attempts + 1, tried_at = $4, since = coalesce(since, $4)
 WHERE webhook = $1 AND event_id = $2;

-- name: end_delivery
UPDATE holdfast.webhook_delivery
   SET state = $5, due_at = $6, status = $7, fault = $8, ended_at = $9, held_by = NULL
 WHERE webhook = $1 AND event_id = $2 AND held_by = $3 AND attempts = $4;

-- name: drop_delivery
DELETE FROM holdfast.webhook_delivery WHERE webhook = $1 AND event_id = $2 AND held_by = $3 AND attempts = $4;

-- name: delay_line
UPDATE holdfast.webhook_delivery SET due_at = $4
 WHERE webhook = $1 AND owner = $2 AND session = $3 AND state = 'pending' AND NOT single AND due_at < $4;

-- name: free_line
UPDATE holdfast.webhook_delivery
   SET due_at = 0, since = CASE WHEN $4::boolean THEN coalesce(since, time) ELSE since END
 WHERE webhook = $1 AND owner = $2 AND session = $3 AND state = 'pending' AND NOT single;

-- name: drop_old_deliveries
-- Also those of a webhook that was deleted while a session's events were committed.
DELETE FROM holdfast.webhook_delivery
 WHERE number IN (
   SELECT number FROM holdfast.webhook_delivery AS old
    WHERE ended_at <= $1 OR NOT EXISTS (SELECT 1 FROM holdfast.webhook WHERE webhook.id = old.webhook)
    LIMIT $2);

-- Other processes

-- name: announce
SELECT pg_notify('holdfast', $1::text);

-- name: latest
-- It grows with every transaction that writes, of any program.
SELECT pg_snapshot_xmax(pg_current_snapshot())::text::bigint;

-- Survey of a database from outside. These use only what the first migration created, and read anything newer in a way
-- that returns nothing if it is missing.

-- name: survey_server
SELECT current_setting('server_version'), pg_is_in_recovery(), current_setting('default_transaction_read_only') = 'on';

-- name: survey_replicas
SELECT count(*), max(extract(epoch FROM replay_lag))::float8 FROM pg_stat_replication;

-- name: survey_standby
-- Either nothing was written for a while, or the standby is behind: only in the first case has everything arrived.
SELECT CASE WHEN pg_last_wal_receive_lsn() = pg_last_wal_replay_lsn() THEN 0
            ELSE extract(epoch FROM clock_timestamp() - pg_last_xact_replay_timestamp()) END::float8;

-- name: survey_contents
SELECT count(*), count(*) FILTER (WHERE status <> 'idle'), coalesce(sum(head), 0)::bigint,
       (SELECT sum(pg_total_relation_size(pg_class.oid))::bigint FROM pg_class
          JOIN pg_namespace ON pg_namespace.oid = relnamespace WHERE nspname = 'holdfast' AND relkind = 'r')
  FROM holdfast.session WHERE deleted_at IS NULL;

-- name: survey_work
SELECT (SELECT count(*) FROM holdfast.session WHERE lease_holder IS NOT NULL),
       (SELECT count(*) FROM holdfast.session
         WHERE lease_holder IS NOT NULL
           AND NOT EXISTS (SELECT 1 FROM holdfast.process
                            WHERE token = lease_holder AND leases_until > clock_timestamp())),
       (SELECT count(*) FROM holdfast.session WHERE runnable AND lease_holder IS NULL),
       (SELECT min(runnable_since) FROM holdfast.session WHERE runnable AND lease_holder IS NULL),
       (SELECT count(*) FROM holdfast.session WHERE wake_at <= time.now AND NOT runnable AND deleted_at IS NULL),
       (SELECT min(wake_at) FROM holdfast.session WHERE wake_at <= time.now AND NOT runnable AND deleted_at IS NULL),
       (SELECT count(*) FROM holdfast.request WHERE state = 'open'),
       time.now
  FROM (SELECT (extract(epoch FROM clock_timestamp()) * 1000)::bigint AS now) AS time;

-- name: survey_processes
SELECT token, node, alive_until > clock_timestamp(),
       extract(epoch FROM clock_timestamp() - (says ->> 'renewed_at')::timestamptz)::float8,
       coalesce(says ->> 'role', ''), coalesce(says ->> 'version', ''), coalesce((says ->> 'started_at')::bigint, 0),
       coalesce((says ->> 'max_sessions')::integer, 0),
       (SELECT count(*) FROM holdfast.session WHERE lease_holder = token)
  FROM holdfast.process, to_jsonb(process) AS says
 ORDER BY node, token;

-- Files: their rows, in the order of the fields of FileRow, their uses, and their contents

-- name: file
SELECT owner, id, name, media_type, size, digest, created_at, is_kept, made_by, content
  FROM holdfast.file WHERE owner = $1 AND id = $2;

-- name: files
SELECT owner, id, name, media_type, size, digest, created_at, is_kept, made_by, content
  FROM holdfast.file WHERE owner = $1 AND (created_at, id) < ($2, $3)
 ORDER BY created_at DESC, id DESC LIMIT $4;

-- name: files_of_session
SELECT file.owner, id, name, media_type, size, digest, created_at, is_kept, made_by, content
  FROM holdfast.file_use JOIN holdfast.file ON file.owner = file_use.owner AND file.id = file_use.file
 WHERE file_use.owner = $1 AND session = $5 AND (created_at, id) < ($2, $3)
 ORDER BY created_at DESC, id DESC LIMIT $4;

-- name: held_files
SELECT (SELECT count(*) FROM holdfast.file WHERE owner = $1) + count(*),
       ((SELECT coalesce(sum(size), 0) FROM holdfast.file WHERE owner = $1) + coalesce(sum(size), 0))::bigint
  FROM holdfast.content WHERE owner = $1 AND state = 'storing';

-- name: stored_content
SELECT id FROM holdfast.content WHERE owner = $1 AND digest = $2 AND state = 'stored' LIMIT 1;

-- name: is_storing
-- Locked: it can't be given up before this transaction ends.
SELECT 1 FROM holdfast.content WHERE id = $1 AND state = 'storing' FOR UPDATE;

-- name: reserve_content
INSERT INTO holdfast.content (id, owner, digest, size, state, changed_at) VALUES ($1, $2, $3, $4, 'storing', $5);

-- name: content_is_stored
UPDATE holdfast.content SET state = 'stored', changed_at = $2 WHERE id = $1 AND state = 'storing';

-- name: insert_file
INSERT INTO holdfast.file (owner, id, name, media_type, size, digest, created_at, is_kept, made_by, content)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10);

-- name: use_files
INSERT INTO holdfast.file_use (owner, session, file)
SELECT $1, $2, id FROM holdfast.file WHERE owner = $1 AND id = ANY ($3::text[])
ON CONFLICT DO NOTHING;

-- name: keep_file
UPDATE holdfast.file SET is_kept = $3::boolean WHERE owner = $1 AND id = $2;

-- name: delete_file
DELETE FROM holdfast.file WHERE owner = $1 AND id = $2 RETURNING content;

-- name: delete_uses_of_file
DELETE FROM holdfast.file_use WHERE owner = $1 AND file = $2;

-- name: delete_files_of_session
-- Those that are not kept and that no other session uses.
DELETE FROM holdfast.file
 WHERE owner = $1 AND NOT is_kept AND id IN (SELECT file FROM holdfast.file_use WHERE owner = $1 AND session = $2)
   AND NOT EXISTS (SELECT 1 FROM holdfast.file_use AS other
                    WHERE other.owner = $1 AND other.file = file.id AND other.session <> $2)
RETURNING content;

-- name: delete_uses_of_session
DELETE FROM holdfast.file_use WHERE owner = $1 AND session = $2;

-- name: unused_files
SELECT owner, id FROM holdfast.file
 WHERE NOT is_kept AND created_at < $1
   AND NOT EXISTS (SELECT 1 FROM holdfast.file_use WHERE file_use.owner = file.owner AND file_use.file = file.id)
 ORDER BY created_at LIMIT $2;

-- name: delete_unused_files
DELETE FROM holdfast.file
 WHERE owner = $1 AND id = ANY ($2::text[]) AND NOT is_kept
   AND NOT EXISTS (SELECT 1 FROM holdfast.file_use WHERE file_use.owner = $1 AND file_use.file = file.id)
RETURNING content;

-- name: doom_unused_contents
-- Those of these contents that no file refers to any more.
UPDATE holdfast.content SET state = 'doomed', changed_at = $2
 WHERE id = ANY ($1::text[]) AND state = 'stored' AND NOT EXISTS (SELECT 1 FROM holdfast.file WHERE file.content = content.id);

-- name: doom_late_contents
UPDATE holdfast.content SET state = 'doomed', changed_at = $1
 WHERE id IN (SELECT id FROM holdfast.content WHERE state = 'storing' AND changed_at < $2 ORDER BY changed_at LIMIT $3)
   AND state = 'storing';

-- name: doomed_contents
SELECT id FROM holdfast.content WHERE state = 'doomed' ORDER BY changed_at, id LIMIT $1;

-- name: drop_content
DELETE FROM holdfast.content WHERE id = $1 AND state = 'doomed';

-- name: record_file_home
UPDATE holdfast.identity SET files = $1 WHERE files IS NULL;

-- name: file_home
SELECT files FROM holdfast.identity;
