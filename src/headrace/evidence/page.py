"""How does evidence look? Sections of prose, tables, plots and verdicts as one page of HTML that needs nothing else.

It loads nothing and runs nothing, so it can be kept, mailed and read in twenty years; it is light or dark as its reader is.
The same sections make the tables of a terminal and Markdown (evidence.tables).
"""

import re
from collections.abc import Iterator, Sequence
from html import escape
from typing import NamedTuple

from headrace.core.verdicts import Verdict
from headrace.evidence import plots
from headrace.evidence.plot_axes import COLOURS
from headrace.evidence.plots import Plot

STYLE = (
    """
:root { color-scheme: light dark; --ink: #1b2230; --paper: #fff; --quiet: #5d677a; --rule: #e4e7ee; --code: #f3f4f7; --edge: #98a1b3;
  --c0: #2563c9; --c1: #d9730d; --c2: #17836b; --c3: #b83280; --c4: #7a52c7; --c5: #9a7400; --c6: #64748b; --limit: #c0322b;
  --pass: #11694f; --pass-paper: #e0f3ec; --fail: #a3241f; --fail-paper: #fbe7e5; --open: #7c4a00; --open-paper: #fff3dc }
@media (prefers-color-scheme: dark) { :root { --ink: #d7dce6; --paper: #14181f; --quiet: #98a3b8; --rule: #2a313d; --code: #222936; --edge: #626d80;
  --c0: #6ea8fe; --c1: #f0994a; --c2: #4cc2a0; --c3: #ee82bd; --c4: #b295f5; --c5: #d9b43c; --c6: #94a3b8; --limit: #ff8178;
  --pass: #6fd6b3; --pass-paper: #16352c; --fail: #ff9a92; --fail-paper: #40201f; --open: #f3c26b; --open-paper: #3a2d14 } }
* { box-sizing: border-box }
body { font: 15px/1.5 system-ui, "Segoe UI", Roboto, "Helvetica Neue", Arial, sans-serif; color: var(--ink); background: var(--paper); max-width: 62rem; margin: 3rem auto; padding: 0 1.5rem }
h1 { font-size: 1.9rem; letter-spacing: -.02em; line-height: 1.2; margin: 0 0 .3rem } h2 { font-size: 1.15rem; margin: 2.4rem 0 .4rem; break-after: avoid }
p { margin: .4rem 0; max-width: 46rem } .quiet { color: var(--quiet); font-size: .9rem }
.wide { overflow-x: auto } table { border-collapse: collapse; width: 100%; margin: .8rem 0; font-size: .9rem; font-variant-numeric: tabular-nums }
caption { text-align: left; color: var(--quiet); padding: .2rem 0 } tr { break-inside: avoid }
td, th { text-align: left; vertical-align: top; padding: .35rem .8rem; border-bottom: 1px solid var(--rule) }
th { color: var(--quiet); font-weight: 600; font-size: .8rem } td:first-child, th:first-child { padding-left: 0 } td:last-child, th:last-child { padding-right: 0 } td.n, th.n { text-align: right } td.n { min-width: 5rem }
code { font: .88em ui-monospace, Menlo, Consolas, monospace; background: var(--code); border-radius: 3px; padding: .05em .3em; overflow-wrap: anywhere }
dl { display: flex; flex-wrap: wrap; gap: .8rem 2.4rem; margin: 1.2rem 0; padding: .9rem 0; border: solid var(--rule); border-width: 1px 0 }
dt { color: var(--quiet); font-size: .8rem } dd { margin: 0; font-weight: 600; font-variant-numeric: tabular-nums }
.verdict { display: flex; gap: .8rem; align-items: baseline; margin: .6rem 0; max-width: none }
.mark { flex: none; font-size: .8rem; font-weight: 650; border-radius: 4px; padding: .1rem .55rem }
.pass .mark { color: var(--pass); background: var(--pass-paper) } .fail .mark { color: var(--fail); background: var(--fail-paper) }
.error .mark, .inconclusive .mark { color: var(--open); background: var(--open-paper) }
figure { margin: 1.2rem 0 1.6rem; break-inside: avoid; overflow-x: auto } figcaption { font-weight: 600; font-size: .9rem; margin-bottom: .2rem }
.keys { list-style: none; display: flex; flex-wrap: wrap; gap: .1rem 1.2rem; margin: 0; padding: 0; font-size: .8rem; color: var(--quiet) } .keys svg { margin-right: .4rem; vertical-align: -1px }
.plot { display: block; width: 100%; min-width: 34rem; height: auto; font-size: 11px } .plot text { fill: var(--quiet) } .plot .row { fill: var(--ink); font-size: 12px } .plot text.limit { fill: var(--limit); paint-order: stroke; stroke: var(--paper); stroke-width: 4px }
svg path { fill: none; stroke-width: 1.8; stroke-linejoin: round } path.grid { stroke: var(--rule); stroke-width: 1 } path.edge { stroke: var(--edge); stroke-width: 1 }
path.limit { stroke: var(--limit); stroke-width: 1.2; stroke-dasharray: 6 4 }
"""
    + "\n".join(
        f".l{index}, .d{index} {{ stroke: var(--c{index}) }} path.d{index} {{ stroke-width: 3; stroke-linecap: round; stroke-opacity: .55 }} "
        f".f{index} {{ fill: var(--c{index}) }} path.b{index} {{ fill: var(--c{index}); fill-opacity: .16; stroke: none }}"
        for index in range(COLOURS)
    )
    + """
footer { margin-top: 3rem; padding-top: .8rem; border-top: 1px solid var(--rule) }
@media print { body { margin: 0; max-width: none; padding: 0 } .plot { min-width: 0 } }
"""
)

