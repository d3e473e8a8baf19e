"""`headrace eval` on scripted revisions: good, worse, broken, too few cases; and what becomes known of a sealed set."""

import json
import re
import sqlite3
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import count
from pathlib import Path
from typing import Any

import msgspec
import pytest

from headrace.evidence import cases
from headrace.policies.quality import SetKind
from tests.evidence.rig import ANSWERS, answers, evaluate, ids, own_set, report, revision, table
from tests.support.certificates import Authority, self_signed
from tests.support.echo_replica import echo_replica
from tests.support.model_server import model_server
from tests.support.provider import provider
from tests.support.scripted import scripted_engine
from tests.support.tls_front import tls_front

ACCEPTANCE = ("--cases", "document-assistant", "--set", "acceptance")
pytestmark = pytest.mark.slow


def audit(data: Path) -> list[tuple[str, str, dict[str, Any]]]:
    """The record of uses: action, set, facts."""
    with sqlite3.connect(data / "headrace.db") as database:
        rows = database.execute("SELECT action, target, changes FROM audit ORDER BY number").fetchall()
    database.close()
    return [
        (action, target, {name: new for name, (_, new) in json.loads(changes).items()})
        for action, target, changes in rows
    ]


def test_a_model_is_measured_by_language_and_category_and_the_use_of_an_acceptance_set_is_recorded(
    tmp_path: Path,
) -> None:
    bad = ["en-thesis-length", "zh-train-pet"]
    with revision(bad=bad) as engine:
        done = evaluate(
            tmp_path, *ACCEPTANCE, "--model", "chat@v4", "--url", engine.url, "--json", "--for", "a test"
        )
    assert done.returncode == 0, done.stderr
    found = report(done)
    assert found["verdict"] is None
    assert found["candidate"]["tally"] == {"right": 68, "wrong": 2, "errors": 0}
    assert found["candidate"]["share"]["low"] < 0.97 < found["candidate"]["share"]["high"]
    strata = {(each["by"], each["name"]): each["candidate"] for each in found["strata"]}
    assert strata["language", "zh"] == {"right": 29, "wrong": 1, "errors": 0}
    assert strata["category", "conflict"]["wrong"] == 1
    assert sum(found["candidate"]["misses"].values()) == 2
    begin, end = audit(tmp_path)
    assert begin[:2] == ("acceptance.begin", "document-assistant/acceptance@2")
    assert begin[2]["digest"] == found["set"]["digest"]
    assert begin[2]["purpose"] == "a test"
    assert begin[2]["is_unsealed"] is False
    assert end[0] == "acceptance.end"
    assert (end[2]["right"], end[2]["wrong"], end[2]["verdict"]) == ([68], [2], "measured")


def test_nothing_of_a_sealed_case_is_shown_until_it_is_unsealed_which_is_recorded(tmp_path: Path) -> None:
    with revision(bad=ids(SetKind.ACCEPTANCE)[:5]) as engine:
        asked = (*ACCEPTANCE, "--model", "chat@v4", "--url", engine.url)
        sealed = [evaluate(tmp_path, *asked, *options) for options in ((), ("--list",), ("--json",))]
        unsealed = [
            evaluate(tmp_path, *asked, "--unseal", "--for", "why", *options) for options in ((), ("--json",))
        ]
    for done in sealed:
        shown = done.stdout + done.stderr
        for case in own_set(SetKind.ACCEPTANCE).cases:
            for text in (
                case.id,
                case.question,
                *answers(ANSWERS[case.id], "good", "bad"),
                *(p.text for p in case.passages),
            ):
                assert text not in shown
    assert "en-leave-carry" in unsealed[0].stdout
    assert len(report(unsealed[1])["cases"]) == 70
    begins = [facts for action, _, facts in audit(tmp_path) if action == "acceptance.begin"]
    assert [facts["is_unsealed"] for facts in begins] == [False, False, False, True, True]


