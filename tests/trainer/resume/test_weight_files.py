"""Of full and fp16 weights in a folder, a run reads again those that it read when it began."""

from __future__ import annotations

import json
import logging
import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from modules.modelSetup import training
from modules.trainer.resume.checkpoint import MANIFEST, META, _digest, list_backups
from modules.util.errors import UserError
from scripts.train import main
from tests.tiny import small_folder
from tests.trainer.builders import run_and_go_back, run_here, same_weights, write_config, write_pairs
from tests.trainer.resume.test_resume import StopAt
from tests.usual import usual

FULL, HALF = "full", "fp16"
STEMS = {"vae": "diffusion_pytorch_model", "text_encoder": "model"}
SMALL: dict[str, Any] = {
    "vae": {"weight_dtype": "FLOAT_16"},
    "text_encoder": {"train": False, "weight_dtype": "FLOAT_16"},
    "rlhf_dpo_reference_cache": True,
    "rlhf_dpo_reference_cache_draws": 2,
    "rlhf_dpo_execution_mode": "SEQUENTIAL",
    "epochs": 1,
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return Path(shutil.copytree(small_folder(), tmp_path / "model"))


def file_of(folder: Path, part: str, kind: str) -> Path:
    return folder / part / f"{STEMS[part]}.{'fp16.' if kind == HALF else ''}safetensors"


def add_halves(folder: Path, parts: Iterable[str] = STEMS) -> None:
    """Give frozen parts weights in 16 bits that are far from the full ones."""
    for part in parts:
        tensors = {
            name: (tensor * 0.5).half() if tensor.is_floating_point() else tensor
            for name, tensor in load_file(file_of(folder, part, FULL)).items()
        }
        save_file(tensors, file_of(folder, part, HALF), {"format": "pt"})


def without_record(run: Path) -> None:
    """Make the backups of a run those of versions that kept no record of the files."""
    for backup in list_backups(run / "run" / "backup"):
        meta = json.loads((backup / META).read_text())
        del meta["state"]["weight_files"]
        (backup / META).write_text(json.dumps(meta))
        manifest = json.loads((backup / MANIFEST).read_text())
        manifest["files"][META] = _digest(backup / META)
        (backup / MANIFEST).write_text(json.dumps(manifest))


def kinds_held(trainer: Any, folder: Path) -> set[str]:
    """Which files the weights of the frozen parts come from."""
    kinds = set()
    for part in STEMS:
        held = trainer.parts.model.module(part).state_dict()
        stored = {
            kind: load_file(path) for kind in (FULL, HALF) if (path := file_of(folder, part, kind)).exists()
        }
        kinds |= {
            kind
            for kind, tensors in stored.items()
            if all(torch.equal(held[n], t.to(held[n].dtype)) for n, t in tensors.items() if n in held)
        }
    return kinds


def test_a_run_that_began_with_the_small_files_ends_with_them_and_says_why(
    tmp_path: Path, folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def told() -> list[str]:
        return [line for record in caplog.records if "fp16" in (line := record.getMessage())]

    add_halves(folder)
    changes = {**SMALL, "base_model_name": str(folder)}
    config = write_config(tmp_path / "run", **changes)
    with caplog.at_level(logging.INFO):
        straight, began = run_and_go_back(config, 1), told()
        caplog.clear()
        assert kinds_held(straight, folder) == {HALF}
        continued, again = run_here(config, "continue_last_backup=true"), told()
    assert kinds_held(continued, folder) == {HALF}
    assert same_weights(tmp_path / "run" / "whole.safetensors", tmp_path / "run" / "out.safetensors")
    assert len(began) == len(again) == 2
    assert all(line.endswith("because it is frozen and kept in this type") for line in began)
    assert all(line.endswith("because the run began with it") for line in again)
    assert not any("same" in line for line in began + again)


@pytest.mark.slow
def test_a_look_ahead_at_a_resumed_run_looks_at_the_files_it_began_with(tmp_path: Path, folder: Path) -> None:
    config = write_config(tmp_path / "run", **SMALL, base_model_name=str(folder))
    run_here(config, callback=StopAt(1))
    add_halves(folder)
    for part in STEMS:
        file_of(folder, part, HALF).write_bytes(b"damaged")
    dry_run = ["--config-path", str(config), "--dry-run", "--set"]
    assert main([*dry_run, "continue_last_backup=false"]) == 2
    assert main([*dry_run, "continue_last_backup=true"]) == 0


# what a record does is seen where the small files were there at first
@pytest.mark.parametrize("recorded", usual([True, False], False))
def test_small_files_that_arrive_later_change_no_run_that_began_before(
    tmp_path: Path, folder: Path, recorded: bool
) -> None:
    config = write_config(tmp_path / "run", **SMALL, base_model_name=str(folder))
    run_and_go_back(config, 1)
    if not recorded:
        without_record(tmp_path / "run")
    add_halves(folder)
    # what is not read may be damaged
    broken = file_of(folder, "vae", HALF)
    whole = broken.read_bytes()
    broken.write_bytes(whole[:-3])
    continued = run_here(config, "continue_last_backup=true")
    broken.write_bytes(whole)
    assert kinds_held(continued, folder) == {FULL}
    assert same_weights(tmp_path / "run" / "whole.safetensors", tmp_path / "run" / "out.safetensors")


def test_full_files_that_arrive_later_change_no_run_that_began_before(tmp_path: Path, folder: Path) -> None:
    add_halves(folder)
    kept = {part: file_of(folder, part, FULL).rename(tmp_path / f"{part}.safetensors") for part in STEMS}
    # in 32 bits the full files would be read, if they were there
    config = write_config(tmp_path / "run", base_model_name=str(folder), epochs=1)
    run_and_go_back(config, 1)
    for part, path in kept.items():
        path.rename(file_of(folder, part, FULL))
    continued = run_here(config, "continue_last_backup=true")
    assert kinds_held(continued, folder) == {HALF}
    assert same_weights(tmp_path / "run" / "whole.safetensors", tmp_path / "run" / "out.safetensors")


@pytest.mark.parametrize("kind", usual([HALF, FULL], FULL))
def test_a_file_that_is_gone_is_named_before_the_model_is_loaded(
    tmp_path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    if kind == HALF:
        add_halves(folder)
    config = write_config(tmp_path / "run", **SMALL, base_model_name=str(folder))
    run_here(config, callback=StopAt(1))
    add_halves(folder)
    gone = file_of(folder, "vae", kind)
    gone.unlink()
    monkeypatch.setattr(training, "load_model", pytest.fail)
    with pytest.raises(UserError, match="is gone: the run began with these weights") as caught:
        run_here(config, "continue_last_backup=true")
    assert str(gone) in caught.value.message and caught.value.hint == "restore the file, or start a new run"


@pytest.mark.parametrize(
    ("part", "cached"),
    usual(
        [("vae", True), ("text_encoder", True), ("text_encoder", False)],
        ("vae", True),
    ),
)
def test_caches_of_other_files_are_not_used(tmp_path: Path, folder: Path, part: str, cached: bool) -> None:
    changes = {**SMALL, "base_model_name": str(folder), "latent_caching": cached}
    changes |= {"concepts": write_pairs(tmp_path / "data", 2), "max_steps": 1}
    two = write_config(tmp_path / "two", **changes)
    run_here(two)
    full = (tmp_path / "two" / "out.safetensors").rename(tmp_path / "full.safetensors")
    add_halves(folder, [part])
    run_here(write_config(tmp_path / "one", **changes))
    # with the caches of the run before, which read the full files
    run_here(two)
    assert same_weights(tmp_path / "one" / "out.safetensors", tmp_path / "two" / "out.safetensors")
    assert not same_weights(full, tmp_path / "two" / "out.safetensors")


def shorter(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-3])


def no_header(path: Path) -> None:
    path.write_bytes(b"<html>not found</html>")


def one_tensor_fewer(path: Path) -> None:
    tensors = load_file(path)
    del tensors[min(tensors)]
    save_file(tensors, path, {"format": "pt"})


def integers(path: Path) -> None:
    tensors = load_file(path)
    tensors[min(tensors)] = torch.zeros_like(tensors[min(tensors)], dtype=torch.int8)
    save_file(tensors, path, {"format": "pt"})


@pytest.mark.parametrize("damage", [shorter, no_header, one_tensor_fewer, integers])
def test_a_damaged_small_file_is_named_before_the_model_is_loaded(
    tmp_path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch, damage: Any
) -> None:
    add_halves(folder)
    broken = file_of(folder, "vae", HALF)
    damage(broken)
    monkeypatch.setattr(training, "load_model", pytest.fail)
    with pytest.raises(UserError) as caught:
        run_here(write_config(tmp_path / "run", **SMALL, base_model_name=str(folder)))
    assert str(broken) in caught.value.message
    name = "diffusion_pytorch_model"
    assert caught.value.hint == (
        f"download {name}.fp16.safetensors again, or delete it: new runs then read {name}.safetensors"
    )


def test_a_damaged_piece_is_named(tmp_path: Path, folder: Path) -> None:
    add_halves(folder)
    place, whole = folder / "vae", load_file(file_of(folder, "vae", HALF))
    names = sorted(whole)
    pieces = {
        f"diffusion_pytorch_model.fp16-0000{number}-of-00002.safetensors": names[number - 1 :: 2]
        for number in (1, 2)
    }
    for name, own in pieces.items():
        save_file({tensor: whole[tensor] for tensor in own}, place / name, {"format": "pt"})
    file_of(folder, "vae", HALF).unlink()
    listed = {"metadata": {}, "weight_map": {tensor: name for name, own in pieces.items() for tensor in own}}
    (place / "diffusion_pytorch_model.safetensors.index.fp16.json").write_text(json.dumps(listed))
    config = write_config(tmp_path / "run", **SMALL, base_model_name=str(folder))
    assert share_held(run_here(config, callback=StopAt(1))) == pytest.approx(0.5, rel=1e-3)
    last = place / list(pieces)[1]
    shorter(last)
    with pytest.raises(UserError, match="is damaged") as caught:
        run_here(config)
    assert str(last) in caught.value.message and f"download {last.name} again" in str(caught.value.hint)


def share_held(trainer: Any) -> float:
    """By how much the weights of the VAE are smaller than the published ones."""
    name = "decoder.conv_out.weight"
    held = trainer.parts.model.module("vae").state_dict()[name].float()
    published = load_file(file_of(small_folder(), "vae", FULL))[name].float()
    return float(held.abs().sum() / published.abs().sum())


def test_infinite_weights_of_the_small_file_are_told_with_its_name(tmp_path: Path, folder: Path) -> None:
    add_halves(folder)
    broken = file_of(folder, "vae", HALF)
    tensors = load_file(broken)
    tensors["decoder.conv_out.weight"][0] = float("inf")
    save_file(tensors, broken, {"format": "pt"})
    with pytest.raises(UserError, match="infinite") as caught:
        run_here(write_config(tmp_path / "run", **SMALL, base_model_name=str(folder)))
    assert str(broken) in caught.value.message and f"download {broken.name} again" in str(caught.value.hint)

