"""Does docs/reference/endings.md show the table of endings that the code runs on?"""

from headrace.core.outcome import Reason
from tests.docs import endings_page


def test_the_page_shows_the_table_as_it_is() -> None:
    """If it doesn't: `python -m tests.docs.endings_page` writes it anew."""
    page = endings_page.PAGE.read_text(encoding="utf-8")
    assert page == endings_page.rendered(page)
    assert all(f"`{reason}`" in page for reason in Reason)


def test_programs_are_told_the_same() -> None:
    assert endings_page.FACTS.read_text(encoding="utf-8") == endings_page.facts()
