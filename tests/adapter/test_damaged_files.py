"""Damaged and hostile adapter files: refused with file and tensor, never with a traceback."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from modules.adapter.AdapterOptions import KINDS, AdapterOptions
from modules.adapter.formats import adapter_tensors
from modules.adapter.PeftAdapter import attach
from modules.adapter.reading import read_adapter
from modules.util.errors import DataError, UserError
from scripts.train import main
from tests.tiny import tiny_model
from tests.trainer.builders import write_config
from tests.usual import usual

LAYER = "lora_unet_conv_in"
Tensors = dict[str, torch.Tensor]


def whole(kind: str = "LORA") -> Tensors:
    """The tensors of a sound file, with values away from zero."""
    handle = attach(tiny_model(), AdapterOptions(kind=kind, rank=4, alpha=4.0))
    for _, parameter in handle.named_parameters():
        parameter.data += 0.01
    return {name: tensor.clone() for name, tensor in adapter_tensors(handle, "KOHYA_LORA").items()}


def refusal(folder: Path, tensors: Tensors, metadata: dict[str, str] | None = None) -> UserError:
    path = folder / "damaged.safetensors"
    save_file(tensors, path, metadata)
    with pytest.raises(DataError, match="damaged.safetensors") as caught:
        read_adapter(path, tiny_model())
    assert caught.value.field == "lora_model_name" and caught.value.hint
    return caught.value


@pytest.mark.parametrize(
    ("leaf", "value", "said"),
    [
        ("alpha", torch.zeros(0), "conv_in.alpha has 0 numbers"),
        ("alpha", torch.ones(5), "conv_in.alpha has 5 numbers"),
        ("alpha", torch.tensor(float("nan")), "conv_in.alpha is NaN"),
        ("lora_down.weight", torch.tensor(1.0), "conv_in.lora_A has 0 dimensions"),
        ("lora_up.weight", torch.tensor(1.0), "conv_in.lora_B has 0 dimensions"),
        ("lora_up.weight", torch.ones(4), "conv_in.lora_B has 1 dimensions"),
        ("lora_down.weight", torch.zeros(0, 4, 3, 3), "conv_in.lora_A is empty"),
        ("lora_down.weight", torch.ones(4, 4, 3, 3, dtype=torch.int32), "whole numbers (int32)"),
        ("lora_up.weight", torch.full((16, 4, 1, 1), float("nan")), "conv_in.lora_B holds NaN or infinite"),
        ("lora_up.weight", torch.full((16, 4, 1, 1), float("inf")), "conv_in.lora_B holds NaN or infinite"),
        ("lora_up.weight", torch.ones(16, 3, 1, 1), "rank 4 in lora_A and 3 in lora_B"),
    ],
)
def test_a_tensor_that_is_no_adapter_is_named(
    tmp_path: Path, leaf: str, value: torch.Tensor, said: str
) -> None:
    tensors = whole()
    assert f"{LAYER}.{leaf}" in tensors
    assert said in str(refusal(tmp_path, tensors | {f"{LAYER}.{leaf}": value}))


@pytest.mark.parametrize("alpha", ["x", None, True, float("nan"), [1], {}])
def test_an_alpha_of_the_metadata_that_is_no_number_is_named(tmp_path: Path, alpha: object) -> None:
    model = tiny_model()
    handle = attach(model, AdapterOptions(rank=4))
    tensors = adapter_tensors(handle, "DIFFUSERS_LORA")
    for config in (
        {"unet.lora_alpha": alpha},
        {"unet.lora_alpha": 4, "unet.alpha_pattern": {"conv_in": alpha}},
    ):
        error = refusal(tmp_path, tensors, {"lora_adapter_metadata": json.dumps(config)})
        assert "alpha" in str(error)


def test_a_run_with_nan_in_its_adapter_ends_with_exit_2(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tensors = whole()
    tensors[f"{LAYER}.lora_up.weight"][3] = float("nan")
    save_file(tensors, tmp_path / "nan.safetensors")
    path = write_config(tmp_path / "run", lora_model_name=str(tmp_path / "nan.safetensors"))
    assert main(["--config-path", str(path)]) == 2
    said = capsys.readouterr().err
    assert "nan.safetensors" in said and f"{LAYER}.lora_B holds NaN" in said and "Traceback" not in said


def _shape(value: torch.Tensor, source: random.Random) -> torch.Tensor:
    shapes = [(), (0,), (1,), (5,), (1, 1), (0, 3), (2, 3), (4, 4, 3, 3), (1, 2, 3, 4, 5)]
    return torch.ones(source.choice(shapes))


def _dtype(value: torch.Tensor, source: random.Random) -> torch.Tensor:
    return value.to(source.choice([torch.int8, torch.int32, torch.bool, torch.float16, torch.float64]))


def _value(value: torch.Tensor, source: random.Random) -> torch.Tensor:
    return torch.full_like(value, source.choice([float("nan"), float("inf"), 0.0, -1e30]))


def _turned(value: torch.Tensor, source: random.Random) -> torch.Tensor:
    return value.transpose(0, -1).contiguous() if value.dim() else value[None]


CHANGES: list[Callable[[torch.Tensor, random.Random], torch.Tensor]] = [_shape, _dtype, _value, _turned]


@pytest.mark.parametrize("kind", usual(KINDS, "LORA"))
def test_whatever_a_file_holds_no_traceback_comes(tmp_path: Path, kind: str) -> None:
    source, sound = random.Random(f"damaged {kind}"), whole(kind)
    path, refused, model = tmp_path / "a.safetensors", 0, tiny_model()
    for _ in range(60):
        tensors = dict(sound)
        for name in source.sample(sorted(tensors), source.choice([1, 1, 2, 5])):
            if source.random() < 0.15:
                del tensors[name]
            else:
                tensors[name] = source.choice(CHANGES)(tensors[name], source)
        save_file(tensors, path)
        try:
            file = read_adapter(path, model)
            attach(tiny_model(), AdapterOptions(), file)
        except UserError as error:
            refused += 1
            assert "a.safetensors" in str(error) or error.field
    assert refused > 30
