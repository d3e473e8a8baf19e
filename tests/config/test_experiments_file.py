"""An experiment file says what is varied and against what, or what is wrong with it."""

from pathlib import Path

import pytest

from headrace.config import experiments
from headrace.core.errors import ConfigError
from headrace.core.experiments import Measured

GOOD = """
name = "slots"
deployment = "chat.toml"
[load]
workload = "small"
[primary]
metric = "total_p50"
[variables.slots]
more.revision.args = { slots = 4 }
"""


def test_a_file_says_what_is_varied() -> None:
    found = experiments.parse(GOOD, file="x.toml")
    assert found.variables == {"slots": {"more": {"revision": {"args": {"slots": 4}}}}}
    assert found.primary.metric is Measured.TOTAL_P50
    assert (found.blocks, found.primary.margin, found.primary.alpha) == (6, 0.05, 0.05)


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ('deployment = "chat.toml"', "", "either `deployment`, a file, or `[target]`"),
        ("[load]", 'target = { url = "http://x", model = "m" }\n[load]', "either `deployment`"),
        (
            'deployment = "chat.toml"',
            'target = { url = "http://x", model = "m" }\nfixed.a = 1',
            "`fixed` is of a deployment",
        ),
        (
            'deployment = "chat.toml"',
            'target = { url = "http://x", model = "m" }',
            "`variables.slots.more.revision`: of a target",
        ),
        ("more.revision.args = { slots = 4 }", "", "has no level"),
        ("more.revision.args = { slots = 4 }", "more = {}", "changes nothing"),
        ("more.revision.args = { slots = 4 }", "a.x = 1\nb.x = 1", "is the same as `variables.slots.a`"),
        ('workload = "small"', "rate_per_s = 1.0\nconcurrency = 2", "give one of them"),
        ('workload = "small"', "duration_s = 5.0\nwarmup_s = 5.0", "leaves nothing"),
        ('workload = "small"', "duration_s = nan", "`load.duration_s`: expected a number"),
        ('workload = "small"', 'worklod = "small"', "did you mean `load.workload`?"),
        ('"total_p50"', '"total_p51"', "primary.metric"),
        ("name =", "name = =", "not valid TOML"),
        ("more.revision.args = { slots = 4 }", "\n".join(f"l{n}.x = {n}" for n in range(51)), "51 levels"),
    ],
)
def test_what_cannot_be_meant_is_told_in_the_words_of_the_file(old: str, new: str, says: str) -> None:
    with pytest.raises(ConfigError, match=r"x\.toml") as told:
        experiments.parse(GOOD.replace(old, new), file="x.toml")
    assert says in told.value.message


def test_a_file_without_variables_varies_nothing() -> None:
    with pytest.raises(ConfigError, match="it varies nothing"):
        experiments.parse(GOOD[: GOOD.index("[variables")] + "[variables]\n", file="x.toml")


def test_tables_are_changed_key_by_key_and_all_else_as_a_whole() -> None:
    base = {"a": {"x": 1, "y": [1, 2]}, "b": 1}
    assert experiments.changed(base, {"a": {"y": [3]}}, {"b": {"c": 1}, "d": 2}) == {
        "a": {"x": 1, "y": [3]},
        "b": {"c": 1},
        "d": 2,
    }
    assert base == {"a": {"x": 1, "y": [1, 2]}, "b": 1}


def test_what_cannot_be_read_is_told(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read"):
        experiments.load(tmp_path / "none.toml")
    (tmp_path / "big.toml").write_bytes(b"#" * 300_000)
    with pytest.raises(ConfigError, match="larger than"):
        experiments.load(tmp_path / "big.toml")
    (tmp_path / "bytes.toml").write_bytes(b"\xff")
    with pytest.raises(ConfigError, match="no text in UTF-8"):
        experiments.load(tmp_path / "bytes.toml")
