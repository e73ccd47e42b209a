-- Every statement of the PostgreSQL store, by name. Read by stores/postgres/schema.py, which puts the schema's name in.

-- name: has_layout
SELECT EXISTS (SELECT 1 FROM pg_catalog.pg_namespace WHERE nspname = $1), pg_is_in_recovery(),
    current_setting('default_transaction_read_only')::boolean,
    EXISTS (
        SELECT 1 FROM pg_catalog.pg_class JOIN pg_catalog.pg_namespace ON pg_namespace.oid = relnamespace
        WHERE nspname = $1 AND relname = 'layout'
    ), EXISTS (
        SELECT 1 FROM pg_catalog.pg_class JOIN pg_catalog.pg_namespace ON pg_namespace.oid = relnamespace
        WHERE nspname = $1 AND relname = 'record_sought'
    )
-- name: make_schema
CREATE SCHEMA :schema
-- name: make_layout
CREATE TABLE :schema.layout (version integer PRIMARY KEY, at timestamptz NOT NULL DEFAULT clock_timestamp())
-- name: layout
SELECT coalesce(max(version), 0) FROM :schema.layout
-- name: set_layout
INSERT INTO :schema.layout (version) VALUES ($1)
-- name: lock_layout
SELECT pg_advisory_xact_lock($1::bigint)
-- name: clock
SELECT :schema.clock()

-- name: ping
SELECT 1
-- name: begin
BEGIN ISOLATION LEVEL READ COMMITTED
-- name: begin_snapshot
BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY
-- Sent before each commit, since anybody who has the session may have turned it off, also behind PgBouncer.
-- name: durably
SELECT :durably
-- name: commit
COMMIT
-- name: rollback
ROLLBACK
-- name: savepoint
SAVEPOINT savegame
-- name: rollback_to
ROLLBACK TO SAVEPOINT savegame
-- name: release
RELEASE SAVEPOINT savegame
-- For blocks of connection(). What was put off is checked while the settings are still those of its user.
-- name: begin_block
SAVEPOINT savegame_block
-- name: undo_block
ROLLBACK TO SAVEPOINT savegame_block
-- name: end_block
RELEASE SAVEPOINT savegame_block
-- name: check_constraints
SET CONSTRAINTS ALL IMMEDIATE
-- name: reset_user
RESET SESSION AUTHORIZATION
-- name: reset_role
RESET ROLE
-- name: reset_settings
RESET ALL
-- name: mark
INSERT INTO :schema.landed (namespace, thread, mark, done) VALUES ($1, $2, $3, true)
-- name: settle
INSERT INTO :schema.landed (namespace, thread, mark, done) VALUES ($1, $2, $3, false)
ON CONFLICT (namespace, thread, mark) DO UPDATE SET at = clock_timestamp() RETURNING done, :durably
-- name: forget_marks
DELETE FROM :schema.landed WHERE (namespace, thread, mark) IN (
    SELECT namespace, thread, mark FROM :schema.landed WHERE at < clock_timestamp() - interval '1 hour'
    ORDER BY at LIMIT 1000 FOR UPDATE SKIP LOCKED
)