def test_two_models_are_told_apart_by_language_category_and_kind_of_check(tmp_path: Path) -> None:
    """A wrong number behind the right citation is wrong, and passes the checks of citations."""
    with revision(SetKind.TUNING) as good, revision(SetKind.TUNING, bad=["en-library-loan"]) as worse:
        asked = ("--cases", "document-assistant", "--model", "chat@v4", "--url", worse.url)
        against = ("--compare", "chat@v3", "--compare-url", good.url)
        found = report(evaluate(tmp_path, *asked, *against, "--json"))
        shown = evaluate(tmp_path, *asked, *against).stdout
    strata = {(each["by"], each["name"]): each for each in found["strata"]}
    assert [strata["language", name]["difference"]["estimate"] for name in ("en", "zh")] == [-1 / 40, 0.0]
    numbers, citations = strata["check", "numeric"], strata["check", "cites"]
    assert (numbers["candidate"]["wrong"], numbers["accepted"]["wrong"]) == (1, 0)
    assert numbers["difference"]["low"] < numbers["difference"]["estimate"] < 0.0
    assert citations["candidate"] == citations["accepted"]
    assert re.search(r"^language +en .* -2\.5 % \(-\d+\.\d % to \+\d+\.\d %\)$", shown, re.MULTILINE)


def test_a_model_is_asked_without_the_excerpts_beside_itself_with_them(tmp_path: Path) -> None:
    with model_server(lambda path, body: "Well.") as server:
        asked = ("--cases", "document-assistant", "--model", "m", "--narrow", "0", "--compare", "m")
        done = evaluate(tmp_path, *asked, "--url", server.url)
        prompts = [body["messages"][1]["content"] for _, body in server.asked]
    assert "m (no excerpts) 0 of 70 right; m 0 of 70 right" in done.stdout
    assert (
        sum(any(prompt == case.question for case in own_set(SetKind.TUNING).cases) for prompt in prompts)
        == 70
    )


def test_a_tuning_set_is_open_and_its_use_leaves_no_record(tmp_path: Path) -> None:
    with revision(SetKind.TUNING, bad=["en-library-loan"]) as engine:
        asked = ("--cases", "document-assistant", "--model", "chat@v4", "--url", engine.url)
        listed = evaluate(tmp_path, *asked, "--list")
        found = report(evaluate(tmp_path, *asked, "--json"))
    assert "You may keep it for 7 days [2]. (wrong_number" in listed.stdout
    wrong = [case["id"] for case in found["cases"] if case["candidate"] == "wrong"]
    assert wrong == ["en-library-loan"]
    assert not (tmp_path / "headrace.db").exists()


def test_an_acceptance_set_is_not_used_by_mistake(tmp_path: Path) -> None:
    path = str(cases.OWN_SETS / "document-assistant" / "acceptance.jsonl")
    done = evaluate(tmp_path, "--cases", path, "--model", "m", "--url", "http://127.0.0.1:1")
    assert done.returncode == 2
    assert "--set acceptance" in done.stderr


def test_where_the_use_cannot_be_recorded_nothing_is_asked(tmp_path: Path) -> None:
    (tmp_path / "headrace.db").mkdir()
    with revision() as engine:
        done = evaluate(tmp_path, *ACCEPTANCE, "--model", "chat@v4", "--url", engine.url)
        assert engine.stats()["requests"] == 0
    assert done.returncode == 2


def test_a_model_is_held_to_a_floor(tmp_path: Path) -> None:
    with revision(SetKind.TUNING, bad=ids(SetKind.TUNING)[:28]) as engine:
        asked = ("--cases", "document-assistant", "--model", "chat@v4", "--url", engine.url)
        statuses = [
            evaluate(tmp_path, *asked, "--floor", floor).returncode for floor in ("0.3", "0.6", "0.95")
        ]
    assert statuses == [0, 3, 1]


