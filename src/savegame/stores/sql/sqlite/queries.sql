-- Every statement of the SQLite store, by name. Read by stores/sqlite_file.py.

-- name: spaces
SELECT no, name, sum FROM namespace
-- name: add_space
INSERT INTO namespace (no, name, sum) VALUES (?, ?, ?)

-- name: thread
SELECT no, agent, head, head_id, last, floor, run, count, epoch, owner, expires, version, sum FROM thread WHERE space = ? AND id = ?
-- name: threads
SELECT no, agent, head, head_id, last, floor, run, count, epoch, owner, expires, version, sum, id
FROM thread WHERE space = ? AND id > ? AND head > 0 ORDER BY id LIMIT ?
-- name: threads_of_agent
SELECT no, agent, head, head_id, last, floor, run, count, epoch, owner, expires, version, sum, id
FROM thread WHERE space = ? AND agent = ? AND id > ? AND head > 0 ORDER BY id LIMIT ?
-- name: heads
SELECT id, head_id FROM thread WHERE space = ? ORDER BY id
-- name: heads_of_agent
SELECT id, head_id FROM thread WHERE space = ? AND agent = ? ORDER BY id
-- name: all_threads
SELECT no, agent, head, head_id, last, floor, run, count, epoch, owner, expires, version, sum, id FROM thread WHERE space = ? ORDER BY id
-- name: add_thread
INSERT INTO thread (space, id, head, last, floor, run, count, epoch, expires, version, sum) VALUES (?, ?, 0, 0, 0, 0, 0, 0, 0, 0, 0) RETURNING no
-- name: set_thread
UPDATE thread SET head = ?, head_id = ?, last = ?, floor = ?, run = ?, count = ?, epoch = ?, owner = ?, expires = ?, version = ?, sum = ? WHERE no = ?
-- name: set_agent
UPDATE thread SET agent = ? WHERE no = ? AND agent IS NOT ?
-- name: delete_thread
DELETE FROM thread WHERE no = ?
-- name: next_epoch
-- If the newest epoch is damaged, go on from the clock: no epoch can have been larger.
INSERT INTO setting (name, value) VALUES ('epoch', ?1 + 1)
ON CONFLICT (name) DO UPDATE SET value = CASE WHEN value BETWEEN 0 AND 1 << 62 THEN max(value, ?2) ELSE ?1 END + 1 RETURNING value

-- name: make_appending
-- An append writes the row of its thread and a frame, for one thread or for many. What is inserted into this view, which the
-- connection that writes has for itself, does both in one statement; rows that say nothing are passed over.
CREATE TEMP VIEW savegame_appending (no, version, seq, id, base, run, floor, count, expires, sum, space, meta, meta_sum, note, note_sum, delta, delta_sum)
AS SELECT NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL;
CREATE TEMP TRIGGER savegame_append INSTEAD OF INSERT ON savegame_appending WHEN NEW.no IS NOT NULL BEGIN
    UPDATE thread SET head = NEW.seq, head_id = NEW.id, last = NEW.seq, floor = NEW.floor, run = NEW.run, count = NEW.count,
    expires = NEW.expires, version = NEW.version, sum = NEW.sum WHERE no = NEW.no AND version = NEW.version - 1;
    SELECT RAISE(ABORT, 'the thread has another version') WHERE changes() = 0;
    INSERT INTO frame (key, space, id, base, run, meta, meta_sum, note, note_sum, delta, delta_sum)
    VALUES (NEW.no << 32 | NEW.seq, NEW.space, NEW.id, NEW.base, NEW.run, NEW.meta, NEW.meta_sum, NEW.note, NEW.note_sum, NEW.delta, NEW.delta_sum);
END
-- name: append
INSERT INTO savegame_appending VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)

-- name: hidden
-- Temporary tables, views and triggers that come between our statements and our tables.
SELECT type, name FROM temp.sqlite_schema
WHERE lower(tbl_name) IN ('setting', 'namespace', 'thread', 'frame', 'keyframe', 'record', 'blob', 'aside', 'savegame_appending')
AND name NOT IN ('savegame_appending', 'savegame_append')

