"""What is kept of deployments that were applied? Every version, which of them was wanted when, and what was said of rollouts."""

# `lock` is the revision with everything resolved, and `digest` its digest. The file is kept byte for byte.
DEPLOYMENT_VERSION = """
CREATE TABLE deployment_version (
    name TEXT NOT NULL,
    version INTEGER NOT NULL CHECK (version >= 1),
    file_text TEXT NOT NULL,
    spec TEXT NOT NULL,
    lock TEXT NOT NULL,
    digest TEXT NOT NULL,
    actor TEXT NOT NULL,
    applied_s REAL NOT NULL,
    PRIMARY KEY (name, version)
) STRICT
"""

# The newest row of a name says which version of it is wanted; 0 for none, after it was removed.
DEPLOYMENT_WANTED = """
CREATE TABLE deployment_wanted (
    number INTEGER NOT NULL PRIMARY KEY CHECK (number >= 1),
    name TEXT NOT NULL,
    version INTEGER NOT NULL CHECK (version >= 0),
    reason TEXT NOT NULL,
    actor TEXT NOT NULL,
    at_s REAL NOT NULL
) STRICT
"""

# What operators said to rollouts; the controller answers each with a decision of that number. The oldest go.
ROLLOUT_WORD = """
CREATE TABLE rollout_word (
    number INTEGER PRIMARY KEY AUTOINCREMENT,
    name TEXT NOT NULL,
    command TEXT NOT NULL,
    version INTEGER,
    actor TEXT NOT NULL,
    at_s REAL NOT NULL
) STRICT
"""

# Measurements of single replicas on this machine, whole, as core.capacity has them; the columns are what they are found by.
CAPACITY_RECORD = """
CREATE TABLE capacity_record (
    number INTEGER PRIMARY KEY AUTOINCREMENT,
    model TEXT NOT NULL,
    digest TEXT NOT NULL,
    runtime TEXT NOT NULL,
    hardware TEXT NOT NULL,
    measured_s REAL NOT NULL,
    record TEXT NOT NULL
) STRICT
"""
