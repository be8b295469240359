-- Every statement of the SQLite store, by name. `{rows}` stands for as many rows of parameters as a call has.
-- INDEXED BY is used where SQLite, which keeps no statistics here, would read a session's whole past instead.

-- The log

-- name: units_sessions
-- Returns one row of JSON for the whole batch: each returned row costs a switch between threads.
SELECT json_group_array(json_array(
    wanted.column1, session.fence, session.lease_holder IS wanted.column4, head.position, head.last_event,
    session.inbox_tail, session.updated_at, session.deleted_at IS NOT NULL, coalesce(flight.first, 0),
    coalesce(flight.last, 0), session.log, head.shown))
  FROM (VALUES {rows}) AS wanted
  JOIN session ON session.owner = wanted.column2 AND session.id = wanted.column3
  JOIN head ON head.log = session.log
  LEFT JOIN flight ON flight.owner = session.owner AND flight.session = session.id;

-- name: last_numbers
SELECT json_array(coalesce((SELECT max(number) FROM event), 0), coalesce((SELECT max(number) FROM segment), 0));

-- name: units_advance
-- All rows exist, so every one of them takes the ON CONFLICT branch. An UPDATE FROM takes three times as long.
INSERT INTO head (log, position, last_event, shown, bytes) VALUES {rows}
ON CONFLICT (log) DO UPDATE
   SET position = excluded.position, last_event = excluded.last_event, shown = excluded.shown,
       bytes = head.bytes + excluded.bytes;

-- name: stored
SELECT count(*), coalesce(sum(head.bytes + session.inbox_bytes), 0) FROM session JOIN head ON head.log = session.log
 WHERE session.owner = ?1 AND session.deleted_at IS NULL;

-- name: describe
UPDATE session
   SET updated_at = ?3,
       status = coalesce(?4, status),
       turn_id = CASE WHEN ?4 IS NULL THEN turn_id ELSE ?5 END,
       title = coalesce(?6, title),
       model = coalesce(?8, model),
       claims = CASE WHEN ?7 THEN 0 ELSE claims END
 WHERE owner = ?1 AND id = ?2;

-- name: units_events
INSERT INTO event (number, previous, owner, session, position, id, time, type, version, data) VALUES {rows};

-- name: units_marks
INSERT INTO event_mark (owner, session, position, number) VALUES {rows};

-- name: units_segments
INSERT INTO segment (number, previous, owner, session, message_id, attempt, block, start, kind, text, tool_call_id, name)
VALUES {rows};

-- name: units_flights
INSERT INTO flight (owner, session, first, last) VALUES {rows}
ON CONFLICT (owner, session) DO UPDATE SET first = excluded.first, last = excluded.last;

-- name: end_flight
DELETE FROM flight WHERE owner = ?1 AND session = ?2;

-- name: sweep
-- Deletes everything before the oldest flight: whole pages from the front of the table.
DELETE FROM segment WHERE number < coalesce((SELECT min(first) FROM flight), 9223372036854775807);

-- name: segments_left
SELECT coalesce(min(number), 0), coalesce(max(number), 0) FROM segment;

-- name: sweep_between
-- A message that stays in flight for long must not keep all later segments.
DELETE FROM segment
 WHERE number >= ?1 AND number < ?2
   AND NOT EXISTS (SELECT 1 FROM flight
                    WHERE flight.owner = segment.owner AND flight.session = segment.session
                      AND segment.number BETWEEN flight.first AND flight.last);

-- name: create_session
INSERT INTO session (owner, id, status, title, host, tools, model, parent, made_from, created_at, updated_at, log)
VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12);

-- name: create_head
INSERT INTO head (log, position, last_event) VALUES ((SELECT coalesce(max(log), 0) + 1 FROM head), 0, 0)
RETURNING log;

-- name: is_waiting
SELECT 1 FROM inbox INDEXED BY inbox_waiting
 WHERE owner = ?1 AND session = ?2 AND sequence = ?3 AND state = 'accepted';

-- name: waiting_answer
SELECT sequence FROM inbox WHERE owner = ?1 AND session = ?2 AND item_key = ?3 AND state = 'accepted';

-- name: promote
UPDATE inbox INDEXED BY inbox_waiting SET state = ?4, outcome = ?5
 WHERE owner = ?1 AND session = ?2 AND sequence = ?3 AND state = 'accepted';

-- name: open_request
INSERT INTO request (owner, session, id, state, kind, turn_id, tool_call_id, title, opened_at)
VALUES (?1, ?2, ?3, 'open', ?4, ?5, ?6, ?7, ?8);

-- name: close_request
UPDATE request SET state = 'closed' WHERE owner = ?1 AND session = ?2 AND id = ?3;

-- name: add_ledger
INSERT OR IGNORE INTO ledger
  (owner, session, message_id, attempt, model, input_tokens, output_tokens, cache_read_tokens, cache_write_tokens,
   cost_microdollars, time, refused)
VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12);

-- name: reserve
-- An attempt that is reserved again keeps the larger amount.
INSERT INTO reservation (owner, session, message_id, attempt, day, root, turn_id, model, amount, fence)
VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10)
ON CONFLICT DO UPDATE SET amount = max(amount, excluded.amount), fence = excluded.fence;

-- name: reserved
SELECT session, message_id, attempt, day, root, turn_id, amount FROM reservation WHERE owner = ?1;

-- name: charged_in_days
SELECT coalesce(sum(charged), 0) FROM spending WHERE owner = ?1 AND day BETWEEN ?2 AND ?3;

-- name: charged_to_session
SELECT coalesce(sum(charged), 0) FROM spending WHERE owner = ?1 AND session = ?2;

-- name: charged_to_tree
SELECT coalesce(sum(charged), 0) FROM spending WHERE owner = ?1 AND root = ?2;

-- name: charged_to_turn
SELECT coalesce(sum(charged), 0) FROM ledger WHERE owner = ?1 AND session = ?2 AND turn_id = ?3;

-- name: reservations_left
-- Those whose session nobody holds, or that an earlier holder made.
SELECT reservation.owner, reservation.session, message_id, attempt, reservation.model
  FROM reservation LEFT JOIN session ON session.owner = reservation.owner AND session.id = reservation.session
 WHERE session.id IS NULL OR deleted_at IS NOT NULL OR lease_holder IS NULL OR session.fence <> reservation.fence
 ORDER BY 1, 2, 3, 4 LIMIT ?1;

-- name: drop_reservation
DELETE FROM reservation WHERE owner = ?1 AND session = ?2 AND message_id = ?3 AND attempt = ?4;

-- name: budget
SELECT content FROM budget WHERE owner = ?1;

-- name: set_budget
INSERT INTO budget (owner, content) VALUES (?1, ?2) ON CONFLICT DO UPDATE SET content = excluded.content;

-- name: budgets
SELECT owner, content FROM budget ORDER BY owner;

-- name: spending
SELECT owner, day, session, model, calls, unknown, input_tokens, output_tokens, cache_read_tokens, cache_write_tokens,
       cost, charged
  FROM spending WHERE (?1 IS NULL OR owner = ?1) AND day BETWEEN ?2 AND ?3 AND (?4 IS NULL OR session = ?4)
 ORDER BY owner, day, session, model;

-- name: spending_by
-- The groups that were charged the most, with each of their models. A group is an owner, a day, a session or a model.
WITH part AS (
  SELECT CASE WHEN ?5 IN ('owner', 'session') THEN owner ELSE '' END AS owner,
         CASE WHEN ?5 = 'day' THEN day ELSE 0 END AS day,
         CASE WHEN ?5 = 'session' THEN session ELSE '' END AS session,
         model AS model,
         sum(calls) AS calls, sum(unknown) AS unknown,
         sum(input_tokens) AS input_tokens, sum(output_tokens) AS output_tokens,
         sum(cache_read_tokens) AS cache_read_tokens, sum(cache_write_tokens) AS cache_write_tokens,
         sum(cost) AS cost, sum(charged) AS charged
    FROM spending
   WHERE (?1 IS NULL OR owner = ?1) AND day BETWEEN ?2 AND ?3
     AND (?4 IS NULL OR session = ?4)
   GROUP BY 1, 2, 3, 4
), most AS (
  SELECT owner, day, session, CASE WHEN ?5 = 'model' THEN model ELSE '' END AS model, sum(charged) AS charged
    FROM part GROUP BY 1, 2, 3, 4 ORDER BY 5 DESC, 1, 2, 3, 4 LIMIT ?6
)
SELECT part.owner, part.day, part.session, part.model, calls, unknown, input_tokens, output_tokens, cache_read_tokens,
       cache_write_tokens, cost, part.charged
  FROM most JOIN part ON part.owner = most.owner AND part.day = most.day AND part.session = most.session
                     AND (?5 <> 'model' OR part.model = most.model)
 ORDER BY most.charged DESC, 1, 2, 3, 4;

