"""How do the sections of a page read elsewhere? As Markdown, and as rows for other programs."""

import csv
import io
import re
from collections.abc import Iterable, Sequence

from headrace.evidence.page import WORDS, Section, Table, words

# A spreadsheet takes a cell that begins so for a formula.
_FORMULA = ("=", "+", "-", "@", "\t", "\r")
_NUMBER = re.compile(r"[-+]?[0-9][0-9.eE+-]*\Z")


def markdown(sections: Sequence[Section], *, title: str = "", lead: Sequence[str] = ()) -> str:
    """Headings, verdicts, prose and tables; what a plot shows stands in a table too, or only on the page."""
    blocks = [f"# {title}", *lead] if title else []
    for section in sections:
        blocks.append(f"## {section.heading}")
        if section.verdict is not None:
            says = f": {section.says}" if section.says else ""
            blocks.append(f"**{WORDS[section.verdict]}**{says}")
        blocks += section.prose
        for table in section.tables:
            blocks += [table.caption] if table.caption else []
            blocks.append(_markdown_table(table))
    return "\n\n".join(blocks)


def _markdown_table(table: Table) -> str:
    rules = ["---" if is_word else "---:" for is_word in words(table)]
    return "\n".join(map(_markdown_row, (table.columns, rules, *table.rows)))


def _markdown_row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"


def csv_text(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """A heading and the rows, as RFC 4180 has it; nothing in them is a formula to a spreadsheet."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\r\n")
    writer.writerow(columns)
    writer.writerows([_csv_cell(cell) for cell in row] for row in rows)
    return text.getvalue()


def _csv_cell(cell: object) -> object:
    if isinstance(cell, str) and cell.startswith(_FORMULA) and not _NUMBER.match(cell):
        return f"'{cell}"
    return {True: "true", False: "false"}.get(cell, cell) if isinstance(cell, bool) else cell
