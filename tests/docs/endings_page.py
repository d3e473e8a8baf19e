"""The tables of docs/reference/endings.md, and endings.json beside it, made from the table that the code runs on.

`python -m tests.docs.endings_page` writes them anew.
"""

import json
import re
from pathlib import Path

from headrace.core.endings import ENDINGS, Charge, Ending, Stage
from headrace.core.outcome import Outcome

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "endings.md"
FACTS = PAGE.with_suffix(".json")
HEAD = (
    "| reason | what happened | the caller sees | `x-should-retry` | another replica may try | charged | outcome | attempt | log |\n"
    "|---|---|---|---|---|---|---|---|---|"
)
_SHOULD_RETRY = {True: "true", False: "false", None: "not sent"}
_MARKED = r"(<!-- {stage} -->\n).*?(\n<!-- end -->)"


def table(stage: Stage) -> str:
    return "\n".join([HEAD, *(_line(row) for row in ENDINGS.values() if row.stage is stage)])


def _line(row: Ending) -> str:
    is_told = row.error is not None and row.outcome is not Outcome.CANCELLED
    cells = (
        f"`{row.reason}`",
        row.meaning,
        _sight(row),
        _SHOULD_RETRY[row.error.should_retry]
        if row.error is not None and is_told and row.stage is not Stage.ANSWERING
        else "-",
        "yes" if row.may_retry else "no",
        row.charge.value,
        f"`{row.outcome}`",
        f"`{row.attempt}`" if row.attempt is not None else "-",
        f"`{row.event}`" if row.event is not None else "-",
    )
    return f"| {' | '.join(cells)} |"


def _sight(row: Ending) -> str:
    if row.error is None:
        return "200 and the answer; a stream ends in `[DONE]`"
    if row.outcome is Outcome.CANCELLED:
        return "nothing more (499 in records)"
    if row.stage is Stage.ANSWERING:
        return f"an error event, `{row.error.code}`"
    return f"{row.error.status} `{row.error.code}`"


def rendered(page: str) -> str:
    """The page with its tables as they should be."""
    for stage in Stage:
        lines = table(stage).replace("\\", r"\\")
        page, found = re.subn(_MARKED.format(stage=stage.value), rf"\g<1>{lines}\g<2>", page, flags=re.DOTALL)
        assert found == 1, f"the page has no place for {stage}"
    return page


def facts() -> str:
    """The same for programs."""
    rows = [
        {
            "reason": row.reason.value,
            "stage": row.stage.value,
            "meaning": row.meaning,
            "outcome": row.outcome.value,
            "status": None if row.error is None or row.outcome is Outcome.CANCELLED else row.error.status,
            "code": None if row.error is None or row.outcome is Outcome.CANCELLED else row.error.code,
            "may_retry": row.may_retry,
            "charge_rule": row.charge.value,
            "is_billed": row.charge is not Charge.NOTHING,
            "attempt": None if row.attempt is None else row.attempt.value,
        }
        for row in ENDINGS.values()
    ]
    return json.dumps({"endings": rows}, indent=1) + "\n"


if __name__ == "__main__":
    PAGE.write_text(rendered(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
    FACTS.write_text(facts(), encoding="utf-8")