-- name: keep_prompt
INSERT OR IGNORE INTO prompt (digest, content) VALUES (?1, ?2);

-- name: keep_snapshot
-- Only the holder writes it, only of events in the log, and never an older snapshot over a newer one.
INSERT INTO snapshot (owner, session, fold_version, position, state)
SELECT session.owner, session.id, ?5, ?6, ?7 FROM session JOIN head USING (log)
 WHERE session.owner = ?1 AND session.id = ?2 AND fence = ?3 AND lease_holder = ?4 AND deleted_at IS NULL
   AND head.position >= ?6
ON CONFLICT (owner, session) DO UPDATE
   SET fold_version = excluded.fold_version, position = excluded.position, state = excluded.state
 WHERE excluded.fold_version <> snapshot.fold_version OR excluded.position > snapshot.position;

-- The inbox

-- name: put_session
-- After the tail, the columns are the fields of SessionFacts (admission.py). Other readers use the first two at most.
SELECT inbox_tail, turn_id, head.position, status, runnable, lease_holder IS NOT NULL, {counted}
  FROM session JOIN head ON head.log = session.log WHERE owner = ?1 AND id = ?2 AND deleted_at IS NULL;

-- name: item
SELECT sequence, item_key, state, outcome, accepted_at, while_running, payload, original
  FROM inbox WHERE owner = ?1 AND session = ?2 AND item_key = ?3;

-- name: waiting_items
SELECT sequence, item_key, state, outcome, accepted_at, while_running, payload
  FROM inbox INDEXED BY inbox_waiting WHERE owner = ?1 AND session = ?2 AND state = 'accepted' ORDER BY place;

-- name: waiting_messages
SELECT sequence, item_key, state, outcome, accepted_at, while_running, payload, place
  FROM inbox INDEXED BY inbox_waiting
 WHERE owner = ?1 AND session = ?2 AND state = 'accepted' AND kind = 'message' ORDER BY place;

-- name: count_waiting
SELECT count(*) FROM inbox INDEXED BY inbox_waiting
 WHERE owner = ?1 AND session = ?2 AND state = 'accepted' AND kind = 'message';

-- name: answer_bytes
SELECT coalesce(sum(length(payload)), 0) FROM inbox INDEXED BY inbox_waiting
 WHERE owner = ?1 AND state = 'accepted' AND kind = 'answer';

-- name: is_stopping
SELECT 1 FROM inbox INDEXED BY inbox_stops
 WHERE owner = ?1 AND session = ?2 AND state = 'accepted' AND kind = 'stop' LIMIT 1;

-- name: request_state
SELECT state FROM request WHERE owner = ?1 AND session = ?2 AND id = ?3;

-- name: insert_item
INSERT INTO inbox (owner, session, item_key, sequence, place, kind, state, outcome, accepted_at, while_running, payload,
                   original)
VALUES (?1, ?2, ?3, ?4, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11);

-- name: wake
UPDATE session
   SET inbox_tail = ?3,
       runnable_since = CASE WHEN runnable = 1 THEN runnable_since ELSE ?5 END,
       runnable = 1,
       status = CASE WHEN status = 'idle' THEN 'queued' ELSE status END,
       updated_at = ?4,
       inbox_bytes = max(0, inbox_bytes + ?6)
 WHERE owner = ?1 AND id = ?2;

-- name: last_in_line
SELECT max(runnable_since) FROM session INDEXED BY session_claimable
 WHERE owner = ?1 AND runnable = 1 AND lease_holder IS NULL AND turn_id IS NULL;

-- name: rest
-- A session without a holder that has nothing left to do must not stay claimable: claiming it would take up a place.
UPDATE session
   SET runnable = 0, runnable_since = NULL, noted_at = NULL, status = 'idle'
 WHERE owner = ?1 AND id = ?2 AND runnable = 1 AND lease_holder IS NULL AND turn_id IS NULL AND deleted_at IS NULL
   AND NOT EXISTS (SELECT 1 FROM inbox INDEXED BY inbox_waiting
                    WHERE inbox.owner = ?1 AND inbox.session = ?2 AND inbox.state = 'accepted');

-- name: raise_tail
UPDATE session SET inbox_tail = ?3, inbox_bytes = max(0, inbox_bytes + ?4) WHERE owner = ?1 AND id = ?2;

-- name: removed_by
-- The messages that a stop returned, to be returned again to a sender that lost the response.
SELECT sequence, item_key, state, outcome, accepted_at, while_running, payload
  FROM inbox INDEXED BY inbox_removed WHERE owner = ?1 AND session = ?2 AND removed_by = ?3 ORDER BY place;

-- name: remove_item
UPDATE inbox SET state = 'removed', outcome = ?4, removed_by = ?5
 WHERE owner = ?1 AND session = ?2 AND item_key = ?3 AND state = 'accepted' AND kind = 'message';

-- name: edit_item
UPDATE inbox SET sequence = ?4, payload = ?5, original = coalesce(original, payload)
 WHERE owner = ?1 AND session = ?2 AND item_key = ?3;

-- name: move_item
UPDATE inbox SET sequence = ?4, place = ?5 WHERE owner = ?1 AND session = ?2 AND item_key = ?3;

-- Leases

-- name: other_processes
-- Whether a process holds anything is computed only for those that do not renew, because it searches all held sessions.
SELECT token, boot_id = ?2 AND expires_at > ?3,
       CASE WHEN boot_id = ?2 AND expires_at > ?3 THEN 1 ELSE EXISTS (
         SELECT 1 FROM session INDEXED BY session_held WHERE lease_holder = token AND lease_holder IS NOT NULL) END
  FROM process WHERE token <> ?1;

-- name: is_alive
SELECT 1 FROM process WHERE token = ?1 AND boot_id = ?2 AND expires_at > ?3;

-- name: register
INSERT INTO process (token, node, boot_id, expires_at, renewed_at, role, version, started_at, max_sessions)
VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9)
ON CONFLICT (token) DO UPDATE
   SET boot_id = excluded.boot_id, expires_at = excluded.expires_at, renewed_at = excluded.renewed_at;

-- name: renew
UPDATE process SET expires_at = ?4, renewed_at = ?3 WHERE token = ?1 AND boot_id = ?2 AND expires_at > ?3;

-- name: forget_process
DELETE FROM process WHERE token = ?1;

-- name: free_leases
-- Also clears `noted_at`, whatever the dead process was about to do: a session that was noted as waiting for another
-- process is checked once more.
UPDATE session INDEXED BY session_held SET lease_holder = NULL, noted_at = NULL WHERE lease_holder = ?1 AND lease_holder IS NOT NULL;

-- name: counted
-- A fragment: whether a running session takes up a slot of its owner. A sub-session uses the slot of its parent's turn.
(session.parent IS NULL OR NOT EXISTS (
    SELECT 1 FROM session AS above
     WHERE above.owner = session.owner AND above.id = session.parent AND above.turn_id IS NOT NULL));

-- name: first_owners_waiting
-- One or two of the owners that have sessions with something to do and no holder.
SELECT owner FROM (SELECT owner FROM session INDEXED BY session_claimable
                    WHERE runnable = 1 AND lease_holder IS NULL ORDER BY owner LIMIT 1)
UNION ALL
SELECT owner FROM (SELECT owner FROM session INDEXED BY session_claimable
                    WHERE runnable = 1 AND lease_holder IS NULL ORDER BY owner DESC LIMIT 1)
 WHERE owner > (SELECT owner FROM session INDEXED BY session_claimable
                 WHERE runnable = 1 AND lease_holder IS NULL ORDER BY owner LIMIT 1);

