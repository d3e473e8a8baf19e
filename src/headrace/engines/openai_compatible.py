"""How do servers that all claim the same protocol differ? One row of traits for each dialect."""

from dataclasses import replace

from headrace.core.errors import ConfigError
from headrace.core.fleet import EngineTraits
from headrace.core.isolation import CacheIsolation
from headrace.core.request import Endpoint

_CHAT = frozenset({str(Endpoint.CHAT_COMPLETIONS)})
_GENERATION = _CHAT | {str(Endpoint.COMPLETIONS)}
_ALL = _GENERATION | {str(Endpoint.EMBEDDINGS)}

# What isolates, in which versions, and where that was read: docs/decisions/0012-cache-isolation.md.
OPENAI = EngineTraits(
    name="openai",
    cache_risk="an unknown server: nothing that every server accepts would keep its cache apart",
)

DIALECTS: dict[str, EngineTraits] = {
    traits.name: traits
    for traits in (
        OPENAI,
        # Whoever is too old for a salt with embeddings ignores it there.
        EngineTraits(name="vllm", isolation=CacheIsolation.SALT, salted=_ALL, tells_cached=_GENERATION),
        EngineTraits(
            name="sglang",
            isolation=CacheIsolation.SALT,
            salted=_GENERATION,
            cache_risk="releases of SGLang before May 2026 accept a salt and ignore it",
        ),
        # It refuses fields that it doesn't know, so the others get none.
        EngineTraits(
            name="tensorrt_llm",
            isolation=CacheIsolation.SALT,
            salted=_CHAT,
            tells_cached=_CHAT,
            cache_risk="TensorRT-LLM takes no salt with text completions: they share one cache",
        ),
        # A server of llama.cpp runs a call that is not streamed to its end, whoever hangs up.
        EngineTraits(
            name="llama.cpp",
            streams_only=True,
            reports_progress=True,
            isolation=CacheIsolation.OFF,
            cache_risk="without `--cache-ram 0` a server of llama.cpp moves prompts between its slots, which takes time",
        ),
        # The same server when we started it: nobody else assigns its slots.
        EngineTraits(
            name="embedded",
            streams_only=True,
            reports_progress=True,
            isolation=CacheIsolation.SLOTS,
            tells_cached=_ALL,
            is_ours=True,
        ),
        EngineTraits(
            name="headrace", cache_risk="to another headrace all callers of this one are the same tenant"
        ),
        EngineTraits(
            name="scripted",
            reports_progress=True,
            isolation=CacheIsolation.SALT,
            salted=_ALL,
            tells_cached=_ALL,
        ),
    )
}

_BY_OWNER = {
    "vllm": "vllm",
    "sglang": "sglang",
    "tensorrt_llm": "tensorrt_llm",
    "llamacpp": "llama.cpp",
    "headrace-scripted": "scripted",
}


def dialect_of(owned_by: str) -> EngineTraits:
    """The dialect of a server, by the `owned_by` that it puts in its list of models; plain OpenAI when unknown."""
    name = _BY_OWNER.get(owned_by)
    return OPENAI if name is None else DIALECTS[name]


def isolated(traits: EngineTraits, wanted: CacheIsolation | None, *, reason: str = "") -> EngineTraits:
    """The traits of a server whose operator says how its cache is to be isolated; None leaves it to the dialect.

    Whoever names a way has read what it takes, so the dialect's warning about it is not repeated.

    Raises ConfigError where the server would ignore or refuse it: a way that does nothing is worse than none.
    """
    is_llama = traits.name == "llama.cpp"
    takes_salt = not is_llama and traits.name != "headrace"
    match wanted:
        case None:
            return traits
        case CacheIsolation.SALT if takes_salt:
            salted = traits.salted or _ALL
            risk = "" if salted >= _GENERATION else traits.cache_risk
            return replace(
                traits,
                isolation=wanted,
                salted=salted,
                tells_cached=traits.tells_cached or salted & _GENERATION,
                cache_risk=risk,
            )
        case CacheIsolation.OFF if traits.isolation is CacheIsolation.SALT:
            # A salt that is never used again: nothing is ever found.
            risk = "" if traits.salted >= _GENERATION else traits.cache_risk
            return replace(traits, isolation=wanted, tells_cached=frozenset(), cache_risk=risk)
        case CacheIsolation.OFF if is_llama:
            return replace(traits, cache_risk="")
        case CacheIsolation.SLOTS if is_llama:
            return replace(traits, isolation=wanted, tells_cached=_GENERATION, cache_risk="")
        case CacheIsolation.PROMPT:
            return replace(
                traits, isolation=wanted, salted=frozenset(), tells_cached=frozenset(), cache_risk=""
            )
        case CacheIsolation.NONE:
            return replace(
                traits,
                isolation=wanted,
                salted=frozenset(),
                tells_cached=frozenset(),
                cache_risk=f"switched off: {reason}",
            )
        case _:
            raise ConfigError(
                f'cache_isolation = "{wanted}" is nothing that a server of this kind ({traits.name}) obeys'
            )
