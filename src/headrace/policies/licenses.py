"""May a model with these license statements be offered, or must someone accept its terms by name first?"""

import re
from collections.abc import Sequence
from dataclasses import dataclass

UNKNOWN = "unknown"

PERMISSIVE = (
    "0BSD",
    "Apache-2.0",
    "BSD-2-Clause",
    "BSD-3-Clause",
    "BSL-1.0",
    "CC-BY-4.0",
    "CC0-1.0",
    "CDLA-Permissive-2.0",
    "ISC",
    "MIT",
    "MIT-0",
    "Unlicense",
    "Zlib",
)
"""SPDX ids whose terms ask for no more than notices: offered without anyone's acceptance."""

# The spellings that model cards and package labels use for the same few licenses.
_SPELLINGS = {
    "apache 2.0": "Apache-2.0",
    "apache license 2.0": "Apache-2.0",
    "apache license, version 2.0": "Apache-2.0",
    "apache software license": "Apache-2.0",
    "apache2": "Apache-2.0",
    "bsd-2": "BSD-2-Clause",
    "bsd-3": "BSD-3-Clause",
    "cc-by 4.0": "CC-BY-4.0",
    "cc0": "CC0-1.0",
    "mit license": "MIT",
    "the mit license": "MIT",
    **{spdx.casefold(): spdx for spdx in PERMISSIVE},
}


@dataclass(frozen=True, slots=True)
class LicenseClaim:
    """What one place says about an artifact's license.

    Attributes:
        license: As written there, "" where the place says nothing.
        evidence: Where it says so, for the record.
    """

    license: str
    evidence: str


@dataclass(frozen=True, slots=True)
class LicenseVerdict:
    """Whether the artifact may be offered.

    Attributes:
        license: The license for the record: SPDX where recognised.
        evidence: Every statement that was weighed.
        accepted: The name by which someone accepted terms that the policy doesn't allow by itself, else "".
        refused: The name that has to be accepted before the artifact may be offered, "" when it may be.
    """

    license: str
    evidence: tuple[str, ...]
    accepted: str = ""
    refused: str = ""


def canonical(text: str) -> str:
    """The SPDX id for a known spelling of a permissive license, else the text itself, trimmed."""
    trimmed = " ".join(text.split())
    return _SPELLINGS.get(trimmed.casefold(), trimmed)


def is_permissive(text: str) -> bool:
    """Whether an id, or an SPDX expression of ids joined by OR and AND without parentheses, is on the list."""
    return is_allowed(text, PERMISSIVE)


def is_allowed(text: str, allow: Sequence[str]) -> bool:
    """The same, for a list of one's own."""
    accepted = {canonical(each).casefold() for each in allow}
    return any(
        all(canonical(part).casefold() in accepted for part in re.split(r"\s+AND\s+", choice))
        for choice in re.split(r"\s+OR\s+", text.strip())
    )


def judge(claims: Sequence[LicenseClaim], *, accepted: str = "") -> LicenseVerdict:
    """Weighs every statement, the most authoritative first: one that isn't permissive is enough to refuse.

    Where no place says anything, the license is unknown; someone who knows it from elsewhere accepts it by its name.
    """
    made = [claim for claim in claims if claim.license.strip()]
    evidence = tuple(f"{canonical(claim.license)}: {claim.evidence}" for claim in made)
    name = canonical(accepted)
    if not made:
        if not name:
            return LicenseVerdict(UNKNOWN, evidence, refused=UNKNOWN)
        return LicenseVerdict(name, (f"{name}: stated by the operator",), accepted=name)
    license = canonical(made[0].license)
    barriers = dict.fromkeys(canonical(claim.license) for claim in made if not is_permissive(claim.license))
    if not barriers:
        return LicenseVerdict(license, evidence)
    needed = " AND ".join(barriers)
    if name.casefold() != needed.casefold():
        return LicenseVerdict(license, evidence, refused=needed)
    return LicenseVerdict(license, evidence, accepted=needed)
