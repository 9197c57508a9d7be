"""``weight_variant`` names which of several weights in a model's folder are read."""

from __future__ import annotations

import json
import logging
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import huggingface_hub
import pytest
import torch
from huggingface_hub.utils import filter_repo_objects
from safetensors.torch import load_file, save_file

from modules.modelSetup import training
from modules.util.config.load import load_config
from modules.util.config.TrainConfig import TrainConfig
from modules.util.errors import ConfigError, UserError
from scripts.train import main
from tests.scripts.test_train_dry_run import put_into_the_cache
from tests.tiny import tiny_folder, tiny_setup
from tests.trainer.builders import run_here, same_weights, write_config, write_pairs
from tests.trainer.resume.test_resume import StopAt

UNET = "diffusion_pytorch_model"
STEMS = {"unet": UNET, "vae": UNET, "text_encoder": "model"}
FULL, HALF = 1.0, 0.5
"""Factors of the published weights in plain files, and in those of the variant."""


def add_variant(folder: Path, *parts: str, pieces: bool = False) -> list[Path]:
    """Give parts ``fp16`` weights that are half as large, in one file or in two with an index."""
    made: list[Path] = []
    for part in parts:
        place, stem = folder / part, STEMS[part]
        halves = {n: (HALF * t).half() for n, t in load_file(place / f"{stem}.safetensors").items()}
        if not pieces:
            made.append(place / f"{stem}.fp16.safetensors")
            save_file(halves, made[-1], {"format": "pt"})
            continue
        listed = {}
        for number in (1, 2):
            made.append(place / f"{stem}.fp16-{number:05d}-of-00002.safetensors")
            own = {name: halves[name] for name in sorted(halves)[number - 1 :: 2]}
            save_file(own, made[-1], {"format": "pt"})
            listed |= dict.fromkeys(own, made[-1].name)
        made.append(place / f"{stem}.safetensors.index.fp16.json")
        made[-1].write_text(json.dumps({"metadata": {}, "weight_map": listed}), encoding="utf-8")
    return made


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return Path(shutil.copytree(tiny_folder(), tmp_path / "model"))


def factors(folder: Path | str, **changes: Any) -> dict[str, float]:
    """By how much the weights of each part of a run differ from the published ones."""
    config = TrainConfig.from_dict({"base_model_name": str(folder), **changes})
    model = training.load_model(tiny_setup(), config)
    made = {}
    for part, stem in STEMS.items():
        published = load_file(tiny_folder() / part / f"{stem}.safetensors")
        held = model.module(part).state_dict()
        name = max((n for n in published if n in held and published[n].is_floating_point()), key=len)
        made[part] = round(float(held[name].float().abs().sum() / published[name].abs().sum()), 3)
    return made


@pytest.mark.parametrize("pieces", [False, True], ids=["whole", "in pieces"])
def test_the_variant_that_is_named_is_read_of_all_parts_that_have_it(
    folder: Path, pieces: bool, caplog: pytest.LogCaptureFixture
) -> None:
    add_variant(folder, "unet", "text_encoder", pieces=pieces)
    assert factors(folder) == dict.fromkeys(STEMS, FULL)
    with caplog.at_level(logging.INFO):
        # of a trained part too, and kept in 32 bits
        assert factors(folder, weight_variant="fp16") == {"unet": HALF, "text_encoder": HALF, "vae": FULL}
    said = [record.getMessage() for record in caplog.records if "weight_variant" in record.getMessage()]
    assert len(said) == 2 and all("fp16" in line for line in said)
    assert f"{folder / 'vae'} has no weights of the variant fp16: {UNET}.safetensors is read" in caplog.messages


def remove(which: int) -> Callable[[list[Path]], str]:
    def change(made: list[Path]) -> str:
        made[which].unlink()
        return made[which].name

    return change


def without_a_tensor(made: list[Path]) -> str:
    state = load_file(made[1])
    state.pop(min(state))
    save_file(state, made[1], {"format": "pt"})
    return rf"{made[1].name} lacks 1 tensor that its index lists:"


def cut_short(made: list[Path]) -> str:
    made[1].write_bytes(made[1].read_bytes()[:-3])
    return made[1].name


