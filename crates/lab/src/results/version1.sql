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
