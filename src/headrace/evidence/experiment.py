"""Which level is better? Repetitions in blocks, each kept on the disk as soon as it is done, and what they add up to.

DIR/experiments/NAME/DIGEST/block-001.ARM.json   one repetition; what is there is not done again
DIR/experiments/NAME/DIGEST/verdict.json         what all of them show
"""

import fcntl
import hashlib
import platform
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, contextmanager
from pathlib import Path
from typing import Protocol

import msgspec

import headrace
from headrace.core.chance import Seeded
from headrace.core.clock import Clock
from headrace.core.errors import ConfigError, HeadraceError, leaves
from headrace.core.experiments import BASELINE, Arm, Repetition
from headrace.core.load_records import LoadRun
from headrace.evidence import experiment_arms, quality
from headrace.evidence.asking import Asker
from headrace.evidence.cases import CaseSet
from headrace.evidence.experiment_arms import Setting
from headrace.evidence.load import run_load
from headrace.evidence.load_terms import LoadTerms
from headrace.evidence.target import Target
from headrace.policies import experiments as rules
from headrace.policies import load_report
from headrace.policies.experiments import ExperimentReport
from headrace.policies.load_report import Limits
from headrace.stores import objects
from headrace.telemetry import hardware

FOLDER = "experiments"
_VERDICT = "verdict.json"
_QUALITY_LIMIT_S = 3600.0

Tell = Callable[[str], None]


class Kept:
    """What was done of one experiment, on the disk."""

    def __init__(self, data: Path, setting: Setting) -> None:
        digest = setting.digest.removeprefix("sha256:")[:16]
        self.folder = data / FOLDER / setting.experiment.name / digest

    @contextmanager
    def sole_writer(self) -> Iterator[None]:
        """Raises ConfigError where another run of it is going on; the kernel drops the lock of a killed one."""
        self.folder.mkdir(parents=True, exist_ok=True)
        with (self.folder / "lock").open("w") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise ConfigError(f"{self.folder}: this experiment is being run already") from None
            yield

    def repetitions(self) -> list[Repetition]:
        """By block, in the order of their files. Raises ConfigError for a file that is none."""
        found = []
        for path in sorted(self.folder.glob("block-*.json")):
            try:
                found.append(msgspec.json.decode(path.read_bytes(), type=Repetition))
            except msgspec.DecodeError as error:
                raise ConfigError(f"{path}: no repetition of an experiment ({error}); remove it") from error
        return found

    def keep(self, repetition: Repetition) -> None:
        name = f"block-{repetition.block:03}.{_file_name(repetition.arm)}.json"
        objects.write_whole(self.folder / name, msgspec.json.encode(repetition))

    def conclude(self, report: ExperimentReport) -> Path:
        """Returns where it is."""
        path = self.folder / _VERDICT
        objects.write_whole(path, msgspec.json.format(msgspec.json.encode(report), indent=2))
        return path


def _file_name(arm: str) -> str:
    """Readable, and never the same for two arms."""
    plain = "".join(c if c.isalnum() or c in "=-" else "_" for c in arm)[:80]
    return f"{plain}.{hashlib.sha256(arm.encode()).hexdigest()[:8]}"


class Serve(Protocol):
    """Makes an arm ready to be asked, as experiment_arms.served does."""

    def __call__(
        self, setting: Setting, arm: Arm, *, clock: Clock
    ) -> AbstractAsyncContextManager[Target]: ...


async def run(
    setting: Setting,
    kept: Kept,
    *,
    clock: Clock,
    tell: Tell = lambda line: None,
    serve: Serve = experiment_arms.served,
) -> ExperimentReport:
    """Does what isn't done yet: all levels in blocks with the baseline; then, in blocks of their own, the winners together."""
    with kept.sole_writer():
        going = _Going(setting, kept, clock, tell, serve)
        await going.blocks([BASELINE, *rules.singles(setting.experiment)], after=0)
        found = shown(setting, going.done)
        together = rules.combination(setting.experiment, found.arms)
        if together is not None:
            await going.blocks([BASELINE, together], after=setting.experiment.blocks)
            found = shown(setting, going.done)
        tell(f"recorded in {kept.conclude(found)}")
    return found


def shown(setting: Setting, repetitions: Sequence[Repetition]) -> ExperimentReport:
    """What is there so far."""
    environment = {
        "headrace": headrace.__version__,
        "python": platform.python_version(),
        "machine": hardware.in_words(),
    }
    return rules.report(setting.experiment, repetitions, digest=setting.digest, environment=environment)


