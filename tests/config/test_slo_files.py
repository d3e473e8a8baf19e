"""SLO files: what a file says is what is promised, and a mistake in one is told with its key."""

from pathlib import Path

import pytest

from headrace.config import slos
from headrace.core.errors import ConfigError
from headrace.core.slo import Metric, Objective

ROOT = Path(__file__).parents[2]
LEAST = 'deployment = "chat"\nfailure_share_max = 0.01\n'


def refusal(content: str) -> str:
    with pytest.raises(ConfigError) as found:
        slos.parse(content, file="chat.toml")
    return found.value.message


def objective(**changed: object) -> str:
    keys = {"metric": '"ttft"', "within_ms": 500, "share": 0.95} | changed
    return "\n[[objectives]]\n" + "".join(f"{key} = {value}\n" for key, value in keys.items())


@pytest.mark.parametrize("path", slos.find([str(ROOT / "slos")]), ids=lambda path: path.name)
def test_the_examples_are_accepted(path: Path) -> None:
    assert slos.load(path).deployment == path.stem


def test_a_file_says_what_is_promised() -> None:
    slo = slos.parse(
        LEAST + objective() + "[cost]\nper_qualified_result_max = 0.0001\n[load]\nconcurrency_max = 3",
        file="f",
    )
    assert slo.objectives == (Objective(Metric.TTFT, 500, 0.95),)
    assert slo.objectives[0].within_s == 0.5
    assert slo.window_s == 28 * 86_400
    assert slo.load.concurrency_max == 3
    assert slo.cost.max_pico == 100_000_000, "an exact decimal, also where it is written as a number"
    assert slos.parse(LEAST, file="f").cost.max_pico is None


def test_an_amount_may_be_text_or_a_whole_number() -> None:
    for written in ('"2"', "2"):
        slo = slos.parse(f"{LEAST}[cost]\nper_qualified_result_max = {written}", file="f")
        assert slo.cost.max_pico == 2 * 10**12


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ('deployment = "chat"', "it promises nothing: give `failure_share_max`, or an `[[objectives]]`"),
        (LEAST + "windows_days = 3", "unknown key `windows_days`; did you mean `window_days`?"),
        (
            LEAST + objective(within=3),
            "unknown key `objectives[0].within`; did you mean `objectives[0].within_ms`?",
        ),
        (LEAST + objective(metric='"latency"'), "must be one of 'ttft', 'itl', 'tpot', 'total'"),
        (LEAST + objective(share=1.0), "`objectives[0].share`"),
        (LEAST + objective(share=0.9999999999), "`objectives[0].share`"),
        (LEAST + objective(within_ms=0), "`objectives[0].within_ms`"),
        (LEAST + objective(within_ms="nan"), "`objectives[0].within_ms`: expected a number > 0"),
        ('deployment = "Chat"\nfailure_share_max = 0.1', "`deployment` must be 1 to 63 of a-z"),
        ("failure_share_max = 0.01", "`deployment` is required"),
        (LEAST + objective() + objective(share=0.99), "ttft within 500 ms is promised twice; keep one"),
        (LEAST + objective() + objective(within_ms=900), "ttft within 900 ms says nothing with share 0.95"),
        (
            LEAST + objective(share=0.995),
            "`failure_share_max` 0.01 is more than the 0.005 that ttft 500 ms leaves",
        ),
        (LEAST + '[cost]\nper_qualified_result_max = "1e-3"', "is not an amount"),
        (LEAST + "[cost]\nper_qualified_result_max = 0", "must be above 0"),
        (LEAST + "[cost]\nper_qualified_result_max = true", "`cost.per_qualified_result_max`"),
        (LEAST + '[cost]\ncurrency = "usd"', "`cost.currency` must be three capital letters"),
        (LEAST + "cost = 3", "`cost`"),
        ("deployment =", "not valid TOML"),
    ],
)
def test_a_mistake_is_told_with_its_key(content: str, said: str) -> None:
    message = refusal(content)
    assert message.startswith("chat.toml: ")
    assert said in message


def test_all_that_can_not_be_meant_is_told_at_once() -> None:
    message = refusal(LEAST + objective(share=0.995) + '[cost]\ncurrency = "usd"')
    assert "`cost.currency` must be three capital letters" in message
    assert "`failure_share_max` 0.01 is more than" in message


def test_a_share_that_fills_its_room_exactly_is_accepted() -> None:
    """1 - 0.9 is a little below 0.1 in binary, which is nobody's mistake."""
    assert slos.parse('deployment = "a"\nfailure_share_max = 0.1\n' + objective(share=0.9), file="f")


def test_a_wider_bound_with_a_larger_share_is_accepted() -> None:
    slo = slos.parse(LEAST + objective(within_ms=900, share=0.98) + objective(), file="f")
    assert len(slo.objectives) == 2


def test_what_can_not_be_read_is_told(tmp_path: Path) -> None:
    large, binary = tmp_path / "large.toml", tmp_path / "binary.toml"
    large.write_text("#" * (slos.FILE_BYTES_MAX + 1))
    binary.write_bytes(b"\xff")
    for path, said in (
        (large, "is larger than"),
        (binary, "no text in UTF-8"),
        (tmp_path / "x", "cannot be read"),
    ):
        with pytest.raises(ConfigError, match=said):
            slos.load(path)


def test_a_folder_stands_for_its_files_and_an_empty_one_for_a_mistake(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ConfigError, match="no SLO file"):
        slos.find([str(tmp_path)])
    (tmp_path / "slos").mkdir()
    (tmp_path / "slos" / "a.toml").write_text(LEAST)
    monkeypatch.chdir(tmp_path)
    assert [path.name for path in slos.find([])] == ["a.toml"]
    monkeypatch.chdir(tmp_path / "slos")
    with pytest.raises(ConfigError, match="no SLO file"):
        slos.find([])


def test_a_name_is_that_of_a_file_in_slos_and_a_path_is_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match="one of those there: none"):
        slos.named("chat")
    (tmp_path / "slos").mkdir()
    (tmp_path / "slos" / "chat.toml").touch()
    assert slos.named("chat") == Path("slos/chat.toml")
    assert slos.named("other/chat.toml") == Path("other/chat.toml")
    with pytest.raises(ConfigError, match=r"no SLO 'chats' in slos/.*one of those there: chat"):
        slos.named("chats")
