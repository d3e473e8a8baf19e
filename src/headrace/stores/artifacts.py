"""What are deployments made of, and where does it lie? Artifacts by digest: resolved once, fetched, found, forgotten."""

import hashlib
import os
import re
import shutil
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import msgspec

from headrace.core.clock import Clock
from headrace.core.deployments import Artifact, ArtifactFile, folder_digest
from headrace.core.errors import ConfigError, UpstreamError
from headrace.policies import licenses
from headrace.policies.licenses import LicenseClaim
from headrace.stores import downloads, formats, gguf_file, model_card, selection, sources
from headrace.stores.downloads import Patience, Progress
from headrace.stores.fetching import Fetcher
from headrace.stores.formats import ModelFacts
from headrace.stores.objects import STORE_LOCK, ObjectStore, drop_whole, sha256_of, write_whole
from headrace.stores.places import Places
from headrace.stores.sources import Source

_PREFIX_LENGTH_MIN = 8
_DIGEST = re.compile(r"[0-9a-f]{64}")

CheckSpace = Callable[[int, Progress], None]
"""Makes room for that many bytes more, and raises ConfigError where there is none."""


class Record(msgspec.Struct, frozen=True, kw_only=True):
    """What is on record for one artifact that is here, whole: `artifacts/<sha256>.json`.

    Attributes:
        license_evidence: Who says what its license is.
        fetched_s: Unix seconds.
        facts: What its files say about the model.
    """

    artifact: Artifact
    license_evidence: tuple[str, ...]
    fetched_s: float
    facts: ModelFacts = ModelFacts()


