"""Adapter files: what is written, what is read, and that diffusers makes the same images of them."""

from __future__ import annotations

import hashlib
import json
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from modules.adapter.AdapterOptions import AdapterOptions
from modules.adapter.formats import (
    DIFFUSERS,
    KOHYA,
    adapter_tensors,
    read_adapter,
    save_adapter,
)
from modules.adapter.names import split_key
from modules.adapter.PeftAdapter import AdapterHandle, attach
from modules.model.Model import Model
from modules.util.errors import ConfigError, DataError, UnsupportedError
from modules.weights.keymaps.latent_diffusion import ldm_name
from tests.tiny import SIZE, tiny_folder, tiny_model, tiny_setup
from tests.tiny.batches import images

WILD = Path(__file__).parents[2].parent / "shared" / "data" / "lora_keys"
PARTS = ("unet", "text_encoder")


def trained(**options: object) -> AdapterHandle:
    """An adapter on a fresh model, all tensors away from zero."""
    defaults: dict[str, object] = {"rank": 4, "alpha": 2.0, "parts": PARTS}
    handle = attach(tiny_model(), AdapterOptions(**(defaults | options)))  # type: ignore[arg-type]
    source = torch.Generator().manual_seed(0)
    for _, parameter in handle.named_parameters():
        parameter.data += 0.1 * torch.randn(parameter.shape, generator=source)
    return handle


@cache
def known(**options: object) -> AdapterHandle:
    """As ``trained``, only to be read."""
    return trained(**options)


def image(model: Model) -> torch.Tensor:
    return images(tiny_setup(), model, ["a red cat"], seeds=[2], steps=2, cfg=3.0, size=SIZE)


@cache
def known_image(**options: object) -> torch.Tensor:
    return image(known(**options).model)


@cache
def base_image() -> torch.Tensor:
    return image(tiny_model())


def reread(path: Path) -> tuple[Model, AdapterHandle]:
    model = tiny_model()
    return model, attach(model, AdapterOptions(), read_adapter(path, model))


def metadata_of(path: Path) -> dict[str, str]:
    with safe_open(str(path), framework="pt") as file:
        return file.metadata()


@pytest.fixture(scope="module")
def pipeline() -> Any:
    """The pipeline of diffusers, for one adapter after another."""
    from diffusers import StableDiffusionPipeline

    made = StableDiffusionPipeline.from_pretrained(str(tiny_folder()))
    made.set_progress_bar_config(disable=True)
    return made


@pytest.mark.parametrize(
    ("layout", "options"),
    [
        pytest.param(layout, options, id=f"{name}-{layout}", marks=marks)
        for name, options, usually in (
            ("lora", {}, KOHYA),
            ("rslora", {"rank_stabilized": True}, DIFFUSERS),
            ("dora", {"decompose": True}, DIFFUSERS),
            ("unet-only", {"parts": ("unet",)}, None),
        )
        for layout in (KOHYA, DIFFUSERS)
        for marks in [() if layout == usually else pytest.mark.slow]
    ],
)
def test_diffusers_makes_the_same_image(
    tmp_path: Path, pipeline: Any, layout: str, options: dict[str, object]
) -> None:
    handle, ours = known(**options), known_image(**options)
    path = save_adapter(handle, tmp_path / "adapter.safetensors", layout)
    again, _ = reread(path)
    assert torch.allclose(image(again), ours, atol=1e-6)
    if options.get("decompose") and layout == KOHYA:
        return  # diffusers drops the magnitudes of this layout, with a warning of its own
    pipeline.load_lora_weights(str(path))
    theirs = pipeline(
        "a red cat",
        num_inference_steps=2,
        guidance_scale=3.0,
        height=SIZE[0],
        width=SIZE[1],
        generator=torch.Generator().manual_seed(2),
        output_type="pt",
    ).images
    pipeline.unload_lora_weights()
    assert torch.allclose(theirs, ours, atol=1e-5)
    assert not torch.allclose(ours, base_image(), atol=1e-2)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["LOHA", "LOKR", "OFT_2"])
def test_other_kinds_come_back_from_kohya_files(tmp_path: Path, kind: str) -> None:
    handle = trained(kind=kind)
    path = save_adapter(handle, tmp_path / "adapter.safetensors", KOHYA)
    model, again = reread(path)
    assert again.options.kind == kind
    assert torch.allclose(image(model), image(handle.model), atol=1e-6)
    with pytest.raises(UnsupportedError, match=kind):
        save_adapter(handle, tmp_path / "other.safetensors", DIFFUSERS)
    assert not (tmp_path / "other.safetensors").exists()


