"""Whole models of which parts were kept in fewer bits while others were trained."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from modules.model.dtypes import PartDtypes
from modules.weights.one_file import save_file as save_single_file
from modules.weights.saving import save_folder
from tests.tiny import small_folder, tiny_setup
from tests.trainer.builders import run_here, write_config, write_pairs
from tests.usual import usual

CASES = [(layout, kind) for layout in ("DIFFUSERS", "SAFETENSORS") for kind in ("FLOAT_8", "INT_8", "NFLOAT_4")]


@pytest.mark.parametrize(
    ("layout", "kind"), usual(CASES, ("DIFFUSERS", "INT_8"), ("SAFETENSORS", "FLOAT_8"))
)
def test_what_was_not_trained_is_saved_as_it_came(layout: str, kind: str, tmp_path: Path) -> None:
    if kind != "FLOAT_8":
        pytest.importorskip("bitsandbytes")
    made = tmp_path / ("whole" if layout == "DIFFUSERS" else "whole.safetensors")
    concepts = [{**write_pairs(tmp_path / "data", 2)[0], "type": "STANDARD"}]
    path = write_config(
        tmp_path, training_method="FINE_TUNE", rlhf_enabled=False, concepts=concepts, epochs=1,
        text_encoder={"weight_dtype": kind}, output_model_format=layout, output_model_destination=str(made),
    )  # fmt: skip
    run_here(path)
    kept, written = tensors(untouched(tmp_path, layout)), tensors(made)
    assert kept.keys() == written.keys()
    different = {name for name in kept if not torch.equal(kept[name], written[name])}
    assert different
    assert all("diffusion_model" in name or name.startswith("unet") for name in different)


def untouched(folder: Path, layout: str) -> Path:
    """The base model in the layout."""
    model = tiny_setup().load(str(small_folder()), PartDtypes(default=torch.float32))
    if layout == "DIFFUSERS":
        return save_folder(model, folder / "untouched")
    return save_single_file(model, folder / "untouched.safetensors")


def tensors(place: Path) -> dict[str, torch.Tensor]:
    """All tensors of a file, or those of a folder under the names of their parts."""
    if place.is_file():
        return load_file(place)
    found = place.glob("*/*.safetensors")
    return {f"{file.parent.name}.{name}": value for file in found for name, value in load_file(file).items()}
