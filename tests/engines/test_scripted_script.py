"""Is the language of fault scripts strict, and does everybody who shows its table show the same?"""

import subprocess
import sys
from pathlib import Path

import pytest

from headrace.core.errors import ConfigError
from headrace.engines import scripted_faults
from headrace.engines.scripted_faults import FAULTS, Kind

GUIDE = Path(__file__).parents[2] / "docs" / "guides" / "scripted-engine.md"


@pytest.mark.parametrize(
    "script",
    [
        *(
            "foo",
            "cut",
            "cut:",
            "cut:x",
            "cut:-1",
            "cut:1:2",
            "refuse:1",
            "die:1:2",
            "error:200",
            "error:600",
        ),
        *("usage", "usage:some", "usage:cached=x", "tools:", "delta:0", "slice:0", "unicode:two_bytes"),
        *(
            "cut:1@",
            "cut:1@0",
            "cut:1@x",
            "cut:1@1/0",
            "cut:1@2/3",
            "cut:1@3-",
            "loading:5@1",
            "error:500:1:2",
        ),
    ],
)
def test_a_script_that_says_nothing_known_is_refused(script: str) -> None:
    with pytest.raises(ConfigError, match="--fault"):
        scripted_faults.parse(script)


def test_every_fault_has_its_row_in_the_table_the_help_and_the_guide() -> None:
    assert [fault.kind for fault in FAULTS] == list(Kind)
    command = [sys.executable, "-m", "headrace", "engine", "scripted", "--help"]
    help_text = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout
    assert scripted_faults.table() in help_text
    rows = [line for line in GUIDE.read_text(encoding="utf-8").splitlines() if line.startswith("| `")]
    assert rows == [
        f"| `{fault.signature.replace('|', chr(92) + '|')}` | {fault.effect} |" for fault in FAULTS
    ]
