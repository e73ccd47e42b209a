-- Every statement of the search index, by name. Read by stores/_fts.py.

-- name: is_empty
SELECT NOT EXISTS (SELECT 1 FROM sqlite_schema)

-- name: heads
SELECT id, head FROM thread WHERE space = ?
-- name: heads_of_agent
SELECT id, head FROM thread WHERE space = ? AND agent = ?
-- name: put_thread
INSERT INTO thread (space, id, agent, head, updated) VALUES (?, ?, ?, ?, ?)
ON CONFLICT (space, id) DO UPDATE SET agent = excluded.agent, head = excluded.head, updated = excluded.updated
RETURNING no
-- name: thread_no
SELECT no FROM thread WHERE space = ? AND id = ? AND head IS NOT ?
-- name: delete_thread
DELETE FROM thread WHERE no = ?

-- name: messages
SELECT no, place, role, text FROM message WHERE no BETWEEN ? AND ? ORDER BY place
-- name: put_message
INSERT INTO message (no, place, role, text) VALUES (?, ?, ?, ?)
-- name: move_message
UPDATE message SET place = ? WHERE no = ?
-- name: delete_message
DELETE FROM message WHERE no = ?
-- name: put_words
INSERT INTO word (rowid, text) VALUES (?, ?)
-- name: delete_words
INSERT INTO word (word, rowid, text) VALUES ('delete', ?, ?)
-- name: set_secure_delete
INSERT INTO word (word, rank) VALUES ('secure-delete', ?)
-- name: rewrite_words
INSERT INTO word (word) VALUES ('optimize')

-- name: find
WITH hit AS MATERIALIZED (SELECT rowid AS no, bm25(word) AS score FROM word WHERE word MATCH ?1),
best AS (SELECT no, min(score) AS score, count(*) AS matches FROM hit GROUP BY no >> 32),
top AS MATERIALIZED (
    SELECT thread.id, thread.agent, thread.head, thread.updated, best.no, best.score, best.matches
    FROM best CROSS JOIN thread ON thread.no = best.no >> 32
    WHERE thread.space = ?2 AND (?3 IS NULL OR thread.agent = ?3)
    ORDER BY best.score, thread.updated DESC, thread.id LIMIT ?4
)
SELECT top.id, top.agent, top.head, message.place, message.role, message.text, -top.score, top.matches
FROM top JOIN message ON message.no = top.no ORDER BY top.score, top.updated DESC, top.id
-- name: newest_threads
SELECT no, id, agent, head FROM thread WHERE space = ?1 AND (?2 IS NULL OR agent = ?2) ORDER BY updated DESC, id
