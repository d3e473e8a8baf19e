"""How do servers that all claim the same protocol differ? One row of traits for each dialect."""

from headrace.core.fleet import EngineTraits

OPENAI = EngineTraits(name="openai")

DIALECTS: dict[str, EngineTraits] = {
    traits.name: traits
    for traits in (
        OPENAI,
        EngineTraits(name="vllm"),
        # A server of llama.cpp runs a call that is not streamed to its end, whoever hangs up.
        EngineTraits(name="llama.cpp", streams_only=True, reports_progress=True),
        # The same server when we started it: nobody else assigns its slots.
        EngineTraits(
            name="embedded", streams_only=True, reports_progress=True, partitions_slots=True, is_ours=True
        ),
        EngineTraits(name="scripted", reports_progress=True),
    )
}

_BY_OWNER = {"vllm": "vllm", "llamacpp": "llama.cpp", "headrace-scripted": "scripted"}


def dialect_of(owned_by: str) -> EngineTraits:
    """The dialect of a server, by the `owned_by` that it puts in its list of models; plain OpenAI when unknown."""
    name = _BY_OWNER.get(owned_by)
    return OPENAI if name is None else DIALECTS[name]