-- name: thread
SELECT tag, agent, head, head_id, last, floor, run, count, epoch, owner, expires, version, sum FROM :schema.thread WHERE namespace = $1 AND id = $2
-- name: lock_thread
SELECT tag, agent, head, head_id, last, floor, run, count, epoch, owner, expires, version, sum, namespace, id, watched > :schema.clock(), :schema.clock()
FROM :schema.thread WHERE namespace = $1 AND id = $2 FOR UPDATE
-- name: lock_threads
SELECT tag, agent, head, head_id, last, floor, run, count, epoch, owner, expires, version, sum, namespace, id, watched > :schema.clock(), :schema.clock()
FROM :schema.thread WHERE (namespace, id) IN (SELECT * FROM unnest($1::text[], $2::text[])) ORDER BY namespace, id FOR UPDATE
-- name: threads
SELECT tag, agent, head, head_id, last, floor, run, count, epoch, owner, expires, version, sum, id
FROM :schema.thread WHERE namespace = $1 AND id > $2 AND head > 0 ORDER BY id LIMIT $3
-- name: threads_of_agent
SELECT tag, agent, head, head_id, last, floor, run, count, epoch, owner, expires, version, sum, id
FROM :schema.thread WHERE namespace = $1 AND agent = $2 AND id > $3 AND head > 0 ORDER BY id LIMIT $4
-- name: heads
SELECT id, head_id FROM :schema.thread WHERE namespace = $1 ORDER BY id
-- name: heads_of_agent
SELECT id, head_id FROM :schema.thread WHERE namespace = $1 AND agent = $2 ORDER BY id
-- name: some_threads
SELECT tag, agent, head, head_id, last, floor, run, count, epoch, owner, expires, version, sum, namespace, id
FROM :schema.thread WHERE (namespace, id) IN (SELECT * FROM unnest($1::text[], $2::text[]))
-- name: add_thread
INSERT INTO :schema.thread (namespace, id, tag, head, last, floor, run, count, epoch, expires, version, sum)
VALUES ($1, $2, $3, 0, 0, 0, 0, 0, 0, 0, 0, 0) ON CONFLICT (namespace, id) DO NOTHING
-- name: put_thread
INSERT INTO :schema.thread (namespace, id, tag, agent, head, head_id, last, floor, run, count, epoch, owner, expires, version, sum)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15)
ON CONFLICT (namespace, id) DO UPDATE SET tag = excluded.tag, agent = excluded.agent, head = excluded.head,
    head_id = excluded.head_id, last = excluded.last, floor = excluded.floor, run = excluded.run, count = excluded.count,
    epoch = excluded.epoch, owner = excluded.owner, expires = excluded.expires, version = excluded.version, sum = excluded.sum
-- name: notify
SELECT pg_notify('savegame', $1)
-- name: listen
LISTEN savegame
-- name: watch
UPDATE :schema.thread SET watched = :schema.clock() + $3::bigint WHERE namespace = $1 AND id = $2 RETURNING 1
-- name: next_epoch
SELECT nextval($1::text::regclass)

