"""How does a contract read? As Markdown, or as one page of HTML that needs nothing else."""

from collections.abc import Iterator, Sequence

from headrace.evidence.page import Section, Table
from headrace.protocols.bounds import Bound
from headrace.protocols.contract import Contract, EndpointTerms, ErrorTerms


def title(contract: Contract) -> str:
    return f"{contract.model}: service contract"


def lead(contract: Contract, *, tenant: str) -> list[str]:
    """What stands below the title."""
    context = f", {contract.context_tokens:,} tokens of context" if contract.context_tokens else ""
    return [
        f"Revision `{contract.revision}`, served by headrace {contract.version}{context}."
        + (f" As it holds for the tenant `{tenant}`." if tenant else ""),
        "Made of the values that the service itself goes by; "
        f"programs read it at `GET /v1/models/{contract.model}/contract`.",
    ]


def sections(contract: Contract) -> list[Section]:
    """What the page says, in its order."""
    return [
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


def _section(
    heading: str,
    paragraphs: Sequence[str] = (),
    columns: Sequence[str] = (),
    rows: Sequence[Sequence[str]] = (),
) -> Section:
    """Paragraphs, and a table where there are rows."""
    return Section(heading, paragraphs, [Table(columns, rows)] if rows else [])


def _requests(contract: Contract) -> Iterator[Section]:
    fields = contract.fields
    yield _section(
        "Fields",
        [
            f"Fields that this contract doesn't name are {fields.unknown}.",
            f"Never passed to the engine: {_codes(fields.never_passed)}.",
            f"Written anew by the service for each engine: {_codes(fields.set_by_us)}.",
        ],
    )
    for endpoint in contract.endpoints:
        yield _section(
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
    return _section(
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
    yield _section(
        "Errors",
        [
            f"The service tries again {retries.by_us}: at most {retries.attempts_max} attempts.",
            f"A caller tries again {retries.by_the_caller}.",
        ],
        ("code", "status", "`x-should-retry`", "`retry-after`", "in streams", "what to do"),
        [_error(error) for error in contract.errors],
    )
    yield _section(
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
    return _section(
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
    return _section(
        "Work that is done once",
        [
            f"`{once.header}`: {once.promise}. Kept {once.kept}, for {_seconds(once.keep_s)} at most, "
            f"if the answer has no more than {once.answer_bytes_max:,} bytes."
        ],
    )


def _time(contract: Contract) -> Section:
    time = contract.time
    return _section(
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
        yield _section(
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
    return _section(
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
    yield _section(
        "What is billed",
        [price, f"Counts are {billing.counts}. Units: {billing.units}."],
        ("item", "price"),
        [(each.per, each.price) for each in billing.prices],
    )
    yield _section(
        "Rules", (), ("how it ended", "charged"), [(each.outcome, each.charged) for each in billing.rules]
    )


def _codes(names: Sequence[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)


def _number(value: float | int | None) -> str:
    return "" if value is None else f"{value:,}"


def _seconds(seconds: float) -> str:
    return f"{seconds:,g} s"
