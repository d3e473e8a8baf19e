"""Which steps make a certification, in which order?"""

from headrace.evidence import (
    certify_books,
    certify_cancel,
    certify_contract,
    certify_failures,
    certify_load,
    certify_quality,
    certify_tenants,
)
from headrace.evidence.certify import Step

# What breaks something comes late, and the books last: they are about all that was asked before.
STEPS: dict[str, Step] = {
    step.name: step
    for step in (
        Step(
            "contract",
            "Is the public contract kept: models, answers, streams, usage, errors, keys, limits?",
            certify_contract.keep_contract,
            ("revoked_s",),
            is_from_outside=True,
        ),
        Step(
            "isolation",
            "Does a tenant see anything of another: kept answers, ids, models, times of cached prompts?",
            certify_tenants.keep_apart,
            ("leak_p",),
        ),
        Step(
            "cache",
            "Does a prompt that was just asked come from the prefix cache?",
            certify_tenants.warm_cache,
            ("cached_share",),
            is_from_outside=True,
        ),
        Step(
            "quality",
            "Are enough cases of the sealed acceptance set answered rightly?",
            certify_quality.reach_floor,
            ("quality_floor",),
            is_from_outside=True,
        ),
        Step(
            "pace",
            "How much does it answer at its best?",
            certify_load.find_pace,
            ("failure_share",),
            is_from_outside=True,
        ),
        Step(
            certify_load.NORMAL_LOAD,
            "Under normal load, are answers whole and in time?",
            certify_load.carry_normal_load,
            ("good_share", "failure_share", "ttft_s", "tpot_s", "total_s"),
            is_from_outside=True,
        ),
        Step(
            "burst",
            "Is a burst answered or refused, and forgotten soon?",
            certify_load.take_burst,
            ("burst_answered_s",),
            is_from_outside=True,
        ),
        Step(
            "long-input",
            "Are inputs answered that fill the context?",
            certify_load.take_long_inputs,
            ("long_ttft_s",),
            is_from_outside=True,
        ),
        Step(
            "cancel",
            "Does the engine stop when a caller leaves?",
            certify_cancel.stop_work,
            ("cancel_s",),
        ),
        Step(
            "overload",
            "Is too much refused at once, with Retry-After, and does it keep its pace meanwhile?",
            certify_load.refuse_overload,
            ("goodput_share", "refusal_s", "recovery_s"),
            is_from_outside=True,
        ),
        Step(
            "memory",
            "Does the service grow with the work that it has done?",
            certify_books.hold_memory,
            ("memory_bytes_per_request",),
        ),
        Step(
            "replica-loss",
            "Is a replica that is killed replaced, and are callers told?",
            certify_failures.lose_replica,
            ("unanswered_s", "recovery_s"),
        ),
        Step(
            "bad-release",
            "Is a bad version taken back by the deployment's own gates?",
            certify_failures.release_badly,
            ("recovery_s",),
        ),
        Step(
            "reconciliation",
            "Is every request of all that in the ledger once, with what the engine counted?",
            certify_books.reconcile,
            ("books_off",),
        ),
    )
}