-- name: append
SELECT :schema.append_1($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17, $18, $19), :durably
-- name: add_frame
INSERT INTO :schema.frame (namespace, thread, seq, listed, id, base, run, meta, meta_sum, note, note_sum, delta, delta_sum)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13)
-- name: lock_id
SELECT pg_advisory_xact_lock($1::integer, $2::integer)
-- name: frames_at_tag
SELECT seq, frame.id, base, frame.run, listed::int, meta, meta_sum, note, note_sum, thread
FROM :schema.thread JOIN :schema.frame ON frame.namespace = thread.namespace AND frame.thread = thread.id
WHERE thread.namespace = $1 AND tag = $2 AND seq = $3
-- name: find_listed
SELECT thread, seq FROM :schema.frame WHERE namespace = $1 AND id = $2 AND listed
-- name: frame_ids
SELECT seq, id FROM :schema.frame WHERE namespace = $1 AND thread = $2 AND seq = ANY($3::bigint[])
-- name: pins
SELECT seq, id, note FROM :schema.frame WHERE namespace = $1 AND thread = $2 AND seq = ANY($3::bigint[])
-- name: frame_metas
SELECT seq, id, meta, run, listed::int FROM :schema.frame WHERE namespace = $1 AND thread = $2 AND seq = ANY($3::bigint[])
-- name: frames_up
SELECT seq, id, base, run, listed::int, meta, meta_sum, note, note_sum, CASE WHEN $7 THEN delta END, delta_sum
FROM :schema.frame WHERE namespace = $1 AND thread = $2 AND seq BETWEEN $3 AND $4 AND ($6 OR note IS NOT NULL)
ORDER BY seq LIMIT $5::bigint
-- name: frames_down
SELECT seq, id, base, run, listed::int, meta, meta_sum, note, note_sum, CASE WHEN $7 THEN delta END, delta_sum
FROM :schema.frame WHERE namespace = $1 AND thread = $2 AND seq BETWEEN $3 AND $4 AND ($6 OR note IS NOT NULL)
ORDER BY seq DESC LIMIT $5::bigint
-- name: head_frames
SELECT seq, id, base, run, listed::int, meta, meta_sum, note, note_sum, wanted.namespace, wanted.thread
FROM unnest($1::text[], $2::text[], $3::bigint[]) AS wanted (namespace, thread, head)
JOIN :schema.frame ON frame.namespace = wanted.namespace AND frame.thread = wanted.thread AND frame.seq = wanted.head
-- name: chain
WITH target AS (
    SELECT least(run, seq) AS run FROM :schema.frame
    WHERE namespace = $1 AND thread = $2 AND seq = $3 AND ($6::bytea IS NULL OR meta = $6)
),
start AS (
    SELECT seq, body, sum FROM :schema.keyframe
    WHERE namespace = $1 AND thread = $2 AND seq BETWEEN (SELECT run FROM target) AND $4
        AND NOT coalesce($5 BETWEEN (SELECT run FROM target) AND $3, false)
    ORDER BY seq DESC LIMIT 1
)
SELECT 0 AS kind, run AS seq, 0::bigint AS base, NULL::bytea AS body, 0::bigint AS sum FROM target
UNION ALL SELECT 1, seq, 0, body, sum FROM start
UNION ALL SELECT 2, frame.seq, frame.base, frame.delta, frame.delta_sum FROM :schema.frame
WHERE namespace = $1 AND thread = $2 AND frame.seq <= $3 AND frame.seq >= (
    SELECT CASE WHEN $5 BETWEEN run AND $3 THEN $5 + 1 ELSE coalesce((SELECT start.seq + 1 FROM start), run) END FROM target
)
ORDER BY kind, seq
-- name: frame_run
SELECT least(run, seq) FROM :schema.frame WHERE namespace = $1 AND thread = $2 AND seq = $3
-- name: nth_newest
SELECT seq FROM :schema.frame WHERE namespace = $1 AND thread = $2 ORDER BY seq DESC LIMIT 1 OFFSET $3
-- name: set_note
UPDATE :schema.frame SET note = $4, note_sum = $5 WHERE namespace = $1 AND thread = $2 AND seq = $3
-- name: set_base
UPDATE :schema.frame SET base = $4, meta_sum = $5, delta = $6, delta_sum = $7 WHERE namespace = $1 AND thread = $2 AND seq = $3
-- name: frames_aside
INSERT INTO :schema.aside (namespace, thread, at, what, seq, id, base, meta, note, body)
SELECT namespace, thread, :schema.clock(), 'frame', seq, id, base, meta, note, delta
FROM :schema.frame WHERE namespace = $1 AND thread = $2 AND seq = ANY($3::bigint[])
-- name: drop_frames
DELETE FROM :schema.frame WHERE namespace = $1 AND thread = $2 AND seq = ANY($3::bigint[])
-- name: drop_keyframes
DELETE FROM :schema.keyframe WHERE namespace = $1 AND thread = $2 AND seq = ANY($3::bigint[])
-- name: count_frames
SELECT count(*), coalesce(max(seq), 0) FROM :schema.frame
WHERE namespace = $1 AND thread = $2 AND seq BETWEEN 1 AND 4294967295
-- name: delete_frames
DELETE FROM :schema.frame WHERE namespace = $1 AND thread = $2
-- name: delete_keyframes
DELETE FROM :schema.keyframe WHERE namespace = $1 AND thread = $2
-- name: delete_records
DELETE FROM :schema.record WHERE namespace = $1 AND thread = $2
-- name: delete_blobs
DELETE FROM :schema.blob WHERE namespace = $1 AND thread = $2
-- name: delete_aside
DELETE FROM :schema.aside WHERE namespace = $1 AND thread = $2
-- name: delete_thread
DELETE FROM :schema.thread WHERE namespace = $1 AND id = $2

