"""Models written as one file: the denoisers of families that are published in parts, under their published names."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from modules.adapter.formats import KOHYA, save_adapter
from modules.modelSetup import training
from modules.util.errors import ConfigError, UnsupportedError
from modules.util.tensors.lazy_tensors import LazyTensor
from modules.weights import one_file
from modules.weights.part_files import denoiser_pieces, outline, shipped
from modules.weights.single_file import V_MARK
from modules.weights.single_file import file_tensors as latent_diffusion
from scripts.convert_model import main
from tests.adapter.families import trained_family
from tests.modelSetup.originals import LAYOUTS, State, to_original
from tests.tiny import factories, tiny_folder, tiny_model, tiny_setup
from tests.usual import usual
from tests.weights.test_part_sources import assert_same, part_state, unlike

ALONE = sorted(key for key in factories() if not tiny_setup(key).spec.writes_single_file)
FLUX = "FLUX_DEV_1"


def expected(key: str) -> State:
    """What is to be in the file, by tables of its own where there are any."""
    spec = tiny_setup(key).spec
    state = part_state(key, spec.denoiser)
    if key in LAYOUTS:
        inside = {
            f"{part.inside}{name}": tensor
            for part in spec.parts
            if part.inside
            for name, tensor in part_state(key, part.name).items()
        }
        return to_original(state, LAYOUTS[key]) | inside
    made = latent_diffusion(spec.part(spec.denoiser), tiny_model(key).denoiser, state)
    return {name.removeprefix(spec.part(spec.denoiser).file_prefix): tensor for name, tensor in made.items()}


def convert(*argv: object) -> int:
    return main([str(word) for word in argv])


@pytest.mark.parametrize("key", usual(ALONE, *unlike(ALONE)))
def test_the_published_names_and_back(key: str, tmp_path: Path) -> None:
    setup, folder = tiny_setup(key), tiny_folder(key)
    path = tmp_path / "alone.safetensors"
    assert convert("checkpoint", folder, path, "--to", "SAFETENSORS", "--family", key) == 0
    made, wanted = load_file(path), expected(key)
    assert made.keys() - {V_MARK} == wanted.keys()
    assert all(torch.equal(made[name], tensor) for name, tensor in wanted.items())
    with safe_open(str(path), framework="pt") as file:
        metadata = file.metadata()
    assert metadata["modelspec.architecture"] == setup.spec.model_architecture
    assert metadata["modelspec.title"] == "alone"
    alone = {setup.spec.denoiser}
    model = setup.load(str(folder), parts=alone)
    again = setup.load(str(folder), parts=alone, part_sources={setup.spec.denoiser: str(path)})
    assert_same(model, again)
    assert again.schedule.prediction == model.schedule.prediction


@pytest.mark.parametrize("key", [FLUX, "SANA", "STABLE_DIFFUSION_3"])
def test_saved_by_the_trainer(key: str, tmp_path: Path) -> None:
    model, path = tiny_model(key), tmp_path / "trained.safetensors"
    with torch.no_grad():
        for parameter in model.denoiser.parameters():
            parameter += 0.5
    assert training.save(model, path, "SAFETENSORS", torch.bfloat16, {"seed": 7}) == path
    made = load_file(path)
    wanted = to_original({k: t.bfloat16() for k, t in model.denoiser.state_dict().items()}, LAYOUTS[key])
    assert made.keys() == wanted.keys() and all(torch.equal(made[name], t) for name, t in wanted.items())
    with safe_open(str(path), framework="pt") as file:
        assert file.metadata()["tastemaker.seed"] == "7"


@pytest.mark.parametrize("key", usual([FLUX, "Z_IMAGE"], FLUX))
def test_an_adapter_merged_into_a_file(key: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Of the denoiser alone, without a folder with the rest of the model; the same as merging into the folder."""
    adapter = save_adapter(trained_family(key), tmp_path / "a.safetensors", KOHYA)
    alone, folder = tmp_path / "alone.safetensors", tiny_folder(key)
    to_file = ("--to", "SAFETENSORS", "--family", key)
    assert convert("merge", folder, adapter, alone, *to_file) == 0
    said = capsys.readouterr().err
    assert ("omitted: the adapter's layers of text_encoder" in said) == (
        "text_encoder" in {place.partition(".")[0] for place in trained_family(key).layers}
    )
    assert convert("merge", folder, adapter, tmp_path / "whole", "--to", "DIFFUSERS", "--family", key) == 0
    setup = tiny_setup(key)
    merged = setup.load(str(tmp_path / "whole"), parts={setup.spec.denoiser})
    assert_same(
        merged, setup.load(str(folder), parts={setup.spec.denoiser}, part_sources={"transformer": str(alone)})
    )
    base = tmp_path / "base.safetensors"
    assert convert("checkpoint", folder, base, *to_file) == 0
    config = tmp_path / "base.safetensors.config" / "transformer" / "config.json"
    config.parent.mkdir(parents=True)
    config.write_bytes((folder / "transformer" / "config.json").read_bytes())
    only = {k: t for k, t in load_file(adapter).items() if not k.startswith("lora_te")}
    save_file(only, tmp_path / "only.safetensors")
    again = tmp_path / "again.safetensors"
    assert convert("merge", base, tmp_path / "only.safetensors", again, *to_file) == 0
    first, second = load_file(alone), load_file(again)
    assert first.keys() == second.keys() and all(torch.equal(first[name], second[name]) for name in first)


