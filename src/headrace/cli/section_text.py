"""How do the sections of a page of evidence read in a terminal? Its plots are for the page; what they show is in the tables too."""

from collections.abc import Iterator, Sequence

from headrace.cli import common
from headrace.evidence import page
from headrace.evidence.page import Section, Table


def print_sections(sections: Sequence[Section]) -> None:
    """Each with its heading, its verdict, prose and tables; nothing in them is obeyed by a terminal."""
    print("\n\n".join("\n".join(_lines(section)) for section in sections))


def _lines(section: Section) -> Iterator[str]:
    yield _plain(section.heading)
    if section.verdict is not None:
        says = f": {section.says}" if section.says else ""
        yield _plain(f"{page.WORDS[section.verdict]}{says}")
    yield from map(_plain, section.prose)
    for table in section.tables:
        yield ""
        if table.caption:
            yield _plain(table.caption)
        yield from _table(table)


def _table(table: Table) -> list[str]:
    numeric = [not is_word for is_word in page.words(table)]
    rows = [[_plain(cell) for cell in row] for row in table.rows]
    return common.table(rows, headings=table.columns, numeric=numeric)


def _plain(text: str) -> str:
    return "".join(c if c.isprintable() else " " for c in text.replace("`", ""))
