"""Are the locks what scripts/up and scripts/test rely on: complete, hashed, in step, and free of anybody's machine?"""

import re
import subprocess
import sys
import tomllib
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
LOCKS = sorted((ROOT / "requirements").glob("*.lock"))
CHOICES = ROOT / "docs" / "decisions" / "0002-dependencies.md"

RUN_SECTIONS = ("To run", "For the examples", "To install")


def name_of(requirement: str) -> str:
    """The package's normal name (PEP 503) in front of a requirement's version or marker."""
    found = re.match(r"[A-Za-z0-9._-]+", requirement)
    assert found, requirement
    return re.sub(r"[-_.]+", "-", found.group()).lower()


def pins(lock: Path) -> set[str]:
    """The lock's lines of the form `name==version ; marker`."""
    return {
        line.removesuffix("\\").strip()
        for line in lock.read_text().splitlines()
        if line and not line.startswith((" ", "#"))
    }


def locked_names(lock: str) -> set[str]:
    return {name_of(pin) for pin in pins(ROOT / "requirements" / lock)}


def test_what_runs_has_the_same_versions_where_it_is_tested() -> None:
    """scripts/venv.sh lets one environment serve both on the strength of this."""
    run, dev = pins(ROOT / "requirements/run.lock"), pins(ROOT / "requirements/dev.lock")
    assert run
    assert run <= dev


@pytest.mark.parametrize("lock", LOCKS, ids=lambda lock: lock.name)
def test_every_locked_version_is_exact_and_hashed(lock: Path) -> None:
    """T48: an installation takes the files that were locked, or fails."""
    entries = re.split(r"\n(?=\S)", lock.read_text().strip())
    for entry in (e for e in entries if not e.startswith("#")):
        assert re.match(r"[a-z0-9-]+==\S+", entry), entry.splitlines()[0]
        assert "--hash=sha256:" in entry, entry.splitlines()[0]


@pytest.mark.parametrize("lock", LOCKS, ids=lambda lock: lock.name)
def test_a_lock_names_no_index_and_no_path(lock: Path) -> None:
    assert re.findall(r"://|file:|^[-./].*| @ .*", lock.read_text(), re.MULTILINE) == []


def test_the_locks_hold_all_that_the_project_declares() -> None:
    """A dependency added to pyproject.toml without `scripts/lock` fails here, not at somebody's first start."""
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text())
    project, extras = declared["project"], declared["project"]["optional-dependencies"]
    run = project["dependencies"] + extras["examples"] + declared["dependency-groups"]["install"]
    dev = run + extras["test"] + extras["check"]
    assert {name_of(r) for r in run} - locked_names("run.lock") == set()
    assert {name_of(r) for r in dev} - locked_names("dev.lock") == set()


def chosen(*sections: str) -> set[str]:
    """Every package that the tables of those sections name: itself, and in "brings along" what comes with it."""
    names: set[str] = set()
    parts = re.split(r"^### (.+)\n", CHOICES.read_text(), flags=re.MULTILINE)
    for section, part in zip(parts[1::2], parts[2::2], strict=True):
        for row in re.findall(r"^\| (?!package)(.+) \|$", part, re.MULTILINE) if section in sections else ():
            packages, _, _, _, along, _ = row.split(" | ")
            elsewhere = re.sub(r"(elsewhere than )?on \w+ ", "", along)
            names |= {name_of(name) for name in re.split(r"[,;()\s]+", f"{packages},{elsewhere}") if name}
    return names - {"nothing"}


@pytest.mark.parametrize(
    ("lock", "sections"),
    [
        ("run.lock", RUN_SECTIONS),
        (
            "dev.lock",
            (*RUN_SECTIONS, "To run with PostgreSQL", "To share limits among hosts", "To test", "To check"),
        ),
        ("mlflow.lock", ("To run MLflow beside the tests",)),
    ],
)
def test_nothing_is_installed_that_nobody_has_chosen(lock: str, sections: tuple[str, ...]) -> None:
    """T48: a package that a release of another begins to bring along fails here, until somebody has looked at it."""
    assert locked_names(lock) - chosen(*sections) == set(), f"locked, and in no table of {CHOICES.name}"
    assert chosen(*sections) - locked_names(lock) == set(), f"in a table of {CHOICES.name}, and not locked"


def test_headrace_starts_with_the_packages_of_its_lock_alone() -> None:
    """What an extra brings is imported by who uses it, and where it is used."""
    run = locked_names("run.lock")
    beyond = [
        module
        for module, packages in packages_distributions().items()
        if not {name_of(package) for package in packages} & (run | {"headrace"})
    ]
    hidden = f"import sys; sys.modules.update(dict.fromkeys({beyond!r})); "
    hidden += "from headrace.cli.main import parser; parser()"
    assert "psycopg" in beyond
    subprocess.run([sys.executable, "-c", hidden], check=True, timeout=120)


def test_the_package_builds_from_the_lock_alone() -> None:
    """`pip install --no-build-isolation` needs the build system's requirements in the environment."""
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text())
    assert {name_of(r) for r in declared["build-system"]["requires"]} <= locked_names("run.lock")
