-- The first layout. docs/format/sqlite.md explains every column. A row's sum is over its stored bytes and its place.

CREATE TABLE setting (name TEXT PRIMARY KEY, value INTEGER NOT NULL) STRICT, WITHOUT ROWID;
INSERT INTO setting VALUES ('epoch', 0);

CREATE TABLE namespace (no INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE, sum INTEGER NOT NULL) STRICT;

-- One row per thread. head, last, floor, run and head_id are sequence numbers and an id within it; 0 means none.
CREATE TABLE thread (
    no INTEGER PRIMARY KEY AUTOINCREMENT,
    space INTEGER NOT NULL,
    id TEXT NOT NULL,
    agent TEXT,
    head INTEGER NOT NULL,
    head_id ANY,
    last INTEGER NOT NULL,
    floor INTEGER NOT NULL,
    run INTEGER NOT NULL,
    count INTEGER NOT NULL,
    epoch INTEGER NOT NULL,
    owner TEXT,
    expires INTEGER NOT NULL,
    version INTEGER NOT NULL,
    sum INTEGER NOT NULL,
    UNIQUE (space, id)
) STRICT;
CREATE INDEX thread_by_agent ON thread (space, agent, id) WHERE agent IS NOT NULL;

-- key = thread.no << 32 | sequence number, so that a thread's frames lie together, in order.
-- space: the namespace in which the id has to be looked up; NULL if the id itself tells the key.
-- run: frames from this sequence number on form one unbroken line up to this frame.
CREATE TABLE frame (
    key INTEGER PRIMARY KEY,
    space INTEGER,
    id ANY NOT NULL,
    base INTEGER NOT NULL,
    run INTEGER NOT NULL,
    meta BLOB NOT NULL,
    meta_sum INTEGER NOT NULL,
    note BLOB,
    note_sum INTEGER,
    delta BLOB NOT NULL,
    delta_sum INTEGER NOT NULL
) STRICT;
CREATE UNIQUE INDEX frame_by_id ON frame (id, space) WHERE space IS NOT NULL;
CREATE INDEX frame_noted ON frame (key) WHERE note IS NOT NULL;

-- Derived copies of whole states; may be dropped at any time.
CREATE TABLE keyframe (key INTEGER PRIMARY KEY, body BLOB NOT NULL, sum INTEGER NOT NULL) STRICT;

CREATE TABLE record (
    no INTEGER PRIMARY KEY,
    thread INTEGER NOT NULL,
    kind TEXT NOT NULL,
    name TEXT NOT NULL,
    value BLOB NOT NULL,
    sum INTEGER NOT NULL,
    UNIQUE (thread, kind, name)
) STRICT;

CREATE TABLE blob (
    no INTEGER PRIMARY KEY,
    thread INTEGER NOT NULL,
    digest BLOB NOT NULL,
    body BLOB NOT NULL,
    sum INTEGER NOT NULL,
    UNIQUE (thread, digest)
) STRICT;

-- What repair set aside, as it was.
CREATE TABLE aside (
    no INTEGER PRIMARY KEY,
    at INTEGER NOT NULL,
    space INTEGER,
    thread TEXT,
    what TEXT NOT NULL,
    seq INTEGER,
    id ANY,
    base INTEGER,
    meta BLOB,
    note BLOB,
    body BLOB
) STRICT;
