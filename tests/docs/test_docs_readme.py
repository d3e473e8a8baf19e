"""Do both READMEs tell the same story, and does every page show commands that exist?"""

import re
import shlex
from pathlib import Path

import pytest

from headrace.cli.main import parser

ROOT = Path(__file__).parents[2]
ENGLISH, CHINESE = ROOT / "README.md", ROOT / "README.zh-CN.md"
PAGES = [ENGLISH, ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]


def blocks(page: Path, language: str) -> list[str]:
    return re.findall(
        rf"^```{language}\n(.*?)^```", page.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE
    )


def headrace_commands(page: Path) -> list[list[str]]:
    """The arguments of every `headrace ...` and `scripts/up ...` in the page's shell blocks."""
    script = "\n".join(blocks(page, "sh")).replace("\\\n", " ")
    found = re.findall(r"(?:^|\$\()(headrace|scripts/up)\b([^)|&\n]*)", script, re.MULTILINE)
    return [
        [*(["up"] if name == "scripts/up" else []), *shlex.split(rest, comments=True)] for name, rest in found
    ]


@pytest.mark.parametrize("language", ["sh", "python", "toml", "text"])
def test_both_readmes_show_the_same_blocks_byte_by_byte(language: str) -> None:
    assert blocks(ENGLISH, language) == blocks(CHINESE, language)


def test_both_readmes_wait_for_the_same_outputs() -> None:
    """A place where real output belongs is marked until a real run fills it."""
    marks = [
        re.findall(r"<!-- output: (.*?) -->", page.read_text(encoding="utf-8")) for page in (ENGLISH, CHINESE)
    ]
    assert marks[0] == marks[1]


def test_the_readme_shows_the_commands_of_the_first_minutes() -> None:
    assert {"up", "keys"} <= {arguments[0] for arguments in headrace_commands(ENGLISH)}


@pytest.mark.parametrize(
    ("page", "arguments"),
    [
        pytest.param(page, arguments, id=f"{page.relative_to(ROOT)}: {' '.join(arguments)}")
        for page in PAGES
        for arguments in headrace_commands(page)
    ],
)
def test_every_headrace_command_that_a_page_shows_is_understood(page: Path, arguments: list[str]) -> None:
    parser().parse_args(arguments)
