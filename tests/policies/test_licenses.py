"""Licenses: permissive ones pass, everything else needs its name accepted, and every statement counts."""

import pytest

from headrace.policies.licenses import PERMISSIVE, LicenseClaim, canonical, is_permissive, judge


def claims(*names: str) -> list[LicenseClaim]:
    return [LicenseClaim(name, f"place {index}") for index, name in enumerate(names)]


@pytest.mark.parametrize("spelling", ["apache-2.0", "Apache-2.0", "Apache License 2.0", " apache  2.0 "])
def test_known_spellings_are_recorded_as_one_spdx_id(spelling: str) -> None:
    assert canonical(spelling) == "Apache-2.0"


@pytest.mark.parametrize("license", PERMISSIVE)
def test_permissive_licenses_pass_without_acceptance(license: str) -> None:
    verdict = judge(claims(license.lower()))
    assert (verdict.license, verdict.refused, verdict.accepted) == (license, "", "")


@pytest.mark.parametrize(
    "license", ["gemma", "llama3.2", "other", "cc-by-nc-4.0", "GPL-3.0-only", "proprietary"]
)
def test_anything_else_is_refused_until_accepted_by_that_name(license: str) -> None:
    assert judge(claims(license)).refused == license
    assert judge(claims(license), accepted="Apache-2.0").refused == license
    verdict = judge(claims(license), accepted=license.upper())
    assert (verdict.refused, verdict.accepted, verdict.license) == ("", license, license)


def test_an_unknown_license_is_refused_and_can_be_stated_by_the_operator() -> None:
    assert judge([]).refused == "unknown"
    assert judge(claims("", " ")).refused == "unknown"
    verdict = judge([], accepted="gemma")
    assert (verdict.license, verdict.accepted, verdict.refused) == ("gemma", "gemma", "")
    assert verdict.evidence == ("gemma: stated by the operator",)


def test_one_statement_that_is_not_permissive_outweighs_the_others() -> None:
    assert judge(claims("Apache-2.0", "gemma")).refused == "gemma"
    assert judge(claims("gemma", "llama3", "gemma")).refused == "gemma AND llama3"
    assert judge(claims("gemma", "llama3"), accepted="gemma").refused == "gemma AND llama3"
    assert judge(claims("gemma", "llama3"), accepted="gemma AND llama3").refused == ""


def test_the_first_statement_names_the_license_and_all_are_kept_as_evidence() -> None:
    verdict = judge(claims("Apache-2.0", "", "MIT"))
    assert verdict.license == "Apache-2.0"
    assert verdict.evidence == ("Apache-2.0: place 0", "MIT: place 2")


def test_expressions_are_permissive_when_one_choice_is_wholly_so() -> None:
    assert is_permissive("MIT OR GPL-3.0-only")
    assert is_permissive("MIT AND Apache-2.0")
    assert not is_permissive("MIT AND GPL-3.0-only")
    assert not is_permissive("(MIT OR gemma) AND gemma")
    assert not is_permissive("")