-- name: owners_waiting
-- All owners that have sessions with something to do and no holder, each found by one step in the index, with the
-- number of taken slots. ?1 is the number of slots of an owner (NULL: no limit), ?2 the owners without a limit. Owners
-- without a free slot are left out, unless they have sub-sessions.
WITH RECURSIVE waiting (owner) AS (
  SELECT (SELECT owner FROM session INDEXED BY session_claimable
           WHERE runnable = 1 AND lease_holder IS NULL ORDER BY owner LIMIT 1)
  UNION ALL
  SELECT (SELECT owner FROM session INDEXED BY session_claimable
           WHERE runnable = 1 AND lease_holder IS NULL AND session.owner > waiting.owner ORDER BY owner LIMIT 1)
    FROM waiting WHERE waiting.owner IS NOT NULL),
counted (owner, slots) AS MATERIALIZED (
  SELECT owner, CASE WHEN ?1 IS NOT NULL AND owner NOT IN (SELECT value FROM json_each(?2)) THEN
      (SELECT count(*) FROM session INDEXED BY session_held
        WHERE session.owner = waiting.owner AND lease_holder IS NOT NULL AND {counted}) END
    FROM waiting WHERE owner IS NOT NULL)
SELECT owner, slots,
       (SELECT min(runnable_since) FROM session INDEXED BY session_unnoted
         WHERE session.owner = counted.owner AND runnable = 1 AND lease_holder IS NULL AND noted_at IS NULL)
  FROM counted
 WHERE slots IS NULL OR slots < ?1
    OR EXISTS (SELECT 1 FROM session INDEXED BY session_claimable
                WHERE session.owner = counted.owner AND (parent IS NULL) = 0 AND runnable = 1 AND lease_holder IS NULL);

-- name: needs
-- A fragment: the needs of a session, in the form that the index `session_needs` has.
(ifnull(host, char(30)) || char(31) || ifnull(model, char(30)) || char(31) || ifnull(keeper, char(30)) || char(31) || tools);

-- name: kinds_waiting
-- The distinct needs of sessions with something to do and no holder, each found by one step in the index.
WITH RECURSIVE kind (needs) AS (
  SELECT (SELECT {needs} FROM session INDEXED BY session_needs
           WHERE runnable = 1 AND lease_holder IS NULL ORDER BY {needs} LIMIT 1)
  UNION ALL
  SELECT (SELECT {needs} FROM session INDEXED BY session_needs
           WHERE runnable = 1 AND lease_holder IS NULL AND {needs} > kind.needs
           ORDER BY {needs} LIMIT 1)
    FROM kind WHERE kind.needs IS NOT NULL)
SELECT needs FROM kind WHERE needs IS NOT NULL;

-- name: owners_of_kinds
-- The same as `owners_waiting`, for owners that have sessions with these needs (?3).
WITH RECURSIVE waiting (needs, owner) AS (
  SELECT value, (SELECT owner FROM session INDEXED BY session_needs
                  WHERE runnable = 1 AND lease_holder IS NULL AND {needs} = value
                  ORDER BY owner LIMIT 1)
    FROM json_each(?3)
  UNION ALL
  SELECT waiting.needs, (SELECT owner FROM session INDEXED BY session_needs
                          WHERE runnable = 1 AND lease_holder IS NULL
                            AND {needs} = waiting.needs
                            AND session.owner > waiting.owner ORDER BY owner LIMIT 1)
    FROM waiting WHERE waiting.owner IS NOT NULL),
counted (owner, slots) AS MATERIALIZED (
  SELECT owner, CASE WHEN ?1 IS NOT NULL AND owner NOT IN (SELECT value FROM json_each(?2)) THEN
      (SELECT count(*) FROM session INDEXED BY session_held
        WHERE session.owner = waiting.owner AND lease_holder IS NOT NULL AND {counted}) END
    FROM waiting WHERE owner IS NOT NULL GROUP BY owner)
SELECT owner, slots,
       (SELECT min(runnable_since) FROM session INDEXED BY session_unnoted
         WHERE session.owner = counted.owner AND runnable = 1 AND lease_holder IS NULL AND noted_at IS NULL)
  FROM counted
 WHERE slots IS NULL OR slots < ?1
    OR EXISTS (SELECT 1 FROM session INDEXED BY session_claimable
                WHERE session.owner = counted.owner AND (parent IS NULL) = 0 AND runnable = 1 AND lease_holder IS NULL);

-- name: count_held
SELECT count(*) FROM session INDEXED BY session_held WHERE owner = ?1 AND lease_holder IS NOT NULL;

-- name: has_unheld
SELECT 1 FROM session INDEXED BY session_claimable WHERE runnable = 1 AND lease_holder IS NULL LIMIT 1;

-- name: claimable
-- An owner's sessions that a process may run: on no particular host or on this one, with tools that it has, a model
-- that it can use, and secrets that it keeps. Without a free slot (?8), only sessions that need none.
SELECT {counted}, turn_id IS NULL, runnable_since, id FROM session INDEXED BY session_claimable
 WHERE owner = ?1 AND runnable = 1 AND lease_holder IS NULL
   AND (?8 OR NOT {counted})
   AND (host IS NULL OR host = ?2)
   AND (tools = '[]' OR NOT EXISTS (
     SELECT 1 FROM json_each(session.tools) WHERE value NOT IN (SELECT value FROM json_each(?3))))
   AND (?5 = '[]' OR model IS NULL OR model NOT IN (SELECT value FROM json_each(?5)))
   AND NOT EXISTS (
     SELECT 1 FROM secret
      WHERE secret.owner = session.owner AND secret.session = session.id AND secret.keeper NOT IN (?6, ?7))
 ORDER BY parent IS NULL, turn_id IS NULL, runnable_since LIMIT ?4;

-- name: wake_due
UPDATE session SET runnable = 1, runnable_since = wake_at
 WHERE wake_at <= ?1 AND runnable = 0 AND deleted_at IS NULL;

-- name: is_due
SELECT 1 FROM session WHERE wake_at <= ?1 AND runnable = 0 AND deleted_at IS NULL LIMIT 1;

-- name: fits_left
-- A fragment: whether the process may run a session that was left for a newer release, by the rules of `claimable`.
(host IS NULL OR host = ?2)
   AND (tools = '[]' OR NOT EXISTS (
     SELECT 1 FROM json_each(session.tools) WHERE value NOT IN (SELECT value FROM json_each(?3))))
   AND (?4 = '[]' OR model IS NULL OR model NOT IN (SELECT value FROM json_each(?4)))
   AND NOT EXISTS (
     SELECT 1 FROM secret
      WHERE secret.owner = session.owner AND secret.session = session.id AND secret.keeper NOT IN (?5, ?6));

-- name: is_left
SELECT 1 FROM session INDEXED BY session_left
 WHERE needs_inbox <= ?1 AND runnable = 0 AND deleted_at IS NULL AND {fits_left} LIMIT 1;

-- name: wake_left
-- Sessions that older releases left because of items that they could not read. A session that this process may not run
-- stays for a process that may: an older one would only leave it again, and again.
UPDATE session INDEXED BY session_left SET runnable = 1, runnable_since = ?7, needs_inbox = NULL
 WHERE needs_inbox <= ?1 AND runnable = 0 AND deleted_at IS NULL AND {fits_left};

-- name: stopping
-- Sessions to be stopped. Any process may stop them.
SELECT session.owner, session.id
  FROM inbox INDEXED BY inbox_stops CROSS JOIN session ON session.owner = inbox.owner AND session.id = inbox.session
 WHERE inbox.state = 'accepted' AND inbox.kind = 'stop' AND session.runnable = 1 AND session.lease_holder IS NULL
 LIMIT ?1;

-- name: is_unplaced
SELECT 1 FROM session INDEXED BY session_unplaced
 WHERE runnable = 1 AND lease_holder IS NULL AND noted_at IS NULL AND runnable_since <= ?1 LIMIT 1;

