"""Which engines can be started, and how? One row for each kind that a deployment can name."""

import sys

import msgspec

from headrace.engines import embedded
from headrace.engines.starting import Asked, Command, Kind

# `-P`: a folder named headrace in the current directory must not be run in our place.
_OURS = (sys.executable, "-P", "-m")
EMBEDDED_ENGINE = (*_OURS, "headrace.engines.embedded")


def _embedded(asked: Asked, port: int, key: str) -> Command:
    settings = embedded.EngineSettings(
        model_path=asked.model_path,
        model_name=asked.model_name,
        task=asked.task,
        slots=asked.slots,
        context_tokens=asked.context_tokens,
        threads=asked.threads or embedded.default_threads(),
        api_key=key,
    )
    return Command(EMBEDDED_ENGINE, settings=msgspec.json.encode(settings).decode())


KINDS: dict[str, Kind] = {
    kind.name: kind for kind in (Kind("embedded", "embedded", _embedded, speaks_reports=True),)
}
