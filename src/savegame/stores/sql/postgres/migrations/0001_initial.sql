-- The first layout. docs/format/postgres.md explains every column. A row's sum is over its stored bytes and its place.
-- Every key begins with namespace and thread, so that tables can be spread by them. Texts are ordered by their bytes.

-- One row per thread. head, last, floor and run are sequence numbers within it; 0 means none. A save changes no column that
-- an index is on, and finds room in the page of the row: such updates touch no index.
CREATE TABLE :schema.thread (
    namespace text COLLATE "C" NOT NULL,
    id text COLLATE "C" NOT NULL,
    tag integer NOT NULL,
    agent text COLLATE "C",
    head bigint NOT NULL,
    head_id text COLLATE "C",
    last bigint NOT NULL,
    floor bigint NOT NULL,
    run bigint NOT NULL,
    count bigint NOT NULL,
    epoch bigint NOT NULL,
    owner text COLLATE "C",
    expires bigint NOT NULL,
    version bigint NOT NULL,
    sum bigint NOT NULL,
    watched bigint NOT NULL DEFAULT 0,
    PRIMARY KEY (namespace, id)
) WITH (fillfactor = 50);
CREATE INDEX thread_by_tag ON :schema.thread (namespace, tag);
CREATE INDEX thread_by_agent ON :schema.thread (namespace, agent, id) WHERE agent IS NOT NULL;

-- A row that fits into a page stays there whole: most saves write to no second table.
-- listed: whether the id has to be looked up, because it does not tell the place of its frame by itself.
-- run: frames from this sequence number on form one unbroken line up to this frame.
CREATE TABLE :schema.frame (
    namespace text COLLATE "C" NOT NULL,
    thread text COLLATE "C" NOT NULL,
    seq bigint NOT NULL,
    id text COLLATE "C" NOT NULL,
    listed boolean NOT NULL,
    base bigint NOT NULL,
    run bigint NOT NULL,
    meta bytea NOT NULL,
    meta_sum bigint NOT NULL,
    note bytea,
    note_sum bigint,
    delta bytea NOT NULL,
    delta_sum bigint NOT NULL,
    PRIMARY KEY (namespace, thread, seq)
) WITH (toast_tuple_target = 8160);
CREATE INDEX frame_by_id ON :schema.frame (namespace, id) WHERE listed;
CREATE INDEX frame_noted ON :schema.frame (namespace, thread, seq) WHERE note IS NOT NULL;
ALTER TABLE :schema.frame ALTER COLUMN delta SET STORAGE EXTERNAL;

-- Derived copies of whole states; may be dropped at any time.
CREATE TABLE :schema.keyframe (
    namespace text COLLATE "C" NOT NULL,
    thread text COLLATE "C" NOT NULL,
    seq bigint NOT NULL,
    body bytea NOT NULL,
    sum bigint NOT NULL,
    PRIMARY KEY (namespace, thread, seq)
);
ALTER TABLE :schema.keyframe ALTER COLUMN body SET STORAGE EXTERNAL;

CREATE TABLE :schema.record (
    namespace text COLLATE "C" NOT NULL,
    thread text COLLATE "C" NOT NULL,
    kind text COLLATE "C" NOT NULL,
    name text COLLATE "C" NOT NULL,
    value bytea NOT NULL,
    sum bigint NOT NULL,
    PRIMARY KEY (namespace, thread, kind, name)
);

CREATE TABLE :schema.blob (
    namespace text COLLATE "C" NOT NULL,
    thread text COLLATE "C" NOT NULL,
    digest bytea NOT NULL,
    body bytea NOT NULL,
    sum bigint NOT NULL,
    PRIMARY KEY (namespace, thread, digest)
);
ALTER TABLE :schema.blob ALTER COLUMN body SET STORAGE EXTERNAL;

-- What repair set aside, as it was.
CREATE TABLE :schema.aside (
    namespace text COLLATE "C" NOT NULL,
    thread text COLLATE "C" NOT NULL,
    no bigint GENERATED ALWAYS AS IDENTITY,
    at bigint NOT NULL,
    what text NOT NULL,
    seq bigint,
    id text,
    base bigint,
    meta bytea,
    note bytea,
    body bytea,
    PRIMARY KEY (namespace, thread, no)
);

-- A mark for each write whose reply may get lost, made by the write itself (done) or by who found it missing (not done).
CREATE TABLE :schema.landed (
    namespace text COLLATE "C" NOT NULL,
    thread text COLLATE "C" NOT NULL,
    mark bytea NOT NULL,
    done boolean NOT NULL,
    at timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (namespace, thread, mark)
);
CREATE INDEX landed_by_time ON :schema.landed (at);

CREATE SEQUENCE :schema.epoch AS bigint;

CREATE FUNCTION :schema.clock() RETURNS bigint LANGUAGE sql VOLATILE
AS $$ SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint $$;

-- The next frame of a thread whose row is as the caller remembers it, version and head: gives the server's clock, or NULL if it is not.
-- A function, since its plans are kept: as one plain statement the same takes a third longer. Never changed by a later
-- version of the layout, which adds another beside it: processes that opened the store before go on calling it.
CREATE FUNCTION :schema.append_1(
    in_namespace text, in_thread text, in_version bigint, in_head_id text, in_new_version bigint, in_seq bigint,
    in_floor bigint, in_sum bigint, in_renew bigint, in_listed boolean, in_id text, in_base bigint, in_run bigint,
    in_meta bytea, in_meta_sum bigint, in_note bytea, in_note_sum bigint, in_delta bytea, in_delta_sum bigint
) RETURNS bigint LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    now bigint := (extract(epoch FROM clock_timestamp()) * 1000000)::bigint;
    heard_until bigint;
BEGIN
    UPDATE :schema.thread SET head = in_seq, head_id = in_id, last = in_seq, floor = in_floor, run = in_run, count = count + 1,
        version = in_new_version, sum = in_sum, expires = CASE WHEN in_renew IS NULL THEN expires ELSE now + in_renew END
    WHERE namespace = in_namespace AND id = in_thread AND version = in_version AND head_id IS NOT DISTINCT FROM in_head_id
    RETURNING watched INTO heard_until;
    IF NOT FOUND THEN
        RETURN NULL;
    END IF;
    INSERT INTO :schema.frame (namespace, thread, seq, listed, id, base, run, meta, meta_sum, note, note_sum, delta, delta_sum)
    VALUES (in_namespace, in_thread, in_seq, in_listed, in_id, in_base, in_run, in_meta, in_meta_sum, in_note, in_note_sum,
        in_delta, in_delta_sum);
    IF heard_until > now THEN
        PERFORM pg_notify('savegame', in_id);
    END IF;
    RETURN now;
END $$;
