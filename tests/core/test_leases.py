"""A claim about what workers tell the service: the caller that a shadow limit judges is the one that the worker saw."""

import msgspec

from headrace.core.ids import KeyId, TenantId
from headrace.core.leases import ShadowBegin, Shadowed, ShadowEnd
from headrace.core.tenant import TenantLimits
from headrace.core.usage import TokenUsage, UsageSource


def test_a_shadowed_request_crosses_the_link_with_the_limits_that_judge_it() -> None:
    whole = ShadowBegin(
        1, 2.5, TenantId("acme"), KeyId("k"), TenantLimits(60, 2), TenantLimits(30, 1), TenantLimits(6, 1), "small", 9, None, 2
    )  # fmt: skip
    bare = ShadowBegin(
        2, 2.5, TenantId("acme"), KeyId("k"), TenantLimits(60, 2), None, None, "small", 9, 4, 1
    )
    sent = Shadowed([whole, bare, ShadowEnd(1, 3.0, TokenUsage(9, 4, source=UsageSource.FINAL))])
    received = msgspec.msgpack.decode(msgspec.msgpack.encode(sent), type=Shadowed)
    assert received == sent
    assert whole.demand == ("small", 9, None, 2)
    assert (whole.caller.limits, whole.caller.key_limits) == (TenantLimits(60, 2), TenantLimits(30, 1))
    assert whole.caller.terms.model_limits == {"small": TenantLimits(6, 1)}
    assert not bare.caller.has_levels