class ArtifactStore:
    """Artifacts over a content-addressed store. Blocking; safe for several threads and processes.

    A file is `blobs/sha256/<digest>`; a folder is `trees/<digest>/`, made of links to its files' blobs. The record is written
    after all of them and removed before any: whatever a killed process leaves behind, what is on record is whole.
    """

    def __init__(
        self,
        root: Path,
        objects: ObjectStore,
        *,
        clock: Clock,
        patience: Patience,
        places: Places,
        check_space: CheckSpace,
    ) -> None:
        self._root = root
        self._objects = objects
        self._records = root / "artifacts"
        self._trees = root / "trees"
        self._clock = clock
        self._patience = patience
        self._places = places
        self._check_space = check_space

    def find(self, uri: str) -> Artifact | None:
        """What is here from that place."""
        return next((record.artifact for record in self.records() if record.artifact.uri == uri), None)

    def matching(self, text: str) -> Record | None:
        """The one from that place, or whose digest begins so. Raises ConfigError if several do."""
        found = [record for record in self.records() if _is_meant(record.artifact, text)]
        if len(found) > 1:
            digests = ", ".join(record.artifact.sha256[:16] for record in found)
            raise ConfigError(f"{text}: {len(found)} artifacts are meant ({digests}); say more of the digest")
        return found[0] if found else None

    def path(self, artifact: Artifact) -> Path | None:
        """Where it lies, if it is here and as large as it should be; its bytes are not read again."""
        if self._read(artifact.sha256) is None:
            return None
        for file in files_of(artifact):
            blob = self._objects.path(file.sha256)
            if not blob.exists() or blob.stat().st_size != file.size_bytes:
                return None
        path = self._place(artifact)
        return path if path.exists() else None

    def resolve(
        self, source: Source, *, sha256: str, progress: Progress, only_tokenizer: bool = False
    ) -> Artifact:
        """The source as exact bytes.

        What a place states the digest of is not transferred yet. What it states none of is fetched to find out, and stays; so is
        a GGUF file whose license nobody states but itself.

        Args:
            sha256: What it must be, "" for whatever it is.
            only_tokenizer: Of a folder, what its tokenizer is loaded from.
        """
        fixed = self._fetcher(self._root, progress).pinned(source)
        is_part = only_tokenizer and sources.is_folder(fixed)
        uri = f"{fixed}{sources.TOKENIZER_MARK if is_part else ''}"
        found = self.find(uri) if sources.is_fixed(fixed) else None
        if found is None:
            found = self._survey(fixed, uri=uri, progress=progress)
            if not found.license and any(file.path.endswith(".gguf") for file in files_of(found)):
                self.fetch(found, progress=progress)  # the file itself says what its license is
                found = self.find(uri) or found
        if sha256 and found.sha256 != sha256:
            raise ConfigError(f"{uri}: SHA-256 is {found.sha256}, and {sha256} was asked for")
        return found

    def fetch(self, artifact: Artifact, *, progress: Progress) -> Path:
        """Where it lies, after fetching what isn't here. A call that is cut off loses nothing that has arrived."""
        if self.path(artifact) is None:
            work = _work_name(artifact.uri)
            with self._objects.lock(
                work, waiting=lambda: progress.say("waiting for another process that fetches the same")
            ):
                if self.path(artifact) is None:
                    self._bring(artifact, folder=self._objects.staging(work), progress=progress)
        self.touch(artifact.sha256)
        return self._place(artifact)

    def touch(self, sha256: str) -> None:
        """It is used now; what wasn't used for longest is the first that goes."""
        used_s = self._clock.wall_s()
        try:
            os.utime(self._records / f"{sha256}.json", (used_s, used_s))
        except FileNotFoundError:
            pass  # removed this moment: whoever uses it has the file open, or fetches it again

    def used_s(self, sha256: str) -> float:
        """When it was used last, in Unix seconds."""
        try:
            return (self._records / f"{sha256}.json").stat().st_mtime
        except FileNotFoundError:
            return 0.0

    def records(self) -> list[Record]:
        """All that are here."""
        found = (self._read(path.stem) for path in sorted(self._records.glob("*.json")))
        return [record for record in found if record is not None]

    def verify(self, artifact: Artifact) -> list[str]:
        """Reads every byte again; the paths of the files that are not what they should be."""
        return [
            file.path
            for file in files_of(artifact)
            if not (blob := self._objects.path(file.sha256)).exists() or sha256_of(blob) != file.sha256
        ]

    def blobs(self) -> set[str]:
        """The digests of all files that a record needs."""
        return {file.sha256 for record in self.records() for file in files_of(record.artifact)}

    def forget(self, sha256: str) -> None:
        """Removes its record, and its folder; its files go with the next sweep. The caller holds the store's lock."""
        drop_whole(self._records / f"{sha256}.json")
        self.sweep_trees()

    def sweep_trees(self) -> None:
        """Removes the folders that no record needs. The caller holds the store's lock."""
        known = {path.stem for path in self._records.glob("*.json")}
        for tree in self._trees.iterdir() if self._trees.is_dir() else ():
            if tree.name not in known:
                shutil.rmtree(tree)

    def _survey(self, source: Source, *, uri: str, progress: Progress) -> Artifact:
        work = _work_name(uri)
        with self._objects.lock(work):
            fetcher = self._fetcher(self._objects.staging(work), progress)
            survey = fetcher.survey(source)
            only_tokenizer = uri.endswith(sources.TOKENIZER_MARK)
            offers = selection.selected(uri, survey.offers, only_tokenizer=only_tokenizer, progress=progress)
            known = self._known()
            files: list[ArtifactFile] = []
            claims = survey.claims
            staged: dict[str, Path] = {}
            for offer in offers:
                file = ArtifactFile(offer.path, offer.sha256, offer.size_bytes, str(offer.source))
                if (seen := known.get(file.uri)) is not None and sources.is_fixed(offer.source):
                    file = ArtifactFile(file.path, seen.sha256, seen.size_bytes, file.uri)
                is_card = offer.path in model_card.NAMES
                if not file.sha256 or not file.size_bytes or is_card:
                    path, said = self._stage(fetcher, file)
                    file = ArtifactFile(file.path, path.name, path.stat().st_size, file.uri)
                    claims += [*said, *_claims(file.path, path)]
                    staged[file.sha256] = path
                files.append(file)
            artifact = _assembled(uri, source, files, claims)
            if {file.sha256 for file in files} == staged.keys():
                self.commit(artifact, staged, claims=claims)
                self._objects.clear_staging(work)
            return artifact

    def _place(self, artifact: Artifact) -> Path:
        return self._trees / artifact.sha256 if artifact.files else self._objects.path(artifact.sha256)

    def _known(self) -> dict[str, ArtifactFile]:
        """Files that are here, by where they came from: what is fixed there needs no second look."""
        return {file.uri: file for record in self.records() for file in files_of(record.artifact)}

    def _bring(self, artifact: Artifact, *, folder: Path, progress: Progress) -> None:
        fetcher = self._fetcher(folder, progress)
        staged: dict[str, Path] = {}
        claims: list[LicenseClaim] = []
        for file in files_of(artifact):
            path, said = self._stage(fetcher, file)
            if path.name != file.sha256:
                raise UpstreamError(
                    f"{file.uri}: SHA-256 is {path.name}, expected {file.sha256}", reason="digest_mismatch"
                )
            staged[file.sha256] = path
            claims += [*said, *_claims(file.path, path)]
        self.commit(artifact, staged, claims=claims)
        self._objects.clear_staging(folder.name)

    def commit(self, artifact: Artifact, staged: dict[str, Path], *, claims: Iterable[LicenseClaim]) -> None:
        """Moves what was fetched and checked into the store, and then puts it on record.

        Raises ConfigError where a file can't be what it says it is.
        """
        said = [*claims]
        verdict = licenses.judge(said)
        facts = formats.read({file.path: staged[file.sha256] for file in files_of(artifact)})
        files = [
            msgspec.structs.replace(file, size_bytes=staged[file.sha256].stat().st_size)
            for file in files_of(artifact)
        ]
        whole = msgspec.structs.replace(
            artifact,
            size_bytes=sum(file.size_bytes for file in files),
            files=tuple(files) if artifact.files else (),
            license=artifact.license or _license(said),
        )
        record = Record(
            artifact=whole,
            license_evidence=verdict.evidence,
            fetched_s=self._clock.wall_s(),
            facts=facts,
        )
        with self._objects.lock(STORE_LOCK):
            for sha256, path in staged.items():
                self._objects.add(path, sha256=sha256)
            if artifact.files:
                self._plant(artifact)
            encoded = msgspec.json.format(msgspec.json.encode(record), indent=2)
            write_whole(self._records / f"{artifact.sha256}.json", encoded + b"\n")
        self.touch(artifact.sha256)

    def _plant(self, artifact: Artifact) -> None:
        """A folder as engines want it: their names, leading to the blobs."""
        tree, draft = self._trees / artifact.sha256, self._trees / f".{artifact.sha256}.draft"
        links = {
            file.path: f"{'../' * (file.path.count('/') + 2)}blobs/sha256/{file.sha256}"
            for file in artifact.files
        }
        if all((tree / path).is_symlink() and os.readlink(tree / path) == to for path, to in links.items()):
            return
        shutil.rmtree(draft, ignore_errors=True)
        for path, to in links.items():
            (draft / path).parent.mkdir(parents=True, exist_ok=True)
            (draft / path).symlink_to(to)
        shutil.rmtree(tree, ignore_errors=True)
        draft.replace(tree)

    def _stage(self, fetcher: Fetcher, file: ArtifactFile) -> tuple[Path, tuple[LicenseClaim, ...]]:
        """The file in the staging folder, under its digest, from the store if it is there."""
        target = fetcher.folder / file.sha256
        if file.sha256:
            if target.exists():
                return target, ()
            blob = self._objects.path(file.sha256)
            try:
                if downloads.told_digest(blob, fetcher.progress) == file.sha256:
                    os.link(blob, target)  # a removal from now on takes the store's name, not this one
                    return target, ()
            except FileNotFoundError:
                pass
        source = sources.parse(file.uri)
        if source is None:
            raise ConfigError(
                f"{file.uri}: it was kept here alone and isn't here any more; apply its file again"
            )
        fetched = fetcher.fetch(source, sha256=file.sha256)
        (path,) = fetched.files.values()
        # Linked rather than moved: what a later call of the fetcher finds under its own name isn't fetched again.
        target = fetcher.folder / downloads.told_digest(path, fetcher.progress)
        if not target.exists():
            os.link(path, target)
        return target, fetched.claims

    def _fetcher(self, folder: Path, progress: Progress) -> Fetcher:
        return Fetcher(
            folder,
            lambda needed_bytes: self._check_space(needed_bytes, progress),
            progress,
            self._patience,
            self._places,
        )

    def _read(self, sha256: str) -> Record | None:
        if not _DIGEST.fullmatch(sha256):
            return None
        path = self._records / f"{sha256}.json"
        try:
            return msgspec.json.decode(path.read_bytes(), type=Record)
        except FileNotFoundError:
            return None
        except msgspec.DecodeError as error:
            raise ConfigError(
                f"{path}: not a record ({error}); remove the file and fetch it again"
            ) from error


