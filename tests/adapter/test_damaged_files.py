"""Damaged and hostile adapter files: refused with file and tensor, never with a traceback."""

from __future__ import annotations

import hashlib
import json
import random
import re
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from modules.adapter.AdapterOptions import KINDS, AdapterOptions
from modules.adapter.formats import adapter_tensors, save_adapter
from modules.adapter.PeftAdapter import attach
from modules.adapter.reading import read_adapter
from modules.model.Model import Model
from modules.util.errors import DataError, UserError
from scripts.train import main
from tests.tiny import tiny_folder, tiny_model
from tests.trainer.builders import write_config
from tests.usual import usual

LAYER = "lora_unet_conv_in"
Tensors = dict[str, torch.Tensor]


@cache
def _whole(kind: str, layout: str = "KOHYA_LORA") -> Tensors:
    handle = attach(tiny_model(), AdapterOptions(kind=kind, rank=4, alpha=4.0))
    for _, parameter in handle.named_parameters():
        parameter.data += 0.01
    return adapter_tensors(handle, layout)


def whole(kind: str = "LORA") -> Tensors:
    """The tensors of a sound file, with values away from zero."""
    return {name: tensor.clone() for name, tensor in _whole(kind).items()}


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
    tensors = _whole("LORA", "DIFFUSERS_LORA")
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
    made = {"base_model_name": str(tiny_folder()), "lora_model_name": str(tmp_path / "nan.safetensors")}
    path = write_config(tmp_path / "run", **made)
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
    source = random.Random(f"damaged {kind}")
    # layers of every sort, but few, because reading them would take most of the time
    sound = {name: each for name, each in whole(kind).items() if re.search("conv_in|mid_block|time_emb", name)}
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


def own_file(folder: Path, layout: str = "KOHYA_LORA") -> Path:
    """A small adapter as this program writes it, with numbers of two types and, for diffusers, two ranks."""
    options = AdapterOptions(rank=2, patterns=("mid_block",), rank_pattern={"to_q": 1})
    handle = attach(tiny_model(), options)
    for _, parameter in handle.named_parameters():
        parameter.data += 0.01
    return save_adapter(handle, folder / "own.safetensors", layout, torch.bfloat16)


def said_by(path: Path) -> dict[str, str]:
    with safe_open(path, framework="pt") as file:
        return dict(file.metadata())


def values(path: Path, model: Model) -> object:
    """Everything training begins with."""
    file = read_adapter(path, model)
    return [
        (place, layer.alpha, layer.rank, {name: t.tolist() for name, t in sorted(layer.tensors.items())})
        for place, layer in file.layers.items()
    ]


@pytest.mark.slow
@pytest.mark.parametrize("layout", ["KOHYA_LORA", "DIFFUSERS_LORA"])
def test_any_flipped_bit_of_an_own_file_is_found_or_changes_nothing(tmp_path: Path, layout: str) -> None:
    model, path = tiny_model(), own_file(tmp_path, layout)
    sound, content = values(path, model), path.read_bytes()
    header = 8 + int.from_bytes(content[:8], "little")
    found = 0
    for at in [*range(header), *range(header, len(content), 97)]:
        for bit in range(8):
            damaged = bytearray(content)
            damaged[at] ^= 1 << bit
            path.write_bytes(damaged)
            try:
                after = values(path, model)
            except UserError:
                found += 1
            else:
                assert after == sound, f"bit {bit} of byte {at}: {bytes(content[at - 20 : at + 20])!r}"
    assert found > header * 4


@pytest.mark.parametrize("layout", ["KOHYA_LORA", "DIFFUSERS_LORA"])
def test_a_flipped_bit_of_a_weight_is_found(tmp_path: Path, layout: str) -> None:
    path = own_file(tmp_path, layout)
    content = bytearray(path.read_bytes())
    content[-2] ^= 1
    path.write_bytes(content)
    with pytest.raises(DataError, match="own.safetensors is damaged.*not those that were saved") as caught:
        read_adapter(path, tiny_model())
    assert caught.value.field == "lora_model_name" and caught.value.hint


def test_names_and_ranks_that_were_changed_are_found(tmp_path: Path) -> None:
    path = own_file(tmp_path, "DIFFUSERS_LORA")
    tensors, metadata = load_file(path), said_by(path)
    name = next(name for name in tensors if "to_k.lora_A" in name)
    other = name.replace("to_k", "to_v")
    swapped = tensors | {name: tensors[other], other: tensors[name]}
    save_file(swapped, path, metadata)
    with pytest.raises(DataError, match="not those that were saved"):
        read_adapter(path, tiny_model())
    config = metadata["lora_adapter_metadata"]
    save_file(
        tensors,
        path,
        metadata | {"lora_adapter_metadata": config.replace('"unet.lora_alpha": 2', '"unet.lora_alpha": 3')},
    )
    with pytest.raises(DataError, match="not those that were saved"):
        read_adapter(path, tiny_model())


def test_another_program_may_rename_an_own_file_in_its_metadata(tmp_path: Path) -> None:
    path = own_file(tmp_path)
    save_file(load_file(path), path, said_by(path) | {"modelspec.title": "Cats", "modelspec.author": "me"})
    assert read_adapter(path, tiny_model()).notes == ()


def test_a_file_from_before_the_digest_of_names_is_read(tmp_path: Path) -> None:
    path = own_file(tmp_path)
    tensors, metadata = load_file(path), said_by(path)
    assert len({tensor.dtype for tensor in tensors.values()}) == 2
    raw = (tensors[name].flatten().view(torch.uint8).numpy().tobytes() for name in sorted(tensors))
    former = {"modelspec.hash_sha256": f"0x{hashlib.sha256(b''.join(raw)).hexdigest()}"}
    kept = {name: text for name, text in metadata.items() if name != "tastemaker.layout_sha256"}
    assert former["modelspec.hash_sha256"] != kept["modelspec.hash_sha256"]
    save_file(tensors, path, kept | former)
    assert read_adapter(path, tiny_model()).notes == ()


def test_a_foreign_file_with_an_outdated_digest_is_read_and_named(tmp_path: Path) -> None:
    path = tmp_path / "foreign.safetensors"
    save_file(whole(), path)
    assert read_adapter(path, tiny_model()).notes == ()
    save_file(whole(), path, {"modelspec.hash_sha256": "0x" + "0" * 64})
    (note,) = read_adapter(path, tiny_model()).notes
    assert "foreign.safetensors" in note and "modelspec.hash_sha256" in note