-- name: unplaced
-- Sessions that no process could run for so long that their logs should say so.
SELECT session.owner, session.id
  FROM json_each(?1) AS owners CROSS JOIN session INDEXED BY session_unnoted ON session.owner = owners.value
 WHERE runnable = 1 AND lease_holder IS NULL AND noted_at IS NULL AND runnable_since <= ?2
 LIMIT ?3;

-- name: turns
SELECT
  (SELECT count(*) FROM session INDEXED BY session_held
    WHERE owner = ?1 AND lease_holder IS NOT NULL AND status <> 'waiting' AND {counted}),
  (SELECT count(*) FROM session INDEXED BY session_held
    WHERE owner = ?1 AND lease_holder IS NOT NULL AND status = 'waiting' AND {counted}),
  (SELECT count(*) FROM session INDEXED BY session_claimable
    WHERE owner = ?1 AND runnable = 1 AND lease_holder IS NULL AND {counted});

-- name: take
-- The step is random, so that the fence of a claim that the database forgot is not used again.
UPDATE session
   SET fence = fence + ?5, lease_holder = ?3, claims = claims + 1,
       runnable = 1, runnable_since = coalesce(runnable_since, ?4)
 WHERE owner = ?1 AND id = ?2
RETURNING fence, claims;

-- name: held
SELECT owner, id, fence FROM session INDEXED BY session_held
 WHERE lease_holder = ?1 AND lease_holder IS NOT NULL ORDER BY owner, id;

-- name: release
UPDATE session
   SET lease_holder = NULL, claims = 0, runnable = 0, runnable_since = NULL, noted_at = NULL, needs_inbox = ?6,
       status = CASE WHEN status = 'queued' AND turn_id IS NULL THEN 'idle' ELSE status END
 WHERE owner = ?1 AND id = ?2 AND fence = ?3 AND lease_holder = ?4 AND inbox_tail = ?5 AND deleted_at IS NULL;

-- name: hand_over
UPDATE session
   SET lease_holder = NULL,
       claims = CASE WHEN ?5 = 'failed' THEN claims ELSE 0 END,
       noted_at = CASE WHEN ?5 = 'for_another' THEN ?6 ELSE noted_at END,
       runnable_since = CASE WHEN ?5 = 'gave_way' THEN ?7 ELSE runnable_since END
 WHERE owner = ?1 AND id = ?2 AND fence = ?3 AND lease_holder = ?4 AND deleted_at IS NULL;

-- name: attach
-- The row's id starts with the process's token: the same id at two processes names two attachments.
INSERT INTO attachment (owner, session, id, process, node, tools, capabilities, declined, boot_id, expires_at)
SELECT ?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10
 WHERE EXISTS (SELECT 1 FROM session WHERE owner = ?1 AND id = ?2 AND deleted_at IS NULL)
ON CONFLICT (owner, session, id) DO UPDATE
   SET process = excluded.process, node = excluded.node, tools = excluded.tools,
       capabilities = excluded.capabilities, boot_id = excluded.boot_id, expires_at = excluded.expires_at;

-- name: detach
DELETE FROM attachment WHERE owner = ?1 AND session = ?2 AND id = ?3;

-- name: decline
UPDATE attachment
   SET declined = CASE WHEN EXISTS (SELECT 1 FROM json_each(declined) WHERE value = ?4) THEN declined
                       ELSE json_insert(declined, '$[#]', ?4) END
 WHERE owner = ?1 AND session = ?2 AND id = ?3;

-- name: wake_declined
-- The holder of the session sees that the tail has changed, and looks again for a client that could answer.
UPDATE session
   SET inbox_tail = inbox_tail + 1,
       runnable_since = CASE WHEN runnable = 1 THEN runnable_since ELSE ?3 END,
       runnable = 1
 WHERE owner = ?1 AND id = ?2 AND turn_id IS NOT NULL AND deleted_at IS NULL
   AND EXISTS (SELECT 1 FROM attachment
                WHERE attachment.owner = ?1 AND attachment.session = ?2 AND declined <> '[]');

-- name: attachments
SELECT id, process, node, tools, capabilities, declined, boot_id = ?3 AND expires_at > ?4 FROM attachment
 WHERE owner = ?1 AND session = ?2 ORDER BY id;

-- name: attached
SELECT owner, session, id FROM attachment WHERE process = ?1 AND boot_id = ?2 AND expires_at > ?3;

-- name: attachments_of
SELECT DISTINCT owner, session FROM attachment WHERE process = ?1;

-- name: end_attachments_of
DELETE FROM attachment WHERE process = ?1;

-- name: expired_attachments
SELECT DISTINCT owner, session FROM attachment WHERE boot_id <> ?1 OR expires_at <= ?2;

-- name: end_expired_attachments
DELETE FROM attachment WHERE boot_id <> ?1 OR expires_at <= ?2;

-- name: grant
INSERT INTO granted (owner, place, rule, session, granted_by, granted_at) VALUES (?1, ?2, ?3, ?4, ?5, ?6)
ON CONFLICT DO NOTHING;

-- name: granted
SELECT DISTINCT rule FROM granted WHERE owner = ?1 AND place IN ('', ?2) ORDER BY rule;

-- name: grants
SELECT place, rule, session, granted_by, granted_at FROM granted WHERE owner = ?1
ORDER BY place, rule, granted_at, session;

-- name: revoke_grant
DELETE FROM granted WHERE owner = ?1 AND place = ?2 AND rule = ?3;

-- Secrets that clients entrusted to their sessions

-- name: keep_secret
INSERT INTO secret (owner, session, keeper, sealed)
SELECT ?1, ?2, ?3, ?4
 WHERE EXISTS (SELECT 1 FROM session WHERE owner = ?1 AND id = ?2 AND deleted_at IS NULL)
ON CONFLICT (owner, session) DO UPDATE SET keeper = excluded.keeper, sealed = excluded.sealed;

-- name: lose_secret
-- Only if the session has got no other keeper meanwhile.
INSERT INTO secret (owner, session, keeper, sealed)
SELECT ?1, ?2, '', x''
 WHERE EXISTS (SELECT 1 FROM session WHERE owner = ?1 AND id = ?2 AND deleted_at IS NULL)
ON CONFLICT (owner, session) DO UPDATE SET keeper = '' WHERE secret.keeper = ?3 AND secret.sealed = ?4;

-- name: drop_secret
DELETE FROM secret WHERE owner = ?1 AND session = ?2;

-- name: secret
SELECT keeper, sealed FROM secret WHERE owner = ?1 AND session = ?2;

-- Deleting

-- name: delete_session
UPDATE session
   SET deleted_at = ?3, fence = fence + ?4, lease_holder = NULL, runnable = 0, runnable_since = NULL, wake_at = NULL,
       status = 'idle', turn_id = NULL, title = ''
 WHERE owner = ?1 AND id = ?2 AND deleted_at IS NULL;

-- name: delete_events
WITH RECURSIVE log (number) AS (
  SELECT last_event FROM session JOIN head USING (log) WHERE owner = ?1 AND id = ?2 AND last_event > 0
  UNION ALL
  SELECT event.previous FROM log JOIN event ON event.number = log.number WHERE event.previous > 0)
DELETE FROM event WHERE number IN (SELECT number FROM log);

-- name: delete_head
UPDATE head SET last_event = 0, bytes = 0 WHERE log = (SELECT log FROM session WHERE owner = ?1 AND id = ?2);

-- name: delete_marks
DELETE FROM event_mark WHERE owner = ?1 AND session = ?2;

-- name: delete_segments
-- A scan, but only of the segments that are not yet swept: so all segments of a deleted session are removed at once.
DELETE FROM segment WHERE owner = ?1 AND session = ?2;

-- name: delete_inbox
DELETE FROM inbox WHERE owner = ?1 AND session = ?2;

-- name: delete_requests
DELETE FROM request WHERE owner = ?1 AND session = ?2;

-- name: delete_snapshot
DELETE FROM snapshot WHERE owner = ?1 AND session = ?2;

-- name: delete_attachments
DELETE FROM attachment WHERE owner = ?1 AND session = ?2;

-- name: delete_annotation
DELETE FROM annotation WHERE owner = ?1 AND session = ?2;

-- The text index

