-- The side file of words. Everything in it is derived; another user_version is dropped and rebuilt.

CREATE TABLE thread (
    no INTEGER PRIMARY KEY,
    space TEXT NOT NULL,
    id TEXT NOT NULL,
    agent TEXT,
    head TEXT NOT NULL,
    updated INTEGER NOT NULL,
    UNIQUE (space, id)
);

-- no: the number of the thread and, in the low 32 bits, one of its own; the same number in `word`.
CREATE TABLE message (
    no INTEGER PRIMARY KEY,
    place INTEGER NOT NULL,
    role TEXT,
    text TEXT NOT NULL
);

-- Words only: the text is in `message`. Mn and Mc are the vowel signs of Indic scripts.
CREATE VIRTUAL TABLE word USING fts5(
    text, content='', tokenize="unicode61 remove_diacritics 2 categories 'L* N* Co Mn Mc'"
);