-- name: find_frame
SELECT frame.key, thread.id FROM frame JOIN thread ON thread.no = frame.key >> 32 WHERE frame.id = ? AND frame.space = ?
-- name: frame_at
SELECT frame.id, thread.id FROM frame JOIN thread ON thread.no = frame.key >> 32 WHERE frame.key = ? AND thread.space = ?
-- name: frame_place
SELECT base, run, id, meta FROM frame WHERE key = ?
-- name: frames_up
SELECT key, id, base, run, space, meta, meta_sum, note, note_sum FROM frame WHERE key BETWEEN ? AND ? ORDER BY key LIMIT ?
-- name: frames_down
SELECT key, id, base, run, space, meta, meta_sum, note, note_sum FROM frame WHERE key BETWEEN ? AND ? ORDER BY key DESC LIMIT ?
-- name: head_frame
SELECT frame.key, frame.id, base, frame.run, frame.space, meta, meta_sum, note, note_sum
FROM thread JOIN frame ON frame.key = thread.no << 32 | ? WHERE thread.space = ? AND thread.id = ?
-- name: noted_up
SELECT key, id, base, run, space, meta, meta_sum, note, note_sum FROM frame WHERE key BETWEEN ? AND ? AND note IS NOT NULL ORDER BY key LIMIT ?
-- name: noted_down
SELECT key, id, base, run, space, meta, meta_sum, note, note_sum FROM frame WHERE key BETWEEN ? AND ? AND note IS NOT NULL ORDER BY key DESC LIMIT ?
-- name: deltas
SELECT key, base, delta, delta_sum FROM frame WHERE key BETWEEN ? AND ? ORDER BY key
-- name: nth_newest
SELECT key FROM frame WHERE key BETWEEN ? AND ? ORDER BY key DESC LIMIT 1 OFFSET ?
-- name: note_sums
SELECT key, note_sum FROM frame WHERE key BETWEEN ? AND ? AND note IS NOT NULL ORDER BY key
-- name: notes
SELECT key, note, note_sum FROM frame WHERE key BETWEEN ? AND ? AND (note IS NOT NULL OR note_sum IS NOT NULL) ORDER BY key
-- name: pin
SELECT id, note FROM frame WHERE key = ?
-- name: set_note
UPDATE frame SET note = ?, note_sum = ? WHERE key = ?
-- name: rebase
UPDATE frame SET base = ?, meta_sum = ?, delta = ?, delta_sum = ? WHERE key = ?
-- name: frame_meta
SELECT id, meta, run, space FROM frame WHERE key = ?
-- name: delete_frame
DELETE FROM frame WHERE key = ?
-- name: delete_frames
DELETE FROM frame WHERE key BETWEEN ? AND ?
-- name: count_frames
SELECT count(*), max(key) FROM frame WHERE key BETWEEN ? AND ?

-- name: keyframes_down
SELECT key, body, sum FROM keyframe WHERE key BETWEEN ? AND ? ORDER BY key DESC
-- name: put_keyframe
INSERT INTO keyframe (key, body, sum) SELECT ?1, ?2, ?3 WHERE EXISTS (SELECT 1 FROM frame WHERE key = ?1)
ON CONFLICT (key) DO UPDATE SET body = excluded.body, sum = excluded.sum
-- name: delete_keyframe
DELETE FROM keyframe WHERE key = ?
-- name: delete_keyframes
DELETE FROM keyframe WHERE key BETWEEN ? AND ?

-- name: record
SELECT value FROM record WHERE thread = ? AND kind = ? AND name = ?
-- name: records
SELECT name, value, sum FROM record WHERE thread = ? AND kind = ? AND name > ? ORDER BY name LIMIT ?
-- name: record_names
SELECT name FROM record WHERE thread = ? AND kind = ?
-- name: record_sums
SELECT kind, name, sum FROM record WHERE thread = ? ORDER BY kind, name
-- name: kinds
SELECT DISTINCT kind FROM record WHERE thread = ? ORDER BY kind
-- name: has_sought
SELECT EXISTS (SELECT 1 FROM sqlite_schema WHERE type = 'index' AND name = 'record_sought')
-- name: make_sought
-- No step of the layout: earlier versions can do with it, and the statements below without it. Its condition has to stand in
-- a statement that uses it.
CREATE INDEX IF NOT EXISTS record_sought ON record (kind, thread) WHERE kind = 'due' OR kind = 'inbox'
-- name: threads_sought
SELECT DISTINCT thread.id FROM record JOIN thread ON thread.no = record.thread
WHERE record.kind = ?1 AND (record.kind = 'due' OR record.kind = 'inbox') AND thread.space = ?2 ORDER BY thread.id
-- name: threads_with
SELECT DISTINCT thread.id FROM record JOIN thread ON thread.no = record.thread WHERE record.kind = ?1 AND thread.space = ?2 ORDER BY thread.id
-- name: all_records
SELECT kind, name, value, sum FROM record WHERE thread = ?
-- name: put_record
INSERT INTO record (thread, kind, name, value, sum) VALUES (?, ?, ?, ?, ?)
ON CONFLICT (thread, kind, name) DO UPDATE SET value = excluded.value, sum = excluded.sum
-- name: put_absent
-- A record of a thread whose row has the version that is remembered; a constraint fails if the record exists.
INSERT INTO record (thread, kind, name, value, sum) SELECT no, ?, ?, ?, ? FROM thread WHERE no = ? AND version = ?
-- name: delete_record
DELETE FROM record WHERE thread = ? AND kind = ? AND name = ?
-- name: delete_records
DELETE FROM record WHERE thread = ?

-- name: blob
SELECT body, sum FROM blob WHERE thread = ? AND digest = ?
-- name: all_blobs
SELECT digest, body, sum FROM blob WHERE thread = ?
-- name: blob_digests
SELECT digest FROM blob WHERE thread = ?
-- name: put_blob
INSERT INTO blob (thread, digest, body, sum) VALUES (?, ?, ?, ?)
ON CONFLICT (thread, digest) DO UPDATE SET body = excluded.body, sum = excluded.sum
WHERE body IS NOT excluded.body OR sum IS NOT excluded.sum
-- name: delete_blob
DELETE FROM blob WHERE thread = ? AND digest = ?
-- name: delete_blobs
DELETE FROM blob WHERE thread = ?