WORDS = {
    Verdict.PASS: "pass",
    Verdict.FAIL: "fail",
    Verdict.INCONCLUSIVE: "not enough evidence",
    Verdict.ERROR: "could not be made",
}


class Table(NamedTuple):
    """Columns and rows as they are shown: every cell is text already; what stands between back quotes is code.

    Attributes:
        left: How many columns from the first are words; the others are figures, which stand to the right. None finds
            out: a column is of figures where each of its cells begins with a digit, a sign or is "-".
    """

    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    caption: str = ""
    left: int | None = None


class Section(NamedTuple):
    """One heading with what stands below it, in this order: the verdict, prose, plots, tables.

    Attributes:
        says: What the verdict rests on, in a sentence.
    """

    heading: str
    prose: Sequence[str] = ()
    tables: Sequence[Table] = ()
    plots: Sequence[Plot] = ()
    verdict: Verdict | None = None
    says: str = ""


def page(
    title: str,
    sections: Sequence[Section],
    *,
    lead: Sequence[str] = (),
    facts: Sequence[tuple[str, str]] = (),
    foot: Sequence[str] = (),
) -> str:
    """The whole page.

    Args:
        lead: Paragraphs below the title.
        facts: Names and values that everything on the page holds for.
        foot: Such as the command that makes it again.
    """
    parts = [f"<header>\n<h1>{_text(title)}</h1>", *_paragraphs(lead), "</header>"]
    if facts:
        pairs = "".join(f"<div><dt>{_text(name)}</dt><dd>{_text(value)}</dd></div>" for name, value in facts)
        parts.append(f"<dl>{pairs}</dl>")
    number = 0
    for section in sections:
        parts += ["<section>", *_section(section, number), "</section>"]
        number += len(section.plots)
    if foot:
        parts += ['<footer class="quiet">', *_paragraphs(foot), "</footer>"]
    body = "\n".join(parts)
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width">\n'
        # Nothing that a model, a tenant or a file may have put into a text can load or run anything.
        "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">\n"
        f"<title>{escape(title)}</title>\n<style>{STYLE}</style>\n</head>\n<body>\n<main>\n{body}\n</main>\n</body>\n</html>\n"
    )


def _section(section: Section, number: int) -> Iterator[str]:
    yield f"<h2>{_text(section.heading)}</h2>"
    if section.verdict is not None:
        says = f"<span>{_text(section.says)}</span>" if section.says else ""
        word = WORDS[section.verdict]
        yield f'<p class="verdict {section.verdict}"><strong class="mark">{word}</strong>{says}</p>'
    yield from _paragraphs(section.prose)
    for index, plot in enumerate(section.plots):
        yield plots.figure(plot, number=number + index)
    for table in section.tables:
        yield _table(table)


def _paragraphs(paragraphs: Sequence[str]) -> Iterator[str]:
    for paragraph in paragraphs:
        yield f"<p>{_text(paragraph)}</p>"


def _table(table: Table) -> str:
    marks = ["" if is_word else ' class="n"' for is_word in words(table)]
    caption = f"<caption>{_text(table.caption)}</caption>" if table.caption else ""
    head = "".join(
        f'<th scope="col"{mark}>{_text(column)}</th>'
        for mark, column in zip(marks, table.columns, strict=True)
    )
    body = "\n".join(
        f"<tr>{''.join(f'<td{mark}>{_text(cell)}</td>' for mark, cell in zip(marks, row, strict=True))}</tr>"
        for row in table.rows
    )
    return f'<div class="wide"><table>{caption}\n<thead><tr>{head}</tr></thead>\n<tbody>\n{body}\n</tbody>\n</table></div>'


def words(table: Table) -> list[bool]:
    """Of each column whether it is of words rather than of figures."""
    if table.left is not None:
        return [index < table.left for index in range(len(table.columns))]
    columns = range(len(table.columns))
    return [not table.rows or not all(_is_figure(row[index]) for row in table.rows) for index in columns]


def _is_figure(cell: str) -> bool:
    return cell in ("-", "") or cell.lstrip("-+±<≤ ")[:1].isdigit()


def _text(text: str) -> str:
    """Escaped, with what stands between back quotes as code."""
    return re.sub(r"`([^`]*)`", r"<code>\1</code>", escape(text, quote=False))