-- name: behind
SELECT session.id FROM session INDEXED BY session_listed CROSS JOIN head ON head.log = session.log
 WHERE owner = ?1 AND deleted_at IS NULL AND head.indexed < head.position
 ORDER BY updated_at DESC, session.id LIMIT ?2;

-- name: index_mark
SELECT head.indexed, head.position FROM session JOIN head ON head.log = session.log
 WHERE owner = ?1 AND id = ?2 AND deleted_at IS NULL;

-- name: move_index_mark
UPDATE head SET indexed = ?4
 WHERE log = (SELECT log FROM session WHERE owner = ?1 AND id = ?2 AND deleted_at IS NULL) AND indexed = ?3
RETURNING log;

-- name: unindex_words
DELETE FROM passage_words
 WHERE rowid IN (SELECT number FROM passage WHERE log = ?1 AND position > ?2 AND position < ?3);

-- name: unindex
DELETE FROM passage WHERE log = ?1 AND position > ?2 AND position < ?3;

-- name: index_passage
INSERT INTO passage (log, position, tool_call_id) VALUES (?1, ?2, ?3) RETURNING number;

-- name: index_words
INSERT INTO passage_words (rowid, tokens) VALUES (?1, ?2);

-- name: drop_gone_words
DELETE FROM passage_words WHERE rowid IN (SELECT number FROM passage_gone);

-- name: drop_gone
DELETE FROM passage_gone;

-- name: log_of
SELECT log FROM session WHERE owner = ?1 AND id = ?2 AND deleted_at IS NULL;

-- name: search_log
-- The rows of one log are indexed in the order of their positions.
SELECT passage.position FROM passage_words CROSS JOIN passage ON passage.number = passage_words.rowid
 WHERE passage_words MATCH ?2 AND passage.log = ?1 AND passage.position < ?3
 ORDER BY passage_words.rowid DESC LIMIT ?4;

-- name: passages
SELECT position FROM passage WHERE log = ?1 AND position BETWEEN ?2 AND ?3 ORDER BY position LIMIT ?4;

-- name: tool_result
SELECT position FROM passage INDEXED BY passage_of_call
 WHERE log = ?1 AND tool_call_id = ?2 AND tool_call_id <> '' ORDER BY position DESC LIMIT 1;

-- Annotations of owners

-- name: annotated
SELECT head.position, coalesce(annotation.seen, 0), coalesce(annotation.pinned, 0), annotation.metadata
  FROM session
  JOIN head ON head.log = session.log
  LEFT JOIN annotation ON annotation.owner = session.owner AND annotation.session = session.id
 WHERE session.owner = ?1 AND session.id = ?2 AND deleted_at IS NULL;

-- name: annotate
INSERT INTO annotation (owner, session, seen, pinned, metadata) VALUES (?1, ?2, ?3, ?4, ?5)
ON CONFLICT (owner, session) DO UPDATE
   SET seen = excluded.seen, pinned = excluded.pinned, metadata = excluded.metadata;

-- Reading

-- name: row
SELECT session.owner, id, coalesce(head.position, 0), inbox_tail, status, turn_id, title, host, created_at, updated_at,
       (SELECT count(*) FROM request INDEXED BY request_open
         WHERE request.owner = session.owner AND request.session = session.id AND request.state = 'open'
           AND NOT EXISTS (SELECT 1 FROM inbox
                            WHERE inbox.owner = request.owner AND inbox.session = request.session
                              AND inbox.item_key = 'answer:' || request.id)),
       (SELECT count(*) FROM inbox INDEXED BY inbox_waiting
         WHERE inbox.owner = session.owner AND inbox.session = session.id AND inbox.state = 'accepted'
           AND inbox.kind = 'message'),
       lease_holder, model, coalesce(parent, made_from), coalesce(head.shown, 0), coalesce(annotation.seen, 0),
       coalesce(annotation.pinned, 0), annotation.metadata, coalesce(head.bytes, 0)
  FROM session
  LEFT JOIN head ON head.log = session.log
  LEFT JOIN annotation ON annotation.owner = session.owner AND annotation.session = session.id
 WHERE session.owner = ?1 AND id = ?2 AND deleted_at IS NULL;

-- name: rows
SELECT session.owner, id, coalesce(head.position, 0), inbox_tail, status, turn_id, title, host, created_at, updated_at,
       (SELECT count(*) FROM request INDEXED BY request_open
         WHERE request.owner = session.owner AND request.session = session.id AND request.state = 'open'
           AND NOT EXISTS (SELECT 1 FROM inbox
                            WHERE inbox.owner = request.owner AND inbox.session = request.session
                              AND inbox.item_key = 'answer:' || request.id)),
       (SELECT count(*) FROM inbox INDEXED BY inbox_waiting
         WHERE inbox.owner = session.owner AND inbox.session = session.id AND inbox.state = 'accepted'
           AND inbox.kind = 'message'),
       lease_holder, model, coalesce(parent, made_from), coalesce(head.shown, 0), coalesce(annotation.seen, 0),
       coalesce(annotation.pinned, 0), annotation.metadata
  FROM session
  LEFT JOIN head ON head.log = session.log
  LEFT JOIN annotation ON annotation.owner = session.owner AND annotation.session = session.id
 WHERE session.owner = ?1 AND deleted_at IS NULL AND updated_at <= ?2 AND (updated_at < ?2 OR id > ?3)
   AND (?6 IS NULL OR coalesce(annotation.pinned, 0) = ?6)
   AND (?4 = '' OR title LIKE ?4 ESCAPE '\' OR session.log IN (
     SELECT passage.log FROM passage_words CROSS JOIN passage ON passage.number = passage_words.rowid
      WHERE passage_words MATCH ?7 AND passage.tool_call_id = ''))
 ORDER BY updated_at DESC, id LIMIT ?5;

-- name: events_after
-- Walks from the first mark at or after the page's end (or from the last event) back to the page's start.
WITH RECURSIVE log (number) AS (
  SELECT coalesce(
      (SELECT number FROM event_mark
        WHERE owner = ?1 AND session = ?2 AND ?4 >= 0 AND position >= ?3 + ?4 ORDER BY position LIMIT 1),
      (SELECT last_event FROM session JOIN head USING (log)
        WHERE owner = ?1 AND id = ?2 AND deleted_at IS NULL AND head.position > ?3))
  UNION ALL
  SELECT event.previous FROM log JOIN event ON event.number = log.number WHERE event.position > ?3 + 1)
SELECT position, id, time, type, version, data
  FROM log JOIN event ON event.number = log.number
 WHERE ?4 < 0 OR position <= ?3 + ?4
 ORDER BY position;

-- name: events_page
-- The same, cut after ?5 bytes of data. Of all events only the sizes are read, and the data only of those that fit.
WITH RECURSIVE log (number) AS (
  SELECT coalesce(
      (SELECT number FROM event_mark
        WHERE owner = ?1 AND session = ?2 AND position >= ?3 + ?4 ORDER BY position LIMIT 1),
      (SELECT last_event FROM session JOIN head USING (log)
        WHERE owner = ?1 AND id = ?2 AND deleted_at IS NULL AND head.position > ?3))
  UNION ALL
  SELECT event.previous FROM log JOIN event ON event.number = log.number WHERE event.position > ?3 + 1),
sized (number, position, so_far) AS MATERIALIZED (
  SELECT event.number, event.position, sum(length(event.data)) OVER (ORDER BY event.position)
    FROM log JOIN event ON event.number = log.number WHERE event.position <= ?3 + ?4)
SELECT event.position, id, time, type, version, data
  FROM sized JOIN event ON event.number = sized.number
 WHERE so_far <= ?5 OR sized.position = ?3 + 1
 ORDER BY sized.position;

-- name: turn_start
WITH RECURSIVE log (position, previous, type) AS (
  SELECT event.position, event.previous, event.type
    FROM session JOIN head USING (log) JOIN event ON event.number = head.last_event
   WHERE session.owner = ?1 AND session.id = ?2 AND deleted_at IS NULL
  UNION ALL
  SELECT event.position, event.previous, event.type
    FROM log JOIN event ON event.number = log.previous WHERE log.type <> ?3)
SELECT position FROM log WHERE type = ?3;

