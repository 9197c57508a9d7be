"""Adapter files of other trainers: what is read exactly, what is left out, and what is refused by its name."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from modules.adapter.AdapterFile import AdapterFile
from modules.adapter.AdapterOptions import AdapterOptions
from modules.adapter.formats import DIFFUSERS, KOHYA, adapter_tensors, read_adapter, save_adapter
from modules.adapter.PeftAdapter import NAME, AdapterHandle, attach
from modules.util.errors import DataError, UnsupportedError, UserError
from tests.tiny import tiny_model

ATTENTION = "lora_unet_down_blocks_0_attentions_0_transformer_blocks_0_attn1_to_q"
CONVOLUTION = "lora_unet_conv_in"
POINT = "lora_unet_down_blocks_0_attentions_0_proj_in"
PLACES = {
    ATTENTION: "unet.down_blocks.0.attentions.0.transformer_blocks.0.attn1.to_q",
    CONVOLUTION: "unet.conv_in",
    POINT: "unet.down_blocks.0.attentions.0.proj_in",
}


def read(folder: Path, tensors: dict[str, torch.Tensor]) -> AdapterFile:
    save_file(tensors, folder / "adapter.safetensors")
    return read_adapter(folder / "adapter.safetensors", tiny_model())


def attached(folder: Path, tensors: dict[str, torch.Tensor]) -> AdapterHandle:
    file = read(folder, tensors)
    return attach(tiny_model(), AdapterOptions(), file)


def made(**options: object) -> dict[str, torch.Tensor]:
    """A file of ours."""
    return adapter_tensors(attach(tiny_model(), AdapterOptions(rank=4, **options)), KOHYA)  # type: ignore[arg-type]


def kronecker(name: str, shapes: dict[str, tuple[int, ...]], alpha: float) -> dict[str, torch.Tensor]:
    source = torch.Generator().manual_seed(len(name))
    found = {f"{name}.lokr_{key}": torch.randn(shape, generator=source) for key, shape in shapes.items()}
    return found | {f"{name}.alpha": torch.tensor(alpha)}


FACTORS = {
    "factor 2": (ATTENTION, {"w1": (2, 2), "w2": (8, 8)}, 1.0),
    "factor 8": (ATTENTION, {"w1": (8, 8), "w2": (2, 2)}, 1.0),
    "factor 16, low rank": (ATTENTION, {"w1": (16, 16), "w2_a": (1, 3), "w2_b": (3, 1)}, 1 / 3),
    "unlike factors": (ATTENTION, {"w1": (2, 8), "w2": (8, 2)}, 1.0),
    "both of low rank": (
        ATTENTION,
        {"w1_a": (2, 3), "w1_b": (3, 2), "w2_a": (8, 3), "w2_b": (3, 8)},
        1 / 3,
    ),
    "first of low rank": (ATTENTION, {"w1_a": (4, 1), "w1_b": (1, 4), "w2": (4, 4)}, 1.0),
    "a kernel": (CONVOLUTION, {"w1": (8, 2), "w2": (2, 2, 3, 3)}, 1.0),
    "a kernel of low rank": (CONVOLUTION, {"w1": (2, 4), "w2_a": (8, 2), "w2_b": (2, 9)}, 0.5),
    "a point": (POINT, {"w1": (8, 2), "w2": (2, 8, 1, 1)}, 1.0),
}


@pytest.mark.parametrize("case", FACTORS)
def test_kronecker_products_of_any_factor_are_read(tmp_path: Path, case: str) -> None:
    name, shapes, scale = FACTORS[case]
    tensors = kronecker(name, shapes, 1.0)
    handle = attached(tmp_path, tensors)
    layer = handle.layers[PLACES[name]]
    first, second = (
        tensors.get(f"{name}.lokr_w{i}")
        if f"{name}.lokr_w{i}" in tensors
        else tensors[f"{name}.lokr_w{i}_a"] @ tensors[f"{name}.lokr_w{i}_b"]
        for i in (1, 2)
    )
    flat = torch.kron(first, second.reshape(second.shape[0], -1)) if second.dim() == 2 else None
    if flat is None:
        flat = torch.kron(first[:, :, None, None], second)
    expected = scale * flat.reshape(layer.get_base_layer().weight.shape)
    assert torch.allclose(layer.get_delta_weight(NAME), expected, atol=1e-6)
    again = read_adapter(save_adapter(handle, tmp_path / "again.safetensors", KOHYA), tiny_model())
    other = attach(tiny_model(), AdapterOptions(), again).layers[PLACES[name]]
    assert torch.allclose(other.get_delta_weight(NAME), expected, atol=1e-6)
    assert all(parameter.requires_grad for _, parameter in handle.named_parameters())


def test_factors_may_differ_between_layers(tmp_path: Path) -> None:
    cases = [FACTORS[case] for case in ("factor 8", "a kernel of low rank", "a point")]
    tensors: dict[str, torch.Tensor] = {}
    for name, shapes, _ in cases:
        tensors |= kronecker(name, shapes, 1.0)
    assert set(attached(tmp_path, tensors).layers) == set(PLACES.values())


@pytest.mark.parametrize(
    ("shapes", "says"),
    [
        ({"w1": (4, 4), "w2": (8, 8)}, "do not make its weight"),
        ({"w1": (4, 2), "w2": (4, 4)}, "do not make its weight"),
        ({"w1": (4, 4), "w2_a": (4, 2), "w2_b": (3, 4)}, "has rank 3 in lokr_w2_b and 2 in lokr_w2_a"),
        ({"w1": (2, 2), "w2": (8, 2, 2, 2)}, "do not make its weight"),
    ],
)
def test_products_of_another_shape_are_refused(
    tmp_path: Path, shapes: dict[str, tuple[int, ...]], says: str
) -> None:
    with pytest.raises(DataError, match=says) as caught:
        attached(tmp_path, kronecker(ATTENTION, shapes, 1.0))
    assert caught.value.field == "lora_model_name"


def test_the_shape_of_magnitudes_says_what_they_are_of(tmp_path: Path) -> None:
    name = f"{ATTENTION}.dora_scale"
    for outputs, shape in ((True, (16, 1)), (False, (1, 16))):
        tensors = made(decompose=True, decompose_outputs=outputs)
        assert tensors[name].shape == shape
        file = read(tmp_path, tensors)
        assert file.decomposed and file.decompose_outputs == outputs
    # in a library's own layout, convolutions have those of outputs in the same shape
    handle = attach(tiny_model(), AdapterOptions(rank=4, decompose=True))
    file = read(tmp_path, adapter_tensors(handle, DIFFUSERS))
    assert file.decomposed and file.decompose_outputs


@pytest.mark.parametrize(
    ("key", "kind"),
    [
        (f"{ATTENTION}.lora_mid.weight", "lora_mid"),
        (f"{ATTENTION}.oft_blocks", "oft_blocks"),
        (f"{ATTENTION}.diff_b", "diff_b"),
        (f"{ATTENTION}.brand_new.weight", "brand_new"),
        ("lora_unet_conv_norm_out.w_norm", "w_norm"),
    ],
)
def test_kinds_that_are_not_read_are_named(tmp_path: Path, key: str, kind: str) -> None:
    tensors = made()
    with pytest.raises(UnsupportedError, match=rf"not read \({kind}\)") as caught:
        read(tmp_path, tensors | {key: torch.ones(4)})
    assert key in str(caught.value) and f"1 of {len(tensors) + 1} tensors" in str(caught.value)
    assert "family" not in str(caught.value)


def test_embeddings_in_the_file_are_left_out_and_told(tmp_path: Path) -> None:
    tensors = made()
    file = read(tmp_path, tensors | {"bundle_emb.token.string_to_param.*": torch.ones(2, 8)})
    assert len(file.notes) == 1 and "1 tensors of embeddings are ignored" in file.notes[0]
    handle = attach(tiny_model(), AdapterOptions(rank=4, alpha=16.0), file)
    assert handle.notes == list(file.notes)
    assert read(tmp_path, tensors).notes == ()


def test_other_kinds_with_magnitudes_are_refused_by_name(tmp_path: Path) -> None:
    tensors = made(kind="LOHA")
    names = {key.split(".")[0] for key in tensors}
    with pytest.raises(UnsupportedError, match=r"LOHA with magnitudes \(DoRA\)") as caught:
        read(tmp_path, tensors | {f"{name}.dora_scale": torch.ones(16, 1) for name in names})
    assert caught.value.field == "lora_model_name"


def test_few_keys_of_a_wrong_family_are_shown(tmp_path: Path) -> None:
    tensors = {
        f"lora_unet_double_blocks_{i}_img_attn_qkv.lora_down.weight": torch.ones(4, 8) for i in range(40)
    }
    with pytest.raises(UserError, match="40 of 40 keys") as caught:
        read(tmp_path, tensors)
    assert str(caught.value).count("double_blocks") == 5
    assert "another model family" in str(caught.value)
    with pytest.raises(UserError, match="most of it fits"):
        read(tmp_path, made() | dict(list(tensors.items())[:1]))


def test_few_keys_of_another_size_are_shown(tmp_path: Path) -> None:
    tensors = {
        key: torch.cat([tensor, tensor], dim=1) if "lora_down" in key else tensor
        for key, tensor in made().items()
    }
    with pytest.raises(UserError, match="another size") as caught:
        attached(tmp_path, tensors)
    assert str(caught.value).count("instead of") == 5 and caught.value.field == "lora_model_name"


def lora(name: str) -> tuple[dict[str, torch.Tensor], torch.Tensor]:
    """A LoRA of rank 2 on the query of a tiny UNet, and its product."""
    source = torch.Generator().manual_seed(3)
    down, up = torch.randn(2, 16, generator=source), torch.randn(16, 2, generator=source)
    return {f"{name}.lora_A.weight": down, f"{name}.lora_B.weight": up}, up @ down


def test_a_negative_alpha_turns_the_change_round_even_in_the_first_layer(tmp_path: Path) -> None:
    tensors, product = lora(ATTENTION)
    handle = attached(tmp_path, tensors | {f"{ATTENTION}.alpha": torch.tensor(-4.0)})
    assert torch.allclose(handle.layers[PLACES[ATTENTION]].get_delta_weight(NAME), -2 * product)


@pytest.mark.parametrize(("more", "scale"), [({}, 3.0), ({"use_rslora": True}, 3.0 * 2**0.5)])
def test_a_model_that_diffusers_saved_on_its_own_keeps_its_strength(
    tmp_path: Path, more: dict[str, bool], scale: float
) -> None:
    """``save_lora_adapter`` writes names without that of the part."""
    tensors, product = lora(PLACES[ATTENTION].removeprefix("unet."))
    path = tmp_path / "adapter.safetensors"
    settings = {"r": 2, "lora_alpha": 6, "rank_pattern": {}, "alpha_pattern": {}, **more}
    save_file(tensors, path, {"lora_adapter_metadata": json.dumps(settings)})
    handle = attach(tiny_model(), AdapterOptions(), read_adapter(path, tiny_model()))
    assert torch.allclose(handle.layers[PLACES[ATTENTION]].get_delta_weight(NAME), scale * product)


@pytest.mark.parametrize(
    ("text", "says"), [(f'{{"unet.lora_alpha": 1{"0" * 400}}}', "the alpha 1000"), ("{", "JSON")]
)
def test_metadata_that_cannot_be_read_is_one_error_with_the_file(tmp_path: Path, text: str, says: str) -> None:
    path = tmp_path / "adapter.safetensors"
    save_file(lora(PLACES[ATTENTION])[0], path, {"lora_adapter_metadata": text})
    with pytest.raises(UserError, match=says) as caught:
        read_adapter(path, tiny_model())
    assert str(path) in str(caught.value)
