"""Does docs/reference/http.md name the paths, headers and bounds that the code has?"""

import re
from pathlib import Path

from headrace.control.replica import CONSTRAINT_PIECES_MAX
from headrace.core.fleet import Deployment
from headrace.core.request import Endpoint
from headrace.gateway import bodies, connection, parser_process, transport
from headrace.protocols import http1, openai, patterns, schemas, strict_json
from tests.edge.conftest import Edge

PAGE = (Path(__file__).parents[2] / "docs" / "reference" / "http.md").read_text(encoding="utf-8")
SOURCE = Path(http1.__file__).parents[1]
# Said of every message or of a body's form, not of ours in particular.
COMMON = {"content-type", "content-length", "transfer-encoding", "cache-control", "x-accel-buffering"}


def section(heading: str) -> str:
    return PAGE.split(f"\n## {heading}\n")[1].split("\n## ")[0]


def test_every_path_is_listed_and_answers_as_the_page_says(edge: Edge) -> None:
    rows = re.findall(r"^\| (GET|POST) \| `([^`]+)` \| (yes|no) \|", section("Paths"), re.MULTILINE)
    assert {path for method, path, _ in rows if method == "POST"} == {str(e.value) for e in Endpoint}
    for method, path, key in rows:
        target = path.replace("NAME", "scripted")
        assert edge.ask(method, target, b"{}" if method == "POST" else None).status != 404
        anonymous = Edge(edge.engine, edge.service, "")
        assert anonymous.ask(method, target).status == (401 if key == "yes" else 200)


def test_every_response_header_in_the_code_is_on_the_page_and_no_other() -> None:
    files = (
        "gateway/answer_headers.py",
        "gateway/budgets.py",
        "gateway/connection.py",
        "gateway/http_call.py",
        "gateway/idempotency.py",
        "gateway/server.py",
        "protocols/openai.py",
    )
    text = "".join((SOURCE / file).read_text(encoding="utf-8") for file in files)
    written = set(re.findall(r"(?:\"|\\n|%b|%s)([a-z]+(?:-[a-z]+)*): ?", text))
    headers = {
        name
        for name in written
        if name.startswith("x-") or name in ("connection", "retry-after", "www-authenticate")
    }
    documented = set(re.findall(r"^\| `([a-z-]+)` \|", section("Response headers"), re.MULTILINE))
    assert documented == headers - COMMON


def test_the_bounds_are_those_of_the_code() -> None:
    assert f"| request line and headers | {http1.HEAD_BYTES_MAX // 1024} KiB |" in PAGE
    assert f"| headers, trailers included | {http1.HEADERS_MAX} |" in PAGE
    assert (http1.FRAMING_BYTES_MAX, http1.CHUNK_OVERHEAD) == (64 * 1024, 6)
    assert f"{transport.WRITE_BUFFER_MAX // 1024} KiB are kept" in PAGE
    # T12: what came before the mark, and the one read that passes it.
    assert transport.WRITE_BUFFER_MARK + transport.READ_BYTES_MAX <= transport.WRITE_BUFFER_MAX
    assert f"{connection.DISCARD_BYTES_MAX // 1024} KiB more are" in PAGE
    assert (
        f"over {strict_json.LIGHT_BYTES // 1024} KiB with more than {strict_json.STRINGS_MAX:,} strings, "
        in PAGE
    )
    assert f"{strict_json.BRACKETS_MAX:,} objects and lists, or {strict_json.COMMAS_MAX:,} commas" in PAGE
    assert f"over {strict_json.INLINE_BYTES_MAX // 1024} KiB" in PAGE
    assert f"{parser_process.CPU_S_MAX:g} s of CPU time" in PAGE
    assert f"{bodies.BODIES_MAX} of them" in PAGE
    assert f"below {openai.VOCABULARY_TOKENS_MAX:,}" in PAGE
    assert f"at most {openai.LOGPROBS_MAX} for each token" in PAGE
    assert f"at most {schemas.DEPTH_MAX} schemas" in PAGE
    assert f"at most {patterns.LENGTH_MAX:,} characters" in PAGE
    assert f"At most {schemas.PIECES_MAX:,} together, {CONSTRAINT_PIECES_MAX:,} on the embedded" in PAGE
    assert Deployment.__dataclass_fields__["constraint_pieces_max"].default == schemas.PIECES_MAX
    assert transport.LINGER_S == 2.0
