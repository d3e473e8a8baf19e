"""How does a rollout have an acceptance set run, and what does it make of what comes back? A command line, and its result.

Quality is measured from outside the service, as a customer would see it, by a program of its own: `headrace eval`. Whoever needs
a verdict starts it as a child, with a limit on its time, and reads one JSON object from its standard output. Whatever goes
wrong with the child itself is an error, which says nothing of the candidate.
"""

import msgspec

from headrace.core.verdicts import Verdict
from headrace.policies import distributions, pairs, quality_report
from headrace.policies.quality_report import QualityReport

OUTPUT_BYTES_MAX = 1024 * 1024
_CHILD_MARGIN_S = 10.0


class GateRun(msgspec.Struct, frozen=True):
    """A run that somebody wants.

    Attributes:
        cases: Name of an acceptance set, or its file.
        candidate, accepted: Names that the server knows, such as `chat-small@v4`; "" compares with nothing.
        key: Reference to the key, `env:NAME` or `file:PATH`.
        data: The data directory, where sets of one's own lie and the use is recorded.
        certificate: PEM file with the server's own certificate, which is the only one to trust; "" asks the system's authorities.
        margin: How much smaller the candidate's share may be; `floor`: how small it may be at all; None asks for neither.
        alpha: Chance, one-sided, of a wrong verdict, over all looks at the set for one decision.
        limit_s: For the whole run.
        purpose: What the record of the use says it was for.
    """

    cases: str
    candidate: str
    url: str
    key: str
    data: str
    accepted: str = ""
    certificate: str = ""
    margin: float | None = None
    floor: float | None = None
    alpha: float = 0.05
    concurrency: int = 4
    deadline_s: float = 60.0
    limit_s: float = 900.0
    purpose: str = ""


class GateResult(msgspec.Struct, frozen=True):
    """What came of it.

    Attributes:
        detail: For people; of the answers it says only how many were right.
    """

    verdict: Verdict
    detail: str
    candidate_share: float | None = None
    accepted_share: float | None = None
    report: QualityReport | None = None


def command(run: GateRun) -> tuple[str, ...]:
    """The arguments of `headrace` (or `python -m headrace`)."""
    arguments = [
        "eval",
        "--set",
        "acceptance",
        "--cases",
        run.cases,
        "--model",
        run.candidate,
        "--url",
        run.url,
    ]
    arguments += ["--key", run.key] if run.key else []
    arguments += ["--certificate", run.certificate] if run.certificate else []
    arguments += ["--data", run.data]
    if run.accepted and run.margin is not None:
        arguments += ["--compare", run.accepted, "--margin", repr(run.margin)]
    if run.floor is not None:
        arguments += ["--floor", repr(run.floor)]
    arguments += ["--alpha", repr(run.alpha), "--concurrency", str(run.concurrency)]
    arguments += ["--deadline", repr(run.deadline_s), "--time-limit", repr(run.limit_s)]
    return (*arguments, "--for", run.purpose, "--json")


def child_limit_s(run: GateRun) -> float:
    """When the child itself has hung and is to be ended: it keeps `limit_s` by itself, and then reports."""
    return run.limit_s + _CHILD_MARGIN_S


def result(status: int | None, output: bytes, complaint: bytes = b"") -> GateResult:
    """What a child's end means.

    Args:
        status: Its exit status, negative for a signal; None if it ran over its time and was ended.
        output, complaint: What it wrote to standard output, and the end of what it wrote to standard error.
    """
    if status is None:
        return GateResult(Verdict.ERROR, "the evaluation ran over its time")
    said = complaint.decode(errors="replace").strip().rpartition("\n")[2][-500:]
    if status == quality_report.OPERATOR_MUST_ACT:
        return GateResult(Verdict.ERROR, said or "the evaluation can't be run as it is configured")
    try:
        report = msgspec.json.decode(output, type=QualityReport)
    except (msgspec.DecodeError, UnicodeDecodeError):
        report = None
    if report is None or report.verdict is None or quality_report.STATUS[report.verdict] != status:
        return GateResult(
            Verdict.ERROR, f"the evaluation ended with status {status}" + (f": {said}" if said else "")
        )
    return GateResult(
        report.verdict,
        report.detail,
        report.candidate.share.estimate,
        report.accepted.share.estimate if report.accepted is not None else None,
        report,
    )


def is_provable(cases: int, *, margin: float, alpha: float) -> bool:
    """Whether so many cases could ever show that a candidate is not worse by more than that; `plan` warns where not."""
    return margin > 0 and cases >= pairs.cases_needed(margin, alpha=alpha)


def margin_provable(cases: int, *, alpha: float) -> float:
    """The smallest margin that so many cases can show, where no case differs: z^2 / (n + z^2)."""
    z = distributions.normal_quantile(1.0 - alpha)
    return z * z / (cases + z * z)