-- name: put_keyframe
INSERT INTO :schema.keyframe (namespace, thread, seq, body, sum) SELECT $1, $2, $3::bigint, $4::bytea, $5::bigint
WHERE EXISTS (SELECT 1 FROM :schema.frame WHERE namespace = $1 AND thread = $2 AND seq = $3)
ON CONFLICT (namespace, thread, seq) DO UPDATE SET body = excluded.body, sum = excluded.sum
-- name: delete_keyframe
DELETE FROM :schema.keyframe WHERE namespace = $1 AND thread = $2 AND seq = $3

-- name: record
SELECT 1 FROM :schema.record WHERE namespace = $1 AND thread = $2 AND kind = $3 AND name = $4
-- name: records
SELECT name, value, sum FROM :schema.record
WHERE namespace = $1 AND thread = $2 AND kind = $3 AND name > $4 ORDER BY name LIMIT $5
-- name: record_names
SELECT name FROM :schema.record WHERE namespace = $1 AND thread = $2 AND kind = $3
-- name: kinds
SELECT DISTINCT kind FROM :schema.record WHERE namespace = $1 AND thread = $2 ORDER BY kind
-- No step of the layout: earlier versions can do with it, and the statements below without it. Its condition has to stand in
-- a statement that uses it.
-- name: make_sought
CREATE INDEX IF NOT EXISTS record_sought ON :schema.record (namespace, kind, thread) WHERE kind IN ('due', 'inbox')
-- name: threads_sought
SELECT DISTINCT thread FROM :schema.record WHERE namespace = $1 AND kind = $2 AND kind IN ('due', 'inbox') ORDER BY thread
-- name: threads_with
SELECT DISTINCT thread FROM :schema.record WHERE namespace = $1 AND kind = $2 ORDER BY thread
-- name: put_record
INSERT INTO :schema.record (namespace, thread, kind, name, value, sum) VALUES ($1, $2, $3, $4, $5, $6)
ON CONFLICT (namespace, thread, kind, name) DO UPDATE SET value = excluded.value, sum = excluded.sum
-- name: delete_record
DELETE FROM :schema.record WHERE namespace = $1 AND thread = $2 AND kind = $3 AND name = $4

-- name: blob
SELECT body, sum FROM :schema.blob WHERE namespace = $1 AND thread = $2 AND digest = $3
-- name: put_blob
INSERT INTO :schema.blob (namespace, thread, digest, body, sum) VALUES ($1, $2, $3, $4, $5)
ON CONFLICT (namespace, thread, digest) DO UPDATE SET body = excluded.body, sum = excluded.sum
WHERE (blob.body, blob.sum) IS DISTINCT FROM (excluded.body, excluded.sum)
-- name: delete_blob
DELETE FROM :schema.blob WHERE namespace = $1 AND thread = $2 AND digest = $3
-- name: blobs_aside
INSERT INTO :schema.aside (namespace, thread, at, what, body)
SELECT namespace, thread, :schema.clock(), 'large value ' || encode(digest, 'hex'), body
FROM :schema.blob WHERE namespace = $1 AND thread = $2 AND digest <> ALL($3::bytea[])
-- name: keep_blobs
DELETE FROM :schema.blob WHERE namespace = $1 AND thread = $2 AND digest <> ALL($3::bytea[])

-- name: note_sums
SELECT namespace, thread, seq, note_sum FROM :schema.frame
WHERE (namespace, thread) IN (SELECT * FROM unnest($1::text[], $2::text[])) AND note IS NOT NULL ORDER BY 1, 2, 3
-- name: record_sums
SELECT namespace, thread, kind, name, sum FROM :schema.record
WHERE (namespace, thread) IN (SELECT * FROM unnest($1::text[], $2::text[])) ORDER BY 1, 2, 3, 4

-- name: sizes
SELECT (SELECT count(*) FROM :schema.frame), (SELECT coalesce(sum(length(delta)), 0) FROM :schema.frame),
    (SELECT coalesce(sum(length(meta)), 0) FROM :schema.frame), (SELECT coalesce(sum(length(note)), 0) FROM :schema.frame),
    (SELECT coalesce(sum(length(body)), 0) FROM :schema.keyframe), (SELECT coalesce(sum(length(value)), 0) FROM :schema.record),
    (SELECT coalesce(sum(length(body)), 0) FROM :schema.blob), (SELECT coalesce(sum(length(body)), 0) FROM :schema.aside),
    (SELECT coalesce(sum(pg_total_relation_size(pg_class.oid)), 0) FROM pg_catalog.pg_class
     WHERE relnamespace = $1::text::regnamespace AND relkind IN ('r', 'p') AND relname NOT LIKE 'search!_%' ESCAPE '!')
