-- The tables of the search index and every statement on them, by name. Read by stores/postgres/schema.py.

-- Everything in them is derived; tables of another version are dropped and rebuilt. Their comments have to be TABLE_COMMENT of
-- postgres/search.py: without one, a table is not ours. Texts are kept as bytes: they may hold any character.
-- name: search_make_thread
CREATE TABLE :schema.search_thread (
    namespace text COLLATE "C" NOT NULL,
    id text COLLATE "C" NOT NULL,
    agent text COLLATE "C",
    head text COLLATE "C" NOT NULL,
    updated bigint NOT NULL,
    PRIMARY KEY (namespace, id)
)
-- name: search_make_thread_mark
COMMENT ON TABLE :schema.search_thread IS 'savegame search index, version 1'
-- no: a number of the message's own within its thread. words is NULL where they are in search_piece.
-- name: search_make_message
CREATE TABLE :schema.search_message (
    namespace text COLLATE "C" NOT NULL,
    thread text COLLATE "C" NOT NULL,
    no bigint NOT NULL,
    place bigint NOT NULL,
    digest bytea NOT NULL,
    role bytea,
    text bytea NOT NULL,
    words tsvector,
    PRIMARY KEY (namespace, thread, no)
)
-- name: search_make_message_mark
COMMENT ON TABLE :schema.search_message IS 'savegame search index, version 1'
-- name: search_make_message_words
CREATE INDEX search_message_words ON :schema.search_message USING gin (words)
-- The words of messages that are too long for one tsvector.
-- name: search_make_piece
CREATE TABLE :schema.search_piece (
    namespace text COLLATE "C" NOT NULL,
    thread text COLLATE "C" NOT NULL,
    no bigint NOT NULL,
    piece bigint NOT NULL,
    words tsvector NOT NULL,
    PRIMARY KEY (namespace, thread, no, piece)
)
-- name: search_make_piece_mark
COMMENT ON TABLE :schema.search_piece IS 'savegame search index, version 1'
-- name: search_make_piece_words
CREATE INDEX search_piece_words ON :schema.search_piece USING gin (words)

-- name: search_drop
DROP TABLE IF EXISTS :schema.search_thread, :schema.search_message, :schema.search_piece
-- name: search_tables
SELECT relname, coalesce(obj_description(pg_class.oid, 'pg_class'), ''), pg_total_relation_size(pg_class.oid)
FROM pg_catalog.pg_class JOIN pg_catalog.pg_namespace ON pg_namespace.oid = relnamespace
WHERE nspname = $1 AND relkind IN ('r', 'p') AND relname IN ('search_thread', 'search_message', 'search_piece')

-- name: search_heads
SELECT id, head FROM :schema.search_thread WHERE namespace = $1 AND ($2::text IS NULL OR agent = $2)
-- name: search_put_threads
INSERT INTO :schema.search_thread (namespace, id, agent, head, updated)
SELECT * FROM unnest($1::text[], $2::text[], $3::text[], $4::text[], $5::bigint[]) AS new (namespace, id) ORDER BY namespace, id
ON CONFLICT (namespace, id) DO UPDATE SET agent = excluded.agent, head = excluded.head, updated = excluded.updated
-- name: search_lock_threads
SELECT namespace, id FROM :schema.search_thread
JOIN unnest($1::text[], $2::text[], $3::text[]) AS kept (namespace, id, head) USING (namespace, id)
WHERE search_thread.head IS DISTINCT FROM kept.head ORDER BY namespace, id FOR UPDATE OF search_thread
-- name: search_forget_threads
DELETE FROM :schema.search_thread WHERE (namespace, id) IN (SELECT * FROM unnest($1::text[], $2::text[]))
-- name: search_forget_messages
DELETE FROM :schema.search_message WHERE (namespace, thread) IN (SELECT * FROM unnest($1::text[], $2::text[]))
-- name: search_forget_pieces
DELETE FROM :schema.search_piece WHERE (namespace, thread) IN (SELECT * FROM unnest($1::text[], $2::text[]))

-- name: search_messages
SELECT namespace, thread, no, place, digest FROM :schema.search_message
WHERE (namespace, thread) IN (SELECT * FROM unnest($1::text[], $2::text[])) ORDER BY namespace, thread, place
-- name: search_put_messages
INSERT INTO :schema.search_message (namespace, thread, no, place, digest, role, text, words)
SELECT namespace, thread, no, place, digest, role, text, words::tsvector
FROM unnest($1::text[], $2::text[], $3::bigint[], $4::bigint[], $5::bytea[], $6::bytea[], $7::bytea[], $8::text[])
    AS new (namespace, thread, no, place, digest, role, text, words)
-- name: search_put_pieces
INSERT INTO :schema.search_piece (namespace, thread, no, piece, words)
SELECT namespace, thread, no, piece, words::tsvector
FROM unnest($1::text[], $2::text[], $3::bigint[], $4::bigint[], $5::text[]) AS new (namespace, thread, no, piece, words)
-- name: search_move_messages
UPDATE :schema.search_message SET place = new.place
FROM unnest($1::text[], $2::text[], $3::bigint[], $4::bigint[]) AS new (namespace, thread, no, place)
WHERE search_message.namespace = new.namespace AND search_message.thread = new.thread AND search_message.no = new.no
-- name: search_delete_messages
DELETE FROM :schema.search_message WHERE (namespace, thread, no) IN (SELECT * FROM unnest($1::text[], $2::text[], $3::bigint[]))
-- name: search_delete_pieces
DELETE FROM :schema.search_piece WHERE (namespace, thread, no) IN (SELECT * FROM unnest($1::text[], $2::text[], $3::bigint[]))

-- $2 is every term, for its rank; $3 the same with the word for the namespace, so that the index reads no other's; $4 each
-- term alone, for the pieces of long messages.
-- name: search_find
WITH hit AS MATERIALIZED (
    SELECT thread, no, place, ts_rank(words, $2::tsquery, 1) AS score
    FROM :schema.search_message WHERE namespace = $1 AND words @@ $3::tsquery
    UNION ALL
    SELECT thread, no, place, long.score FROM (
        SELECT namespace, thread, no, max(ts_rank(words, $2::tsquery, 1)) AS score
        FROM unnest($4::tsquery[]) WITH ORDINALITY AS term (query, number) JOIN :schema.search_piece ON words @@ query
        WHERE namespace = $1 GROUP BY namespace, thread, no HAVING count(DISTINCT number) = cardinality($4::tsquery[])
    ) AS long JOIN :schema.search_message USING (namespace, thread, no)
), best AS (
    SELECT DISTINCT ON (thread) thread, no, score, count(*) OVER (PARTITION BY thread) AS matches
    FROM hit ORDER BY thread, score DESC, place
), top AS MATERIALIZED (
    SELECT search_thread.*, no, score, matches FROM best JOIN :schema.search_thread ON namespace = $1 AND id = thread
    WHERE $5::text IS NULL OR agent = $5
    ORDER BY score DESC, updated DESC, id LIMIT $6::bigint
)
SELECT id, agent, head, place, role, text, score, matches
FROM top JOIN :schema.search_message ON search_message.namespace = $1 AND thread = id AND search_message.no = top.no
ORDER BY score DESC, updated DESC, id
-- name: search_newest_threads
SELECT id, agent, head FROM :schema.search_thread
WHERE namespace = $1 AND ($2::text IS NULL OR agent = $2) ORDER BY updated DESC, id
-- name: search_texts
SELECT thread, place, role, text FROM :schema.search_message WHERE namespace = $1 AND thread = ANY($2::text[]) ORDER BY place
