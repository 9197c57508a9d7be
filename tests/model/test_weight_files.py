"""Reading other programs' files of weights, and refusing those that would do more than hold weights."""

from __future__ import annotations

import pickle
import zipfile
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from modules.model import weight_files
from modules.model.weight_files import open_weights
from modules.util.errors import UserError


class Poison:
    """Makes a file when it is unpickled."""

    def __init__(self, target: Path) -> None:
        self.target = target

    def __reduce__(self) -> tuple[object, tuple[object, ...]]:
        return Path.touch, (self.target,)


@pytest.mark.parametrize("wrapper", [None, "state_dict"])
@pytest.mark.parametrize("suffix", [".ckpt", ".pt", ".pth"])
def test_checkpoints_are_read(tmp_path: Path, suffix: str, wrapper: str | None) -> None:
    state = {"a.weight": torch.arange(6.0).reshape(2, 3), "b": torch.ones(1, dtype=torch.float16)}
    path = tmp_path / f"model{suffix}"
    torch.save({wrapper: state, "epoch": 3} if wrapper else state, path)
    file = open_weights(path, "base_model_name")
    assert file.shapes == {"a.weight": (2, 3), "b": (1,)}
    assert torch.equal(file.tensor("a.weight"), state["a.weight"])
    assert file.tensor("b").dtype == torch.float16


@pytest.mark.parametrize("archived", [True, False])
def test_poisoned_checkpoints_run_nothing(tmp_path: Path, archived: bool) -> None:
    mark, path = tmp_path / "ran", tmp_path / "model.ckpt"
    poisoned = {"state_dict": {"a": torch.ones(1)}, "callbacks": Poison(mark)}
    if archived:
        torch.save(poisoned, path)
    else:
        path.write_bytes(pickle.dumps(Poison(mark)))
    with pytest.raises(UserError, match="more than weights" if archived else "not a checkpoint") as caught:
        open_weights(path, "vae.model_name")
    assert caught.value.field == "vae.model_name"
    assert "safetensors" in str(caught.value.hint)
    assert not mark.exists()
    # the poison works where nobody looks
    if archived:
        torch.load(path, weights_only=False)
    else:
        pickle.loads(path.read_bytes())
    assert mark.exists()


def test_sizes_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, packed = tmp_path / "model.ckpt", tmp_path / "packed.ckpt"
    torch.save({"a": torch.zeros(1).expand(10**12)}, path)
    with pytest.raises(UserError, match="a is larger than the file"):
        open_weights(path, "base_model_name")
    torch.save({"a": torch.zeros(100_000)}, path)
    with zipfile.ZipFile(path) as source, zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as target:
        for entry in source.infolist():
            target.writestr(entry.filename, source.read(entry.filename))
    assert packed.stat().st_size < path.stat().st_size / 10
    with pytest.raises(UserError, match="packed"):
        open_weights(packed, "base_model_name")
    monkeypatch.setattr(weight_files, "MAX_PROGRAM", 10)
    with pytest.raises(UserError, match=r"data\.pkl is too large"):
        open_weights(path, "base_model_name")


@pytest.mark.parametrize("content", [[torch.ones(1)], torch.ones(1), 3])
def test_checkpoints_without_names(tmp_path: Path, content: object) -> None:
    path = tmp_path / "model.pt"
    torch.save(content, path)
    with pytest.raises(UserError, match="instead of named weights"):
        open_weights(path, "base_model_name")


@pytest.mark.parametrize("suffix", [".safetensors", ".ckpt"])
def test_damaged_files(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"model{suffix}"
    if suffix == ".ckpt":
        torch.save({"a": torch.zeros(1000)}, path)
    else:
        save_file({"a": torch.zeros(1000)}, path)
    path.write_bytes(path.read_bytes()[:2000])
    with pytest.raises(UserError, match="damaged"):
        open_weights(path, "base_model_name")


def test_an_empty_note_about_a_format_says_nothing(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    weight = torch.eye(4)
    save_file({"layer.weight": weight, "layer.comfy_quant": torch.zeros(0, dtype=torch.uint8)}, path)
    file = open_weights(path, "transformer.model_name")
    assert file.shapes.keys() == {"layer.weight"} and torch.equal(file.tensor("layer.weight"), weight)


def test_a_long_note_about_a_format_is_refused_unread(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    save_file({"layer.comfy_quant": torch.full((2**20,), ord(" "), dtype=torch.uint8)}, path)
    with pytest.raises(UserError, match="layer.comfy_quant.* is longer than"):
        open_weights(path, "transformer.model_name")


def test_eight_bits_with_a_scale(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    weight = torch.randn(4, 4, generator=torch.Generator().manual_seed(0))
    scale = weight.abs().max() / 448
    state = {
        "layer.weight": (weight / scale).to(torch.float8_e4m3fn),
        "layer.scale_weight": scale.reshape(1),
        "layer.scale_input": torch.ones(1),
        "plain.weight": weight.to(torch.float8_e4m3fn),
        "scaled_fp8": torch.zeros(2, dtype=torch.float8_e4m3fn),
    }
    save_file(state, path)
    file = open_weights(path, "transformer.model_name")
    assert file.shapes.keys() == {"layer.weight", "plain.weight"}
    assert (file.tensor("layer.weight") - weight).abs().max() < 0.07 * weight.abs().max()
    assert file.tensor("plain.weight").dtype == torch.float8_e4m3fn


@pytest.mark.parametrize("scale", [torch.nan, torch.inf])
def test_a_scale_that_is_not_finite_is_refused(tmp_path: Path, scale: float) -> None:
    path = tmp_path / "model.safetensors"
    weight = torch.ones(4, 4).to(torch.float8_e4m3fn)
    save_file({"layer.weight": weight, "layer.weight_scale": torch.tensor([1.0, 1.0, scale, 1.0])}, path)
    file = open_weights(path, "transformer.model_name")
    for read in (lambda: file.tensor("layer.weight"), lambda: file.lazy("layer.weight").read()):
        with pytest.raises(UserError, match="layer.weight_scale is NaN or infinite"):
            read()
