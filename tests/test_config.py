"""What the configuration accepts: everything else is refused with file, key and what would be accepted."""

import math
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace import config
from headrace.core.errors import ConfigError

SECTIONS = {
    field.name: field.type for field in msgspec.structs.fields(config.Config) if field.name != "upstreams"
}
KEYS = [(section, f.name) for section, kind in SECTIONS.items() for f in msgspec.structs.fields(kind)]
NUMBERS = [
    (section, f.name, f.default)
    for section, kind in SECTIONS.items()
    for f in msgspec.structs.fields(kind)
    if isinstance(f.default, int | float) and not isinstance(f.default, bool)
]
FILE = "headrace.toml"


def parse(**sections: Any) -> config.Config:
    return config.parse(sections, file=FILE)


def refusal(**sections: Any) -> str:
    with pytest.raises(ConfigError) as refused:
        parse(**sections)
    assert refused.value.message.startswith(f"{FILE}: ")
    return refused.value.message


def test_an_empty_file_is_the_defaults() -> None:
    assert parse() == config.load(None) == config.Config()


def test_a_whole_file_of_defaults_is_the_defaults() -> None:
    assert config.parse(msgspec.to_builtins(config.Config()), file=FILE) == config.Config()


# Unknown keys


@pytest.mark.parametrize(("section", "key"), KEYS)
def test_a_mistyped_key_is_refused_with_the_one_that_was_meant(section: str, key: str) -> None:
    """One letter doubled; the name is long enough to be recognised."""
    message = refusal(**{section: {key + key[-1]: 1}})
    assert f"`{section}.{key}{key[-1]}`" in message
    assert f"did you mean `{section}.{key}`?" in message


@pytest.mark.parametrize("section", SECTIONS)
def test_a_mistyped_section_is_refused_with_the_one_that_was_meant(section: str) -> None:
    assert f"did you mean `{section}`?" in refusal(**{section + "s": {}})


@pytest.mark.parametrize("raw", [{"zzz": 1}, {"server": {"zzz": 1}}, {"upstreams": [{"url": "u", "zzz": 1}]}])
def test_a_key_like_no_other_is_refused_with_all_that_are_accepted(raw: dict[str, Any]) -> None:
    message = refusal(**raw)
    assert "zzz`; accepted: " in message
    kinds: dict[str, type[msgspec.Struct]] = {
        "zzz": config.Config,
        "server": config.ServerConfig,
        "upstreams": config.UpstreamConfig,
    }
    assert all(field.name in message for field in msgspec.structs.fields(kinds[next(iter(raw))]))


def test_a_mistyped_key_of_an_upstream_is_named_with_its_place() -> None:
    message = refusal(upstreams=[{"url": "http://a"}, {"url": "http://b", "slot": 4}])
    assert "unknown key `upstreams[1].slot`; did you mean `upstreams[1].slots`?" in message


def test_in_a_table_whose_keys_are_the_files_own_only_what_they_hold_is_checked() -> None:
    issuer = {"issuer": "https://id.test", "audience": "headrace", "scopes": {"acme": {"model": ["chat"]}}}
    message = refusal(auth={"issuers": [issuer]})
    assert "unknown key `auth.issuers[0].scopes.acme.model`" in message
    assert "did you mean `auth.issuers[0].scopes.acme.models`?" in message
    message = refusal(auth={"issuers": [{**issuer, "scopes": {"acme": {"models": 1}}}]})
    assert "models" in message


# Values


@pytest.mark.parametrize(("section", "key", "default"), NUMBERS)
def test_every_number_has_a_range_that_holds_its_default(section: str, key: str, default: float) -> None:
    kind = type(default)
    message = refusal(**{section: {key: kind(-1)}})
    assert f"`{section}.{key}` must be " in message
    assert parse(**{section: {key: default}}) == config.Config()


@pytest.mark.parametrize(
    ("section", "key"), [(s, k) for s, k, default in NUMBERS if isinstance(default, float)]
)
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_what_is_not_a_finite_number_is_refused(section: str, key: str, value: float) -> None:
    """TOML has nan and inf; nan passes every comparison with a bound that is written the wrong way round."""
    assert f"`{section}.{key}` must be a number" in refusal(**{section: {key: value}})


