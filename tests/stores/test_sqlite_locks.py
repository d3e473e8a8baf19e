"""Opening the database again must not take away the locks of connections that this process already holds."""

import sqlite3
import subprocess
import sys
from pathlib import Path

from headrace.stores import sqlite

WRITE_FROM_OUTSIDE = """
import sys
from pathlib import Path
from headrace.stores import sqlite
connection = sqlite.open_database(Path(sys.argv[1]))
connection.execute("CREATE TABLE IF NOT EXISTS note (text TEXT)")
connection.execute("INSERT INTO note VALUES ('outside')")
connection.close()
"""


def test_another_process_leaves_the_log_of_an_open_database_alone(tmp_path: Path) -> None:
    """Two connections here, then a whole life of one elsewhere: what is committed here afterwards is still in the file."""
    path = tmp_path / sqlite.DATABASE_NAME
    first = sqlite.open_database(path)
    second = sqlite.open_database(path)
    subprocess.run([sys.executable, "-c", WRITE_FROM_OUTSIDE, str(path)], check=True, timeout=60)
    for connection in (first, second):
        connection.execute("INSERT INTO note VALUES ('inside')")
    open_files = [entry.readlink().name for entry in Path("/proc/self/fd").iterdir() if entry.is_symlink()]
    assert not [name for name in open_files if name.startswith(path.name) and name.endswith("(deleted)")]
    assert _notes(path) == 3
    first.close()
    second.close()


def _notes(path: Path) -> int:
    connection = sqlite3.connect(path)
    try:
        count: int = connection.execute("SELECT count(*) FROM note").fetchone()[0]
        return count
    finally:
        connection.close()
