"""The stored token reaches the download, and nothing that is shown or kept."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import huggingface_hub
import pytest
from safetensors import safe_open

from modules.adapter.AdapterOptions import AdapterOptions
from modules.adapter.formats import save_adapter
from modules.adapter.PeftAdapter import attach
from modules.reward.clip import ClipFeatures
from modules.trainer.callbacks import Callback
from modules.util.config.SecretsConfig import SecretsConfig, secrets_path
from modules.util.errors import UserError
from modules.weights.loading import find_source
from tests.tiny import tiny_folder, tiny_setup
from tests.trainer.builders import run_here, write_config

TOKEN = "hf_TestToken_4711"


@pytest.fixture(autouse=True)
def folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setenv("TASTEMAKER_SETTINGS", str(tmp_path / "settings"))
    monkeypatch.delenv("HF_TOKEN", raising=False)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    ("stored", "environment", "wanted"),
    [
        ("", None, None),
        (TOKEN, None, TOKEN),
        (TOKEN, "", TOKEN),
        (TOKEN, "hf_of_the_environment", "hf_of_the_environment"),
        ("", "hf_of_the_environment", "hf_of_the_environment"),
    ],
)
def test_the_download_gets_the_token(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, stored: str, environment: str | None, wanted: str | None
) -> None:
    if stored:
        SecretsConfig(huggingface_token=stored).save()
        assert secrets_path() == tmp_path / "settings" / "secrets.json" and secrets_path().is_file()
    if environment is not None:
        monkeypatch.setenv("HF_TOKEN", environment)
    asked: list[str | None] = []

    def download(name: str, allow_patterns: list[str], token: str | None) -> str:
        asked.append(token)
        return str(tmp_path)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
    assert find_source("owner/model", tiny_setup().spec) == tmp_path
    assert asked == [wanted] and SecretsConfig.hub_token() == wanted


@pytest.mark.parametrize(
    "content", [f'{{"huggingface_token": ["{TOKEN}"]}}', f'{{"huggingface_token": "{TOKEN}']
)
def test_a_damaged_file_is_told_without_the_token(content: str) -> None:
    secrets_path().parent.mkdir()
    secrets_path().write_text(content)
    with pytest.raises(UserError) as caught:
        SecretsConfig.hub_token()
    assert "secrets" in str(caught.value) or "huggingface_token" in str(caught.value)
    assert TOKEN not in str(caught.value)


def test_a_model_of_the_hub_keeps_its_name(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Not that of the folder it lies in, which is a number."""
    snapshot = tmp_path / "snapshots" / ("4f" * 20)
    snapshot.parent.mkdir()
    snapshot.symlink_to(tiny_folder())
    monkeypatch.setattr(
        huggingface_hub, "snapshot_download", lambda name, allow_patterns, token: str(snapshot)
    )
    setup = tiny_setup()
    model = setup.load("someone/a-model-1.5")
    assert (model.source, model.source_name, model.short_name) == (
        str(snapshot), "someone/a-model-1.5", "a-model-1.5"
    )  # fmt: skip
    path = save_adapter(attach(model, AdapterOptions(rank=2)), tmp_path / "a.safetensors")
    with safe_open(str(path), framework="pt") as file:
        assert file.metadata()["tastemaker.base_model"] == "someone/a-model-1.5"
        assert file.metadata()["tastemaker.base_model_commit"] == "4f" * 20
    local = setup.load(str(tiny_folder()))
    assert local.hub_commits is None
    assert local.source_name == local.short_name == tiny_folder().name
    file = replace(local, source="models/my.model.safetensors")
    assert (file.source_name, file.short_name) == ("my.model.safetensors", "my.model")


def test_a_run_tells_the_commit_of_its_model(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    snapshot = tmp_path / "snapshots" / ("4f" * 20)
    snapshot.parent.mkdir()
    snapshot.symlink_to(tiny_folder())

    def fetch(name: str, allow_patterns: object = None, token: object = None, **options: object) -> str:
        return str(snapshot)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", fetch)
    told: list[object] = []

    class Hearing(Callback):
        def started(self, facts: Mapping[str, Any]) -> None:
            told.append(facts["base_model_commit"])

    for number, name in enumerate(("someone/a-model-1.5", str(tiny_folder()))):
        config = write_config(tmp_path / str(number), base_model_name=name, max_steps=1)
        run_here(config, callback=Hearing())
    assert told == ["4f" * 20, None]


def test_a_revision_in_the_name_is_what_is_downloaded(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    asked: list[tuple[str, object]] = []

    def fetch(name: str, **options: object) -> str:
        asked.append((name, options.get("revision")))
        return str(tiny_folder())

    monkeypatch.setattr(huggingface_hub, "snapshot_download", fetch)
    monkeypatch.chdir(tmp_path)
    model = tiny_setup().load("someone/a-model-1.5@refs/pr/3")
    assert set(asked) == {("someone/a-model-1.5", "refs/pr/3")}
    assert (model.source_name, model.short_name) == ("someone/a-model-1.5", "a-model-1.5")
    asked.clear()
    run_here(write_config(tmp_path, base_model_name=f"someone/a-model-1.5@{'4f' * 20}", max_steps=1))
    assert set(asked) == {("someone/a-model-1.5", "4f" * 20)}
    asked.clear()
    tiny_setup().load("someone/a-model-1.5")
    assert set(asked) == {("someone/a-model-1.5", None)}


@pytest.mark.parametrize(
    "name", ["owner/model@../x", "owner/model@", "owner/model@/x", "../model@x", "owner/model@a b"]
)
def test_what_is_no_revision_is_not_asked_for(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, name: str
) -> None:
    monkeypatch.setattr(huggingface_hub, "snapshot_download", None)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match="does not exist") as caught:
        find_source(name, tiny_setup().spec)
    assert caught.value.hint


def test_a_reward_is_fetched_at_the_revision_in_its_name(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    import transformers

    asked: list[tuple[str, object]] = []

    def fetch(source: str, **options: object) -> object:
        asked.append((source, options.get("revision")))
        raise OSError("no network")

    monkeypatch.setattr(transformers.CLIPModel, "from_pretrained", fetch)
    monkeypatch.chdir(tmp_path)
    for source in ("someone/clip@v2", "someone/clip"):
        with pytest.raises(UserError, match=source):
            ClipFeatures(source).load("cpu")
    assert asked == [("someone/clip", "v2"), ("someone/clip", None)]