-- name: all_threads
SELECT tag, agent, head, head_id, last, floor, run, count, epoch, owner, expires, version, sum, id
FROM :schema.thread WHERE namespace = $1 AND id > $2 ORDER BY id LIMIT 200
-- name: deltas
SELECT seq, base, delta, delta_sum FROM :schema.frame
WHERE namespace = $1 AND thread = $2 AND seq > $3 AND seq <= 4294967295 ORDER BY seq LIMIT $4
-- name: all_keyframes
SELECT seq, body, sum FROM :schema.keyframe WHERE namespace = $1 AND thread = $2 AND seq > $3 ORDER BY seq LIMIT $4
-- name: all_records
SELECT kind, name, value, sum FROM :schema.record
WHERE namespace = $1 AND thread = $2 AND (kind, name) > ($3, $4) ORDER BY kind, name LIMIT $5
-- name: all_blobs
SELECT digest, body, sum FROM :schema.blob WHERE namespace = $1 AND thread = $2 AND digest > $3 ORDER BY digest LIMIT $4
-- name: misnumbered_frames
SELECT thread, seq FROM :schema.frame WHERE namespace = $1 AND seq NOT BETWEEN 1 AND 4294967295 ORDER BY 1, 2
-- name: misnumbered_frames_of_thread
SELECT seq FROM :schema.frame WHERE namespace = $1 AND thread = $2 AND seq NOT BETWEEN 1 AND 4294967295 ORDER BY 1
-- name: lost_frames
SELECT thread, seq FROM :schema.frame WHERE namespace = $1
AND NOT EXISTS (SELECT 1 FROM :schema.thread WHERE thread.namespace = frame.namespace AND thread.id = frame.thread) ORDER BY 1, 2
-- name: lost_keyframes
SELECT thread, seq, body FROM :schema.keyframe WHERE namespace = $1 AND (seq NOT BETWEEN 1 AND 4294967295 OR NOT EXISTS (
    SELECT 1 FROM :schema.thread WHERE thread.namespace = keyframe.namespace AND thread.id = keyframe.thread)) ORDER BY 1, 2
-- name: lost_blobs
SELECT thread, digest, body FROM :schema.blob WHERE namespace = $1
AND NOT EXISTS (SELECT 1 FROM :schema.thread WHERE thread.namespace = blob.namespace AND thread.id = blob.thread) ORDER BY 1, 2
-- name: lost_records
SELECT thread, kind, name, value FROM :schema.record WHERE namespace = $1
AND NOT EXISTS (SELECT 1 FROM :schema.thread WHERE thread.namespace = record.namespace AND thread.id = record.thread) ORDER BY 1, 2, 3
-- name: value_aside
INSERT INTO :schema.aside (namespace, thread, at, what, body) VALUES ($1, $2, :schema.clock(), $3, $4)

-- name: recode_page
SELECT namespace, thread, seq, base, delta, delta_sum FROM :schema.frame
WHERE (namespace, thread, seq) > ($1, $2, $3) ORDER BY namespace, thread, seq LIMIT 200
-- name: set_delta
UPDATE :schema.frame SET delta = $5, delta_sum = $6
WHERE namespace = $1 AND thread = $2 AND seq = $3 AND base = $4 AND delta_sum = $7
-- name: drop_all_keyframes
DELETE FROM :schema.keyframe
-- name: vacuum
VACUUM :schema.thread, :schema.frame, :schema.keyframe, :schema.record, :schema.blob, :schema.aside, :schema.landed
-- name: rewrite_tables
VACUUM (FULL, SKIP_LOCKED) :schema.thread, :schema.frame, :schema.keyframe, :schema.record, :schema.blob, :schema.aside, :schema.landed
