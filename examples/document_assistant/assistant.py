"""What does an application of headrace look like? Answers a question from a folder of documents, and shows from where.

Retrieval is the application's business: it alone knows who may read what. headrace computes the embeddings and the answer.
"""

import argparse
import math
import os
import re
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import openai
from openai.types import CompletionUsage
from openai.types.chat import ChatCompletionMessageParam

T = TypeVar("T")

DOCUMENTS = Path(__file__).parent / "documents"
QUESTION = "How long does a loan last?"
CHAT_MODEL = "smollm2-135m-instruct"
EMBEDDING_MODEL = "all-minilm-l6-v2"
INSTRUCTION = "Answer the question with a few words from the excerpt."
ANSWER_TOKENS_MAX = 40

# Chosen by eye on a few questions, not calibrated: measure it on your own documents before you rely on it.
SIMILARITY_MIN = 0.45

DEADLINE_S = 60.0
CLIENT_MARGIN_S = 5.0  # so that the service's own word about a missed deadline arrives before we hang up

CUT = "the answer was cut on its way; what is shown of it is not whole"


@dataclass(frozen=True, slots=True)
class Excerpt:
    """A section of a document, short enough to be read in a moment by a small model.

    Attributes:
        file, heading: Where it stands, for the reader who wants to check.
        title: Of the whole document; part of what is compared with the question.
    """

    file: str
    title: str
    heading: str
    text: str


@dataclass(frozen=True, slots=True)
class Answer:
    """What came back.

    Attributes:
        first_token_s: From asking to the first text; None where the answer came whole.
        request_id: The service's name for the request, to quote when something is wrong with it.
    """

    text: str
    request_id: str
    first_token_s: float | None
    total_s: float
    usage: CompletionUsage | None


class Failure(Exception):
    """The question can't be answered now; the text is for the person who asked it."""


def read_excerpts(folder: Path) -> list[Excerpt]:
    """Every `##` section of the Markdown files in that folder."""
    found = []
    for path in sorted(folder.glob("*.md")):
        opening, *sections = re.split(r"^## +", path.read_text(encoding="utf-8"), flags=re.MULTILINE)
        title = opening.strip().removeprefix("#").strip()
        for section in sections:
            heading, _, text = section.partition("\n")
            found.append(Excerpt(path.name, title, heading.strip(), " ".join(text.split())))
    return found


def similarity(one: Sequence[float], other: Sequence[float]) -> float:
    """The cosine of the angle between two embeddings, from -1 to 1."""
    return sum(a * b for a, b in zip(one, other, strict=True)) / (math.hypot(*one) * math.hypot(*other))


def closest(client: openai.OpenAI, question: str, excerpts: Sequence[Excerpt]) -> tuple[Excerpt, float]:
    """The excerpt that is most like the question, and how like it is.

    A real application computes the excerpts' embeddings once and keeps them.
    """
    texts = [f"{excerpt.title}: {excerpt.heading}. {excerpt.text}" for excerpt in excerpts]
    embeddings = client.embeddings.create(model=EMBEDDING_MODEL, input=[question, *texts])
    asked, *known = (item.embedding for item in embeddings.data)
    scores = [similarity(asked, vector) for vector in known]
    best = max(range(len(scores)), key=scores.__getitem__)
    return excerpts[best], scores[best]


def messages(question: str, excerpt: Excerpt) -> list[ChatCompletionMessageParam]:
    return [
        {"role": "system", "content": INSTRUCTION},
        {"role": "user", "content": f"{excerpt.text}\n\n{question}"},
    ]


def ask_streaming(
    client: openai.OpenAI, model: str, prompt: list[ChatCompletionMessageParam], show: Callable[[str], None]
) -> Answer:
    """Gives each piece of text to `show` as it comes. Raises Failure where the stream ends before the answer does."""
    started_s = time.monotonic()
    first_token_s, finished, usage = None, False, None
    pieces = []
    stream = client.chat.completions.create(
        model=model,
        messages=prompt,
        temperature=0,
        max_tokens=ANSWER_TOKENS_MAX,
        stream=True,
        stream_options={"include_usage": True},
    )
    with stream:
        try:
            for event in stream:
                usage = event.usage or usage
                for choice in event.choices:
                    finished = finished or choice.finish_reason is not None
                    if choice.delta.content:
                        if first_token_s is None:
                            first_token_s = time.monotonic() - started_s
                        pieces.append(choice.delta.content)
                        show(choice.delta.content)
        except openai.APIConnectionError as error:
            raise Failure(CUT) from error
    if not finished:
        raise Failure(CUT)
    request_id = stream.response.headers.get("x-request-id", "")
    return Answer("".join(pieces), request_id, first_token_s, time.monotonic() - started_s, usage)


def ask_whole(
    client: openai.OpenAI, model: str, prompt: list[ChatCompletionMessageParam], show: Callable[[str], None]
) -> Answer:
    started_s = time.monotonic()
    answer = client.chat.completions.create(
        model=model, messages=prompt, temperature=0, max_tokens=ANSWER_TOKENS_MAX
    )
    text = answer.choices[0].message.content or ""
    show(text)
    return Answer(text, answer._request_id or "", None, time.monotonic() - started_s, answer.usage)