-- name: frame_aside
INSERT INTO aside (at, space, thread, what, seq, id, base, meta, note, body)
SELECT ?, (SELECT space FROM thread WHERE no = key >> 32), ?, 'frame', key & 4294967295, id, CAST(base AS INTEGER), CAST(meta AS BLOB), CAST(note AS BLOB), CAST(delta AS BLOB) FROM frame WHERE key = ?
-- name: delete_aside
DELETE FROM aside WHERE thread = ? AND (space = ? OR space IS NULL)
-- name: lost_values
SELECT 'large value ' || hex(digest) FROM blob WHERE thread NOT IN (SELECT no FROM thread)
UNION ALL SELECT 'record ' || kind || ' ' || name FROM record WHERE thread NOT IN (SELECT no FROM thread)
UNION ALL SELECT 'keyframe of frame ' || (key & 4294967295) FROM keyframe WHERE key >> 32 NOT IN (SELECT no FROM thread)
-- name: lost_blobs_aside
INSERT INTO aside (at, what, body) SELECT ?, 'large value ' || hex(digest), CAST(body AS BLOB) FROM blob WHERE thread NOT IN (SELECT no FROM thread)
-- name: delete_lost_blobs
DELETE FROM blob WHERE thread NOT IN (SELECT no FROM thread)
-- name: lost_records_aside
INSERT INTO aside (at, what, body) SELECT ?, 'record ' || kind || ' ' || name, CAST(value AS BLOB) FROM record WHERE thread NOT IN (SELECT no FROM thread)
-- name: delete_lost_records
DELETE FROM record WHERE thread NOT IN (SELECT no FROM thread)
-- name: lost_keyframes_aside
INSERT INTO aside (at, what, body) SELECT ?, 'keyframe of frame ' || (key & 4294967295), CAST(body AS BLOB) FROM keyframe WHERE key >> 32 NOT IN (SELECT no FROM thread)
-- name: delete_lost_keyframes
DELETE FROM keyframe WHERE key >> 32 NOT IN (SELECT no FROM thread)
-- name: thread_spaces
SELECT DISTINCT space FROM thread
-- name: set_space
UPDATE namespace SET no = ?, name = ?, sum = ? WHERE no = ?
-- name: set_thread_space
UPDATE thread SET space = ? WHERE no = ?
-- name: set_thread_no
UPDATE thread SET no = ? WHERE no = ?
-- name: last_number
SELECT coalesce(max(CAST(seq AS INTEGER)), 0) FROM sqlite_sequence WHERE name = 'thread'
-- name: newest_number
SELECT max(coalesce((SELECT max(no) FROM thread), 0), coalesce((SELECT max(CAST(seq AS INTEGER)) FROM sqlite_sequence WHERE name = 'thread'), 0))
-- name: set_last_number
UPDATE sqlite_sequence SET seq = (SELECT coalesce(max(no), 0) FROM thread WHERE no < ?) WHERE name = 'thread'
-- name: lost_numbers
SELECT DISTINCT key >> 32 FROM frame WHERE key >> 32 NOT IN (SELECT no FROM thread)
-- name: foreign_threads
SELECT no, agent, head, head_id, last, floor, run, count, epoch, owner, expires, version, sum, space, id FROM thread WHERE space <> ?
-- name: orphans
SELECT key FROM frame WHERE key >> 32 NOT IN (SELECT no FROM thread) OR key & 4294967295 = 0
-- name: blob_aside
INSERT INTO aside (at, space, thread, what, body)
SELECT ?, (SELECT space FROM thread WHERE no = blob.thread), ?, 'large value ' || hex(digest), CAST(body AS BLOB)
FROM blob WHERE thread = ? AND digest = ?
-- name: value_aside
INSERT INTO aside (at, space, thread, what, body) VALUES (?, ?, ?, ?, CAST(? AS BLOB))

-- name: recode_page
SELECT frame.key, frame.base, frame.delta, frame.delta_sum, thread.space, thread.id FROM frame JOIN thread ON thread.no = frame.key >> 32
WHERE frame.key > ? ORDER BY frame.key LIMIT 200
-- name: set_delta
UPDATE frame SET delta = ?, delta_sum = ? WHERE key = ?
-- name: drop_keyframes
DELETE FROM keyframe

-- name: sizes
SELECT (SELECT count(*) FROM frame), (SELECT total(length(delta)) FROM frame), (SELECT total(length(meta)) FROM frame),
       (SELECT total(length(note)) FROM frame WHERE note IS NOT NULL), (SELECT total(length(body)) FROM keyframe),
       (SELECT total(length(value)) FROM record), (SELECT total(length(body)) FROM blob), (SELECT total(length(body)) FROM aside)