def test_the_rank_of_a_rotation_in_the_metadata_is_the_size_of_its_blocks(tmp_path: Path) -> None:
    path = save_adapter(trained(kind="OFT_2", rank=4), tmp_path / "adapter.safetensors", KOHYA)
    with safe_open(str(path), framework="pt") as file:
        assert file.metadata()["tastemaker.rank"] == "4"


@pytest.mark.parametrize("size", [6, 32])
def test_rotations_whose_blocks_do_not_fit_every_layer_come_back(tmp_path: Path, size: int) -> None:
    handle = trained(kind="OFT_2", rank=size, parts=("unet", "text_encoder"))
    assert len({tensor.shape[1] for _, tensor in handle.named_parameters()}) > 1
    model, again = reread(save_adapter(handle, tmp_path / "adapter.safetensors", KOHYA))
    state = again.state_dict()
    assert all(torch.equal(tensor, state[name]) for name, tensor in handle.state_dict().items())
    assert torch.allclose(image(model), image(handle.model), atol=1e-6)


def test_a_rotation_whose_first_layer_has_nothing_to_rotate_comes_back(tmp_path: Path) -> None:
    """Layers whose width has no divisor near the size of a block get blocks of 1, which store nothing."""
    handle = trained(kind="OFT_2", rank=4)
    path = save_adapter(handle, tmp_path / "adapter.safetensors", KOHYA)
    (part, layer), *others = read_adapter(path, tiny_model()).layers
    tensors = load_file(path)
    (key,) = (key for key in tensors if key.startswith(f"lora_unet_{layer.replace('.', '_')}.oft_R"))
    assert part == "unet" and others
    blocks, numbers = tensors[key].shape
    assert numbers == 6
    tensors[key] = torch.empty(blocks * 4, 0)
    save_file(tensors, path)
    model, again = reread(path)
    assert again.rank(f"{part}.{layer}") == 1
    assert {again.rank(".".join(place)) for place in others} == {4}
    with torch.no_grad():
        dict(handle.named_parameters())[f"{part}.{layer}.oft_R.weight"].zero_()
    assert torch.allclose(image(model), image(handle.model), atol=1e-6)
    same, _ = reread(save_adapter(again, tmp_path / "again.safetensors", KOHYA))
    assert torch.equal(image(same), image(model))


def test_golden_kohya_keys() -> None:
    tensors = adapter_tensors(known(), KOHYA)
    layer = "lora_unet_down_blocks_0_attentions_0_transformer_blocks_0_attn1_to_out_0"
    assert tensors[f"{layer}.lora_down.weight"].shape == (4, 16)
    assert tensors[f"{layer}.lora_up.weight"].shape == (16, 4)
    assert tensors[f"{layer}.alpha"].shape == () and float(tensors[f"{layer}.alpha"]) == 2.0
    assert tensors["lora_unet_conv_in.lora_down.weight"].shape == (4, 4, 3, 3)
    assert "lora_te_text_model_encoder_layers_0_self_attn_q_proj.lora_down.weight" in tensors
    assert "lora_te_text_model_encoder_layers_1_mlp_fc2.alpha" in tensors
    suffixes = {key.split(".", 1)[1] for key in tensors}
    assert suffixes == {"lora_down.weight", "lora_up.weight", "alpha"}


def test_golden_diffusers_keys() -> None:
    handle = known()
    tensors = adapter_tensors(handle, DIFFUSERS)
    layer = "unet.down_blocks.0.attentions.0.transformer_blocks.0.attn1.to_out.0"
    assert tensors[f"{layer}.lora_A.weight"].shape == (4, 16)
    up = dict(handle.named_parameters())[f"{layer}.lora_B.weight"]
    assert torch.allclose(tensors[f"{layer}.lora_B.weight"], 0.5 * up), "alpha / rank is folded in"
    assert "text_encoder.text_model.encoder.layers.0.self_attn.q_proj.lora_A.weight" in tensors
    assert not any("alpha" in key for key in tensors)


@pytest.mark.skipif(not WILD.is_dir(), reason="key lists of other programs are not at hand")
@pytest.mark.parametrize("layout", [KOHYA, DIFFUSERS])
def test_keys_and_shapes_are_those_found_in_the_wild(layout: str) -> None:
    from diffusers.models.unets.unet_2d_condition import UNet2DConditionModel

    model = tiny_model()
    model.parts["unet"] = UNet2DConditionModel(
        block_out_channels=(32, 64, 128, 128), layers_per_block=1, cross_attention_dim=64
    )
    handle = attach(model, AdapterOptions(rank=4, parts=("unet",)))
    golden = json.loads((WILD / f"sd15_{layout}.json").read_text(encoding="utf-8"))
    assert {key: list(t.shape) for key, t in adapter_tensors(handle, layout).items()} == golden