@pytest.mark.parametrize("change", [remove(1), without_a_tensor, cut_short], ids=["missing", "fewer", "damaged"])
def test_a_piece_that_does_not_fit_is_named_and_nothing_else_is_read_instead(
    folder: Path, tmp_path: Path, change: Callable[[list[Path]], str], capsys: pytest.CaptureFixture[str]
) -> None:
    said = change(add_variant(folder, "unet", pieces=True))
    config = write_config(tmp_path, base_model_name=str(folder), weight_variant="fp16")
    assert main(["--config-path", str(config)]) == 2
    shown = capsys.readouterr().err
    assert said in shown
    # the plain file would not be what was asked for
    assert f"new runs then read {UNET}.safetensors" not in shown


def test_an_index_that_is_missing_is_named(folder: Path) -> None:
    add_variant(folder, "unet", pieces=True)[-1].unlink()
    with pytest.raises(UserError, match=rf"has several files of weights but no {UNET}\.fp16\.safetensors\.index\.json"):
        factors(folder, weight_variant="fp16")


def test_an_unknown_variant_is_refused_before_anything_is_loaded(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    first = add_variant(folder, "unet", pieces=True)[0]
    monkeypatch.setattr(training, "load_model", pytest.fail)
    config = write_config(tmp_path, base_model_name=str(folder), weight_variant="bf16")
    assert main(["--config-path", str(config)]) == 2
    shown = capsys.readouterr().err
    assert f"{folder} has no weights of the variant 'bf16' for its unet" in shown
    assert f"there is no unet/{UNET}.bf16.safetensors, whole or in pieces" in shown
    assert f"unet: plain ({UNET}.safetensors), fp16 ({first.name})" in shown
    assert "vae: plain" in shown and "weight_variant" in shown
    assert "set weight_variant to fp16, or leave it empty" in shown


def test_the_denoiser_must_have_the_variant(folder: Path) -> None:
    add_variant(folder, "text_encoder", "vae")
    with pytest.raises(UserError, match="has no weights of the variant 'fp16' for its unet") as caught:
        factors(folder, weight_variant="fp16")
    assert caught.value.field == "weight_variant"
    # the denoiser of another place is not meant
    other = {"model_name": str(tiny_folder() / "unet")}
    wanted = {"unet": FULL, "text_encoder": HALF, "vae": HALF}
    assert factors(folder, weight_variant="fp16", unet=other) == wanted
    with pytest.raises(UserError, match="has no weights of the variant 'bf16' for its (vae, text|text_encoder, vae)"):
        factors(folder, weight_variant="bf16", unet=other)


def test_a_part_that_has_neither_the_variant_nor_plain_weights_is_refused(folder: Path) -> None:
    add_variant(folder, "unet")
    plain = folder / "vae" / f"{UNET}.safetensors"
    plain.rename(plain.with_name(f"{UNET}.non_ema.safetensors"))
    with pytest.raises(UserError, match="variant 'fp16' for its vae") as caught:
        factors(folder, weight_variant="fp16")
    assert f"vae: non_ema ({UNET}.non_ema.safetensors)" in caught.value.message


def test_parts_from_elsewhere_have_variants_of_their_own(folder: Path, tmp_path: Path) -> None:
    add_variant(folder, "unet", "vae")
    other = Path(shutil.copytree(folder, tmp_path / "other"))
    wanted = {"unet": HALF, "text_encoder": FULL, "vae": FULL}
    assert factors(folder, weight_variant="fp16", vae={"model_name": str(other)}) == wanted


def test_a_single_file_has_no_variants(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    save_file({"a": torch.zeros(1)}, path)
    with pytest.raises(UserError, match="is a single file, which has no variants") as caught:
        factors(path, weight_variant="fp16")
    assert caught.value.field == "weight_variant"


@pytest.mark.parametrize("value", ["../fp16", "fp*", "a b", "fp16.safetensors"])
def test_what_cannot_be_in_the_name_of_a_file_is_no_variant(value: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="is not the variant of a file of weights") as caught:
        load_config(write_config(tmp_path, weight_variant=value))
    assert "weight_variant" in str(caught.value)


def test_a_saved_model_has_the_variant_of_parts_in_8_bits_too(folder: Path, tmp_path: Path) -> None:
    add_variant(folder, "unet", "text_encoder")
    out = tmp_path / "trained"
    run_here(
        write_config(
            tmp_path,
            base_model_name=str(folder),
            weight_variant="fp16",
            training_method="FINE_TUNE",
            rlhf_enabled=False,
            concepts=[{**write_pairs(tmp_path / "data")[0], "type": "STANDARD"}],
            text_encoder={"train": False, "weight_dtype": "FLOAT_8"},
            output_model_format="DIFFUSERS",
            output_model_destination=str(out),
            output_dtype="FLOAT_32",
            max_steps=1,
        )
    )
    saved, published = (load_file(place / "text_encoder/model.safetensors") for place in (out, tiny_folder()))
    names = [name for name in saved if name.removeprefix("text_model.") in published]
    assert len(names) == len(published)
    for name in names:
        assert torch.equal(saved[name], (HALF * published[name.removeprefix("text_model.")]).half().float())


# -- resuming --------------------------------------------------------------------------------------------------


def test_a_resumed_run_reads_the_variant_again(folder: Path, tmp_path: Path) -> None:
    add_variant(folder, "unet", "text_encoder")
    changes = {"base_model_name": str(folder), "weight_variant": "fp16", "epochs": 1}
    run_here(write_config(tmp_path / "one", **changes))
    two = write_config(tmp_path / "two", **changes)
    run_here(two, callback=StopAt(1))
    # a part that was read from its plain file stays with it
    add_variant(folder, "vae")
    run_here(two, "continue_last_backup=true")
    assert same_weights(tmp_path / "one" / "out.safetensors", tmp_path / "two" / "out.safetensors")
    with pytest.raises(ConfigError, match="weight_variant: fp16 in the backup,  now"):
        run_here(two, "continue_last_backup=true", "weight_variant=")


# -- models on the hub -----------------------------------------------------------------------------------------


def on_the_hub(monkeypatch: pytest.MonkeyPatch, files: Path, cache: Path) -> list[str]:
    """A hub with one model. Returns what is downloaded of its weights."""
    names = sorted(path.relative_to(files).as_posix() for path in files.rglob("*") if path.is_file())
    fetched: list[str] = []

    def download(name: str, allow_patterns: list[str], token: str | None) -> str:
        for one in filter_repo_objects(names, allow_patterns=allow_patterns):
            (cache / one).parent.mkdir(parents=True, exist_ok=True)
            if not (cache / one).exists():
                shutil.copyfile(files / one, cache / one)
                fetched.extend([one] if one.endswith(".safetensors") else [])
        return str(cache)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
    monkeypatch.setattr(huggingface_hub, "list_repo_files", lambda name, **_: names)
    return fetched


@pytest.mark.parametrize("pieces", [False, True], ids=["whole", "in pieces"])
def test_the_variant_is_what_is_downloaded(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pieces: bool
) -> None:
    made = add_variant(folder, "unet", "text_encoder", pieces=pieces)
    fetched = on_the_hub(monkeypatch, folder, tmp_path / "cache")
    monkeypatch.chdir(tmp_path)
    wanted = {"unet": HALF, "text_encoder": HALF, "vae": FULL}
    assert factors("owner/model", weight_variant="fp16") == wanted
    halves = {path.relative_to(folder).as_posix() for path in made if path.suffix == ".safetensors"}
    assert set(fetched) == halves | {f"vae/{UNET}.safetensors"}


def test_a_variant_that_the_hub_lacks_is_refused_before_any_weights_are_downloaded(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    add_variant(folder, "unet")
    fetched = on_the_hub(monkeypatch, folder, tmp_path / "cache")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match="owner/model has no weights of the variant 'bf16' for its unet") as caught:
        factors("owner/model", weight_variant="bf16")
    assert f"unet: plain ({UNET}.safetensors), fp16 ({UNET}.fp16.safetensors)" in caught.value.message
    assert caught.value.field == "weight_variant" and fetched == []

    def unreachable(name: str, **options: object) -> list[str]:
        raise ConnectionError("no network")

    monkeypatch.setattr(huggingface_hub, "list_repo_files", unreachable)
    with pytest.raises(UserError, match="'bf16' of 'owner/model' are not on this machine, and the hub cannot"):
        factors("owner/model", weight_variant="bf16")


def test_a_downloaded_model_without_the_variant_is_checked_once_it_is_there(
    tmp_path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = tmp_path / "hub"
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(cache))
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    put_into_the_cache(cache, "owner/model", folder)
    monkeypatch.chdir(tmp_path)
    config = write_config(tmp_path, base_model_name="owner/model", weight_variant="fp16", max_steps=1)
    with pytest.raises(UserError, match="'fp16' of 'owner/model' are not on this machine"):
        run_here(config)
    add_variant(folder, "unet")
    shutil.rmtree(cache)
    put_into_the_cache(cache, "owner/model", folder)
    run_here(config)
