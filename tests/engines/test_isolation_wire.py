"""What each kind of engine is sent to keep prompts apart: the table of docs/concepts/cache-isolation.md, byte by byte."""

import json
from typing import Any

import pytest

from headrace.core import isolation
from headrace.core.errors import ConfigError
from headrace.core.fleet import EngineTraits, Replica
from headrace.core.ids import KeyId, ReplicaId, RequestId, TenantId
from headrace.core.isolation import CacheIsolation
from headrace.core.request import Endpoint, InferenceRequest
from headrace.core.tenant import Principal, TenantLimits
from headrace.engines import wire
from headrace.engines.openai_compatible import DIALECTS, isolated
from headrace.policies.partition import SlotGrant

PARTITION = "p" * 43
CHAT, TEXT, EMBED = Endpoint.CHAT_COMPLETIONS, Endpoint.COMPLETIONS, Endpoint.EMBEDDINGS
ASKED: dict[Endpoint, dict[str, Any]] = {
    CHAT: {"messages": [{"role": "user", "content": "hello"}]},
    TEXT: {"prompt": "hello"},
    EMBED: {"input": "hello"},
}
LINE = isolation.salt_line(PARTITION)
SALT = {"cache_salt": PARTITION}
ONCE = {"cache_salt": isolation.once(PARTITION, RequestId("req_1"))}
SLOT = {"id_slot": 3, "cache_prompt": True}
NEVER = {"cache_prompt": False}
SALTED_CHAT = {"messages": [{"role": "user", "content": LINE + "hello"}]}
SALTED_TEXT = {"prompt": LINE + "hello"}
AUTO = None
SALTS, SLOTS, PROMPT, OFF, NONE = CacheIsolation


def sent(traits: EngineTraits, endpoint: Endpoint) -> dict[str, Any]:
    """What the engine is sent beyond what the caller wrote, or otherwise than it was written."""
    asked = ASKED[endpoint]
    request = InferenceRequest(
        id=RequestId("req_1"),
        principal=Principal(TenantId("t"), KeyId("k"), TenantLimits(), cache_partition=PARTITION),
        endpoint=endpoint,
        model="m",
        canonical=json.dumps(asked).encode()[1:],
        wire_fields={},
        is_streaming=False,
        wants_usage=False,
        prompt_bytes=5,
        output_tokens_max=None,
        choices=1,
        arrived_s=0.0,
        arrived_wall_s=0.0,
        deadline_s=9.0,
    )
    replica = Replica(ReplicaId("r"), "h", 1, 4, traits)
    head, body = wire.encode(
        request, replica, is_streamed=False, upstream_model="m", grant=SlotGrant(3, may_reuse=True)
    )
    found: dict[str, Any] = json.loads(head + body)
    assert found.pop("model") == "m"
    return {name: value for name, value in found.items() if asked.get(name) != value}


@pytest.mark.parametrize(
    ("dialect", "wanted", "chat", "text", "embed"),
    [
        ("vllm", AUTO, SALT, SALT, SALT),
        ("vllm", OFF, ONCE, ONCE, ONCE),
        ("vllm", PROMPT, SALTED_CHAT, SALTED_TEXT, {}),
        ("vllm", NONE, {}, {}, {}),
        ("sglang", AUTO, SALT, SALT, {}),
        ("sglang", SALTS, SALT, SALT, {}),
        ("tensorrt_llm", AUTO, SALT, {}, {}),
        ("tensorrt_llm", OFF, ONCE, {}, {}),
        ("llama.cpp", AUTO, NEVER, NEVER, {}),
        ("llama.cpp", OFF, NEVER, NEVER, {}),
        ("llama.cpp", SLOTS, SLOT, SLOT, {}),
        ("llama.cpp", PROMPT, SALTED_CHAT, SALTED_TEXT, {}),
        ("embedded", AUTO, SLOT, SLOT, {}),
        ("openai", AUTO, {}, {}, {}),
        ("openai", SALTS, SALT, SALT, SALT),
        ("openai", PROMPT, SALTED_CHAT, SALTED_TEXT, {}),
        ("headrace", AUTO, {}, {}, {}),
        ("headrace", PROMPT, SALTED_CHAT, SALTED_TEXT, {}),
        ("scripted", AUTO, SALT, SALT, SALT),
    ],
)
def test_each_dialect_is_sent_what_isolates_its_cache_and_nothing_else(
    dialect: str,
    wanted: CacheIsolation | None,
    chat: dict[str, Any],
    text: dict[str, Any],
    embed: dict[str, Any],
) -> None:
    """T42."""
    traits = isolated(DIALECTS[dialect], wanted, reason="one customer")
    assert [sent(traits, endpoint) for endpoint in (CHAT, TEXT, EMBED)] == [chat, text, embed]


@pytest.mark.parametrize(
    ("dialect", "wanted"),
    [
        ("vllm", SLOTS),
        ("openai", SLOTS),
        ("openai", OFF),
        ("headrace", SALTS),
        ("headrace", OFF),
        ("headrace", SLOTS),
        ("llama.cpp", SALTS),
    ],
)
def test_what_a_server_would_ignore_is_refused(dialect: str, wanted: CacheIsolation) -> None:
    """An isolation that does nothing is worse than none: somebody relies on it."""
    with pytest.raises(ConfigError, match=f'"{wanted}".*{dialect}'):
        isolated(DIALECTS[dialect], wanted)


@pytest.mark.parametrize("traits", DIALECTS.values(), ids=lambda traits: traits.name)
@pytest.mark.parametrize("wanted", [None, *CacheIsolation], ids=str)
def test_cached_tokens_are_told_only_where_an_isolation_is_certain(
    traits: EngineTraits, wanted: CacheIsolation | None
) -> None:
    """T42: by a salt on that endpoint, or by slots that are ours. And whoever has a risk hears of it."""
    try:
        found = isolated(traits, wanted, reason="why")
    except ConfigError:
        return
    match found.isolation:
        case CacheIsolation.SALT:
            assert found.tells_cached <= found.salted
        case CacheIsolation.SLOTS:
            pass
        case _:
            assert not found.tells_cached
    assert (found.isolation is not CacheIsolation.NONE) or found.cache_risk


def test_an_operator_who_vouches_for_sglang_hears_no_more_of_its_past() -> None:
    assert DIALECTS["sglang"].cache_risk
    assert not DIALECTS["sglang"].tells_cached
    vouched = isolated(DIALECTS["sglang"], SALTS)
    assert not vouched.cache_risk
    assert vouched.tells_cached == {CHAT, TEXT}
