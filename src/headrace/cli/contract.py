"""`headrace contract` and `headrace openapi`: what is promised to callers, for people and for programs?"""

import argparse
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import msgspec

from headrace import config
from headrace.cli import common, contract_page, status
from headrace.evidence import page, tables
from headrace.protocols import openapi
from headrace.protocols.contract import Contract


def add(commands: Any) -> None:
    """Registers both commands."""
    parser = common.command(
        commands,
        "contract",
        _contract,
        help="show what is promised for a model that is offered: fields, bounds, errors, cancellation, data, bills",
        example="headrace contract smollm2-135m-instruct\n         headrace contract chat --tenant acme --html contract.html",
        with_json=True,
    )
    parser.add_argument("model", metavar="MODEL", help="as `headrace status` shows it")
    parser.add_argument("--tenant", help="with this tenant's limits and prices")
    parser.add_argument(
        "--html", type=Path, metavar="FILE", help="write a page that needs nothing else, instead of Markdown"
    )
    common.command(
        commands,
        "openapi",
        _openapi,
        help="print the OpenAPI document of the public port; it is the same for every service of this version",
        example="headrace openapi > openapi.json",
        with_data=False,
    )


def _contract(arguments: argparse.Namespace) -> None:
    asked = {"model": arguments.model, **({"tenant": arguments.tenant} if arguments.tenant else {})}
    _, found = status.fetch(config.data_directory(arguments.data), f"/admin/v1/contract?{urlencode(asked)}")
    if arguments.json:
        common.print_json(found)
        return
    contract = msgspec.convert(found, Contract)
    title, lead = contract_page.title(contract), contract_page.lead(contract, tenant=arguments.tenant or "")
    sections = contract_page.sections(contract)
    if arguments.html is None:
        print(tables.markdown(sections, title=title, lead=lead))
    else:
        arguments.html.write_text(page.page(title, sections, lead=lead), encoding="utf-8")


def _openapi(arguments: argparse.Namespace) -> None:
    common.print_json(openapi.document())