def _is_meant(artifact: Artifact, text: str) -> bool:
    return artifact.uri == text or (len(text) >= _PREFIX_LENGTH_MIN and artifact.sha256.startswith(text))


def files_of(artifact: Artifact) -> Sequence[ArtifactFile]:
    """Its files, also where it is a single one."""
    if artifact.files:
        return artifact.files
    source = sources.parse(artifact.uri, must_exist=False)
    name = sources.last_part(source) if source is not None else artifact.uri
    return (ArtifactFile(name, artifact.sha256, artifact.size_bytes, artifact.uri),)


def _assembled(uri: str, source: Source, files: list[ArtifactFile], claims: list[LicenseClaim]) -> Artifact:
    is_folder = sources.is_folder(source)
    ordered = sorted(files, key=lambda file: file.path.encode())
    return Artifact(
        uri=uri,
        rev=sources.revision(source),
        sha256=folder_digest(ordered) if is_folder else ordered[0].sha256,
        size_bytes=sum(file.size_bytes for file in ordered),
        license=_license(claims),
        files=tuple(ordered) if is_folder else (),
    )


def _license(claims: Sequence[LicenseClaim]) -> str:
    """What they come to: one name, or all that somebody must accept where they disagree; "" where nobody says."""
    verdict = licenses.judge(claims)
    license = verdict.refused or verdict.license
    return "" if license == licenses.UNKNOWN else license


def _claims(path: str, staged: Path) -> list[LicenseClaim]:
    """What a file says about the license of its whole artifact."""
    if path in model_card.NAMES:
        return model_card.claims(staged.read_bytes())
    if path.endswith(".gguf"):
        return [gguf_file.license_claim(gguf_file.read_metadata(staged))]
    return []


def _work_name(uri: str) -> str:
    """Where work on that place goes on; a name that no model can have."""
    return "+" + hashlib.sha256(uri.encode()).hexdigest()[:40]