@pytest.mark.parametrize("request_section", [{"deadline_s": 3600.5}, {"deadline_max_s": 599.5}])
def test_a_request_gets_no_longer_by_default_than_it_may_ask_for(request_section: dict[str, float]) -> None:
    assert "`request.deadline_s` must be at most `request.deadline_max_s`, got " in refusal(
        request=request_section
    )
    assert parse(request={"deadline_s": 5, "deadline_max_s": 5}).request.deadline_s == 5


@given(port=st.integers(-10, 70_000), section_key=st.sampled_from(["port", "admin_port"]))
def test_a_port_is_a_port(port: int, section_key: str) -> None:
    if 0 <= port <= 65535:
        assert getattr(parse(server={section_key: port}).server, section_key) == port
    else:
        assert f"`server.{section_key}` must be between 0 and 65535, got {port}" in refusal(
            server={section_key: port}
        )


@pytest.mark.parametrize(
    ("raw", "told"),
    [
        ({"server": {"port": "8000"}}, "`server.port`: expected a whole number, got text in quotes"),
        ({"server": {"port": 80.5}}, "`server.port`: expected a whole number, got a number"),
        ({"server": {"port": True}}, "`server.port`: expected a whole number, got true or false"),
        ({"server": 5}, "`server`: expected a table, got a whole number"),
        ({"server": {"websocket_origins": "*"}}, "`server.websocket_origins`: expected a list, got text in quotes"),
        ({"upstreams": {"url": "u"}}, "`upstreams`: expected a list, got a table"),
        ({"upstreams": [5]}, "`upstreams[0]`: expected a table, got a whole number"),
        ({"upstreams": [{"slots": 4}]}, "`upstreams[0].url` is required"),
        ({"engine": {"chat_model": 1}}, "`engine.chat_model`: expected text in quotes, got a whole number"),
        ({"media": {"urls": "allow"}}, "`media.urls` must be one of 'refuse', 'fetch', got 'allow'"),
        ({"upstreams": [{"url": "u"}, {"url": "u", "cache_isolation": "off"}]},
         "`upstreams[1].cache_isolation` must be one of 'auto', 'salt', 'slots', 'prompt', 'off_per_request', 'none', got 'off'"),
    ],
)  # fmt: skip
def test_a_value_of_the_wrong_type_is_refused_with_its_key_and_what_it_takes(
    raw: dict[str, Any], told: str
) -> None:
    assert refusal(**raw) == f"{FILE}: {told}"


def test_an_upstream_has_at_least_one_slot() -> None:
    assert "`upstreams[0].slots` must be at least 1" in refusal(upstreams=[{"url": "http://a", "slots": 0}])
    assert parse(upstreams=[{"url": "http://a", "slots": 1}]).upstreams[0].slots == 1


# Files


@pytest.mark.parametrize(
    "given",
    [
        {"cache_isolation": "none"},
        {"shared_cache_reason": "we are one"},
        {"cache_isolation": "none", "shared_cache_reason": " "},
    ],
)
def test_a_cache_is_shared_by_tenants_only_with_a_reason_in_words(given: dict[str, str]) -> None:
    """T42: nobody switches the isolation off in passing."""
    told = refusal(upstreams=[{"url": "http://a", **given}])
    assert "`upstreams[0].cache_isolation" in told
    assert "shared_cache_reason" in told


def test_a_file_is_read_as_what_it_says(tmp_path: Path) -> None:
    path = tmp_path / FILE
    path.write_text("[server]\nport = 1234\n[[upstreams]]\nurl = 'http://a'\n")
    loaded = config.load(path)
    assert (loaded.server.port, loaded.upstreams[0].url) == (1234, "http://a")


