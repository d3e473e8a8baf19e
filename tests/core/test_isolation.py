"""Names of cache partitions: who shares one is agreed, everyone else has another, and nobody outside can tell which."""

import re

from hypothesis import given
from hypothesis import strategies as st

from headrace.core import isolation
from headrace.core.ids import KeyId, RequestId, TenantId
from headrace.core.isolation import CachePartitions
from headrace.core.tenant import CacheBoundary, Principal, TenantLimits, TenantTerms

PARTITIONS = CachePartitions(bytes(32))
# What vLLM advises, and what no engine has ever stumbled over.
SALT = re.compile(r"[A-Za-z0-9_-]{43}")
NAME = st.sampled_from(["a", "b", "a-b", "tenant", "group", '","', ""])
TERMS = st.builds(TenantTerms, cache_boundary=st.sampled_from(CacheBoundary)) | st.builds(
    TenantTerms, cache_group=st.sampled_from(["", "a", "b"])
)
CALLER = st.tuples(NAME, NAME, TERMS, NAME)


def partition(caller: tuple[str, str, TenantTerms, str], partitions: CachePartitions = PARTITIONS) -> str:
    tenant, key, terms, user = caller
    return partitions.of(TenantId(tenant), KeyId(key), terms, user=user)


def sharers(caller: tuple[str, str, TenantTerms, str]) -> tuple[str, ...]:
    """Who shares with this caller, put plainly."""
    tenant, key, terms, user = caller
    if terms.cache_boundary is CacheBoundary.TENANT:
        return ("group", terms.cache_group) if terms.cache_group else ("tenant", tenant)
    if terms.cache_boundary is CacheBoundary.USER and user:
        return "user", tenant, user
    return "key", tenant, key


@given(one=CALLER, other=CALLER)
def test_two_callers_have_one_partition_exactly_where_it_is_agreed(
    one: tuple[str, str, TenantTerms, str], other: tuple[str, str, TenantTerms, str]
) -> None:
    """T42: also where names are chosen so that they could be taken for others'."""
    assert (partition(one) == partition(other)) == (sharers(one) == sharers(other))


@given(caller=CALLER, pepper=st.binary(min_size=32, max_size=32))
def test_every_salt_that_an_engine_gets_is_43_url_safe_characters(
    caller: tuple[str, str, TenantTerms, str], pepper: bytes
) -> None:
    """Odd salts have killed an engine: CVE-2026-105756."""
    name = partition(caller, CachePartitions(pepper))
    assert SALT.fullmatch(name)
    assert SALT.fullmatch(isolation.once(name, RequestId("req_1")))
    assert len(name) == isolation.SALT_CHARACTERS


def test_names_depend_on_the_pepper_and_on_the_rotation_and_on_nothing_else() -> None:
    caller = ("acme", "key", TenantTerms(), "")
    assert partition(caller) == partition(caller, CachePartitions(bytes(32)))
    others = [CachePartitions(b"x" * 32), CachePartitions(bytes(32), rotation=1)]
    assert len({partition(caller), *(partition(caller, each) for each in others)}) == 3
    # Written down: a change would empty every cache with an upgrade.
    assert partition(caller) == "-twW7b2ZPGCwdnzFIHutbYYVMyRhjXzqdccKTyBcWOM"


def test_a_salt_for_one_request_is_found_again_by_no_other() -> None:
    salts = {
        isolation.once(name, RequestId(request)) for name in ("p", "q") for request in ("req_1", "req_2")
    }
    assert len(salts) == 4


def test_the_line_before_a_prompt_is_the_partition_s_own_and_not_its_name() -> None:
    line = isolation.salt_line("p")
    assert re.fullmatch(r"[A-Za-z0-9_-]{22}\n", line)
    assert line == isolation.salt_line("p") != isolation.salt_line("q")
    assert line.strip() not in "p"


def test_a_partition_is_not_in_the_repr_of_its_principal() -> None:
    """T47: whoever knows it, and reaches the engine, could look into the cache."""
    principal = Principal(TenantId("acme"), KeyId("key"), TenantLimits(), cache_partition="s3cret")
    assert "s3cret" not in repr(principal)