-- name: load_size
-- How many rows, and how many bytes, a load has to read at most. Rows of each kind are counted up to ?4, and no data is
-- read. The events after the snapshot are looked at only if they are few and the whole log has more than ?5 bytes.
WITH RECURSIVE kept (position, size) AS (
  SELECT coalesce(max(position), 0), coalesce(max(length(state)), 0)
    FROM snapshot WHERE owner = ?1 AND session = ?2 AND fold_version = ?3),
whole (rows, bytes, last) AS (
  SELECT head.position - kept.position, head.bytes, last_event FROM session JOIN head USING (log), kept
   WHERE owner = ?1 AND id = ?2 AND head.position > kept.position),
log (number) AS (
  SELECT last FROM whole WHERE rows < ?4 AND bytes > ?5
  UNION ALL
  SELECT event.previous FROM log, kept JOIN event ON event.number = log.number WHERE event.position > kept.position + 1
  LIMIT ?4),
pieces (number) AS (
  SELECT last FROM flight WHERE owner = ?1 AND session = ?2
  UNION ALL
  SELECT segment.previous FROM pieces JOIN segment ON segment.number = pieces.number WHERE segment.previous > 0
  LIMIT ?4),
items (payload) AS (
  SELECT payload FROM inbox INDEXED BY inbox_waiting
   WHERE owner = ?1 AND session = ?2 AND state = 'accepted' LIMIT ?4),
sizes (rows, bytes) AS (
  SELECT rows, CASE WHEN bytes <= ?5 THEN bytes ELSE (
      SELECT coalesce(sum(length(data)), 0) FROM log JOIN event ON event.number = log.number) END FROM whole
  UNION ALL
  SELECT count(*), coalesce(sum(length(text)), 0) FROM pieces JOIN segment ON segment.number = pieces.number
  UNION ALL
  SELECT count(*), coalesce(sum(length(payload)), 0) FROM items
  UNION ALL
  SELECT 0, size FROM kept)
SELECT max(rows), sum(bytes) FROM sizes;

-- name: is_in_flight
SELECT 1 FROM flight WHERE owner = ?1 AND session = ?2;

-- name: segments
WITH RECURSIVE pieces (number) AS (
  SELECT last FROM flight WHERE owner = ?1 AND session = ?2
  UNION ALL
  SELECT segment.previous FROM pieces JOIN segment ON segment.number = pieces.number WHERE segment.previous > 0)
SELECT message_id, attempt, block, start, kind, text, tool_call_id, name
  FROM pieces JOIN segment ON segment.number = pieces.number
 WHERE message_id IS NOT ?3 OR block > ?4
       OR (block = ?4 AND (start + length(text) > ?5 OR (length(text) = 0 AND start >= ?5)))
 ORDER BY message_id, attempt, block, start;

-- name: requests
-- A request with an accepted answer that is not promoted yet asks for nothing any more: it is returned only with ?3.
SELECT id, kind, turn_id, tool_call_id, title, opened_at FROM request INDEXED BY request_open
 WHERE owner = ?1 AND session = ?2 AND state = 'open'
   AND (?3 OR NOT EXISTS (
     SELECT 1 FROM inbox
      WHERE inbox.owner = request.owner AND inbox.session = request.session
        AND inbox.item_key = 'answer:' || request.id))
 ORDER BY opened_at, id;

-- name: snapshot
SELECT fold_version, position, state FROM snapshot WHERE owner = ?1 AND session = ?2 AND fold_version = ?3;

-- name: glance
SELECT status, count(*), coalesce(sum(updated_at >= ?2), 0)
  FROM session WHERE owner = ?1 AND deleted_at IS NULL GROUP BY status;

-- name: glance_first
-- Sessions that wait for a person or client first, the longest wait first. Then the others, latest first.
SELECT id FROM session WHERE owner = ?1 AND deleted_at IS NULL
 ORDER BY CASE status WHEN 'waiting' THEN 0 WHEN 'running' THEN 1 WHEN 'queued' THEN 2 ELSE 3 END,
          CASE status WHEN 'waiting' THEN updated_at ELSE -updated_at END, id
 LIMIT ?2;

-- name: oldest_unclaimed
SELECT min(runnable_since)
  FROM json_each(?1) AS owners CROSS JOIN session INDEXED BY session_claimable ON session.owner = owners.value
 WHERE runnable = 1 AND lease_holder IS NULL;

-- name: tail
SELECT fence, inbox_tail FROM session WHERE owner = ?1 AND id = ?2;

-- name: ledger
SELECT message_id, attempt, model, input_tokens, output_tokens, cache_read_tokens, cost_microdollars, time,
       cache_write_tokens, refused
  FROM ledger WHERE owner = ?1 ORDER BY time, session, message_id, attempt;

-- name: ledger_of_session
SELECT message_id, attempt, model, input_tokens, output_tokens, cache_read_tokens, cost_microdollars, time,
       cache_write_tokens, refused
  FROM ledger WHERE owner = ?1 AND session = ?2 ORDER BY time, message_id, attempt;

-- name: prompt
SELECT content FROM prompt WHERE digest = ?1;

-- Tasks

-- name: open_task
-- A second attempt at the same call finds the row of the first.
INSERT INTO task (owner, session, id, tool_call_id, call_key, command, description, directory, host, output_file, alias,
                  foreground, status, stalled, exit_code, detail, started_at, ended_at, kill_asked, settled, boot_id, opened_at)
VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, 'running', 0, NULL, '', ?13, NULL, '', 0, ?14, ?15)
ON CONFLICT DO NOTHING;

-- name: task_to_background
UPDATE task SET foreground = 0 WHERE owner = ?1 AND session = ?2 AND id = ?3;

-- name: end_foreground_task
UPDATE task SET status = ?4, exit_code = ?5, detail = ?6, ended_at = ?7, kill_asked = '', settled = 1
 WHERE owner = ?1 AND session = ?2 AND id = ?3 AND status = 'running';

-- name: end_foreground_tasks
UPDATE task SET kill_asked = 'stop'
 WHERE owner = ?1 AND session = ?2 AND (?3 IS NULL OR id = ?3) AND foreground = 1 AND status = 'running';

-- name: end_task
-- Only the task's own machine settles it. A task that another machine gave up as lost may turn out to have ended
-- otherwise.
UPDATE task
   SET status = ?4, exit_code = ?5, detail = ?6, ended_at = ?7, stalled = 0, settled = host = ?8,
       kill_asked = CASE WHEN kill_asked = 'deletion' THEN kill_asked ELSE '' END
 WHERE owner = ?1 AND session = ?2 AND id = ?3
   AND settled = 0 AND (status = 'running' OR host = ?8);

-- name: stall_task
UPDATE task SET stalled = 1
 WHERE owner = ?1 AND session = ?2 AND id = ?3 AND status = 'running' AND stalled = 0 AND foreground = 0;

-- name: unstall_task
UPDATE task SET stalled = 0 WHERE owner = ?1 AND session = ?2 AND id = ?3 AND stalled = 1;

-- name: kill_task
UPDATE task SET kill_asked = ?4
 WHERE owner = ?1 AND session = ?2 AND id = ?3 AND status = 'running' AND kill_asked = '';

-- name: delete_tasks
-- The rows stay until their commands are killed and forgotten: the task keeper that does so must find them.
UPDATE task SET kill_asked = 'deletion', command = '', description = '' WHERE owner = ?1 AND session = ?2;

-- name: drop_task
DELETE FROM task WHERE owner = ?1 AND session = ?2 AND id = ?3;

-- name: drop_old_tasks
DELETE FROM task
 WHERE end_noted_at <= CAST((julianday('now') - 2440587.5) * 86400000 AS INTEGER) - ?1
   AND kill_asked = '' AND status != 'running';

-- name: see_host
INSERT INTO task_host (id, boot_id, seen_at) VALUES (?1, ?2, ?3)
ON CONFLICT (id) DO UPDATE SET boot_id = excluded.boot_id, seen_at = excluded.seen_at;