class _Going:
    """One run of an experiment. State: `done`, which only grows."""

    def __init__(self, setting: Setting, kept: Kept, clock: Clock, tell: Tell, serve: Serve) -> None:
        self._setting = setting
        self._kept = kept
        self._clock = clock
        self._tell = tell
        self._serve = serve
        self.done = kept.repetitions()

    async def blocks(self, arms: Sequence[Arm], *, after: int) -> None:
        """So many blocks of these arms, numbered from `after` on, each in an order of its own."""
        experiment = self._setting.experiment
        for block in range(after + 1, after + experiment.blocks + 1):
            # By seed and block alone: a run that goes on after it was killed has the order that it would have had.
            chance = Seeded((experiment.seed << 20) + block)
            for place, arm in enumerate(rules.order(arms, chance)):
                if any((each.block, each.arm) == (block, arm.name) for each in self.done):
                    continue
                where = f"block {block - after} of {experiment.blocks}, {place + 1} of {len(arms)}"
                self._tell(f"{where}: {arm.name}")
                repetition = await self._repeat(arm, block)
                self._kept.keep(repetition)
                self.done.append(repetition)

    async def _repeat(self, arm: Arm, block: int) -> Repetition:
        began_s, began_wall_s = self._clock.now_s(), self._clock.wall_s()
        try:
            async with self._serve(self._setting, arm, clock=self._clock) as target:
                run = await run_load(
                    target, self._setting.workload, clock=self._clock, terms=self._terms(block)
                )
                marks = await self._marks(arm, target)
        except (HeadraceError, OSError, BaseExceptionGroup) as error:
            causes = leaves(error)
            if not all(isinstance(each, HeadraceError | OSError) for each in causes):
                raise
            # One arm that can't be served is a finding; the others' blocks still say what they say.
            cause = causes[0]
            return Repetition(
                arm=arm.name,
                block=block,
                figures={},
                outcomes={},
                void=(f"it could not be made: {cause}"[:2000],),
                began_s=began_wall_s,
                took_s=round(self._clock.now_s() - began_s, 3),
            )
        return self._repetition(arm, block, run, marks, began_wall_s, self._clock.now_s() - began_s)

    def _terms(self, block: int) -> LoadTerms:
        """All arms of a block ask the same; no two blocks do, so that none finds the other's prompts in a cache."""
        load = self._setting.experiment.load
        return LoadTerms(
            duration_s=load.duration_s,
            warmup_s=load.warmup_s,
            rate_per_s=load.rate_per_s,
            concurrency=load.concurrency,
            deadline_s=load.deadline_s,
            nonce=(self._setting.experiment.seed << 20) + block,
        )

    async def _marks(self, arm: Arm, target: Target) -> dict[str, str]:
        """Once for each arm: more of the same cases say nothing new."""
        cases, terms = self._setting.cases, self._setting.experiment.quality
        if cases is None or terms is None:
            return {}
        if any(each.arm == arm.name and each.marks and not each.void for each in self.done):
            return {}
        return await _asked(cases, target, concurrency=terms.concurrency, clock=self._clock)

    def _repetition(
        self, arm: Arm, block: int, run: LoadRun, marks: dict[str, str], began_wall_s: float, took_s: float
    ) -> Repetition:
        limits = Limits(late_p99_s=self._setting.experiment.load.late_p99_ms / 1000)
        report = load_report.summarise(run, limits=limits)
        changed = len(report.revisions) > 1
        void = (*report.generator.void, *(["its revision was changed meanwhile"] if changed else []))
        return Repetition(
            arm=arm.name,
            block=block,
            figures={str(metric): value for metric, value in rules.figures(run).items()},
            outcomes=report.outcomes,
            void=void,
            marks=marks,
            revisions=report.revisions,
            began_s=began_wall_s,
            took_s=round(took_s, 3),
        )


async def _asked(cases: CaseSet, target: Target, *, concurrency: int, clock: Clock) -> dict[str, str]:
    asker = Asker(
        target.url,
        target.model,
        key=target.key,
        deadline_s=60.0,
        clock=clock,
        ca_file=target.ca_file,
        certificate=target.certificate,
    )
    terms = quality.Terms(
        margin=None, floor=None, alpha=0.05, concurrency=concurrency, limit_s=_QUALITY_LIMIT_S
    )
    report = await quality.run(cases, candidate=asker, accepted=None, terms=terms, clock=clock)
    return {case.id: str(case.candidate) for case in report.cases}
