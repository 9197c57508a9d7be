from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from modules.util.config.SecretsConfig import SecretsConfig
from modules.util.config.settings import iter_settings
from modules.util.config.TrainConfig import TrainConfig
from modules.util.errors import UserError


def test_only_the_owner_can_read_the_file(tmp_path: Path) -> None:
    path = tmp_path / "inner" / "secrets.json"
    old = os.umask(0)
    try:
        SecretsConfig(huggingface_token="hf_abc").save(path)
    finally:
        os.umask(old)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert SecretsConfig.load_if_there(path).huggingface_token == "hf_abc"
    assert [p.name for p in path.parent.iterdir()] == ["secrets.json"]


def test_no_file_is_no_secrets(tmp_path: Path) -> None:
    assert SecretsConfig.load_if_there(tmp_path / "none.json").huggingface_token == ""
    (tmp_path / "broken.json").write_text("{")
    with pytest.raises(UserError, match="not valid JSON"):
        SecretsConfig.load_if_there(tmp_path / "broken.json")


def test_a_failed_save_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "secrets.json"
    SecretsConfig(huggingface_token="old").save(path)
    monkeypatch.setattr("json.dumps", lambda *args, **kwargs: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        SecretsConfig(huggingface_token="new").save(path)
    monkeypatch.undo()
    assert SecretsConfig.load_if_there(path).huggingface_token == "old"
    assert [p.name for p in tmp_path.iterdir()] == ["secrets.json"]


def test_secrets_are_neither_shown_nor_part_of_a_config() -> None:
    assert "hf_abc" not in repr(SecretsConfig(huggingface_token="hf_abc"))
    words = ("token", "password", "secret", "api_key")
    paths = {s.path for s in iter_settings(TrainConfig) if any(word in s.path for word in words)}
    assert paths == {"embedding.token_count"}, "the tokens of a prompt are no secret"
