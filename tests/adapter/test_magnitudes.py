"""DoRA with magnitudes of inputs: computed as written down, and the same in every file that can hold it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import nn

from modules.adapter.AdapterFile import AdapterFile
from modules.adapter.AdapterOptions import AdapterOptions
from modules.adapter.formats import (
    COMFY,
    DIFFUSERS,
    KOHYA,
    LEGACY,
    adapter_tensors,
    fitting_layout,
    read_adapter,
    save_adapter,
)
from modules.adapter.PeftAdapter import NAME, AdapterHandle, attach
from modules.model.patches import wrap_edges
from modules.util.errors import DataError, UnsupportedError
from tests.adapter.families import stir, trained_family
from tests.adapter.test_peft_adapter import image
from tests.tiny import tiny_model
from tests.usual import usual

INPUTS: dict[str, Any] = {"decompose": True, "decompose_outputs": False}
FLUX = "FLUX_DEV_1"
EVERY_SORT = ("conv_in", "mid_block", "downsamplers", "time_embedding")
"""Linear layers, and convolutions of both sizes and strides."""
SEPARATE = (r"\.ff\.net", r"^norm_out")
"""Layers of FLUX.1 that its checkpoint does not fuse. The halves of the last one are swapped there."""


def trained(**options: Any) -> AdapterHandle:
    given = {"rank": 3, "alpha": 2.0, "parts": ("unet", "text_encoder"), **INPUTS, **options}
    handle = attach(tiny_model(), AdapterOptions(**given))
    stir(handle)
    return handle


def read(folder: Path, tensors: dict[str, torch.Tensor]) -> AdapterFile:
    save_file(tensors, folder / "adapter.safetensors")
    return read_adapter(folder / "adapter.safetensors", tiny_model())


def shape_of(weight: torch.Tensor) -> tuple[int, ...]:
    return (1, weight.shape[1], *[1] * (weight.dim() - 2))


def columns(weight: torch.Tensor) -> torch.Tensor:
    """The length of what each input meets, written out."""
    lengths = [weight[:, j].square().sum().sqrt() for j in range(weight.shape[1])]
    return torch.stack(lengths).reshape(shape_of(weight))


def formula(layer: Any, x: torch.Tensor, scaling: float) -> torch.Tensor:
    """(W + s B A) m / n by peft's own factors; n is a constant."""
    base, magnitude = layer.get_base_layer(), layer.lora_magnitude_vector[NAME].weight
    down, up = layer.lora_A[NAME].weight, layer.lora_B[NAME].weight
    change = torch.einsum("or,ri->oi", up.flatten(1), down.flatten(1)).reshape(base.weight.shape)
    whole = base.weight + scaling * change
    weight = whole * magnitude / columns(whole.detach())
    if isinstance(base, nn.Linear):
        return nn.functional.linear(x, weight, base.bias)
    return nn.functional.conv2d(x, weight, base.bias, base.stride, base.padding)


def is_large(layer: Any) -> bool:
    return tuple(getattr(layer.get_base_layer(), "kernel_size", (1, 1))) == (3, 3)


def test_outputs_and_gradients_are_those_of_the_formula() -> None:
    model = tiny_model(dtype=torch.float64)
    handle = attach(model, AdapterOptions(rank=3, alpha=2.0, dtype=torch.float64, **INPUTS))
    stir(handle)
    source, kinds = torch.Generator().manual_seed(1), set()
    for path, layer in handle.layers.items():
        base, own = layer.get_base_layer(), dict(layer.named_parameters())
        inputs = base.weight.shape[1]
        shape = (2, 5, inputs) if isinstance(base, nn.Linear) else (2, inputs, 6, 6)
        x = torch.randn(shape, generator=source, dtype=torch.float64, requires_grad=True)
        parameters = [x, *(p for p in own.values() if p.requires_grad)]
        assert len(parameters) == 4
        assert layer.lora_magnitude_vector[NAME].weight.shape == shape_of(base.weight)
        results = [layer(x), formula(layer, x, 2.0 / 3.0)]
        assert results[0].dtype == torch.float64
        assert torch.allclose(*results, rtol=1e-12, atol=1e-12), path
        seed = torch.randn(results[0].shape, generator=source, dtype=torch.float64)
        first, second = (torch.autograd.grad(result, parameters, seed) for result in results)
        assert all(torch.allclose(a, b, rtol=1e-9, atol=1e-10) for a, b in zip(first, second, strict=True)), (
            path
        )
        kinds.add((type(base).__name__, is_large(layer), getattr(base, "stride", None)))
    assert {("Linear", False, None), ("Conv2d", True, (1, 1)), ("Conv2d", True, (2, 2))} <= kinds


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("weights", [torch.float32, torch.bfloat16])
def test_a_fresh_adapter_is_the_unchanged_model_to_the_last_bit(
    weights: torch.dtype, dtype: torch.dtype
) -> None:
    model = tiny_model(dtype=weights)
    handle = attach(model, AdapterOptions(rank=3, dtype=dtype, patterns=EVERY_SORT, **INPUTS))
    source = torch.Generator().manual_seed(1)
    for path, layer in handle.layers.items():
        base = layer.get_base_layer()
        inputs = base.weight.shape[1]
        x = torch.randn(
            (4, inputs) if isinstance(base, nn.Linear) else (2, inputs, 6, 6), generator=source
        ).to(torch.bfloat16)
        assert torch.equal(layer(x.to(weights)), base(x.to(weights))), path
        magnitude = layer.lora_magnitude_vector[NAME].weight
        assert magnitude.dtype == dtype
        exact = columns(base.weight.double())
        assert torch.allclose(magnitude.double(), exact, rtol=2e-6 + torch.finfo(dtype).eps), path