def test_the_table_names_what_went_wrong_and_ends_with_the_verdict(tmp_path: Path) -> None:
    with revision(SetKind.TUNING, bad=["en-library-loan"], faults="error:503@3") as engine:
        done = evaluate(
            tmp_path,
            "--cases",
            "document-assistant",
            "--model",
            "chat@v4",
            "--url",
            engine.url,
            "--floor",
            "0.5",
        )
    shown = done.stdout
    assert done.returncode == 0
    assert "tuning set document-assistant, version 2, 70 cases" in shown
    assert "chat@v4, wrong: wrong_number 1" in shown
    assert "chat@v4, errors: 503 1" in shown
    assert (
        shown.rstrip()
        .splitlines()[-1]
        .startswith("pass: chat@v4 68 of 69 right, 1 not answered; at least 50.0% right: shown")
    )
    assert "70 of 70 answers" in done.stderr


def test_what_is_not_answered_in_time_is_an_error_and_the_run_ends(tmp_path: Path) -> None:
    with revision(SetKind.TUNING, faults="stall:0@3+") as engine:
        done = evaluate(
            tmp_path, "--cases", "document-assistant", "--model", "chat@v4", "--url", engine.url,
            "--deadline", "0.5", "--time-limit", "1.2", "--concurrency", "2", "--floor", "0.5", "--json",
        )  # fmt: skip
    found = report(done)["candidate"]
    assert done.returncode == 4
    assert found["tally"]["right"] == 2
    assert found["errors"]["upstream_stalled"] >= 2
    assert found["errors"]["time_limit"] >= 10


def test_a_server_that_is_not_there_is_an_error_and_never_a_wrong_answer(tmp_path: Path) -> None:
    done = evaluate(
        tmp_path, "--cases", "document-assistant", "--model", "m", "--url", "http://127.0.0.1:1", "--json"
    )
    assert done.returncode == 4
    assert report(done)["candidate"]["tally"] == {"right": 0, "wrong": 0, "errors": 70}


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--cases", "document-assistant", "--url", "http://127.0.0.1:1"), "--model"),
        (("--cases", "document-assistant", "--model", "m"), "no service is running"),
        (("--cases", "nothing", "--model", "m", "--url", "http://127.0.0.1:1"), "document-assistant"),
        (("--cases", "document-assistant", "--model", "m", "--url", "ftp://x"), "http://HOST:PORT"),
        (("--cases", "document-assistant", "--model", "m", "--url", "http://x:99999"), "--url"),
        (
            ("--cases", "document-assistant", "--model", "m", "--url", "http://x", "--key", "secret"),
            "env:NAME",
        ),
        (("--cases", "document-assistant", "--model", "m", "--url", "http://x", "--alpha", "2"), "--alpha"),
        (
            ("--cases", "document-assistant", "--model", "m", "--url", "http://x", "--deadline", "x"),
            "--deadline",
        ),
    ],
)
def test_what_the_operator_must_change_is_named(
    tmp_path: Path, arguments: tuple[str, ...], words: str
) -> None:
    done = evaluate(tmp_path, *arguments)
    assert done.returncode == 2
    assert words in done.stderr


def test_a_model_is_evaluated_through_headrace_as_a_customer_sees_it(tmp_path: Path) -> None:
    """The revision that the service names is the one in the report, and the requests are in the ledger of the key's tenant."""
    answers = table(SetKind.TUNING, bad=["en-library-loan"])
    with (
        scripted_engine(answers=answers, models=("chat",)) as engine,
        provider(upstreams=[engine.url]) as service,
    ):
        (tmp_path / "key").write_text(service.key("evaluation", requests_burst=1000))
        asked = ("--cases", "document-assistant", "--key", f"file:{tmp_path / 'key'}", "--json")
        url = f"http://127.0.0.1:{service.port}"
        found = report(evaluate(tmp_path, *asked, "--model", "chat", "--url", url))["candidate"]
        unknown = report(evaluate(tmp_path, *asked, "--model", "chat@v9", "--url", f"{url}/v1"))["candidate"]
        running = report(evaluate(service.data, "--cases", "document-assistant", "--json"))["candidate"]
    assert found["tally"] == {"right": 69, "wrong": 1, "errors": 0}
    assert len(found["revisions"]) == 1
    assert found["revisions"][0]
    assert unknown["tally"]["errors"] == 70
    assert list(unknown["errors"]) == ["404 model_not_found"]
    assert (running["revisions"], running["tally"]) == (found["revisions"], found["tally"]), (
        "the one that runs there"
    )


