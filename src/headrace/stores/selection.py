"""Which of the files that a place has make an artifact? All that a model is loaded from, and nothing that runs code."""

import re
from collections.abc import Sequence

from headrace.core.errors import ConfigError
from headrace.stores import formats
from headrace.stores.downloads import Progress
from headrace.stores.sources import Offer

# What the libraries of the field load a tokenizer from: one of these, and what stands beside it.
_VOCABULARIES = frozenset(
    {
        "tokenizer.json",
        "tokenizer.model",
        "spiece.model",
        "sentencepiece.bpe.model",
        "tekken.json",
        "vocab.json",
        "vocab.txt",
    }
)
_TOKENIZER_FILES = _VOCABULARIES | {
    "added_tokens.json",
    "chat_template.jinja",
    "chat_template.json",
    "config.json",
    "generation_config.json",
    "merges.txt",
    "special_tokens_map.json",
    "tokenizer_config.json",
}
FILES_MAX = 10_000
_PATH_BYTES_MAX = 1024
# One part of a file's path: nothing that a file system or a list of digests reads in two ways.
_PART = re.compile(r"(?!\.{1,2}\Z)[^/\\\x00-\x1f\x7f]{1,255}")


def selected(uri: str, offers: Sequence[Offer], *, only_tokenizer: bool, progress: Progress) -> list[Offer]:
    """The files that make the artifact. Raises ConfigError where they can't.

    Left out are hidden ones, which belong to tools such as version control, and formats that run code when they are loaded.

    Args:
        only_tokenizer: Of the folder of a model, what its tokenizer is loaded from, and no weights.
    """
    _check_paths(uri, offers)
    if only_tokenizer:
        found = [offer for offer in offers if offer.path in _TOKENIZER_FILES]
        if not any(offer.path in _VOCABULARIES for offer in found):
            raise ConfigError(f"{uri}: holds no tokenizer: none of {', '.join(sorted(_VOCABULARIES))}")
        return found
    seen = [offer for offer in offers if not any(part.startswith(".") for part in offer.path.split("/"))]
    pickles = sorted(offer.path for offer in seen if formats.runs_code(offer.path))
    if pickles:
        if not any(offer.path.endswith((".safetensors", ".gguf")) for offer in seen):
            raise ConfigError(
                f"{uri}: {pickles[0]} is in a format that runs code when it is loaded, and there are no weights in "
                "another; convert them to SafeTensors"
            )
        progress.say(f"left out, because loading it runs code: {', '.join(pickles)}")
    kept = [offer for offer in seen if offer.path not in pickles]
    if not 0 < len(kept) <= FILES_MAX:
        raise ConfigError(f"{uri}: has {len(kept)} files, and 1 to {FILES_MAX} make an artifact")
    return kept


def _check_paths(uri: str, offers: Sequence[Offer]) -> None:
    names = {offer.path for offer in offers}
    for path in names:
        parts = path.split("/")
        if len(path.encode()) > _PATH_BYTES_MAX or not all(map(_PART.fullmatch, parts)):
            raise ConfigError(f"{uri}: a file is called {path!r}, which is no name to store it by")
        if any("/".join(parts[:depth]) in names for depth in range(1, len(parts))):
            raise ConfigError(f"{uri}: {path!r} lies below a file")
