"""A card's key is made once, is its owner's alone, and signs just what was signed."""

import stat
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from headrace.core.errors import ConfigError
from headrace.stores import card_key


def test_a_key_is_made_once_whoever_comes_first_and_is_nobody_elses(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with ThreadPoolExecutor(8) as several:
        made = {key.public for key in several.map(lambda _: card_key.load(data), range(16))}
    assert made == {card_key.load(data).public}
    assert [path.name for path in data.iterdir()] == [card_key.NAME]
    assert stat.S_IMODE((data / card_key.NAME).stat().st_mode) == 0o600


def test_only_what_was_signed_is_signed(tmp_path: Path) -> None:
    key, other = card_key.load(tmp_path / "one"), card_key.load(tmp_path / "other")
    signature = key.sign(b"a card")
    assert card_key.is_signed(b"a card", public=key.public, signature=signature)
    assert not card_key.is_signed(b"a card.", public=key.public, signature=signature)
    assert not card_key.is_signed(b"a card", public=other.public, signature=signature)
    for nonsense in ("", "?", "AAAA"):
        assert not card_key.is_signed(b"a card", public=nonsense, signature=signature)
        assert not card_key.is_signed(b"a card", public=key.public, signature=nonsense)
    assert card_key.fingerprint(key.public) != card_key.fingerprint(other.public)


def test_a_file_that_is_no_key_or_that_others_can_read_is_named(tmp_path: Path) -> None:
    path = tmp_path / card_key.NAME
    path.write_bytes(b"short")
    path.chmod(0o600)
    with pytest.raises(ConfigError, match=r"card\.key: must hold exactly 32 bytes"):
        card_key.load(tmp_path)
    path.unlink()
    card_key.load(tmp_path)
    path.chmod(0o644)
    with pytest.raises(ConfigError, match=r"card\.key: mode 0644; only its owner may read it: chmod 600"):
        card_key.load(tmp_path)
