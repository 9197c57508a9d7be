"""Adapters that peft itself saved: their strength is in ``adapter_config.json`` next to the file."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from huggingface_hub.errors import EntryNotFoundError, LocalEntryNotFoundError
from peft import LoHaConfig, LoKrConfig, LoraConfig, OFTConfig, PeftModel, get_peft_model
from safetensors.torch import load_file, save_file

from modules.adapter.AdapterOptions import AdapterOptions
from modules.adapter.formats import DIFFUSERS, KOHYA, LEGACY, read_adapter
from modules.adapter.PeftAdapter import attach
from modules.adapter.TrainingAdapter import TrainingAdapter
from modules.modelSetup.converting import convert_adapter, merge_adapter
from modules.util.errors import UserError
from modules.weights.hub_file import find_file
from tests.tiny import tiny_folder, tiny_model

TARGETS = ["attn1.to_q", "attn2.to_v", "proj_in"]
BLOCK = "down_blocks.0.attentions.0.transformer_blocks.0"
QUERY = f"{BLOCK}.attn1.to_q"
CONFIGS = {
    "plain": LoraConfig(r=4, lora_alpha=10, target_modules=TARGETS),
    "rank-stabilised": LoraConfig(r=4, lora_alpha=6, use_rslora=True, target_modules=TARGETS),
    "magnitudes": LoraConfig(r=4, lora_alpha=2, use_dora=True, target_modules=TARGETS[:2]),
    "patterns": LoraConfig(
        r=4,
        lora_alpha=10,
        rank_pattern={"to_v": 2, f"^{QUERY}$": 3},
        alpha_pattern={"attn2.to_v": 7, "attn1\\.to_q": 5, "to_q": 100},
        use_rslora=True,
        target_modules=TARGETS,
    ),
    "loha": LoHaConfig(r=4, alpha=10, alpha_pattern={"to_q": 3}, target_modules=TARGETS[:2]),
    "lokr": LoKrConfig(r=2, alpha=5, target_modules=TARGETS[:2]),
    "whole lokr": LoKrConfig(r=9, alpha=3, rank_pattern={"to_q": 7}, target_modules=TARGETS[:2]),
    "oft": OFTConfig(r=0, oft_block_size=4, target_modules=TARGETS[:2]),
}


def saved(folder: Path, config: Any) -> PeftModel:
    """A trained adapter in the folder that peft writes, and its model."""
    made: PeftModel = get_peft_model(tiny_model().denoiser, copy.deepcopy(config))
    source = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for parameter in made.parameters():
            if parameter.requires_grad:
                parameter.add_(0.2 * torch.randn(parameter.shape, generator=source))
    made.save_pretrained(str(folder))
    return made


def merged_weights(made: PeftModel) -> dict[str, torch.Tensor]:
    return {name: tensor for name, tensor in made.merge_and_unload().state_dict().items() if "weight" in name}


def weights_here(path: Path) -> dict[str, torch.Tensor]:
    """The denoiser with an adapter file merged into it."""
    model = tiny_model()
    handle = attach(model, AdapterOptions(), read_adapter(path, model))
    for layer in handle.layers.values():
        layer.merge()
    handle.detach()
    return dict(model.denoiser.state_dict())


def same(found: dict[str, torch.Tensor], wanted: dict[str, torch.Tensor]) -> bool:
    return all(torch.allclose(found[name], wanted[name], atol=1e-5) for name in wanted)


@pytest.mark.parametrize("name", CONFIGS)
def test_an_adapter_changes_the_weights_as_in_peft(tmp_path: Path, name: str) -> None:
    wanted = merged_weights(saved(tmp_path, CONFIGS[name]))
    assert not same(dict(tiny_model().denoiser.state_dict()), wanted)
    assert same(weights_here(tmp_path / "adapter_model.safetensors"), wanted)


@pytest.mark.parametrize("layout", [KOHYA, LEGACY, DIFFUSERS])
def test_it_keeps_its_strength_in_other_layouts(tmp_path: Path, layout: str) -> None:
    wanted = merged_weights(saved(tmp_path / "peft", CONFIGS["patterns"]))
    said: list[str] = []
    convert_adapter(
        tmp_path / "peft" / "adapter_model.safetensors",
        tmp_path / "made.safetensors",
        layout,
        "STABLE_DIFFUSION_15",
        tiny_folder(),
        report=said.append,
    )
    assert any("adapter_config.json was read: alpha 5 to 100" in line for line in said)
    assert same(weights_here(tmp_path / "made.safetensors"), wanted)


def test_it_is_merged_at_its_strength(tmp_path: Path) -> None:
    wanted = merged_weights(saved(tmp_path, CONFIGS["plain"]))
    merge_adapter(
        str(tiny_folder()),
        tmp_path / "adapter_model.safetensors",
        tmp_path / "model",
        "STABLE_DIFFUSION_15",
        "DIFFUSERS",
    )
    assert same(load_file(tmp_path / "model" / "unet" / "diffusion_pytorch_model.safetensors"), wanted)


def test_a_renamed_file_and_a_link_are_read_with_it(tmp_path: Path) -> None:
    wanted = merged_weights(saved(tmp_path / "peft", CONFIGS["plain"]))
    renamed = tmp_path / "peft" / "mine.safetensors"
    (tmp_path / "peft" / "adapter_model.safetensors").rename(renamed)
    assert same(weights_here(renamed), wanted)
    link = tmp_path / "link.safetensors"
    link.symlink_to(renamed)
    assert same(weights_here(link), wanted)


def test_without_it_alpha_is_the_rank_and_a_note_says_so(tmp_path: Path) -> None:
    saved(tmp_path, CONFIGS["plain"])
    (tmp_path / "adapter_config.json").unlink()
    file = read_adapter(tmp_path / "adapter_model.safetensors", tiny_model())
    assert {layer.alpha for layer in file.layers.values()} == {4.0}
    assert any("no adapter_config.json next to it" in note for note in file.notes)


def test_a_folder_is_told_from_a_file_that_is_missing(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="is a folder, not a file\n.*adapter_model.safetensors"):
        read_adapter(tmp_path, tiny_model())


def test_files_that_peft_did_not_write_are_read_without_it(tmp_path: Path) -> None:
    saved(tmp_path, CONFIGS["plain"])
    tensors = load_file(tmp_path / "adapter_model.safetensors")
    own = {name.replace("base_model.model", "unet"): tensor for name, tensor in tensors.items()}
    save_file(own, tmp_path / "another.safetensors")
    file = read_adapter(tmp_path / "another.safetensors", tiny_model())
    assert {layer.alpha for layer in file.layers.values()} == {4.0}
    assert not file.notes


def test_the_copy_of_another_file_in_a_project_is_read_without_a_note(tmp_path: Path) -> None:
    saved(tmp_path, CONFIGS["plain"])
    tensors = load_file(tmp_path / "adapter_model.safetensors")
    (tmp_path / "project").mkdir()
    copy_of = tmp_path / "project" / "start.safetensors"
    save_file({name.replace("base_model.model", "unet"): tensor for name, tensor in tensors.items()}, copy_of)
    assert not read_adapter(copy_of, tiny_model()).notes


REFUSED: dict[str, tuple[Any, str]] = {
    "another kind": ({"peft_type": "VERA"}, "kind VERA, which is not read"),
    "no kind": ({"peft_type": None}, "kind None, which is not read"),
    "the kind of another": ({"peft_type": "LOHA"}, "belongs to another adapter"),
    "the rank of another": ({"r": 8}, "belongs to another adapter: it gives .* the rank 8, not 4"),
    "a changed base": ({"init_lora_weights": "pissa_niter_4"}, "init_lora_weights pissa_niter_4"),
    "another formula": ({"use_qalora": True}, "use_qalora"),
    "other rotations": ({"num_cayley_neumann_terms": 2}, "num_cayley_neumann_terms 2"),
    "an expression": ({"alpha_pattern": {"(a+)+b": 2}}, r"the expression \(a\+\)\+b"),
    "a table that is a list": ({"rank_pattern": [1]}, "rank_pattern that is not a table"),
    "a word": ({"lora_alpha": "8"}, "lora_alpha the value '8'"),
    "a truth": ({"lora_alpha": True}, "lora_alpha the value True"),
    "NaN": ({"lora_alpha": float("nan")}, "lora_alpha the value nan"),
    "a number without end": ({"lora_alpha": 10**400}, "lora_alpha the value"),
    "nothing": ({"lora_alpha": None}, "lora_alpha the value None"),
    "rank zero": ({"r": 0}, "a rank below 1"),
    "a list": ([], "is not a JSON object"),
    "a text": ("{", "is not valid JSON"),
    "too deep": ("[" * 100_000, "nested too deeply|is not valid JSON"),
    "too large": (" " * (16 * 1024 * 1024 + 1), "is larger than"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_settings_that_cannot_be_right_are_refused(tmp_path: Path, case: str) -> None:
    change, words = REFUSED[case]
    saved(tmp_path, CONFIGS["plain"])
    path = tmp_path / "adapter_config.json"
    if isinstance(change, dict):
        change = json.loads(path.read_text(encoding="utf-8")) | change
    path.write_text(change if isinstance(change, str) else json.dumps(change), encoding="utf-8")
    with pytest.raises(UserError, match=words) as caught:
        read_adapter(tmp_path / "adapter_model.safetensors", tiny_model())
    assert caught.value.field == "lora_model_name"
    assert str(path) in str(caught.value)


def test_a_training_adapter_has_its_strength_and_another_digest_with_other_settings(tmp_path: Path) -> None:
    config = LoraConfig(r=4, lora_alpha=10, target_modules=TARGETS[:2])
    wanted = merged_weights(saved(tmp_path, config))
    path, model = tmp_path / "adapter_model.safetensors", tiny_model()
    read = TrainingAdapter.read(path, model, 1.0)
    read.add_to(model)
    assert same(dict(model.denoiser.state_dict()), wanted)
    settings = tmp_path / "adapter_config.json"
    settings.write_text(settings.read_text(encoding="utf-8").replace('"lora_alpha": 10', '"lora_alpha": 9'))
    assert TrainingAdapter.read(path, tiny_model(), 1.0).digest != read.digest


def test_one_on_the_hub_is_downloaded_with_its_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def download(repository: str, file: str, **_: object) -> str:
        asked.append(file)
        return f"/hub/{file}"

    monkeypatch.setattr("huggingface_hub.hf_hub_download", download)
    assert find_file("owner/name/in/adapter_model.safetensors", "x") == Path("/hub/in/adapter_model.safetensors")
    assert asked == ["in/adapter_config.json", "in/adapter_model.safetensors"]


def test_a_broken_network_does_not_pass_for_a_repository_without_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    """The adapter would be read at another strength than with them."""

    def download(repository: str, file: str, **_: object) -> str:
        if file.endswith(".json"):
            raise missing
        return f"/hub/{file}"

    monkeypatch.setattr("huggingface_hub.hf_hub_download", download)
    missing: Exception = LocalEntryNotFoundError("timed out")
    with pytest.raises(UserError, match="cannot be downloaded: timed out"):
        find_file("owner/name/adapter_model.safetensors", "x")
    missing = EntryNotFoundError("404")
    assert find_file("owner/name/adapter_model.safetensors", "x") == Path("/hub/adapter_model.safetensors")