-- name: session_tasks
SELECT task.owner, session, task.id, tool_call_id, call_key, command, description, directory, host, output_file, alias,
       foreground, status, stalled, exit_code, detail, started_at, ended_at, kill_asked,
       task_host.boot_id, seen_at, task.boot_id, opened_at
  FROM task LEFT JOIN task_host ON task_host.id = host
 WHERE owner = ?1 AND session = ?2 AND kill_asked != 'deletion' AND (?3 IS NULL OR task.id = ?3)
 ORDER BY started_at, task.id;

-- name: running_session_tasks
SELECT task.owner, session, task.id, tool_call_id, call_key, command, description, directory, host, output_file, alias,
       foreground, status, stalled, exit_code, detail, started_at, ended_at, kill_asked,
       task_host.boot_id, seen_at, task.boot_id, opened_at
  FROM task LEFT JOIN task_host ON task_host.id = host
 WHERE owner = ?1 AND session = ?2 AND kill_asked != 'deletion' AND status = 'running'
 ORDER BY started_at, task.id;

-- name: owner_tasks
SELECT task.owner, session, task.id, tool_call_id, call_key, command, description, directory, host, output_file, alias,
       foreground, status, stalled, exit_code, detail, started_at, ended_at, kill_asked,
       task_host.boot_id, seen_at, task.boot_id, opened_at
  FROM task LEFT JOIN task_host ON task_host.id = host
 WHERE owner = ?1 AND kill_asked != 'deletion'
 ORDER BY started_at, task.id;

-- name: host_tasks
SELECT task.owner, session, task.id, tool_call_id, call_key, command, description, directory, host, output_file, alias,
       foreground, status, stalled, exit_code, detail, started_at, ended_at, kill_asked,
       task_host.boot_id, seen_at, task.boot_id, opened_at
  FROM task INDEXED BY task_at_work LEFT JOIN task_host ON task_host.id = host
 WHERE host = ?1 AND (settled = 0 OR kill_asked != '') AND (foreground = 0 OR kill_asked != '');

-- name: stray_tasks
SELECT task.owner, session, task.id, tool_call_id, call_key, command, description, directory, host, output_file, alias,
       foreground, status, stalled, exit_code, detail, started_at, ended_at, kill_asked,
       task_host.boot_id, seen_at, task.boot_id, opened_at
  FROM task INDEXED BY task_at_work LEFT JOIN task_host ON task_host.id = host
 WHERE host != ?1 AND (settled = 0 OR kill_asked != '') AND (status = 'running' OR kill_asked != '')
   AND (foreground = 0 OR kill_asked != '');

-- API keys

-- name: add_key
INSERT INTO api_key (id, name, owner, role, digest, created_at) VALUES (?1, ?2, ?3, ?4, ?5, ?6);

-- name: revoke_key
UPDATE api_key SET revoked_at = ?2 WHERE id = ?1 AND revoked_at IS NULL;

-- name: valid_key
SELECT id, name, owner, role, digest, created_at, revoked_at
  FROM api_key WHERE id = ?1 AND digest = ?2 AND revoked_at IS NULL;

-- name: keys
SELECT id, name, owner, role, digest, created_at, revoked_at
  FROM api_key WHERE ?1 IS NULL OR id = ?1 ORDER BY created_at, id;

-- The audit log

-- name: add_audit
INSERT INTO audit (at, actor, actor_id, actor_owner, role, address, action, owner, target, result, detail)
VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11);

-- name: audit_head
SELECT coalesce((SELECT seq FROM sqlite_sequence WHERE name = 'audit'), 0);

-- name: audit_log
SELECT number, at, actor, actor_id, actor_owner, role, address, action, owner, target, result, detail
  FROM audit WHERE number > ?1 ORDER BY number LIMIT ?2;

-- name: trim_audit
-- Looks at the oldest entries only, so that it needs no index by time.
DELETE FROM audit WHERE at < ?1 AND number IN (SELECT number FROM audit ORDER BY number LIMIT ?2);
-- Webhooks

-- name: count_webhooks
SELECT count(*) FROM webhook WHERE owner = ?1;

-- name: put_webhook
INSERT OR REPLACE INTO webhook
  (id, owner, url, events, types, description, is_active, created_at, keeper, secret, old_secret, old_until)
VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12);

-- name: webhook_types
INSERT INTO webhook_type (owner, type, webhook) SELECT ?1, value, ?2 FROM json_each(?3);

-- name: drop_webhook_types
DELETE FROM webhook_type WHERE webhook = ?2 AND owner = ?1;

-- name: webhook_due_now
UPDATE webhook_delivery INDEXED BY webhook_delivery_due SET due_at = 0
 WHERE webhook = ?1 AND state = 'pending' AND due_at > 0;

-- name: delete_webhook
DELETE FROM webhook WHERE owner = ?1 AND id = ?2;

-- name: delete_deliveries
DELETE FROM webhook_delivery WHERE webhook = ?1;

-- name: webhooks
SELECT id, owner, url, events, types, description, is_active, created_at, keeper, secret, old_secret, old_until
  FROM webhook WHERE owner = ?1 AND (?2 IS NULL OR id = ?2) ORDER BY created_at, id;

-- name: webhook
SELECT id, owner, url, events, types, description, is_active, created_at, keeper, secret, old_secret, old_until
  FROM webhook WHERE id = ?1;

-- name: webhook_backlog
SELECT count(*), min(CASE WHEN fault IS NOT NULL THEN since END)
  FROM webhook_delivery INDEXED BY webhook_delivery_due WHERE webhook = ?1 AND state = 'pending';

-- name: delivery_fields
-- A fragment: the columns of a delivery.
webhook_delivery.webhook, webhook_delivery.event_id, webhook_delivery.owner, webhook_delivery.session,
webhook_delivery.position, webhook_delivery.type, webhook_delivery.time, webhook_delivery.state,
webhook_delivery.single, webhook_delivery.attempts, webhook_delivery.due_at, webhook_delivery.since,
webhook_delivery.tried_at, webhook_delivery.status, webhook_delivery.fault, webhook_delivery.ended_at;

-- name: deliveries
SELECT {delivery_fields} FROM webhook_delivery
 WHERE webhook = ?1 AND owner = ?2 AND (?3 IS NULL OR state = ?3)
   AND (?4 IS NULL OR number < (SELECT number FROM webhook_delivery AS last
                                 WHERE last.webhook = ?1 AND last.event_id = ?4))
 ORDER BY number DESC LIMIT ?5;

-- name: delivery
SELECT {delivery_fields} FROM webhook_delivery WHERE webhook = ?1 AND event_id = ?3 AND owner = ?2;

-- name: add_delivery
INSERT INTO webhook_delivery (webhook, event_id, owner, session, position, type, time, single)
SELECT id, ?3, owner, '', 0, ?4, ?5, 1 FROM webhook WHERE id = ?1 AND owner = ?2;

-- name: count_tests
SELECT count(*) FROM webhook_delivery INDEXED BY webhook_delivery_line
 WHERE webhook = ?1 AND owner = ?2 AND session = '' AND state = 'pending';

-- name: send_again
-- A delivery that has ended is attempted once more, outside its line: it must not hold up what followed it.
UPDATE webhook_delivery
   SET single = CASE WHEN state = 'pending' THEN single ELSE 1 END,
       since = CASE WHEN state = 'pending' THEN since END,
       state = 'pending', due_at = 0, ended_at = NULL
 WHERE webhook = ?1 AND event_id = ?3 AND owner = ?2;

-- name: due_deliveries
-- Of each webhook one delivery that is due, that no living process holds, and that is the first in its line. ?4 is this
-- process, ?5 the deliveries that it attempts: others that it holds come from a claim whose outcome it never learnt.
WITH RECURSIVE waiting (webhook) AS (
  SELECT (SELECT min(webhook) FROM webhook_delivery INDEXED BY webhook_delivery_due WHERE state = 'pending')
  UNION ALL
  SELECT (SELECT min(webhook) FROM webhook_delivery INDEXED BY webhook_delivery_due
           WHERE state = 'pending' AND webhook_delivery.webhook > waiting.webhook)
    FROM waiting WHERE waiting.webhook IS NOT NULL)
