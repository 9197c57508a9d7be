"""One rule for all files and folders in configs: a name that no file can have is refused with its field, at once."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from modules.util.config.ConceptConfig import ConceptConfig
from modules.util.config.overrides import override
from modules.util.config.settings import iter_settings
from modules.util.config.TrainConfig import TrainConfig
from modules.util.errors import UserError
from modules.util.jsonio import parse_json, read_json
from scripts.train import main

PLACES = [
    one.path
    for one in iter_settings(TrainConfig)
    if one.widget in ("file", "folder", "save_file", "model") and one.kind == "text"
]
NAMES = ["a\0b", "x" * 5000, "y/" * 2500]


@pytest.mark.parametrize("path", PLACES)
def test_every_path_is_checked(path: str) -> None:
    for name in [*NAMES, "\ud800", "\udcff"]:
        value: object = name
        for part in reversed(path.split(".")):
            value = {part: value}
        assert isinstance(value, dict)
        with pytest.raises(UserError) as caught:
            TrainConfig.from_dict({"__version": 1, **value})
        assert path in str(caught.value)


def test_the_paths_are_all_there() -> None:
    assert {
        "concept_file_name", "rlhf_prompts_file", "workspace_dir", "cache_dir", "output_model_destination",
        "base_model_name", "lora_model_name", "sample_definition_file_name", "unet.model_name",
    } <= set(PLACES)  # fmt: skip
    for name in NAMES:
        with pytest.raises(UserError, match="path"):
            ConceptConfig.from_dict({"path": name})


@pytest.mark.parametrize(
    "prefix", ["../../X-", "/tmp-", "a/b", "a\\b", "C:x", "a\0", "a\nb", "x" * 200, "\ud800"]
)
def test_a_prefix_of_saves_never_leads_elsewhere(
    tmp_path: Path, prefix: str, capsys: pytest.CaptureFixture[str]
) -> None:
    config = tmp_path / "config.json"
    config.write_text(json.dumps({"__version": 1, "save_filename_prefix": prefix}))
    for arguments in (["--dry-run"], []):
        assert main(["--config-path", str(config), "--run-dir", str(tmp_path / "run"), *arguments]) == 2
        said = capsys.readouterr().err
        assert "Traceback" not in said and ("save_filename_prefix" in said or prefix == "\ud800")
    assert [p.name for p in tmp_path.iterdir()] == ["config.json"]


def test_ordinary_prefixes_pass() -> None:
    for prefix in ("", "lora-", "größe 2_", ".hidden"):
        assert (
            TrainConfig.from_dict({"__version": 1, "save_filename_prefix": prefix}).save_filename_prefix
            == prefix
        )


@pytest.mark.parametrize("text", [b'{"a": "\\ud800"}', b'{"\\uDFFF": 1}', b'["\\ud83d x"]'])
def test_half_a_character_in_json_is_refused(tmp_path: Path, text: bytes) -> None:
    (tmp_path / "file.json").write_bytes(text)
    with pytest.raises(UserError, match="holds an incomplete character"):
        read_json(tmp_path / "file.json")
    assert parse_json(b'"\\ud83d\\ude00"', "text") == "\U0001f600"


def test_an_override_that_cannot_be_written_down_is_refused() -> None:
    for text in ("workspace_dir=\udcff", "\udcff=1", "optimizer.optimizer=\udcff"):
        made, faults = override(TrainConfig, {}, [text])
        assert made == {} and len(faults) == 1
        str(faults[0]).encode()
