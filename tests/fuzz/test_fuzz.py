"""Does any input break a parser? Generated and mutated bytes for every target; longer, and guided by coverage, on demand."""

import importlib.util
import re
import subprocess
import sys
from pathlib import Path
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.fuzz.targets import TARGETS

ROOT = Path(__file__).parents[2]
CORPUS = Path(__file__).with_name("corpus")
PIECES = [
    *(
        b"\r\n",
        b"\n",
        b"\r",
        b"\r\n\r\n",
        b": ",
        b":",
        b" ",
        b"\t",
        b"\0",
        b"0",
        b"-1",
        b"+1",
        b"1e999",
        b"ff",
        b"\x80",
    ),
    *(
        b"Content-Length: 5\r\n",
        b"Transfer-Encoding: chunked\r\n",
        b"Host: x\r\n",
        b"HTTP/1.0",
        b"HTTP/1.1",
        b"0\r\n\r\n",
    ),
    *(
        b"data: ",
        b"data",
        b"[DONE]",
        b"\xef\xbb\xbf",
        b"\xe2\x80\xa8",
        b"{",
        b"}",
        b"[",
        b"]",
        b",",
        b'"',
        b"null",
    ),
    *(
        b'"usage": {}',
        b'"choices": []',
        b'"error": ""',
        b'"index": -1',
        b"Bearer ",
        b".",
        b"eyJhbGciOiJFUzI1NiIsImtpZCI6ImsifQ",
        b"eyJhbGciOiJub25lIn0",
        b"e30",
        b'{"keys": [',
        b'{"kty": "RSA", "e": "AQAB", "n": "',
        b'{"kty": "EC", "crv": "P-256", "x": "',
        b'{"kty": "OKP", "crv": "Ed25519", "x": "',
        b"AAAA",
        b"%2e%2e/",
        b"NaN",
        b'"\\ud800"',
    ),
]


def inputs(target: str) -> list[bytes]:
    return [path.read_bytes() for path in sorted((CORPUS / target).iterdir())]


def mutated(data: bytes, seed: int) -> bytes:
    """A few edits at random places: a piece put in, taken out, doubled or overwritten."""
    chance = Random(seed)
    for _ in range(chance.randint(1, 6)):
        at = chance.randrange(len(data) + 1)
        until = min(len(data), at + chance.randrange(12))
        piece = chance.choice(
            [chance.choice(PIECES), chance.randbytes(chance.randrange(4)), data[at:until] * 2]
        )
        data = data[:at] + piece + data[chance.choice((at, until)) :]
    return data


@pytest.mark.parametrize("target", TARGETS)
def test_what_was_once_interesting_breaks_nothing(target: str) -> None:
    found = inputs(target)
    assert found, "each target has its corpus"
    for data in found:
        TARGETS[target](data)


@pytest.mark.parametrize("target", TARGETS)
def test_no_bytes_break_a_parser(target: str) -> None:
    @given(
        data=st.one_of(st.binary(max_size=200), st.lists(st.sampled_from(PIECES), max_size=25).map(b"".join))
    )
    def holds(data: bytes) -> None:
        TARGETS[target](data)

    holds()


def check_mutations(target: str, examples: int) -> None:
    @settings(max_examples=examples)
    @given(data=st.sampled_from(inputs(target)), seed=st.integers(0, 2**32))
    def holds(data: bytes, seed: int) -> None:
        TARGETS[target](mutated(data, seed))

    holds()


@pytest.mark.slow
@pytest.mark.parametrize("target", TARGETS)
def test_no_mutation_of_good_input_breaks_a_parser(target: str) -> None:
    check_mutations(target, examples=400)


@pytest.mark.long
@pytest.mark.timeout(600)
@pytest.mark.parametrize("target", TARGETS)
def test_ten_thousand_mutations_of_good_input_break_no_parser(target: str) -> None:
    check_mutations(target, examples=10_000)


@pytest.mark.fuzz
@pytest.mark.timeout(300)
@pytest.mark.skipif(
    importlib.util.find_spec("atheris") is None, reason="needs atheris: pip install '.[fuzz]'"
)
@pytest.mark.parametrize("target", TARGETS)
def test_coverage_leads_to_no_input_that_breaks_a_parser(target: str, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tests.fuzz", target, "--seconds", "20", "--corpus", str(tmp_path)]
    ended = subprocess.run(
        command,
        cwd=tmp_path,
        env={"PYTHONPATH": f"{ROOT}:{ROOT / 'src'}"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr[-4000:]
    executed = re.search(r"stat::number_of_executed_units:\s*(\d+)", ended.stderr)
    assert executed is not None
    assert int(executed[1]) > 1000, "it hardly ran"