SELECT {delivery_fields}
  FROM waiting CROSS JOIN webhook CROSS JOIN webhook_delivery
 WHERE webhook.id = waiting.webhook AND webhook.is_active AND webhook.keeper IN ('', ?2)
   AND waiting.webhook NOT IN (SELECT value FROM json_each(?3))
   AND webhook_delivery.number = (
     SELECT due.number FROM webhook_delivery AS due INDEXED BY webhook_delivery_due
      WHERE due.webhook = waiting.webhook AND due.state = 'pending' AND due.due_at <= ?1
        AND CASE WHEN due.held_by = ?4 THEN due.webhook || ' ' || due.event_id NOT IN (SELECT value FROM json_each(?5))
                 ELSE due.held_by IS NULL OR NOT EXISTS (
                   SELECT 1 FROM process WHERE token = due.held_by AND boot_id = ?6 AND expires_at > ?7) END
        AND (due.single OR NOT EXISTS (
          SELECT 1 FROM webhook_delivery AS earlier INDEXED BY webhook_delivery_line
           WHERE earlier.webhook = due.webhook AND earlier.owner = due.owner AND earlier.session = due.session
             AND earlier.state = 'pending' AND NOT earlier.single AND earlier.position < due.position))
      ORDER BY due.due_at LIMIT 1)
 LIMIT ?8;

-- name: hold_delivery
UPDATE webhook_delivery SET held_by = ?3, attempts = attempts + 1, tried_at = ?4, since = coalesce(since, ?4)
 WHERE webhook = ?1 AND event_id = ?2;

-- name: end_delivery
UPDATE webhook_delivery
   SET state = ?5, due_at = ?6, status = ?7, fault = ?8, ended_at = ?9, held_by = NULL
 WHERE webhook = ?1 AND event_id = ?2 AND held_by = ?3 AND attempts = ?4;

-- name: drop_delivery
DELETE FROM webhook_delivery WHERE webhook = ?1 AND event_id = ?2 AND held_by = ?3 AND attempts = ?4;

-- name: delay_line
UPDATE webhook_delivery INDEXED BY webhook_delivery_line SET due_at = ?4
 WHERE webhook = ?1 AND owner = ?2 AND session = ?3 AND state = 'pending' AND NOT single AND due_at < ?4;

-- name: free_line
UPDATE webhook_delivery INDEXED BY webhook_delivery_line
   SET due_at = 0, since = CASE WHEN ?4 THEN coalesce(since, time) ELSE since END
 WHERE webhook = ?1 AND owner = ?2 AND session = ?3 AND state = 'pending' AND NOT single;

-- name: drop_old_deliveries
DELETE FROM webhook_delivery
 WHERE number IN (SELECT number FROM webhook_delivery WHERE ended_at <= ?1 LIMIT ?2);

-- name: identity
SELECT name FROM identity;

-- Survey of a database from outside. All but the last use only what the first migration created.

-- name: survey_contents
SELECT count(*), coalesce(sum(status <> 'idle'), 0), (SELECT coalesce(sum(position), 0) FROM head)
  FROM session WHERE deleted_at IS NULL;

-- name: survey_work
SELECT (SELECT count(*) FROM session WHERE runnable = 1 AND lease_holder IS NULL),
       (SELECT min(runnable_since) FROM session WHERE runnable = 1 AND lease_holder IS NULL),
       (SELECT count(*) FROM session WHERE wake_at <= ?1 AND runnable = 0 AND deleted_at IS NULL),
       (SELECT min(wake_at) FROM session WHERE wake_at <= ?1 AND runnable = 0 AND deleted_at IS NULL),
       (SELECT count(*) FROM request WHERE state = 'open');

-- name: survey_held
SELECT lease_holder, count(*) FROM session WHERE lease_holder IS NOT NULL GROUP BY lease_holder;

-- name: survey_processes
SELECT token, node, boot_id FROM process;

-- name: survey_descriptions
SELECT token, renewed_at, role, version, started_at, max_sessions FROM process;

-- Files: their rows, in the order of the fields of FileRow, their uses, and their contents

-- name: file
SELECT owner, id, name, media_type, size, digest, created_at, is_kept, made_by, content
  FROM file WHERE owner = ?1 AND id = ?2;

-- name: files
SELECT owner, id, name, media_type, size, digest, created_at, is_kept, made_by, content
  FROM file WHERE owner = ?1 AND (created_at, id) < (?2, ?3)
 ORDER BY created_at DESC, id DESC LIMIT ?4;

-- name: files_of_session
SELECT file.owner, id, name, media_type, size, digest, created_at, is_kept, made_by, content
  FROM file_use JOIN file ON file.owner = file_use.owner AND file.id = file_use.file
 WHERE file_use.owner = ?1 AND session = ?5 AND (created_at, id) < (?2, ?3)
 ORDER BY created_at DESC, id DESC LIMIT ?4;

-- name: held_files
SELECT (SELECT count(*) FROM file WHERE owner = ?1) + count(*),
       ((SELECT coalesce(sum(size), 0) FROM file WHERE owner = ?1) + coalesce(sum(size), 0))
  FROM content WHERE owner = ?1 AND state = 'storing';

-- name: stored_content
SELECT id FROM content WHERE owner = ?1 AND digest = ?2 AND state = 'stored' LIMIT 1;

-- name: is_storing
SELECT 1 FROM content WHERE id = ?1 AND state = 'storing';

-- name: reserve_content
INSERT INTO content (id, owner, digest, size, state, changed_at) VALUES (?1, ?2, ?3, ?4, 'storing', ?5);

-- name: content_is_stored
UPDATE content SET state = 'stored', changed_at = ?2 WHERE id = ?1 AND state = 'storing';

-- name: insert_file
INSERT INTO file (owner, id, name, media_type, size, digest, created_at, is_kept, made_by, content)
VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10);

-- name: use_file
INSERT INTO file_use (owner, session, file)
SELECT ?1, ?2, id FROM file WHERE owner = ?1 AND id = ?3
ON CONFLICT DO NOTHING;

-- name: keep_file
UPDATE file SET is_kept = ?3 WHERE owner = ?1 AND id = ?2;

-- name: delete_file
DELETE FROM file WHERE owner = ?1 AND id = ?2 RETURNING content;

-- name: delete_uses_of_file
DELETE FROM file_use WHERE owner = ?1 AND file = ?2;

-- name: delete_files_of_session
-- Those that are not kept and that no other session uses.
DELETE FROM file
 WHERE owner = ?1 AND is_kept = 0 AND id IN (SELECT file FROM file_use WHERE owner = ?1 AND session = ?2)
   AND NOT EXISTS (SELECT 1 FROM file_use AS other
                    WHERE other.owner = ?1 AND other.file = file.id AND other.session != ?2)
RETURNING content;

-- name: delete_uses_of_session
DELETE FROM file_use WHERE owner = ?1 AND session = ?2;

-- name: unused_files
SELECT owner, id FROM file
 WHERE is_kept = 0 AND created_at < ?1
   AND NOT EXISTS (SELECT 1 FROM file_use WHERE file_use.owner = file.owner AND file_use.file = file.id)
 ORDER BY created_at LIMIT ?2;

-- name: delete_unused_files
DELETE FROM file
 WHERE owner = ?1 AND id IN (SELECT value FROM json_each(?2)) AND is_kept = 0
   AND NOT EXISTS (SELECT 1 FROM file_use WHERE file_use.owner = ?1 AND file_use.file = file.id)
RETURNING content;

-- name: doom_unused_contents
-- Those of these contents that no file refers to any more.
UPDATE content SET state = 'doomed', changed_at = ?2
 WHERE id IN (SELECT value FROM json_each(?1)) AND state = 'stored' AND NOT EXISTS (SELECT 1 FROM file WHERE file.content = content.id);

-- name: doom_late_contents
UPDATE content SET state = 'doomed', changed_at = ?1
 WHERE id IN (SELECT id FROM content WHERE state = 'storing' AND changed_at < ?2 ORDER BY changed_at LIMIT ?3);

-- name: doomed_contents
SELECT id FROM content WHERE state = 'doomed' ORDER BY changed_at, id LIMIT ?1;

-- name: drop_content
DELETE FROM content WHERE id = ?1 AND state = 'doomed';

-- name: record_file_home
UPDATE identity SET files = ?1 WHERE files IS NULL;

-- name: file_home
SELECT files FROM identity;
