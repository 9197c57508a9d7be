"""Every layout for every family: what is written is read again, and means the same to diffusers."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from modules.adapter.AdapterOptions import AdapterOptions
from modules.adapter.formats import (
    COMFY,
    DIFFUSERS,
    KOHYA,
    LAYOUTS,
    LEGACY,
    fitting_layout,
    read_adapter,
    save_adapter,
)
from modules.adapter.PeftAdapter import AdapterHandle, attach
from modules.model.Model import Model
from modules.util.errors import ConfigError, DataError, UnsupportedError
from tests.adapter.families import named_family, naming_families, stir, trained_family
from tests.tiny import SIZE, pipeline_options, pipeline_parts, tiny_folder, tiny_model, tiny_setup
from tests.tiny.batches import images
from tests.usual import usual

FLUX, SD3 = "FLUX_DEV_1", "STABLE_DIFFUSION_3"


def reread(key: str, path: Path) -> AdapterHandle:
    model = tiny_model(key)
    return attach(model, AdapterOptions(), read_adapter(path, model))


def image(model: Model, cfg: float = 3.0) -> torch.Tensor:
    setup = tiny_setup(model.spec.key)
    return images(setup, model, ["a red cat"], "blue", seeds=[2], steps=2, cfg=cfg, size=SIZE)


def assert_same(first: AdapterHandle, second: AdapterHandle) -> None:
    """The same layers, ranks and weights; a folded alpha moves a factor between alpha and weights."""
    assert set(first.layers) == set(second.layers)
    for name in first.layers:
        assert first.rank(name) == second.rank(name), name
    one, other = first.state_dict(), second.state_dict()
    for name, tensor in one.items():
        path = name.split(".lora_")[0]
        factors = [h.scaling(path) if ".lora_B" in name else 1.0 for h in (first, second)]
        assert torch.allclose(factors[0] * tensor, factors[1] * other[name], atol=1e-6), name


@lru_cache(maxsize=1)
def base_image(key: str) -> torch.Tensor:
    return image(tiny_model(key))


# large models; reading takes the names that writing makes, which other tests hold
RARELY = ("FLUX_2_DEV", "HI_DREAM_FULL", "IDEOGRAM_4", "KREA_2", "STABLE_DIFFUSION_20")
# the other layouts of most families have the same names with other prefixes, or the names of the modules themselves
QUICK = [
    (key, layout)
    for key in naming_families()
    for layout in LAYOUTS
    if (layout == KOHYA and key not in RARELY)
    or key in (FLUX, "STABLE_DIFFUSION_15")
    or (layout == DIFFUSERS and key in (SD3, "STABLE_DIFFUSION_XL_10_BASE", "QWEN", "SANA"))
]
ROUND_TRIPS = [
    pytest.param(key, layout, marks=() if (key, layout) in QUICK else pytest.mark.slow)
    for key in naming_families()
    for layout in LAYOUTS
]


@pytest.mark.parametrize(("key", "layout"), ROUND_TRIPS)
def test_what_is_written_is_read_again(key: str, layout: str, tmp_path: Path) -> None:
    handle = named_family(key)
    path = save_adapter(handle, tmp_path / "a.safetensors", layout)
    assert_same(handle, reread(key, path))


@pytest.mark.parametrize("key", usual(naming_families(), "Z_IMAGE"))
def test_names_of_diffusers_after_the_prefix_of_comfyui_are_read(key: str, tmp_path: Path) -> None:
    """ai-toolkit saves so, and the training adapter of Z-Image-Turbo is published so."""
    spec = tiny_setup(key).spec
    handle = trained_family(key, parts=(spec.denoiser,))
    own = load_file(save_adapter(handle, tmp_path / "a.safetensors", DIFFUSERS))
    for prefix in ("diffusion_model.", "model.diffusion_model.", "base_model.model.diffusion_model."):
        path = tmp_path / "b.safetensors"
        save_file({prefix + name.removeprefix(f"{spec.denoiser}."): each for name, each in own.items()}, path)
        assert_same(handle, reread(key, path))
    assert spec.key != "Z_IMAGE" or f"{prefix}layers.0.attention.to_k.lora_A.weight" in load_file(path)


# the reader of kohya files splits one-stream blocks by the size of the published model, and drops the other layers
NO_SPLIT = (r"^transformer_blocks", r"^single_transformer_blocks\.\d+\.(proj_out|norm)")
CASES = [
    (FLUX, DIFFUSERS, ("transformer_blocks", "norm_out", "proj_out", "x_embedder")),
    (FLUX, KOHYA, NO_SPLIT),
    (FLUX, LEGACY, (r"^transformer_blocks\.\d+\.attn",)),
    ("FLUX_2", DIFFUSERS, ()),
    ("FLUX_2_DEV", DIFFUSERS, ()),
    # its reader knows no modulations
    ("FLUX_2", KOHYA, (r"transformer_blocks", r"^proj_out", r"embedder$")),
    ("CHROMA_1", DIFFUSERS, ()),
    ("CHROMA_1", KOHYA, NO_SPLIT),
    (SD3, DIFFUSERS, ()),
    ("SANA", DIFFUSERS, ()),
    ("QWEN", DIFFUSERS, ()),
    ("QWEN", KOHYA, ()),
    ("QWEN", COMFY, ()),
    ("KREA_2", DIFFUSERS, ()),
    ("LUMINA_2", DIFFUSERS, ()),
    ("ERNIE", DIFFUSERS, ()),
    ("HI_DREAM_FULL", DIFFUSERS, ()),
    ("IDEOGRAM_4", DIFFUSERS, ()),
    # its reader knows the layers of the blocks
    ("IDEOGRAM_4", COMFY, (r"^layers",)),
    ("Z_IMAGE", DIFFUSERS, ()),
    ("Z_IMAGE", KOHYA, (r"^layers",)),
    ("Z_IMAGE", COMFY, (r"^layers\.\d+\.feed_forward",)),
]


# the names of diffusers' own modules are the same code for all families
@pytest.mark.parametrize(
    ("key", "layout", "patterns"),
    usual(CASES, *(case for case in CASES if case[0] == FLUX or case[1] != DIFFUSERS)),
)
def test_diffusers_makes_the_same_image(
    key: str, layout: str, patterns: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import diffusers

    spec = tiny_setup(key).spec
    handle = trained_family(key, patterns=patterns, regex=True, parts=(spec.denoiser,))
    path = save_adapter(handle, tmp_path / "a.safetensors", layout)
    pipeline_parts(key, tiny_folder(key), monkeypatch)
    pipeline = getattr(diffusers, spec.pipeline_class).from_pretrained(str(tiny_folder(key)))
    pipeline.set_progress_bar_config(disable=True)
    options: dict[str, Any] = {
        "prompt": "a red cat",
        "negative_prompt": "blue",
        "num_inference_steps": 2,
        "guidance_scale": 3.0,
        "height": SIZE[0],
        "width": SIZE[1],
        "generator": torch.Generator().manual_seed(2),
        "output_type": "pt",
    }
    options |= pipeline_options(key, 3.0)
    # of the prompt alone
    options.pop("image", None)
    if "guidance_schedule" in options:
        # one for each step
        options["guidance_schedule"] = [3.0] * options["num_inference_steps"]
    options = {
        # prompts that come encoded are a batch of two
        name: value[:1] if isinstance(value, torch.Tensor) else value
        for name, value in options.items()
        if value is not None
    }
    pipeline.load_lora_weights(str(path))
    theirs = pipeline(**options).images
    ours = image(handle.model)
    assert torch.allclose(theirs, ours, atol=1e-4)
    assert not torch.allclose(base_image(key), ours, atol=1e-3)


@pytest.mark.parametrize(
    "options", [{"decompose": True}, {"kind": "LOHA"}, {"kind": "LOKR"}, {"kind": "OFT_2"}]
)
def test_other_kinds_on_a_transformer(options: dict[str, Any], tmp_path: Path) -> None:
    handle = trained_family(FLUX, parts=("transformer",), **options)
    fits = fitting_layout(handle)
    assert fits == (KOHYA if "decompose" in options else LEGACY)
    again = reread(FLUX, save_adapter(handle, tmp_path / "a.safetensors", fits))
    assert torch.allclose(image(again.model), image(handle.model), atol=1e-5)
    if fits == LEGACY:
        for layout in (KOHYA, COMFY, DIFFUSERS):
            with pytest.raises(UnsupportedError):
                save_adapter(handle, tmp_path / "b.safetensors", layout)
        assert not (tmp_path / "b.safetensors").exists()


@pytest.mark.parametrize("kind", ["LOHA", "LOKR", "OFT_2"])
def test_other_kinds_in_kohya_files_where_no_layer_is_fused(kind: str, tmp_path: Path) -> None:
    handle = trained_family(FLUX, parts=("transformer",), kind=kind, patterns=("ff.net", "to_out"))
    assert fitting_layout(handle) == KOHYA
    path = save_adapter(handle, tmp_path / "a.safetensors", KOHYA)
    assert any(key.startswith("lora_unet_double_blocks_0_img_mlp_0.") for key in load_file(path))
    assert torch.allclose(image(reread(FLUX, path).model), image(handle.model), atol=1e-5)


def test_magnitudes_of_half_a_fused_layer_are_refused(tmp_path: Path) -> None:
    handle = trained_family(FLUX, parts=("transformer",), decompose=True, patterns=("attn.to_q",))
    with pytest.raises(UnsupportedError, match="no magnitude"):
        save_adapter(handle, tmp_path / "a.safetensors", COMFY)
    assert fitting_layout(handle) == LEGACY


def test_half_a_fused_layer(tmp_path: Path) -> None:
    handle = trained_family(FLUX, parts=("transformer",), patterns=("attn.to_q", "attn.to_v"))
    path = save_adapter(handle, tmp_path / "a.safetensors", COMFY)
    assert_same(handle, reread(FLUX, path))


def test_a_layer_given_twice_is_an_error(tmp_path: Path) -> None:
    handle = trained_family(FLUX, parts=("transformer",), patterns=("attn.to_q",))
    one = load_file(save_adapter(handle, tmp_path / "a.safetensors", COMFY))
    two = load_file(save_adapter(handle, tmp_path / "b.safetensors", LEGACY))
    save_file(one | two, tmp_path / "c.safetensors")
    with pytest.raises(DataError, match="twice"):
        read_adapter(tmp_path / "c.safetensors", tiny_model(FLUX))


@pytest.mark.parametrize("layout", [KOHYA, DIFFUSERS])
def test_ranks_and_alphas_by_pattern(layout: str, tmp_path: Path) -> None:
    options = AdapterOptions(
        rank=2,
        alpha=2.0,
        rank_stabilized=True,
        parts=("transformer", "text_encoder"),
        rank_pattern={"text_encoder": 1, "attn.to_q": 5, "attn": 3},
        alpha_pattern={"proj_out": 8.0},
    )
    handle = attach(tiny_model(FLUX), options)
    stir(handle)
    ranks = {name: handle.rank(name) for name in handle.layers}
    assert ranks["transformer.transformer_blocks.0.attn.to_q"] == 5
    assert ranks["transformer.transformer_blocks.0.attn.to_k"] == 3
    assert ranks["transformer.proj_out"] == 2
    assert {rank for name, rank in ranks.items() if name.startswith("text_encoder.")} == {1}
    assert handle.scaling("transformer.proj_out") == pytest.approx(8.0 / 2**0.5)
    assert handle.scaling("transformer.transformer_blocks.0.attn.to_k") == pytest.approx(2.0 / 3**0.5)
    path = save_adapter(handle, tmp_path / "a.safetensors", layout)
    again = reread(FLUX, path)
    assert {name: again.rank(name) for name in again.layers} == ranks
    assert torch.allclose(image(again.model), image(handle.model), atol=1e-5)
    if layout == DIFFUSERS:
        from diffusers import FluxPipeline

        pipeline = FluxPipeline.from_pretrained(str(tiny_folder(FLUX)))
        pipeline.load_lora_weights(str(path))
        assert pipeline.transformer.transformer_blocks[0].attn.to_q.r["default_0"] == 5
        assert pipeline.transformer.proj_out.r["default_0"] == 2


@pytest.mark.parametrize("name", ["rank_pattern", "alpha_pattern"])
def test_a_pattern_without_a_layer_is_an_error(name: str) -> None:
    options: dict[str, Any] = {"parts": ("transformer",), name: {"attn": 2, "down_blocks": 4}}
    with pytest.raises(ConfigError, match="down_blocks") as caught:
        attach(tiny_model(FLUX), AdapterOptions(**options))
    assert caught.value.field == f"lora_{name}"


def test_oft_has_no_patterns() -> None:
    with pytest.raises(ConfigError, match="one block size"):
        AdapterOptions(kind="OFT_2", rank_pattern={"attn": 2})


@pytest.mark.parametrize(
    ("key", "alike"),
    [
        ("QWEN_EDIT", "QWEN"),
        pytest.param("QWEN_EDIT_PLUS", "QWEN", marks=pytest.mark.slow),
        pytest.param("LONGCAT_IMAGE_EDIT", "LONGCAT_IMAGE", marks=pytest.mark.slow),
    ],
)
def test_models_that_edit_have_the_layers_of_those_that_do_not(key: str, alike: str, tmp_path: Path) -> None:
    pair = [
        trained_family(each, parts=(tiny_setup(each).spec.denoiser, "text_encoder")) for each in (key, alike)
    ]
    for layout in LAYOUTS:
        names = []
        for handle in pair:
            path = save_adapter(handle, tmp_path / f"{len(names)}.safetensors", layout)
            names.append({name: tensor.shape for name, tensor in load_file(path).items()})
        assert names[0] == names[1] and len(names[0]) > 30, layout


COMFY_ENCODERS = {
    "QWEN": "qwen25_7b",
    "Z_IMAGE": "qwen3_4b",
    "FLUX_2": "qwen3_4b",
    "FLUX_2_DEV": "mistral3_24b",
    "KREA_2": "qwen3vl_4b",
    "SANA": "gemma2_2b",
    "LUMINA_2": "gemma2_2b",
    "ERNIE": "ministral3_3b",
    "LONGCAT_IMAGE": "qwen25_7b",
    "QWEN_21": "qwen3vl_8b",
    "ANIMA": "qwen3_06b",
    "IDEOGRAM_4": "qwen3vl_8b",
    "PIXART_ALPHA": "t5xxl",
}


# one for each class of encoders; the names of all are in the lists of ``test_golden``
@pytest.mark.parametrize(
    "key", usual(COMFY_ENCODERS, "QWEN", "Z_IMAGE", "KREA_2", "SANA", "PIXART_ALPHA")
)
def test_layers_of_text_encoders_as_comfyui_has_them(key: str, tmp_path: Path) -> None:
    handle = trained_family(key, parts=("text_encoder",))
    path = save_adapter(handle, tmp_path / "a.safetensors", COMFY)
    inside = "encoder.block" if key.startswith("PIXART") else "model.layers"
    head = f"text_encoders.{COMFY_ENCODERS[key]}.transformer.{inside}."
    assert all(name.startswith(head) for name in load_file(path))
    assert_same(handle, reread(key, path))


def test_the_larger_klein_has_another_encoder(tmp_path: Path) -> None:
    # the first of dozens of layers
    handle = trained_family("FLUX_2", parts=("text_encoder",), patterns=("layers.0.",))
    path = save_adapter(handle, tmp_path / "a.safetensors", COMFY)
    handle.model.module("text_encoder").config.hidden_size = 4096  # type: ignore[union-attr]
    larger = save_adapter(handle, tmp_path / "b.safetensors", COMFY)
    small, large = (load_file(each) for each in (path, larger))
    assert large.keys() == {name.replace("qwen3_4b", "qwen3_8b") for name in small}
