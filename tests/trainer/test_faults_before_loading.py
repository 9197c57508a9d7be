"""Settings that cannot work are found before a model is loaded, by a run and by a dry run alike."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from modules.trainer import GenericTrainer
from modules.trainer import assembly as parts
from modules.util.config.load import load_config
from modules.util.errors import ConfigError, DataError, UnsupportedError, UserError
from scripts.train import check, main
from tests.tiny import small_folder
from tests.trainer.builders import run_here, write_config, write_pairs

CASES: dict[str, tuple[type[UserError], str, dict[str, Any]]] = {
    "layers": (ConfigError, "layer_filter_preset", {"layer_filter_preset": "nonsense"}),
    "adapter": (DataError, "lora_model_name", {"lora_model_name": "nowhere.safetensors"}),
    "optimizer's setting": (
        ConfigError,
        "optimizer.momentum",
        {"optimizer": {"optimizer": "ADAMW", "momentum": 0.5}},
    ),
    "optimizer's refusal": (
        ConfigError,
        "optimizer",
        {"optimizer": {"optimizer": "SGD", "params": {"nesterov": True}}},
    ),
    "samples every step": (
        ConfigError,
        "sample_definition_file_name",
        {"sample_after_unit": "ALWAYS", "samples": None, "sample_definition_file_name": "nowhere.json"},
    ),
    "samples before training": (
        ConfigError,
        "sample_definition_file_name",
        {"sample_before_training": True, "samples": None, "sample_definition_file_name": ""},
    ),
    "part that is not in the file": (
        ConfigError,
        "output_model_format",
        {
            "training_method": "FINE_TUNE",
            "model_type": "STABLE_DIFFUSION_21",
            "text_encoder": {"train": True},
            "output_model_format": "SAFETENSORS",
            "rlhf_enabled": False,
        },
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    kind, field, changes = CASES[name]
    config = write_config(tmp_path, **changes)
    monkeypatch.setattr(GenericTrainer, "assemble", None)
    for attempt in (lambda: run_here(config), lambda: check(load_config(config), 1)):
        with pytest.raises(kind) as caught:
            attempt()
        assert caught.value.field == field


def test_muon_without_a_layer_to_update(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    muon = {"optimizer": "MUON", "params": {"muon_hidden_layers": "no such layer"}}
    config = write_config(tmp_path, optimizer=muon)
    assert main(["--config-path", str(config), "--dry-run"]) == 2
    assert "error: optimizer.params: no trained layer has 'no such layer' in its name" in capsys.readouterr().err
    with monkeypatch.context() as loads_nothing, pytest.raises(ConfigError, match="no trained layer"):
        loads_nothing.setattr(GenericTrainer, "assemble", None)
        run_here(config)
    # a model that has yet to be downloaded is not checked before
    monkeypatch.setattr(GenericTrainer, "check_model", lambda *_: None)
    monkeypatch.setattr(parts, "create_data_loader", None)
    with pytest.raises(ConfigError, match="no trained layer"):
        run_here(config)


def test_settings_that_work_pass(tmp_path: Path) -> None:
    config = load_config(write_config(tmp_path, optimizer={"optimizer": "PRODIGY"}))
    parts.check_settings(config)
    assert any("pairs to train on" in line for line in check(config, 1))


def test_a_layout_the_adapter_cannot_be_saved_in(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedError, match="LORA only, not LOHA"):
        load_config(write_config(tmp_path, peft_type="LOHA", output_model_format="DIFFUSERS_LORA"))


def test_a_layout_the_adapter_trained_further_cannot_be_saved_in(tmp_path: Path) -> None:
    first = {"peft_type": "LOHA", "epochs": 1}
    run_here(write_config(tmp_path / "first", **first))
    changes = {"lora_model_name": str(tmp_path / "first" / "out.safetensors")}
    config = write_config(tmp_path / "second", output_model_format="DIFFUSERS_LORA", **changes)
    with pytest.raises(UnsupportedError, match="LORA only, not LOHA"):
        run_here(config)
    assert not (tmp_path / "second" / "cache").exists()


def test_a_folder_where_the_model_is_to_be_saved(tmp_path: Path) -> None:
    config = load_config(write_config(tmp_path, output_model_destination=str(tmp_path)))
    with pytest.raises(DataError, match="is a folder"):
        check(config, 1)
    whole = {"training_method": "FINE_TUNE", "output_model_format": "DIFFUSERS", "rlhf_enabled": False}
    write_pairs(tmp_path / "data")
    concepts = [{"path": str(tmp_path / "data" / "chosen"), "type": "STANDARD"}]
    changes = {**whole, "concepts": concepts, "output_model_destination": str(tmp_path / "empty")}
    (tmp_path / "empty").mkdir()
    check(load_config(write_config(tmp_path, **changes)), 1)
    full = load_config(write_config(tmp_path, **{**changes, "output_model_destination": str(tmp_path)}))
    with pytest.raises(DataError, match="does not name"):
        check(full, 1)


def test_pairs_whose_reference_scores_cannot_be_kept(tmp_path: Path) -> None:
    concepts = write_pairs(tmp_path / "data")
    for side in ("chosen", "rejected"):
        (tmp_path / "data" / side / "000.txt").write_text("one\ntwo\n", encoding="utf-8")
    changes = {"concepts": concepts, "resolution": "32,40", "rlhf_dpo_reference_cache": True}
    config = load_config(write_config(tmp_path, **changes))
    with pytest.raises(DataError) as caught:
        check(config, 1)
    assert "one resolution for each pair" in str(caught.value)
    assert "1 problem" in str(caught.value), "the lines of a pair's caption are one prompt"


@pytest.mark.parametrize(
    "schedule",
    [
        {"rescale_betas_zero_snr": True, "prediction_type": "v_prediction"},
        {"beta_schedule": "squaredcos_cap_v2"},  # its last cumulative alpha is about 2e-9
    ],
)
def test_shares_of_an_offset_that_the_model_s_noise_schedule_has_not(
    tmp_path: Path, schedule: dict[str, Any]
) -> None:
    folder = shutil.copytree(small_folder(), tmp_path / "model")
    file = folder / "scheduler" / "scheduler_config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **schedule}), encoding="utf-8")
    changes = {"base_model_name": str(folder), "generalized_offset_noise": True, "offset_noise_weight": 0.1}
    with pytest.raises(ConfigError, match="ends in pure noise") as caught:
        run_here(write_config(tmp_path, **changes))
    assert (caught.value.field, caught.value.hint) == (
        "generalized_offset_noise",
        "switch it off for this model",
    )
    assert not list((tmp_path / "cache").glob("latents/*")) + list((tmp_path / "cache").glob("texts/*"))