def legacy_spellings(handle: AdapterHandle) -> dict[str, dict[str, torch.Tensor]]:
    """The same adapter as other programs spell it."""
    plain = adapter_tensors(handle, DIFFUSERS)
    kohya = adapter_tensors(handle, KOHYA)
    unet = handle.model.denoiser

    def original(key: str) -> str:
        name, suffix = key.removeprefix("unet.").split(".lora_")
        return f"{ldm_name(unet, name)}.lora_{suffix}"

    def text(key: str, prefix: str) -> str:
        return key.replace("text_encoder.", prefix, 1)

    def is_text(key: str) -> bool:
        return key.startswith("text_encoder.")

    return {
        "infix": {k.replace(".weight", ".default.weight"): v for k, v in plain.items()},
        "peft prefix": {
            k.replace("unet.", "unet.base_model.model.", 1).replace(
                "text_encoder.", "text_encoder.base_model.model.", 1
            ): v
            for k, v in plain.items()
        },
        "down and up": {
            k.replace("lora_A", "lora_down").replace("lora_B", "lora_up"): v for k, v in plain.items()
        },
        "dotted": {
            k.replace("lora_A", "lora.down").replace("lora_B", "lora.up"): v for k, v in plain.items()
        },
        "lycoris": {
            k.replace("lora_unet_", "lycoris_", 1).replace("lora_te_", "lycoris_text_encoder_", 1): v
            for k, v in kohya.items()
        },
        "te1": {k.replace("lora_te_", "lora_te1_", 1): v for k, v in kohya.items()},
        "comfy": {
            text(k, "text_encoders.clip_l.transformer.")
            if is_text(k)
            else f"diffusion_model.{original(k)}": v
            for k, v in plain.items()
        },
        "original": {k if is_text(k) else original(k): v for k, v in plain.items()},
    }


@pytest.mark.parametrize(
    "spelling", ["infix", "peft prefix", "down and up", "dotted", "lycoris", "te1", "comfy", "original"]
)
def test_spellings_of_other_programs_are_read(tmp_path: Path, spelling: str) -> None:
    handle = known()
    path = tmp_path / "adapter.safetensors"
    save_file(legacy_spellings(handle)[spelling], path)
    model, again = reread(path)
    assert set(again.layers) == set(handle.layers)
    assert torch.allclose(image(model), known_image(), atol=1e-6)


def test_old_attention_processor_keys() -> None:
    key = "unet.down_blocks.0.attentions.0.transformer_blocks.0.attn1.processor.to_out_lora.up.weight"
    assert split_key(key) == (
        "unet.down_blocks.0.attentions.0.transformer_blocks.0.attn1.to_out.0",
        "lora_B",
    )
    assert split_key("unet.conv_in.weight") is None


def test_missing_alpha_is_the_rank(tmp_path: Path) -> None:
    handle = trained(alpha=4.0)
    tensors = {k: v for k, v in adapter_tensors(handle, KOHYA).items() if not k.endswith(".alpha")}
    save_file(tensors, tmp_path / "adapter.safetensors")
    model, again = reread(tmp_path / "adapter.safetensors")
    assert {again.scaling(path) for path in again.layers} == {1.0}
    assert torch.allclose(image(model), image(handle.model), atol=1e-6)


def test_alpha_in_the_metadata_of_diffusers(tmp_path: Path) -> None:
    names = adapter_tensors(trained(parts=("unet",), alpha=4.0), DIFFUSERS)
    facts = {"lora_adapter_metadata": json.dumps({"unet.r": 4, "unet.lora_alpha": 2.0})}
    save_file(names, tmp_path / "adapter.safetensors", metadata=facts)
    model, again = reread(tmp_path / "adapter.safetensors")
    assert {again.scaling(path) for path in again.layers} == {0.5}
    assert torch.allclose(image(model), known_image(parts=("unet",)), atol=1e-6)