def with_patience(send: Callable[[], T], *, patience_s: float) -> T:
    """What `send` returns; where the service asks to come back later, comes back then, within that patience in all.

    The client's own retries are off: they would wait in silence.
    """
    while True:
        try:
            return send()
        except openai.APIStatusError as refusal:
            if refusal.status_code not in (429, 503):
                raise
            wait_s = float(refusal.response.headers.get("retry-after", "1"))  # headrace sends whole seconds
            whose = "our own limit" if refusal.status_code == 429 else "the service is busy"
            print(f"wait       {wait_s:.0f} s, the service says ({refusal.status_code}, {whose})", flush=True)
            patience_s -= wait_s
            if patience_s < 0:
                raise Failure("that is longer than --wait allows") from refusal
            time.sleep(wait_s)


def explain(error: openai.APIError, client: openai.OpenAI, model: str) -> str:
    """One line for the person at the terminal: what is wrong, and what to do about it."""
    match error:
        case openai.APITimeoutError():
            return f"no answer from {client.base_url} in time"
        case openai.APIConnectionError():
            return (
                f"no service at {client.base_url}; start it with scripts/up, or name another with --base-url"
            )
        case openai.AuthenticationError():
            return (
                "the key is not accepted; make one with `headrace keys create --tenant demo` "
                "and give it in HEADRACE_API_KEY"
            )
        case openai.NotFoundError(code="model_not_found"):
            return f"{model} or {EMBEDDING_MODEL} is not offered here; offered: {offered_by(client)}"
        case openai.APIStatusError():
            return f"{error.message} (request {error.request_id})"
        case _:
            return f"the answer broke off: {error.message}"


def offered_by(client: openai.OpenAI) -> str:
    try:
        return ", ".join(sorted(model.id for model in client.models.list())) or "nothing yet"
    except openai.APIError:
        return "unknown"


def answer_question(client: openai.OpenAI, arguments: argparse.Namespace) -> None:
    print(f"question   {arguments.question}")
    excerpts = read_excerpts(arguments.documents)
    if not excerpts:
        raise Failure(f"no `## section` in any *.md of {arguments.documents}")
    started_s = time.monotonic()
    excerpt, score = with_patience(
        lambda: closest(client, arguments.question, excerpts), patience_s=arguments.wait
    )
    searched_s = time.monotonic() - started_s
    print(f'excerpt    {excerpt.file}, "{excerpt.heading}" (similarity {score:.2f})')
    if score < SIMILARITY_MIN:
        print(
            f"answer     The documents don't say. (similarity under {SIMILARITY_MIN}: a threshold that is not calibrated)"
        )
        return
    print(f"           {excerpt.text}")

    ask = ask_whole if arguments.whole else ask_streaming
    prompt = messages(arguments.question, excerpt)
    answer = with_patience(
        lambda: ask(client, arguments.model, prompt, written_after("answer     ")), patience_s=arguments.wait
    )
    print()
    for line in report(answer, searched_s=searched_s, model=arguments.model):
        print(line)


def written_after(label: str) -> Callable[[str], None]:
    """A `show` that writes the label before the first piece of text, and each piece at once."""
    labels = iter([label])

    def show(text: str) -> None:
        print(next(labels, "") + text, end="", flush=True)

    return show


def report(answer: Answer, *, searched_s: float, model: str) -> Iterator[str]:
    first = (
        f"first token after {answer.first_token_s:.2f} s, "
        if answer.first_token_s is not None
        else "not streamed, "
    )
    yield f"time       {first}whole answer after {answer.total_s:.2f} s; the search before it took {searched_s:.2f} s"
    if answer.usage is not None:
        yield f"usage      {answer.usage.prompt_tokens} prompt tokens, {answer.usage.completion_tokens} completion tokens"
    yield f"request    {answer.request_id}"
    if model == CHAT_MODEL:
        yield f"note       {model} is for wiring and load tests and is wrong on most questions: check the excerpt."
        yield "           `headrace models list` names models that answer."


def arguments_from(words: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description="Answers a question from a folder of documents, through headrace."
    )
    parser.add_argument("--question", metavar="TEXT", default=QUESTION, help=f"default: {QUESTION}")
    parser.add_argument("--whole", action="store_true", help="get the answer in one piece, not streamed")
    parser.add_argument(
        "--documents", metavar="DIR", type=Path, default=DOCUMENTS, help="a folder with *.md files"
    )
    parser.add_argument("--model", metavar="NAME", default=CHAT_MODEL, help=f"default: {CHAT_MODEL}")
    parser.add_argument(
        "--base-url",
        metavar="URL",
        default="http://127.0.0.1:8000/v1",
        help="where headrace is (default: %(default)s)",
    )
    parser.add_argument(
        "--key",
        metavar="KEY",
        default=os.environ.get("HEADRACE_API_KEY", ""),
        help="default: $HEADRACE_API_KEY, which, unlike an argument, stays out of the shell's history",
    )
    parser.add_argument(
        "--wait",
        metavar="S",
        type=float,
        default=30.0,
        help="longest wait in seconds when the service says to come back later (default: 30)",
    )
    return parser.parse_args(words)


def main(words: Sequence[str] | None = None) -> int:
    arguments = arguments_from(words)
    if not arguments.key:
        print("assistant: no key; set HEADRACE_API_KEY or give --key", file=sys.stderr)
        return 2
    client = openai.OpenAI(
        base_url=arguments.base_url,
        api_key=arguments.key,
        max_retries=0,
        timeout=DEADLINE_S + CLIENT_MARGIN_S,
        default_headers={"X-Headrace-Deadline-Ms": str(round(DEADLINE_S * 1000))},
    )
    try:
        with client:
            try:
                answer_question(client, arguments)
            except openai.APIError as error:
                raise Failure(explain(error, client, arguments.model)) from error
    except Failure as failure:
        print(f"assistant: {failure}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
