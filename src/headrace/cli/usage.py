"""`headrace usage`: what the ledger says, summed or request by request."""

import argparse
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from headrace import config
from headrace.cli import common, durations
from headrace.core.clock import SystemClock
from headrace.core.money import format_amount
from headrace.core.usage import UsageRecord, UsageSource
from headrace.stores import views
from headrace.stores.opening import open_database
from headrace.stores.usage_report import NO_CURRENCY, Group, Orphan, UsageReport, UsageSum

_CLOCK = SystemClock()


def add(commands: Any) -> None:
    """Registers the command."""
    parser = common.command(
        commands,
        "usage",
        _usage,
        help="show requests and tokens from the ledger; all times are UTC",
        example="headrace usage --since 24h --by model\n         headrace usage --requests --tenant acme --limit 20",
        with_json=True,
    )
    parser.add_argument("--tenant", help="only this tenant's")
    parser.add_argument(
        "--since",
        type=durations.moment,
        metavar="TIME",
        help="2026-11-01, or a span back from now such as 24h",
    )
    shape = parser.add_mutually_exclusive_group()
    shape.add_argument(
        "--by", choices=[group.value for group in Group], help="what to sum by (default: tenant and model)"
    )
    shape.add_argument("--requests", action="store_true", help="list single requests, the newest first")
    shape.add_argument(
        "--orphans",
        action="store_true",
        help="list requests that a crash cut off and that have no record; nobody is billed for them",
    )
    parser.add_argument(
        "--limit",
        type=common.positive,
        default=100,
        metavar="N",
        help="with --requests or --orphans: how many (default: 100)",
    )


def _usage(arguments: argparse.Namespace) -> None:
    since_s = None if arguments.since is None else durations.unix_s(arguments.since, now_s=_CLOCK.wall_s())
    report = UsageReport(open_database(config.data_directory(arguments.data), must_exist=True))
    try:
        if arguments.tenant is not None:
            report.require_tenant(arguments.tenant)
        if arguments.requests:
            currencies = report.currencies()
            records = report.requests(tenant=arguments.tenant, since_s=since_s, limit=arguments.limit)
            if arguments.json:
                common.print_json([_request_json(report, currencies, record) for record in records])
            else:
                _print_requests(currencies, records)
            return
        if arguments.orphans:
            _print_orphans(
                report.orphans(tenant=arguments.tenant, since_s=since_s, limit=arguments.limit),
                as_json=arguments.json,
            )
            return
        groups = (Group(arguments.by),) if arguments.by else (Group.TENANT, Group.MODEL)
        sums = report.summary(tenant=arguments.tenant, since_s=since_s, group_by=groups)
    finally:
        report.close()
    if arguments.json:
        common.print_json([views.usage_sum(groups, row) for row in sums])
    else:
        _print_sums(groups, sums)


def _print_sums(groups: Sequence[Group], sums: Sequence[UsageSum]) -> None:
    headings = (
        *(group.value for group in groups),
        "requests",
        *views.OUTCOMES,
        *("prompt", "cached", "completion", "estimated", "unknown", "charge"),
    )
    rows = [
        (
            *row.group,
            row.requests,
            *(getattr(row, outcome) for outcome in views.OUTCOMES),
            *(getattr(row, tokens) for tokens in views.TOKENS),
            None if (share := row.estimated_share) is None else f"{share:.1%}",
            row.unknown,
            _charges_text(row.charges),
        )
        for row in sums
    ]
    common.print_table(rows, headings=headings)


def _print_requests(currencies: Mapping[str, str], records: Sequence[UsageRecord]) -> None:
    rows = []
    for record in records:
        is_known = record.usage_source != UsageSource.UNKNOWN.value
        rows.append(
            (
                durations.utc(record.started_s),
                record.request_id,
                record.tenant,
                record.model,
                record.endpoint,
                "yes" if record.is_streaming else "no",
                record.outcome,
                record.reason,
                *(getattr(record, tokens) if is_known else "unknown" for tokens in views.TOKENS),
                record.usage_source,
                record.ttft_s,
                record.total_s,
                f"{format_amount(record.charge_pico)} {currencies.get(record.price_version, NO_CURRENCY)}"
                if record.price_version
                else None,
            )
        )
    columns = ("started", "request", "tenant", "model", "endpoint", "stream", "outcome", "reason")
    measures = ("prompt", "cached", "completion", "source", "ttft_s", "total_s", "charge")
    common.print_table(rows, headings=(*columns, *measures))


def _print_orphans(orphans: Sequence[Orphan], *, as_json: bool) -> None:
    if as_json:
        rows = []
        for each in orphans:
            facts = msgspec.structs.asdict(each)
            for moment in ("started", "found"):
                facts[moment] = durations.utc(facts.pop(f"{moment}_s"))
            rows.append(facts)
        common.print_json(rows)
        return
    headings = ("started", "request", "tenant", "key", "model", "replica", "generation", "attempt", "found")
    common.print_table(
        [
            (
                durations.utc(each.started_s),
                *(each.request_id, each.tenant, each.key_id, each.model),
                *(each.replica, each.generation, each.attempt, durations.utc(each.found_s)),
            )
            for each in orphans
        ],
        headings=headings,
    )


def _charges_text(charges: dict[str, int]) -> str | None:
    return " + ".join(f"{format_amount(pico)} {currency}" for currency, pico in charges.items()) or None


def _request_json(
    report: UsageReport, currencies: Mapping[str, str], record: UsageRecord
) -> dict[str, object]:
    attempts = [_record_json(execution) for execution in report.executions(record.request_id)]
    facts = _record_json(record)
    facts["charge"] = format_amount(facts.pop("charge_pico"))
    facts["charge_rule"] = record.charge_rule.value
    facts["currency"] = currencies.get(record.price_version)
    return {**facts, "executions": attempts}


def _record_json(record: msgspec.Struct) -> dict[str, Any]:
    """Fields as they are stored, but times as people read them and unknown usage as null, never as a number."""
    facts = msgspec.structs.asdict(record)
    facts["started"] = durations.utc(facts.pop("started_s"))
    if facts["usage_source"] == UsageSource.UNKNOWN.value:
        facts.update(dict.fromkeys(views.TOKENS))
    return facts
