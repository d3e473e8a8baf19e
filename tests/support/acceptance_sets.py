"""Acceptance sets whose right answers are a word, for scripted engines that say one."""

import json

from tests.support.provider import Provider


def words(service: Provider, *, right: list[str]) -> None:
    """An acceptance set of forty cases, enough for two looks, and a tuning set, to each of which one of these words is the right answer."""
    folder = service.data / "cases" / "words"
    folder.mkdir(parents=True)
    for kind, count in (("acceptance", 40), ("tuning", 1)):
        header = {"name": "words", "set": kind, "version": 1, "instructions": {"en": "Say a word."}}
        cases = [
            {
                "id": f"{kind}-{number}",
                "language": "en",
                "category": "answerable",
                "passages": [],
                "question": f"Which {kind} word is number {number}?",
                "checks": [{"kind": "exact", "any": right}],
            }
            for number in range(count)
        ]
        file = folder / f"{kind}.jsonl"
        file.write_text("".join(json.dumps(line) + "\n" for line in [header, *cases]))
        service.cli("eval", "--cases", str(file), "--seal")
