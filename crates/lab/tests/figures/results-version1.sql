CREATE TABLE run (
    id INTEGER PRIMARY KEY,
    name TEXT NOT NULL UNIQUE,
    experiment TEXT NOT NULL,
    seed INTEGER NOT NULL,
    blocks INTEGER NOT NULL,
    started REAL NOT NULL
) STRICT;

CREATE TABLE fact (
    run INTEGER NOT NULL REFERENCES run (id) ON DELETE CASCADE,
    topic TEXT NOT NULL,
    name TEXT NOT NULL,
    value TEXT NOT NULL,
    PRIMARY KEY (run, topic, name)
) STRICT, WITHOUT ROWID;

CREATE TABLE cell (
    id INTEGER PRIMARY KEY,
    run INTEGER NOT NULL REFERENCES run (id) ON DELETE CASCADE,
    experiment TEXT NOT NULL,
    key TEXT NOT NULL,
    control INTEGER NOT NULL CHECK (control IN (0, 1)),
    is_default INTEGER NOT NULL CHECK (is_default IN (0, 1)),
    block INTEGER NOT NULL,
    place INTEGER NOT NULL,
    started REAL NOT NULL,
    duration REAL NOT NULL,
    outcome TEXT NOT NULL CHECK (outcome IN ('done', 'void', 'failed', 'unavailable')),
    reason TEXT NOT NULL,
    durability TEXT NOT NULL CHECK (durability IN ('full', 'weak', 'unsafe')),
    UNIQUE (run, block, experiment, key)
) STRICT;

CREATE TABLE axis (
    cell INTEGER NOT NULL REFERENCES cell (id) ON DELETE CASCADE,
    name TEXT NOT NULL,
    value TEXT NOT NULL,
    PRIMARY KEY (cell, name)
) STRICT, WITHOUT ROWID;

CREATE TABLE metric (
    cell INTEGER NOT NULL REFERENCES cell (id) ON DELETE CASCADE,
    place INTEGER NOT NULL,
    name TEXT NOT NULL,
    unit TEXT NOT NULL,
    value REAL NOT NULL,
    better TEXT NOT NULL CHECK (better IN ('higher', 'lower', 'neither')),
    headline INTEGER NOT NULL CHECK (headline IN (0, 1)),
    PRIMARY KEY (cell, place)
) STRICT, WITHOUT ROWID;

CREATE TABLE effective (
    cell INTEGER NOT NULL REFERENCES cell (id) ON DELETE CASCADE,
    place INTEGER NOT NULL,
    name TEXT NOT NULL,
    requested TEXT NOT NULL,
    effective TEXT NOT NULL,
    agrees INTEGER NOT NULL CHECK (agrees IN (0, 1)),
    PRIMARY KEY (cell, place)
) STRICT, WITHOUT ROWID;

CREATE TABLE integrity (
    cell INTEGER NOT NULL REFERENCES cell (id) ON DELETE CASCADE,
    place INTEGER NOT NULL,
    name TEXT NOT NULL,
    passed INTEGER NOT NULL CHECK (passed IN (0, 1)),
    detail TEXT NOT NULL,
    PRIMARY KEY (cell, place)
) STRICT, WITHOUT ROWID;

CREATE TABLE series (
    cell INTEGER NOT NULL REFERENCES cell (id) ON DELETE CASCADE,
    place INTEGER NOT NULL,
    name TEXT NOT NULL,
    unit TEXT NOT NULL,
    step REAL NOT NULL,
    "values" BLOB NOT NULL,
    PRIMARY KEY (cell, place)
) STRICT, WITHOUT ROWID;

CREATE TABLE latencies (
    cell INTEGER NOT NULL REFERENCES cell (id) ON DELETE CASCADE,
    place INTEGER NOT NULL,
    name TEXT NOT NULL,
    upper BLOB NOT NULL,
    counts BLOB NOT NULL,
    PRIMARY KEY (cell, place)
) STRICT, WITHOUT ROWID;

CREATE TABLE mark (
    cell INTEGER NOT NULL REFERENCES cell (id) ON DELETE CASCADE,
    place INTEGER NOT NULL,
    text TEXT NOT NULL,
    PRIMARY KEY (cell, place)
) STRICT, WITHOUT ROWID;

CREATE TABLE workload (
    cell INTEGER NOT NULL REFERENCES cell (id) ON DELETE CASCADE,
    name TEXT NOT NULL,
    value TEXT NOT NULL,
    PRIMARY KEY (cell, name)
) STRICT, WITHOUT ROWID;

INSERT INTO run VALUES (1, 'first', 'repeats = 7', -1, 7, 1700000000.5);
INSERT INTO fact VALUES (1, 'kernel', 'release', '6.18.0');
INSERT INTO cell VALUES (1, 1, 'smoke', '{"file-system":"ext4"}', 1, 1, 0, 0, 1700000001.0, 2.5, 'done', '', 'full');
INSERT INTO axis VALUES (1, 'file-system', 'ext4');
INSERT INTO metric VALUES (1, 0, 'create', 'operations/s', 1.5, 'higher', 1);
INSERT INTO effective VALUES (1, 0, 'mount options', '', 'rw', 1);
INSERT INTO integrity VALUES (1, 0, 'e2fsck', 1, 'clean');
INSERT INTO series VALUES (1, 0, 'operations', 'operations/s', 1.0, X'000000000000F03F0000000000000040');
INSERT INTO latencies VALUES (1, 0, 'create', X'000000000000F03F', X'0300000000000000');
INSERT INTO mark VALUES (1, 0, 'a mark');
INSERT INTO workload VALUES (1, 'tool', 'own');
PRAGMA application_id = 1114993740;
PRAGMA user_version = 1;