def test_dropout_drops_what_the_adapter_gets() -> None:
    handle = trained(dropout=0.5)
    layer = next(layer for layer in handle.layers.values() if isinstance(layer.get_base_layer(), nn.Linear))
    base = layer.get_base_layer()
    x = torch.randn((3, base.in_features), generator=torch.Generator().manual_seed(1))
    layer.train()
    torch.manual_seed(5)
    made = layer(x)
    torch.manual_seed(5)
    dropped = nn.functional.dropout(x, 0.5)
    wanted = base(x) + formula(layer, dropped, 2.0 / 3.0) - base(dropped)
    assert torch.allclose(made, wanted, atol=1e-5)
    layer.eval()
    assert torch.allclose(layer(x), formula(layer, x, 2.0 / 3.0), atol=1e-5)


def test_convolutions_that_wrap_do_so_with_dropout_too() -> None:
    handle = trained(parts=("unet",), patterns=("conv_in", "conv1"), dropout=0.5)
    assert wrap_edges(handle.model.denoiser)
    for layer in handle.layers.values():
        layer.train()
        base = layer.get_base_layer()
        x = torch.randn((1, base.in_channels, 6, 6), generator=torch.Generator().manual_seed(1))
        layer.lora_dropout[NAME].forward = lambda x: 2 * x
        rolled = layer(x.roll((1, 2), (2, 3))).roll((-1, -2), (2, 3))
        assert torch.allclose(rolled, layer(x), atol=1e-5)
        assert not torch.allclose(layer(x), base(x), atol=1e-2)


def test_a_column_of_zeros_does_not_become_nan() -> None:
    model = tiny_model()
    with torch.no_grad():
        next(one for one in model.denoiser.modules() if isinstance(one, nn.Linear)).weight[:, 0] = 0.0
    base = image(model)
    handle = attach(model, AdapterOptions(rank=3, dtype=torch.float16, **INPUTS))
    assert torch.allclose(image(model), base, atol=1e-6)
    handle.detach()
    handle = attach(model, AdapterOptions(rank=3, **INPUTS))
    assert torch.allclose(image(model), base, atol=1e-6)
    stir(handle)
    assert torch.isfinite(image(model)).all()


@pytest.mark.parametrize("layout", usual([KOHYA, COMFY, LEGACY], KOHYA, COMFY))
def test_what_is_written_is_read_again_to_the_last_bit(layout: str, tmp_path: Path) -> None:
    handle = trained()
    path = save_adapter(handle, tmp_path / "a.safetensors", layout)
    shapes = {tuple(t.shape) for key, t in load_file(path).items() if key.endswith("dora_scale")}
    assert (1, 4, 1, 1) in shapes and {len(shape) for shape in shapes} == {2, 4}
    assert {shape[0] for shape in shapes} == {1}
    model = tiny_model()
    again = attach(model, AdapterOptions(), read_adapter(path, model))
    assert again.options.decompose and not again.options.decompose_outputs
    assert any("the magnitudes: those of inputs instead of those of outputs" in note for note in again.notes)
    one, other = handle.state_dict(), again.state_dict()
    assert one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)
    assert torch.equal(image(model), image(handle.model))
    assert load_file(save_adapter(again, tmp_path / "b.safetensors", layout)).keys() == load_file(path).keys()


def test_files_say_so_and_those_of_outputs_say_what_they_said(tmp_path: Path) -> None:
    for outputs, said in ((True, None), (False, "false")):
        handle = trained(decompose_outputs=outputs)
        path = save_adapter(handle, tmp_path / f"{outputs}.safetensors", KOHYA)
        with safe_open(str(path), framework="pt") as file:
            assert file.metadata().get("tastemaker.decompose_output_axis") == said


def test_the_layout_of_diffusers_is_refused(tmp_path: Path) -> None:
    handle = trained()
    with pytest.raises(UnsupportedError, match="outputs only") as caught:
        save_adapter(handle, tmp_path / "a.safetensors", DIFFUSERS)
    assert caught.value.field == "output_model_format" and not list(tmp_path.iterdir())
    # square layers would load without an error
    save_adapter(trained(decompose_outputs=True), tmp_path / "a.safetensors", DIFFUSERS)


