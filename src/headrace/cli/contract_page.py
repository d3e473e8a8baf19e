"""How does a contract read? As Markdown, or as one page of HTML that needs nothing else."""

import re
from collections.abc import Iterator, Sequence
from html import escape
from typing import NamedTuple

from headrace.protocols.bounds import Bound
from headrace.protocols.contract import Contract, EndpointTerms, ErrorTerms

_STYLE = """
body { font: 15px/1.5 system-ui, "Segoe UI", Roboto, sans-serif; color: #1b2230; background: #fff; max-width: 62rem; margin: 3rem auto; padding: 0 1.5rem }
h1 { font-size: 1.9rem; letter-spacing: -.02em; margin: 0 0 .3rem } h2 { font-size: 1.15rem; margin: 2.4rem 0 .4rem }
table { border-collapse: collapse; width: 100%; margin: .8rem 0; font-size: .9rem } td, th { text-align: left; vertical-align: top; padding: .35rem .8rem .35rem 0; border-bottom: 1px solid #e4e7ee }
th { color: #667085; font-weight: 600; font-size: .8rem } code { font: .88em ui-monospace, Menlo, Consolas, monospace; background: #f3f4f7; border-radius: 3px; padding: .05em .3em }
p { margin: .4rem 0 } tr { break-inside: avoid } h2 { break-after: avoid }
@media (prefers-color-scheme: dark) { body { color: #d7dce6; background: #14181f } td, th { border-color: #2a313d } code { background: #222936 } }
"""


class Section(NamedTuple):
    """One heading with what stands below it: paragraphs, and a table where there are rows."""

    heading: str
    paragraphs: Sequence[str] = ()
    columns: Sequence[str] = ()
    rows: Sequence[Sequence[str]] = ()


def sections(contract: Contract, *, tenant: str) -> list[Section]:
    """What the page says, in its order, the title first."""
    return [
        _title(contract, tenant),
        *_requests(contract),
        _streams(contract),
        *_errors(contract),
        _leaving(contract),
        _twice(contract),
        _time(contract),
        *_limits(contract),
        _data(contract),
        *_billing(contract),
    ]


def _title(contract: Contract, tenant: str) -> Section:
    context = f", {contract.context_tokens:,} tokens of context" if contract.context_tokens else ""
    return Section(
        f"{contract.model}: service contract",
        [
            f"Revision `{contract.revision}`, served by headrace {contract.version}{context}."
            + (f" As it holds for the tenant `{tenant}`." if tenant else ""),
            "Made of the values that the service itself goes by; "
            f"programs read it at `GET /v1/models/{contract.model}/contract`.",
        ],
    )


def _requests(contract: Contract) -> Iterator[Section]:
    fields = contract.fields
    yield Section(
        "Fields",
        [
            f"Fields that this contract doesn't name are {fields.unknown}.",
            f"Never passed to the engine: {_codes(fields.never_passed)}.",
            f"Written anew by the service for each engine: {_codes(fields.set_by_us)}.",
        ],
    )
    for endpoint in contract.endpoints:
        yield Section(
            f"POST {endpoint.path}",
            [f"Known fields: {_codes(sorted(endpoint.request['properties']))}.", *_ways(endpoint)],
            ("where", "what", "at least", "at most", "else"),
            [_bound(bound) for bound in endpoint.bounds],
        )


def _ways(endpoint: EndpointTerms) -> Iterator[str]:
    if endpoint.streams:
        yield "The answer comes whole, as a stream of events, or over a WebSocket."
    else:
        yield "The answer comes whole."


def _bound(bound: Bound) -> tuple[str, ...]:
    what = bound.measure.value + (f" ({bound.says})" if bound.says else "")
    return (
        f"`{bound.field}`",
        what,
        *map(_number, (bound.at_least, bound.at_most)),
        f"{bound.status} `{bound.code}`",
    )


def _streams(contract: Contract) -> Section:
    streams = contract.streams
    return Section(
        "Streams",
        (),
        ("", ""),
        [
            ("asked for with", streams.asked_with),
            ("content type", streams.content_type),
            ("an event", streams.event),
            ("the first event", streams.first_event),
            ("silence", f"{streams.heartbeat} ({_seconds(streams.heartbeat_s)})"),
            ("usage", streams.usage),
            ("the end", streams.end),
            ("an error", streams.error),
        ],
    )


def _errors(contract: Contract) -> Iterator[Section]:
    retries = contract.retries
    yield Section(
        "Errors",
        [
            f"The service tries again {retries.by_us}: at most {retries.attempts_max} attempts.",
            f"A caller tries again {retries.by_the_caller}.",
        ],
        ("code", "status", "`x-should-retry`", "`retry-after`", "in streams", "what to do"),
        [_error(error) for error in contract.errors],
    )
    yield Section(
        "When they come, and what is charged",
        (),
        ("code", "when", "charged"),
        [
            (f"`{error.code}`", f"{each.meaning} ({each.stage})", each.charged)
            for error in contract.errors
            for each in error.reasons
        ],
    )


def _error(error: ErrorTerms) -> tuple[str, ...]:
    should_retry = {True: "true", False: "false", None: "not sent"}[error.should_retry]
    flags = ("yes" if flag else "no" for flag in (error.has_retry_after, error.in_streams))
    return (f"`{error.code}`", str(error.status), should_retry, *flags, error.remedy)