def test_alpha_of_layers_by_the_end_of_their_names_in_the_metadata_of_diffusers(tmp_path: Path) -> None:
    names = adapter_tensors(trained(parts=("unet",), alpha=4.0), DIFFUSERS)
    facts = {"unet.r": 4, "unet.lora_alpha": 12, "unet.alpha_pattern": {"attn1.to_q": 2}}
    save_file(names, tmp_path / "adapter.safetensors", {"lora_adapter_metadata": json.dumps(facts)})
    _, again = reread(tmp_path / "adapter.safetensors")
    for path in again.layers:
        assert again.scaling(path) == (0.5 if path.endswith("attn1.to_q") else 3.0), path


def test_full_names_in_metadata_of_earlier_versions_do_not_scale_layers_that_end_alike(tmp_path: Path) -> None:
    model, ranks = tiny_model("FLUX_DEV_1"), {"transformer.proj_out": 3}
    handle = attach(model, AdapterOptions(rank=4, alpha=4.0, parts=("transformer",), rank_pattern=ranks))
    path, table = save_adapter(handle, tmp_path / "adapter.safetensors", DIFFUSERS), {"proj_out": 3}
    facts = {"r": 4, "lora_alpha": 4, "rank_pattern": table, "alpha_pattern": table}
    written = json.dumps({f"transformer.{name}": fact for name, fact in facts.items()})
    save_file(load_file(path), path, {"lora_adapter_metadata": written})
    again = attach(model := tiny_model("FLUX_DEV_1"), AdapterOptions(), read_adapter(path, model))
    assert "transformer.single_transformer_blocks.0.proj_out" in again.layers
    assert {again.scaling(name) for name in again.layers} == {1.0}


@pytest.mark.parametrize("more", [{}, {"s.0.proj_out": 2}], ids=str)
def test_diffusers_gives_layers_whose_names_end_alike_their_own_ranks(more: dict[str, int], tmp_path: Path) -> None:
    from peft.utils.other import get_pattern_key

    model, ranks = tiny_model("FLUX_DEV_1"), {"transformer.proj_out": 3, **more}
    handle = attach(model, AdapterOptions(rank=4, alpha=4.0, parts=("transformer",), rank_pattern=ranks))
    path = save_adapter(handle, tmp_path / "adapter.safetensors", DIFFUSERS)
    with safe_open(str(path), "pt") as file:
        config = json.loads(file.metadata()["lora_adapter_metadata"])
    pattern, usual = config["transformer.rank_pattern"], config["transformer.r"]
    for name in handle.layers:
        own = name.removeprefix("transformer.")
        assert pattern.get(get_pattern_key(pattern.keys(), own), usual) == handle.rank(name), name


def test_ranks_may_differ_between_layers(tmp_path: Path) -> None:
    tensors = adapter_tensors(known(parts=("unet",)), KOHYA)
    layer = "lora_unet_conv_in"
    tensors[f"{layer}.lora_down.weight"] = tensors[f"{layer}.lora_down.weight"][:2].clone()
    tensors[f"{layer}.lora_up.weight"] = tensors[f"{layer}.lora_up.weight"][:, :2].clone()
    tensors[f"{layer}.alpha"] = torch.tensor(7.0)
    save_file(tensors, tmp_path / "adapter.safetensors")
    _, again = reread(tmp_path / "adapter.safetensors")
    assert again.rank("unet.conv_in") == 2 and again.scaling("unet.conv_in") == 3.5
    assert again.rank("unet.conv_out") == 4 and again.scaling("unet.conv_out") == 0.5


def test_a_file_overrules_the_options_and_says_so(tmp_path: Path) -> None:
    path = save_adapter(known(decompose=True), tmp_path / "adapter.safetensors")
    _, handle = reread(path)
    assert handle.options.rank == 4 and handle.options.alpha == 2.0 and handle.options.decompose
    text = "\n".join(handle.notes)
    assert "rank: 4 instead of 16" in text and "alpha: 2.0 instead of 16.0" in text
    model = tiny_model()
    same = AdapterOptions(rank=4, alpha=2.0, decompose=True, parts=PARTS)
    assert attach(model, same, read_adapter(path, model)).notes == []