def test_fused_layers_are_refused_both_ways(tmp_path: Path) -> None:
    handle = trained_family(FLUX, parts=("transformer",), **INPUTS)
    for layout in (KOHYA, COMFY):
        with pytest.raises(UnsupportedError, match="inputs cannot be joined") as caught:
            save_adapter(handle, tmp_path / "a.safetensors", layout)
        assert LEGACY in str(caught.value.hint)
    assert fitting_layout(handle) == LEGACY
    model = tiny_model(FLUX)
    path = save_adapter(handle, tmp_path / "a.safetensors", LEGACY)
    again = attach(model, AdapterOptions(), read_adapter(path, model)).state_dict()
    assert all(torch.equal(tensor, again[name]) for name, tensor in handle.state_dict().items())
    outputs = trained_family(
        FLUX, parts=("transformer",), decompose=True, patterns=(r"^transformer_blocks.*attn",), regex=True
    )
    fused = adapter_tensors(outputs, COMFY)
    name = next(key for key in fused if key.endswith("qkv.dora_scale"))
    for key in [key for key in fused if key.endswith("dora_scale")]:
        inputs = fused[key.replace("dora_scale", "lora_A.weight")].shape[1]
        fused[key] = torch.ones(1, inputs)
    save_file(fused, tmp_path / "b.safetensors")
    with pytest.raises(UnsupportedError, match="cannot be split") as read_error:
        read_adapter(tmp_path / "b.safetensors", tiny_model(FLUX))
    assert read_error.value.field == "lora_model_name" and name.split(".")[1] in str(read_error.value)


@pytest.mark.parametrize("layout", [KOHYA, COMFY])
def test_layers_that_are_not_fused_keep_theirs(layout: str, tmp_path: Path) -> None:
    handle = trained_family(FLUX, parts=("transformer",), patterns=SEPARATE, regex=True, **INPUTS)
    assert any("norm_out" in path for path in handle.layers) and fitting_layout(handle) == KOHYA
    path = save_adapter(handle, tmp_path / "a.safetensors", layout)
    model = tiny_model(FLUX)
    again = attach(model, AdapterOptions(), read_adapter(path, model)).state_dict()
    assert all(torch.equal(tensor, again[name]) for name, tensor in handle.state_dict().items())


def test_files_that_mix_both_or_have_another_size_are_refused(tmp_path: Path) -> None:
    outputs = adapter_tensors(trained(decompose_outputs=True), KOHYA)
    inputs = adapter_tensors(trained(), KOHYA)
    names = [key for key in inputs if key.endswith("dora_scale") and "to_q" in key]
    with pytest.raises(UnsupportedError, match="of outputs, as of") as caught:
        read(tmp_path, {**outputs, names[0]: inputs[names[0]]})
    assert caught.value.field == "lora_model_name" and names[0].split(".")[0] in str(caught.value)
    wrong = read(tmp_path, {**inputs, names[0]: torch.ones(1, 7)})
    with pytest.raises(DataError, match=r"\(1, 7\) instead of \(1, 16\)"):
        attach(tiny_model(), AdapterOptions(), wrong)


def test_a_state_of_the_other_axis_does_not_fit_square_layers_either() -> None:
    only = {"parts": ("unet",), "patterns": ("attn1.to_q",)}
    inputs, outputs = (trained(decompose_outputs=axis, **only) for axis in (False, True))
    with pytest.raises(DataError, match=r"\(1, 16\) instead of \(16,\)"):
        outputs.load_state_dict(inputs.state_dict())


@pytest.mark.parametrize("outputs", [True, False])
def test_half_the_strength_is_half_of_what_a_layer_changes(outputs: bool) -> None:
    handle = trained(decompose_outputs=outputs, parts=("unet",), patterns=EVERY_SORT)
    source = torch.Generator().manual_seed(1)
    inputs, plain, whole = {}, {}, {}
    for path, layer in handle.layers.items():
        base = layer.get_base_layer()
        shape = (4, base.weight.shape[1], *[6] * (base.weight.dim() - 2))
        inputs[path] = torch.randn(shape, generator=source)
        plain[path], whole[path] = base(inputs[path]), layer(inputs[path])
        assert not torch.allclose(plain[path], whole[path], atol=1e-2), path
    for strength in (0.5, 0.01, -2.0):
        handle.set_strength(strength)
        for path, layer in handle.layers.items():
            # what programs that add it to the weights, and the merged model, have
            wanted = plain[path] + strength * (whole[path] - plain[path])
            assert torch.allclose(layer(inputs[path]), wanted, atol=1e-5), (path, strength)
    handle.set_strength(1.0)
    assert all(torch.equal(layer(inputs[path]), whole[path]) for path, layer in handle.layers.items())