def _leaving(contract: Contract) -> Section:
    leaving = contract.cancellation
    return Section(
        "When the caller leaves",
        [
            f"To leave: {leaving.how}. Then {leaving.effect}.",
            f"A caller that takes nothing for {_seconds(leaving.write_stall_limit_s)} has left.",
        ],
        ("what happened", "charged"),
        [(each.meaning, each.charged) for each in leaving.endings],
    )


def _twice(contract: Contract) -> Section:
    once = contract.idempotency
    return Section(
        "Work that is done once",
        [
            f"`{once.header}`: {once.promise}. Kept {once.kept}, for {_seconds(once.keep_s)} at most, "
            f"if the answer has no more than {once.answer_bytes_max:,} bytes."
        ],
    )


def _time(contract: Contract) -> Section:
    time = contract.time
    return Section(
        "Time",
        [f"`{time.deadline_header}` says how long a request has."],
        ("", ""),
        [
            ("without it", _seconds(time.deadline_s)),
            ("at most", _seconds(time.deadline_max_s)),
            ("longest wait in the queue", _seconds(time.queue_wait_max_s)),
            ("an engine's silence before its answer", _seconds(time.first_event_limit_s)),
            ("an engine's silence inside its answer", _seconds(time.stall_limit_s)),
            ("for the head of a request", _seconds(time.header_timeout_s)),
            ("slowest body", f"{time.body_bytes_per_s_min:,} bytes a second"),
            ("between two requests of a connection", _seconds(time.idle_timeout_s)),
            ("for answers in progress when the service ends", _seconds(time.drain_s)),
        ],
    )


def _limits(contract: Contract) -> Iterator[Section]:
    if contract.limits:
        yield Section(
            "Limits",
            [f"Quotas: {_codes(contract.quotas)}."] if contract.quotas else [],
            ("of the", "requests a minute", "at once", "tokens a minute", "at once", "in progress"),
            [
                (
                    each.of,
                    *(
                        f"{amount:,}" if amount else "no limit"
                        for amount in (
                            each.requests_per_minute,
                            each.requests_at_once,
                            each.tokens_per_minute,
                            each.tokens_at_once,
                            each.concurrency_max,
                        )
                    ),
                )
                for each in contract.limits
            ],
        )


def _data(contract: Contract) -> Section:
    data = contract.data
    return Section(
        "Data",
        (),
        ("", ""),
        [
            ("prompts and answers", data.prompts_and_answers),
            ("kept answers", _seconds(data.kept_answers_s)),
            ("records", f"{data.records_kept}: {_codes(data.records)}"),
            (
                "durable",
                "the end of an answer waits for its record" if data.is_durable else "records follow answers",
            ),
            ("logs", data.logs),
            ("locations", ", ".join(data.locations) or "not named"),
            ("where requests run", data.location_rule),
            ("prefix caches", data.cache_isolation_means),
            ("media", data.media),
        ],
    )


def _billing(contract: Contract) -> Iterator[Section]:
    billing = contract.billing
    price = (
        f"Price `{billing.version}`, in {billing.currency}."
        if billing.version
        else "No price is set, so nothing is billed."
    )
    yield Section(
        "What is billed",
        [price, f"Counts are {billing.counts}. Units: {billing.units}."],
        ("item", "price"),
        [(each.per, each.price) for each in billing.prices],
    )
    yield Section(
        "Rules", (), ("how it ended", "charged"), [(each.outcome, each.charged) for each in billing.rules]
    )


def _codes(names: Sequence[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)


def _number(value: float | int | None) -> str:
    return "" if value is None else f"{value:,}"


def _seconds(seconds: float) -> str:
    return f"{seconds:,g} s"


def markdown(sections: Sequence[Section]) -> str:
    lines: list[str] = []
    for index, section in enumerate(sections):
        lines += [f"{'##' if index else '#'} {section.heading}", ""]
        for paragraph in section.paragraphs:
            lines += [paragraph, ""]
        if section.rows:
            lines += [_row(section.columns), _row(["---"] * len(section.columns))]
            lines += [*map(_row, section.rows), ""]
    return "\n".join(lines).rstrip()


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"


def html(sections: Sequence[Section]) -> str:
    parts: list[str] = []
    for index, section in enumerate(sections):
        tag = "h2" if index else "h1"
        parts.append(f"<{tag}>{_text(section.heading)}</{tag}>")
        parts += [f"<p>{_text(paragraph)}</p>" for paragraph in section.paragraphs]
        if section.rows:
            head = "".join(f"<th>{_text(column)}</th>" for column in section.columns)
            body = "\n".join(
                f"<tr>{''.join(f'<td>{_text(cell)}</td>' for cell in row)}</tr>" for row in section.rows
            )
            parts.append(f"<table>\n<thead><tr>{head}</tr></thead>\n<tbody>\n{body}\n</tbody>\n</table>")
    body = "\n".join(parts)
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width">\n'
        f"<title>{escape(sections[0].heading)}</title>\n<style>{_STYLE}</style>\n</head>\n<body>\n{body}\n</body>\n</html>\n"
    )


def _text(text: str) -> str:
    """Escaped, with what stands between back quotes as code."""
    return re.sub(r"`([^`]*)`", r"<code>\1</code>", escape(text, quote=False))