def test_trained_parts_a_file_has_not() -> None:
    spec = tiny_setup(FLUX).spec
    one_file.check_trained(spec, ["transformer"])
    with pytest.raises(ConfigError, match=r"holds only the transformer, but text_encoder_2 is trained too"):
        one_file.check_trained(spec, ["transformer", "text_encoder_2"])
    one_file.check_trained(tiny_setup().spec, ["unet", "text_encoder"])


def test_what_cannot_be_joined_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """One of three pieces is missing, or of another width."""
    model = tiny_model(FLUX)
    entries = one_file.lazy_base_tensors(model.denoiser)
    name = "transformer_blocks.0.attn.to_k.weight"
    narrow = entries[name].read()[:, :-1]
    for changed in (
        {key: entry for key, entry in entries.items() if key != name},
        entries | {name: LazyTensor(tuple(narrow.shape), narrow.dtype, narrow.clone)},
    ):
        monkeypatch.setattr(one_file, "lazy_base_tensors", lambda _, state=changed: state)
        with pytest.raises(UnsupportedError, match="no single-file layout"):
            one_file.save_file(model, tmp_path / "a.safetensors")
    assert not (tmp_path / "a.safetensors").exists()


def test_pieces_of_unlike_types_become_the_wider(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    model = tiny_model(FLUX)
    entries = {
        key: entry.to(torch.bfloat16) for key, entry in one_file.lazy_base_tensors(model.denoiser).items()
    }
    name = "transformer_blocks.0.attn.to_k.weight"
    exact = one_file.lazy_base_tensors(model.denoiser)[name]
    monkeypatch.setattr(one_file, "lazy_base_tensors", lambda _: entries | {name: exact})
    made = load_file(one_file.save_file(model, tmp_path / "a.safetensors"))
    joined = made["double_blocks.0.img_attn.qkv.weight"]
    rows = exact.shape[0]
    assert joined.dtype == torch.float32 and torch.equal(joined[rows : 2 * rows], exact.read())
    assert made["double_blocks.0.txt_attn.qkv.weight"].dtype == torch.bfloat16


def test_parts_from_elsewhere(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A denoiser's file next to a folder that has another denoiser, or none of its weights."""
    setup, folder = tiny_setup(FLUX), tiny_folder(FLUX)
    tuned = tiny_model(FLUX)
    with torch.no_grad():
        tuned.denoiser.proj_out.weight += 1.0
    part = one_file.save_file(tuned, tmp_path / "tuned.safetensors")
    adapter = save_adapter(trained_family(FLUX), tmp_path / "a.safetensors", KOHYA)
    words = ("--to", "DIFFUSERS", "--family", FLUX, "--part")
    assert convert("checkpoint", folder, tmp_path / "m", *words, f"transformer.model_name={part}") == 0
    assert_same(tuned, setup.load(str(tmp_path / "m")))
    assert convert("merge", tmp_path / "m", adapter, tmp_path / "first", *words[:-1]) == 0
    assert convert("merge", folder, adapter, tmp_path / "second", *words, f"transformer={part}") == 0
    assert_same(setup.load(str(tmp_path / "first")), setup.load(str(tmp_path / "second")))
    made = tmp_path / "made.safetensors"
    to_file = ("--to", "SAFETENSORS", "--family", FLUX, "--part", f"transformer={part}")
    assert convert("merge", folder, adapter, made, *to_file) == 0
    again = setup.load(str(folder), parts={"transformer"}, part_sources={"transformer": str(made)})
    assert_same(again, setup.load(str(tmp_path / "first"), parts={"transformer"}))
    capsys.readouterr()
    assert convert("merge", folder, adapter, part, *to_file, "--force") == 2
    assert "is the input itself" in capsys.readouterr().err
    assert convert("merge", folder, adapter, tmp_path / "x", *words, "unet=a") == 2
    assert "there is no part 'unet'" in capsys.readouterr().err and part.is_file()


@pytest.mark.parametrize(
    ("key", "count"),
    [
        ("FLUX_DEV_1", 780),
        ("FLUX_SCHNELL_1", 776),
        ("CHROMA_1", 643),
        ("QWEN", 1933),
        ("Z_IMAGE", 453),
        ("KREA_2", 430),
        ("LUMINA_2", 399),
        ("ERNIE", 409),
        ("HI_DREAM_FULL", 1615),
        ("IDEOGRAM_4", 458),
    ],
)
def test_as_many_tensors_as_the_published_files_have(key: str, count: int) -> None:
    spec = tiny_setup(key).spec
    part = spec.part(spec.denoiser)
    module = outline(part, json.loads(shipped(key, part.name)[0].read_text(encoding="utf-8")))
    names = {piece.names[0] for piece in denoiser_pieces(spec, module, module.state_dict()).values()}
    assert len(names) == count