def judged_set(folder: Path) -> str:
    """A set of one's own, a case of which only a judge can tell."""
    path = folder / "tuning.jsonl"
    case = {
        "id": "polite", "language": "en", "category": "tone", "question": "May I come in?",
        "checks": [{"kind": "answers"}, {"kind": "judged", "rubric": "It is polite."}],
    }  # fmt: skip
    header = {"name": "tone", "set": "tuning", "version": 1, "instructions": {"en": "Answer."}}
    path.write_bytes(msgspec.json.encode(header) + b"\n" + msgspec.json.encode(case) + b"\n")
    cases.seal(path)
    return str(path)


@pytest.mark.parametrize(
    ("opinion", "tally"),
    [("PASS", (1, 0, 0)), ("Fail.", (0, 1, 0)), ("Well, that depends", (0, 0, 1))],
)
def test_what_no_rule_can_tell_a_judge_model_is_asked(
    tmp_path: Path, opinion: str, tally: tuple[int, int, int]
) -> None:
    path = judged_set(tmp_path)
    said = {"<rubric>": opinion, "May I come in?": "Certainly."}
    with scripted_engine(answers=said, models=("m", "judge")) as engine:
        asked = ("--cases", path, "--model", "m", "--url", engine.url, "--json")
        unjudged = evaluate(tmp_path, *asked)
        found = report(evaluate(tmp_path, *asked, "--judge", "judge"))
        other = evaluate(tmp_path, *asked, "--judge", "judge", "--judge-revision", "sha256:1")
    assert unjudged.returncode == 2
    assert "--judge" in unjudged.stderr
    assert tuple(found["candidate"]["tally"][mark] for mark in ("right", "wrong", "errors")) == tally
    assert found["judge"].startswith("judge")
    if opinion != "Well, that depends":
        assert other.returncode == 4
        assert "not the pinned one" in report(other)["detail"]


def test_no_other_server_is_shown_the_key_of_the_first(tmp_path: Path) -> None:
    """--key is for --url; a server of another model gets its own, or none."""
    (tmp_path / "one").write_text("hr_first")
    (tmp_path / "two").write_text("hr_second")
    path = tmp_path / "tuning.jsonl"
    case = {
        "id": "echo", "language": "en", "category": "any", "question": "200 please",
        "checks": [{"kind": "contains", "none": ["never"]}],
    }  # fmt: skip
    header = {"name": "echo", "set": "tuning", "version": 1, "instructions": {"en": "Answer."}}
    path.write_bytes(msgspec.json.encode(header) + b"\n" + msgspec.json.encode(case) + b"\n")
    cases.seal(path)
    with echo_replica() as one, echo_replica() as other:
        asked = (
            "--cases", str(path), "--model", "echo", "--url", one, "--key", f"file:{tmp_path / 'one'}",
            "--compare", "echo", "--json",
        )  # fmt: skip
        same = report(evaluate(tmp_path, *asked))["cases"][0]
        none = report(evaluate(tmp_path, *asked, "--compare-url", other))["cases"][0]
        own = report(
            evaluate(tmp_path, *asked, "--compare-url", other, "--compare-key", f"file:{tmp_path / 'two'}")
        )["cases"][0]
    for found in (same, none, own):
        assert "Bearer hr_first" in found["candidate_text"]
    assert "Bearer hr_first" in same["accepted_text"]
    assert "200 please None" in none["accepted_text"]
    assert "Bearer hr_second" in own["accepted_text"]


