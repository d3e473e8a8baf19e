"""What does a model hub say about a repository at one commit? Which files it has, and by what each content is known."""

import re
from typing import Any

import huggingface_hub
import msgspec

from headrace import config
from headrace.core.errors import ConfigError, UpstreamError
from headrace.policies.licenses import LicenseClaim
from headrace.stores import downloads, model_card
from headrace.stores.downloads import Answer, GitBlobSeal, Manners, Patience, Progress, Seal, Sha256Seal
from headrace.stores.sources import HubSource, Offer

_DEFAULT_ENDPOINT = "https://huggingface.co"
_LIST_BYTES_MAX = 16 << 20
_CARD_BYTES_MAX = 4 << 20
_PAGES_MAX = 20
_SHA1, _SHA256 = re.compile(r"[0-9a-f]{40}"), re.compile(r"[0-9a-f]{64}")
_NEXT_PAGE = re.compile(r'<([^>]+)>;\s*rel="next"')


class _Entry(msgspec.Struct, frozen=True):
    """One line of a repository's listing, as far as it matters here."""

    type: str
    path: str
    size: int = 0
    lfs: dict[str, Any] | None = None


def url(source: HubSource) -> str:
    """Where the file is."""
    endpoint = config.environment("hf_endpoint")
    return huggingface_hub.hf_hub_url(
        source.repository, source.file, revision=source.commit, endpoint=endpoint
    )


def manners() -> Manners:
    """As the user whose token is set for the hub, if one is."""
    return Manners(authorize=downloads.with_bearer(huggingface_hub.get_token()))


def seal(source: HubSource, *, patience: Patience, progress: Progress) -> Seal:
    """By what the hub knows the content of one file at that commit."""
    place = url(source)
    facts = downloads.persist(
        lambda: downloads.request(place, method="HEAD", manners=manners()),
        patience=patience,
        progress=progress,
    )
    if facts.status >= 400:
        raise downloads.refusal(place, facts)
    commit = facts.headers.get("X-Repo-Commit", "")
    if commit != source.commit:
        raise UpstreamError(
            f"{place}: the hub answers for commit {commit or '(none)'}", reason="fetch_failed"
        )
    linked = facts.headers.get("X-Linked-Etag", "").strip('"')
    if _SHA256.fullmatch(linked):
        return Sha256Seal(linked)
    # Small files lie in the repository itself, and have the id that Git gives their content.
    blob = (linked or facts.headers.get("ETag", "")).removeprefix("W/").strip('"')
    if _SHA1.fullmatch(blob):
        return GitBlobSeal(blob)
    raise ConfigError(
        f"{source}: the hub states neither a SHA-256 nor Git's id for this file, so it can't be verified"
    )


def card(source: HubSource, *, patience: Patience, progress: Progress) -> list[LicenseClaim]:
    """What the repository's model card says at that commit; nothing where it has none."""
    place = url(HubSource(source.repository, source.commit, "README.md"))

    def ask() -> tuple[Answer, bytes]:
        answer = downloads.request(place, manners=manners())
        return answer, downloads.read_whole(answer, place, bytes_max=_CARD_BYTES_MAX)

    answer, body = downloads.persist(ask, patience=patience, progress=progress)
    return model_card.claims(body) if answer.status == 200 else []


def offers(source: HubSource, *, patience: Patience, progress: Progress) -> list[Offer]:
    """The file, or the files below the folder, at that commit."""
    below = source.file
    if below and not below.endswith("/"):
        return [Offer(below.rpartition("/")[2], source)]
    endpoint = config.environment("hf_endpoint") or _DEFAULT_ENDPOINT
    page = f"{endpoint}/api/models/{source.repository}/tree/{source.commit}/{below}?recursive=true"
    found: list[Offer] = []
    for _ in range(_PAGES_MAX):
        answer = _list(page, patience=patience, progress=progress)
        entries, following = answer
        for entry in entries:
            path = entry.path.removeprefix(below)
            if entry.type == "file":
                sha256 = str((entry.lfs or {}).get("oid", ""))
                one = HubSource(source.repository, source.commit, entry.path)
                found.append(Offer(path, one, size_bytes=entry.size, sha256=sha256))
        if not following:
            return found
        page = following
    raise ConfigError(f"{source}: more files than {_PAGES_MAX} pages of the hub's listing hold")


def _list(page: str, *, patience: Patience, progress: Progress) -> tuple[list[_Entry], str]:
    """One page, and the address of the next or ""."""

    def ask() -> tuple[Answer, bytes]:
        answer = downloads.request(page, manners=manners())
        return answer, downloads.read_whole(answer, page, bytes_max=_LIST_BYTES_MAX)

    answer, body = downloads.persist(ask, patience=patience, progress=progress)
    if answer.status >= 400:
        raise downloads.refusal(page, answer)
    try:
        entries = msgspec.json.decode(body, type=list[_Entry])
    except msgspec.DecodeError as error:
        raise UpstreamError(f"{page}: not a listing: {error}", reason="fetch_failed") from error
    following = _NEXT_PAGE.search(answer.headers.get("Link", ""))
    return entries, following[1] if following else ""
