"""A text encoder of another size, and a denoiser given for another part, are named in one sentence."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from modules.model.dtypes import PartDtypes
from modules.util.errors import UserError
from modules.weights.loading import part_class
from modules.weights.part_files import outline
from scripts.train import main
from tests.modelSetup.test_real_files import sparse
from tests.tiny import tiny_folder, tiny_setup
from tests.trainer.builders import write_config

QWEN3 = {"model_type": "qwen3", "head_dim": 128, "vocab_size": 151936, "num_key_value_heads": 8}
SIZES: dict[str, dict[str, Any]] = {
    "Qwen3-8B": QWEN3 | {"hidden_size": 4096, "num_hidden_layers": 36, "intermediate_size": 12288},
    "Qwen3-0.6B": QWEN3 | {"hidden_size": 1024, "num_hidden_layers": 28, "intermediate_size": 3072},
}


def encoder(key: str, part: str, **changes: Any) -> Any:
    """A text encoder of a family with other sizes than the published one, without values."""
    spec = tiny_setup(key).spec.part(part)
    config = json.loads((tiny_folder(key) / spec.place / "config.json").read_text("utf-8"))
    # one entry for each layer
    config.pop("layer_types", None)
    return outline(spec, {**config, **changes})


def file_of(module: Any, path: Path) -> Path:
    return sparse(path, {name: ("BF16", tuple(tensor.shape)) for name, tensor in module.state_dict().items()})


def without(key: str, part: str, folder: Path) -> Path:
    """The tiny model without a part, so that the published one is what is needed."""
    made = Path(shutil.copytree(tiny_folder(key), folder))
    shutil.rmtree(made / tiny_setup(key).spec.part(part).place)
    return made


def refused(key: str, folder: Path, part: str, given: Path) -> UserError:
    for lazy in (True, False):
        with pytest.raises(UserError) as caught:
            tiny_setup(key).load(str(folder), PartDtypes(lazy=lazy), [part], part_sources={part: str(given)})
    assert caught.value.field == f"{part}.model_name"
    assert "\n" not in caught.value.message
    return caught.value


CLIP_G = {"hidden_size": 1280, "num_hidden_layers": 32, "intermediate_size": 5120, "num_attention_heads": 20}
T5_BASE = {"d_model": 768, "num_layers": 12, "d_ff": 2048, "d_kv": 64, "num_heads": 12}


@pytest.mark.parametrize(
    ("key", "part", "sizes", "given", "needed"),
    [
        ("Z_IMAGE", "text_encoder", SIZES["Qwen3-8B"], "Qwen3-8B", "Qwen3-4B"),
        ("Z_IMAGE", "text_encoder", SIZES["Qwen3-0.6B"], "Qwen3-0.6B", "Qwen3-4B"),
        ("FLUX_DEV_1", "text_encoder", CLIP_G, "CLIP-G", "CLIP-L"),
        ("STABLE_DIFFUSION_15", "text_encoder", CLIP_G, "CLIP-G", "CLIP-L"),
        ("FLUX_DEV_1", "text_encoder_2", T5_BASE, "T5-base", "T5-XXL"),
    ],
)
def test_a_file_with_a_text_encoder_of_another_size_is_named(
    key: str, part: str, sizes: dict[str, Any], given: str, needed: str, tmp_path: Path
) -> None:
    path = file_of(encoder(key, part, **sizes), tmp_path / "a.safetensors")
    error = refused(key, without(key, part, tmp_path / "model"), part, path)
    label = tiny_setup(key).spec.label
    width = sizes.get("hidden_size") or sizes["d_model"]
    layers = sizes.get("num_hidden_layers") or sizes["num_layers"]
    assert f"{path} is the text encoder {given} ({layers} layers, width {width}), but {label} needs {needed} (" in str(
        error.message
    )
    assert error.message.endswith(f"as its {part}") and f"name a {needed}" in str(error.hint)


def test_another_language_model_is_named(tmp_path: Path) -> None:
    llama = encoder("HI_DREAM_FULL", "text_encoder_4", hidden_size=4096, num_hidden_layers=32)
    path = file_of(llama, tmp_path / "a.safetensors")
    error = refused("Z_IMAGE", without("Z_IMAGE", "text_encoder", tmp_path / "model"), "text_encoder", path)
    assert "is the text encoder Llama or Mistral (32 layers, width 4096), but Z-Image needs Qwen3-4B" in error.message


@pytest.mark.parametrize("whole", [False, True], ids=["of a part", "of a model"])
def test_a_folder_with_a_text_encoder_of_another_width_is_named_before_the_run(
    whole: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    key, part = "STABLE_DIFFUSION_15", "text_encoder"
    spec = tiny_setup(key).spec.part(part)
    config = json.loads((tiny_folder() / part / "config.json").read_text("utf-8")) | {"hidden_size": 64}
    kind = part_class(spec)
    torch.manual_seed(0)
    given = Path(shutil.copytree(tiny_folder(), tmp_path / "other"))
    kind(kind.config_class.from_dict(config)).save_pretrained(given / part)
    source = given if whole else given / part
    made = write_config(
        tmp_path, base_model_name=str(tiny_folder()), text_encoder={"model_name": str(source)}, max_steps=1
    )
    assert main(["--config-path", str(made)]) == 2
    said = capsys.readouterr().err
    assert f"{source} is the text encoder CLIP (2 layers, width 64), but {tiny_folder()} needs CLIP (2 layers," in said
    # the denoiser of another place may have been trained with it
    other = {"unet": str(tiny_folder() / "unet"), part: str(source)}
    model = tiny_setup(key).load(str(tiny_folder()), parts=["unet", part], part_sources=other)
    assert model.module(part).config.hidden_size == 64  # type: ignore[union-attr]


def test_a_config_next_to_the_file_says_what_it_has_to_be(tmp_path: Path) -> None:
    """The size is what the user says, so that the tensors that do not fit are listed."""
    path = file_of(encoder("Z_IMAGE", "text_encoder", hidden_size=64), tmp_path / "a.safetensors")
    place = tmp_path / "a.safetensors.config" / "text_encoder" / "config.json"
    place.parent.mkdir(parents=True)
    shutil.copyfile(tiny_folder("Z_IMAGE") / "text_encoder" / "config.json", place)
    with pytest.raises(UserError, match=r"missing or of another shape(.|\n)*embed_tokens"):
        tiny_setup("Z_IMAGE").load(
            str(tiny_folder("Z_IMAGE")), PartDtypes(lazy=True), part_sources={"text_encoder": str(path)}
        )


@pytest.mark.parametrize("target", ["vae", "text_encoder"])
@pytest.mark.parametrize(
    ("key", "label"),
    [
        ("STABLE_DIFFUSION_15", "Stable Diffusion 1.5"),
        pytest.param("FLUX_DEV_1", "FLUX.1 dev", marks=pytest.mark.slow),
        ("Z_IMAGE", "Z-Image"),
        pytest.param("FLUX_2", "FLUX.2 klein", marks=pytest.mark.slow),
    ],
)
def test_a_file_with_the_denoiser_alone_given_for_another_part_is_named(key: str, label: str, target: str) -> None:
    folder, denoiser = tiny_folder(key), tiny_setup(key).spec.denoiser
    path = next((folder / denoiser).glob("*.safetensors"))
    error = refused(key, folder, target, path)
    assert error.message == f"{path} is the denoiser of {label}, not the {target} of {label}"
    assert f"set {denoiser}.model_name to it; leave {target}.model_name empty" in str(error.hint)


def test_the_denoiser_of_another_family_given_for_a_part_is_named() -> None:
    path = next((tiny_folder("Z_IMAGE") / "transformer").glob("*.safetensors"))
    error = refused("FLUX_DEV_1", tiny_folder("FLUX_DEV_1"), "vae", path)
    assert error.message == f"{path} is the denoiser of Z-Image, not the vae of FLUX.1 dev"
    assert "transformer.model_name" not in str(error.hint) and "leave vae.model_name empty" in str(error.hint)