class _Changing(BaseHTTPRequestHandler):
    """A server whose model is replaced after three answers."""

    protocol_version = "HTTP/1.1"
    answers = count()

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["content-length"]))
        content = b'{"choices": [{"message": {"content": "Yes."}, "finish_reason": "length"}]}'
        self.send_response(200)
        self.send_header(
            "x-headrace-model-revision", "sha256:one" if next(self.answers) < 3 else "sha256:two"
        )
        self.send_header("content-length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, format: str, *args: object) -> None:
        pass


def test_a_model_that_is_replaced_while_it_is_asked_has_not_been_judged(tmp_path: Path) -> None:
    with ThreadingHTTPServer(("127.0.0.1", 0), _Changing) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        done = evaluate(
            tmp_path, "--cases", "document-assistant", "--model", "m",
            "--url", f"http://127.0.0.1:{server.server_port}/v1", "--floor", "0.9", "--json",
        )  # fmt: skip
        server.shutdown()
    found = report(done)
    assert done.returncode == 4
    assert found["candidate"]["revisions"] == ["sha256:one", "sha256:two"]
    assert found["candidate"]["cut"] == 70
    assert "was changed while it was asked" in found["detail"]


def test_servers_with_tls_are_believed_by_an_authority_or_by_their_own_certificate(tmp_path: Path) -> None:
    """The authority that is named holds for all of them, and the name counts then; the certificate for the one at --url."""
    authority, own = Authority(tmp_path), self_signed(tmp_path, hosts=["models.example"])
    asked = ["--cases", "document-assistant", "--model", "chat@v4", "--floor", "0.5", "--json"]
    with (
        revision(SetKind.TUNING) as engine,
        tls_front(engine.port, authority.issue()) as named,
        tls_front(engine.port, authority.issue("other", hosts=["models.example"])) as misnamed,
        tls_front(engine.port, own) as alone,
    ):
        at = {front: ["--url", f"https://127.0.0.1:{front.port}/v1"] for front in (named, misnamed, alone)}
        by_authority, by_itself = ["--ca", str(authority.file)], ["--certificate", str(own.certificate)]
        other = [
            "--compare",
            "chat@v3",
            "--compare-url",
            f"https://127.0.0.1:{named.port}/v1",
            "--margin",
            "0.2",
        ]
        statuses = {
            what: evaluate(tmp_path, *asked, *arguments).returncode
            for what, arguments in {
                "authority": [*at[named], *by_authority],
                "authority of the system": at[named],
                "authority, another name": [*at[misnamed], *by_authority],
                "certificate": [*at[alone], *by_itself],
                "another certificate": [*at[named], *by_itself],
                "both": [*at[alone], *by_itself, *by_authority, *other],
                "another server": [*at[alone], *by_itself, *other],
            }.items()
        }
    assert statuses == {
        "authority": 0,
        "authority of the system": 4,
        "authority, another name": 4,
        "certificate": 0,
        "another certificate": 4,
        "both": 0,
        "another server": 4,
    }


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--url", "http://h", "--ca", "ca.pem"], "--ca is for a server with https://, and there is none"),
        (
            ["--url", "http://h", "--compare-url", "https://h", "--compare", "m2", "--certificate", "c.pem"],
            "--certificate is for a server with https://, and there is none",
        ),
        (["--url", "https://h", "--ca", "/nowhere.pem"], "--ca: '/nowhere.pem' is not a PEM file"),
        (["--url", "https://h", "--certificate", "/nowhere.pem"], "--certificate: '/nowhere.pem' is not"),
        (["--url", "https://h", "--certificate", __file__], "is not a PEM file with a certificate"),
    ],
)
def test_what_to_trust_must_be_there_and_be_of_use(
    tmp_path: Path, arguments: list[str], complaint: str
) -> None:
    done = evaluate(tmp_path, "--cases", "document-assistant", "--model", "m", *arguments)
    assert done.returncode == 2
    assert complaint in done.stderr