@pytest.mark.parametrize("content", [b"[server", b"port = ", b"a = 1\na = 2", b"\xff\xfe"])
def test_a_file_that_is_not_toml_is_refused_by_name(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / FILE
    path.write_bytes(content)
    with pytest.raises(ConfigError, match="not valid TOML") as refused:
        config.load(path)
    assert refused.value.message.startswith(f"{path}: ")


def test_a_file_that_can_not_be_read_is_refused_by_name(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "missing.toml"):
        with pytest.raises(ConfigError, match="cannot be read") as refused:
            config.load(path)
        assert str(path) in refused.value.message


# Secrets


def test_a_secret_comes_from_the_environment_or_from_a_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "key").write_text("from-file\n")
    monkeypatch.setenv("SOME_KEY", " from-env ")
    assert config.resolve_secret("env:SOME_KEY", key="k") == "from-env"
    assert config.resolve_secret(f"file:{tmp_path}/key", key="k") == "from-file"


@pytest.mark.parametrize("value", ["sk-canary", "http:sk-canary", "sk-canary:", "", "ENV:sk-canary"])
def test_a_secret_itself_is_refused_and_never_repeated(value: str) -> None:
    """T47."""
    with pytest.raises(
        ConfigError, match=r"^upstreams\[0\].api_key: secrets are given by reference"
    ) as refused:
        config.resolve_secret(value, key="upstreams[0].api_key")
    assert "canary" not in refused.value.message


def test_a_reference_to_nothing_is_refused_with_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SOME_KEY", raising=False)
    (tmp_path / "binary").write_bytes(b"\xff\xfe")
    for reference, told in (
        ("env:SOME_KEY", "SOME_KEY is not set"),
        (f"file:{tmp_path}/missing", "missing cannot be read"),
        (f"file:{tmp_path}", "cannot be read"),
        (f"file:{tmp_path}/binary", "not a text file in UTF-8"),
    ):
        with pytest.raises(ConfigError, match=told):
            config.resolve_secret(reference, key="k")


# Environment


def test_the_environment_mirrors_an_option(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADRACE_ADMIN_PORT", "7")
    assert config.environment("admin-port") == "7"
    assert config.environment("no-such-option") is None


def test_the_data_directory_is_the_flag_else_the_environment_else_the_home(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("XDG_DATA_HOME", raising=False)
    monkeypatch.delenv("HEADRACE_DATA", raising=False)
    assert config.data_directory(None) == tmp_path / ".local/share/headrace"
    monkeypatch.setenv("XDG_DATA_HOME", "/data/home")
    assert config.data_directory(None) == Path("/data/home/headrace")
    monkeypatch.setenv("HEADRACE_DATA", "~/elsewhere")
    assert config.data_directory(None) == tmp_path / "elsewhere"
    assert config.data_directory("/flag") == Path("/flag")


def test_a_user_without_a_home_must_name_a_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And gets no directory called `~` where the command happened to be run."""
    for name in ("HOME", "XDG_DATA_HOME", "HEADRACE_DATA"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("os.getuid", lambda: 54_321)
    with pytest.raises(ConfigError, match="no home directory"):
        config.data_directory(None)
    with pytest.raises(ConfigError, match="no home directory"):
        config.data_directory("~/here")
    assert config.data_directory(str(tmp_path)) == tmp_path


@pytest.mark.parametrize("value", ["", " ", "can ary", "can\nary", "canary\u20ac", "canary\x7f"])
def test_a_secret_that_no_header_can_carry_is_refused_by_its_name(
    value: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """T47: and its value isn't repeated."""
    monkeypatch.setenv("SOME_KEY", value)
    with pytest.raises(ConfigError, match="SOME_KEY must hold one word") as refused:
        config.resolve_secret("env:SOME_KEY", key="k")
    assert "ary" not in refused.value.message


def test_a_store_of_limits_needs_the_number_of_hosts() -> None:
    """A part of a limit can only be worked out by who knows how many there are."""
    assert "`limits.store` needs `limits.hosts_max`" in refusal(limits={"store": "env:ANY"})
    assert config.parse({"limits": {"store": "env:ANY", "hosts_max": 2}}, file="f").limits.hosts_max == 2
    assert config.parse({"limits": {"hosts_max": 3}}, file="f").limits.hosts_max == 3