def test_metadata(tmp_path: Path) -> None:
    handle = known()
    facts = {"objective": "SIGMOID", "beta": 5000.0, "seed": 42, "step": 100, "reference": None}
    path = save_adapter(handle, tmp_path / "my taste.safetensors", KOHYA, torch.float16, facts)
    tensors, metadata, content = load_file(path), metadata_of(path), path.read_bytes()
    assert {t.dtype for k, t in tensors.items() if not k.endswith("alpha")} == {torch.float16}
    # ModelSpec 1.0: "a hash of all tensor content (ie excluding the header section)"
    expected = hashlib.sha256(content[8 + int.from_bytes(content[:8], "little") :])
    assert metadata["modelspec.hash_sha256"] == "0x" + expected.hexdigest()
    assert metadata["modelspec.sai_model_spec"] == "1.0.0"
    assert metadata["modelspec.architecture"] == "stable-diffusion-v1/lora"
    assert metadata["modelspec.title"] == "my taste"
    assert metadata["modelspec.prediction_type"] == "epsilon"
    assert len(metadata["modelspec.date"]) == 10
    ours = {k.removeprefix("tastemaker."): v for k, v in metadata.items() if k.startswith("tastemaker.")}
    assert ours["rank"] == "4" and ours["alpha"] == "2.0" and ours["adapter_type"] == "LORA"
    assert ours["objective"] == "SIGMOID" and ours["beta"] == "5000.0" and ours["step"] == "100"
    assert ours["base_model_hash"] == handle.model.source_hash() != ""
    assert "reference" not in ours


def test_second_generation_files_say_so(tmp_path: Path) -> None:
    handle = attach(tiny_model("STABLE_DIFFUSION_21", "v_prediction"), AdapterOptions(rank=2))
    metadata = metadata_of(save_adapter(handle, tmp_path / "a.safetensors"))
    assert metadata["ss_v2"] == "True"
    assert metadata["modelspec.architecture"] == "stable-diffusion-v2-768-v/lora"
    assert metadata["modelspec.prediction_type"] == "v"


def write(tmp_path: Path, tensors: dict[str, torch.Tensor]) -> Path:
    path = tmp_path / "adapter.safetensors"
    save_file(tensors, path)
    return path


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    model = tiny_model()
    with pytest.raises(DataError, match="does not exist") as caught:
        read_adapter(tmp_path / "nothing.safetensors", model)
    assert caught.value.field == "lora_model_name"
    pickle = tmp_path / "adapter.pt"
    pickle.write_bytes(b"")
    with pytest.raises(DataError, match="not a safetensors file"):
        read_adapter(pickle, model)
    broken = tmp_path / "broken.safetensors"
    broken.write_bytes(b"\xff" * 64)
    with pytest.raises(DataError, match="damaged"):
        read_adapter(broken, model)
    with pytest.raises(DataError, match="holds no adapter"):
        read_adapter(write(tmp_path, {}), model)


def test_adapters_of_other_models_name_the_strange_keys(tmp_path: Path) -> None:
    tensors = adapter_tensors(known(parts=("unet",)), KOHYA)
    tensors["lora_unet_double_blocks_0_img_attn_qkv.lora_down.weight"] = torch.ones(4, 8)
    with pytest.raises(DataError, match="double_blocks") as caught:
        read_adapter(write(tmp_path, tensors), tiny_model())
    assert f"1 of {len(tensors)} keys" in str(caught.value)


def test_incomplete_and_mixed_files(tmp_path: Path) -> None:
    tensors = adapter_tensors(known(parts=("unet",)), KOHYA)
    half = {k: v for k, v in tensors.items() if k != "lora_unet_conv_in.lora_up.weight"}
    with pytest.raises(DataError, match=r"unet\.conv_in lacks lora_B"):
        read_adapter(write(tmp_path, half), tiny_model())
    alone = {"lora_unet_conv_in.alpha": torch.tensor(1.0)}
    with pytest.raises(DataError, match=r"unet\.conv_in lacks weights"):
        read_adapter(write(tmp_path, alone), tiny_model())
    other = adapter_tensors(trained(kind="LOHA", parts=("unet",)), KOHYA)
    mixed = {k: v for k, v in tensors.items() if "conv_in" in k} | {
        k: v for k, v in other.items() if "conv_out" in k
    }
    with pytest.raises(UnsupportedError, match="LOHA, LORA"):
        read_adapter(write(tmp_path, mixed), tiny_model())


def test_shapes_of_another_size(tmp_path: Path) -> None:
    tensors = adapter_tensors(known(parts=("unet",)), KOHYA)
    key = "lora_unet_conv_out.lora_down.weight"
    tensors[key] = torch.ones(4, 99, 3, 3)
    path, model = write(tmp_path, tensors), tiny_model()
    with pytest.raises(DataError, match=r"unet\.conv_out\.lora_A"):
        attach(model, AdapterOptions(), read_adapter(path, model))


def test_unknown_layout(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="SAFETENSORS") as caught:
        save_adapter(known(parts=("unet",)), tmp_path / "a.safetensors", "SAFETENSORS")
    assert caught.value.field == "output_model_format"
