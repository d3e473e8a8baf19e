"""Do the documents hang together: links that resolve, indexes that are complete, a map of rooms that exist?"""

import re
import urllib.parse
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "benchmarks").rglob("*.md")])
DECISIONS = ROOT / "docs" / "decisions"


def prose(page: Path) -> str:
    """The page without its code blocks and code spans, in which brackets mean something else."""
    text = re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)
    return re.sub(r"`[^`\n]*`", "", text)


def links(page: Path) -> list[str]:
    return re.findall(r"\]\(([^)\s]+)\)", prose(page))


def anchors(page: Path) -> set[str]:
    """The fragments that a heading can be reached by, as the usual renderers make them."""
    text = re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)
    headings = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_every_relative_link_leads_somewhere(page: Path) -> None:
    for link in links(page):
        if urllib.parse.urlsplit(link).scheme:
            continue
        name, _, fragment = urllib.parse.unquote(link).partition("#")
        target = (page.parent / name).resolve() if name else page
        assert target.exists(), f"{link} leads nowhere"
        assert target.is_relative_to(ROOT), f"{link} leads out of the repository"
        if fragment and target.suffix == ".md":
            assert fragment in anchors(target), f"{link} names no heading"


def test_the_index_of_the_documents_names_every_page() -> None:
    """A page that nothing leads to is not read. Decisions have an index of their own."""
    index = ROOT / "docs" / "README.md"
    named = {(index.parent / link).resolve() for link in links(index)}
    pages = {page for page in (ROOT / "docs").rglob("*.md") if page.parent != DECISIONS} - {index}
    assert pages | {DECISIONS / "README.md"} <= named


def test_the_index_of_decisions_is_complete_and_in_order() -> None:
    named = [link for link in links(DECISIONS / "README.md") if re.match(r"\d{4}-", link)]
    assert named == sorted(page.name for page in DECISIONS.glob("[0-9]*.md"))


@pytest.mark.parametrize("page", sorted(DECISIONS.glob("[0-9]*.md")), ids=lambda page: page.name)
def test_a_decision_has_the_parts_of_the_template(page: Path) -> None:
    headings = re.findall(r"^## (.+)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    assert headings[:3] == ["Context", "Decision", "Consequences"]


def test_the_map_of_the_architecture_names_every_room_and_module() -> None:
    page = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    package = ROOT / "src" / "headrace"
    modules = {p.relative_to(package).as_posix() for p in package.rglob("*.py") if p.name != "__init__.py"}
    mapped = set(re.findall(r"^\| `([a-z0-9_/]+\.py)` \|", page, re.MULTILINE))
    assert modules - mapped == set(), "not on the map in docs/architecture.md"
    assert mapped - modules == set(), "on the map in docs/architecture.md, and gone"
