"""The first customer, run as its users run it: a program with the official client against a real provider and real models."""

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.provider import Provider, embedded_provider, wait_until

pytestmark = [pytest.mark.engine, pytest.mark.slow]

FOLDER = Path(__file__).parents[2] / "examples" / "document_assistant"
NOWHERE = "http://127.0.0.1:9/v1"  # the discard port: closed everywhere but in museums


class Assistant:
    """Runs the program against one provider."""

    def __init__(self, service: Provider) -> None:
        self.service = service
        self.key = service.key("reader")
        self.default = self.ask()  # one run without options, for all tests that look at it

    def ask(
        self, *flags: str, key: str | None = None, base_url: str | None = None
    ) -> "subprocess.CompletedProcess[str]":
        return subprocess.run(
            [
                sys.executable,
                str(FOLDER / "assistant.py"),
                "--base-url",
                base_url or self.service.url,
                *flags,
            ],
            env={**os.environ, "HEADRACE_API_KEY": self.key if key is None else key},
            capture_output=True,
            text=True,
            timeout=50,
        )


@pytest.fixture(scope="module")
def assistant(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Assistant]:
    with embedded_provider(tmp_path_factory.mktemp("assistant")) as running:
        yield Assistant(running)


def line(output: str, label: str) -> str:
    found = re.search(rf"^{label} +(.*)$", output, re.MULTILINE)
    assert found, f"no line `{label}` in:\n{output}"
    return found[1]


def test_the_default_question_is_answered_from_an_excerpt_that_is_shown(assistant: Assistant) -> None:
    done = assistant.default
    assert done.returncode == 0, done.stderr
    assert line(done.stdout, "answer") == "A loan lasts 14 days."
    assert line(done.stdout, "excerpt").startswith('borrowing.md, "How many, and how long"')
    assert "A loan lasts 14 days." in done.stdout.partition("answer")[0]


@pytest.mark.parametrize(
    ("question", "fact", "source"),
    [
        ("How many tools may a member borrow?", "five", "borrowing.md"),
        ("Who is the workshop manager?", "Clara Ferrand", "workshop.md"),
        ("What is the telephone number of the workshop manager?", "555 0142", "workshop.md"),
        ("What does a membership cost?", "24 euros", "membership.md"),
    ],
)
def test_questions_that_the_small_model_gets_right(
    assistant: Assistant, question: str, fact: str, source: str
) -> None:
    done = assistant.ask("--question", question)
    assert fact in line(done.stdout, "answer")
    assert line(done.stdout, "excerpt").startswith(source)


def test_at_temperature_zero_streamed_or_whole_is_the_same_answer_and_usage(assistant: Assistant) -> None:
    streamed, again, whole = assistant.default, assistant.ask(), assistant.ask("--whole")
    for label in ("answer", "usage"):
        assert line(streamed.stdout, label) == line(again.stdout, label) == line(whole.stdout, label)
    assert "first token after" in line(streamed.stdout, "time")
    assert "not streamed" in line(whole.stdout, "time")


def test_the_request_that_it_names_is_in_the_ledger_with_the_same_usage(assistant: Assistant) -> None:
    output = assistant.default.stdout
    request_id = line(output, "request")
    record = wait_until(
        lambda: next((r for r in assistant.service.usage() if r["request_id"] == request_id), None),
        what="the record of the request",
    )
    prompt_tokens, completion_tokens = map(int, re.findall(r"\d+", line(output, "usage")))
    assert (record["prompt_tokens"], record["completion_tokens"]) == (prompt_tokens, completion_tokens)
    assert record["outcome"] == "delivered"


def test_what_the_documents_do_not_hold_is_not_put_to_the_model(assistant: Assistant) -> None:
    key = assistant.service.key("curious")
    done = assistant.ask("--question", "What is the capital of France?", key=key)
    assert done.returncode == 0
    assert line(done.stdout, "answer").startswith("The documents don't say.")
    assert "not calibrated" in line(done.stdout, "answer")
    records = wait_until(lambda: assistant.service.usage("--tenant", "curious"), what="the search's record")
    assert [record["model"] for record in records] == ["all-minilm-l6-v2"]


def test_it_says_that_this_model_is_mostly_wrong_and_where_better_ones_are(assistant: Assistant) -> None:
    output = assistant.default.stdout
    assert "is wrong on most questions" in output
    assert "headrace models list" in output


def test_over_its_limit_it_shows_the_wait_that_the_service_asked_for(assistant: Assistant) -> None:
    # Waiting for the key costs the tenant nothing; the search takes the one request of the burst.
    key = assistant.service.key("hurried", requests_per_minute=1, requests_burst=1)
    done = assistant.ask("--wait", "0", key=key)
    assert done.returncode == 1
    asked_s = re.search(
        r"^wait +(\d+) s, the service says \(429, our own limit\)$", done.stdout, re.MULTILINE
    )
    assert asked_s, done.stdout + done.stderr
    assert 1 <= int(asked_s[1]) <= 60
    assert "longer than --wait allows" in done.stderr


def test_a_wait_that_it_can_afford_is_waited_and_then_the_answer_comes(assistant: Assistant) -> None:
    key = assistant.service.key("patient", requests_per_minute=30, requests_burst=1)
    done = assistant.ask(key=key)
    assert done.returncode == 0, done.stderr
    assert "wait " in done.stdout
    assert line(done.stdout, "answer") == "A loan lasts 14 days."


@pytest.mark.parametrize(
    ("flags", "key", "base_url", "status", "message"),
    [
        ([], None, NOWHERE, 1, f"no service at {NOWHERE}"),
        ([], "hr_live_wrong", None, 1, "the key is not accepted"),
        ([], "", None, 2, "no key; set HEADRACE_API_KEY"),
        (["--model", "gpt-5"], None, None, 1, "offered: all-minilm-l6-v2, smollm2-135m-instruct"),
        (["--documents", "/nowhere"], None, None, 1, "in any *.md of /nowhere"),
    ],
    ids=["no service", "wrong key", "no key", "unknown model", "no documents"],
)
def test_what_is_missing_is_told_in_one_line(
    assistant: Assistant, flags: list[str], key: str | None, base_url: str | None, status: int, message: str
) -> None:
    done = assistant.ask(*flags, key=key, base_url=base_url)
    assert done.returncode == status
    assert message in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_its_readme_shows_what_it_prints(assistant: Assistant) -> None:
    """All but the times and the name of the request."""
    readme = (FOLDER / "README.md").read_text(encoding="utf-8")
    shown = re.search(r"^```text\n(question .*?)^```", readme, re.DOTALL | re.MULTILINE)
    assert shown
    assert stable(shown[1]) == stable(assistant.default.stdout)


def stable(output: str) -> str:
    return re.sub(r"\b\d+\.\d\d s\b", "TIME", re.sub(r"\breq_[0-9a-f]+", "ID", output))
