"""What a dry run finds wrong with the model, the adapter and the layers, and what it may leave open."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from modules.trainer import GenericTrainer
from scripts.train import main
from tests.tiny import small_folder
from tests.trainer.builders import events, run_here, write_config
from tests.trainer.online.builders import write_online


def _empty(path: Path) -> Path:
    path.write_bytes(b"")
    return path


def _adapter(folder: Path) -> str:
    """One that was trained for another family."""
    key = "SANA"
    part: dict[str, Any] = {"transformer": {"gradient_checkpointing": False}}
    base = {"model_type": key, "base_model_name": str(small_folder(key)), "unet": {}, **part}
    run_here(write_config(folder / "other", epochs=1, **base))
    return str(folder / "other" / "out.safetensors")


SANA = {"model_type": "SANA", "unet": {}}
FAULTS: dict[str, tuple[str, Callable[[Path], dict[str, Any]]]] = {
    "no folder": ("nowhere", lambda f: {"base_model_name": str(f / "nowhere")}),
    "no file": ("model.safetensors", lambda f: {"base_model_name": str(f / "model.safetensors")}),
    "an empty file": ("damaged", lambda f: {"base_model_name": str(_empty(f / "damaged.safetensors"))}),
    "another family": ("cannot be used as", lambda f: {"base_model_name": str(small_folder("SANA"))}),
    "an adapter of another family": ("does not fit", lambda f: {"lora_model_name": _adapter(f)}),
    "no such layer": ("attn9", lambda f: {"layer_filter_preset": "custom", "layer_filter": "attn9"}),
    "no such layer for a rank": ("nope", lambda f: {"lora_rank_pattern": "nope=3"}),
    "another prediction": (
        "flow-matching",
        lambda f: {**SANA, "base_model_name": str(small_folder("SANA")), "force_v_prediction": True},
    ),
    "no source of a part": ("unet.model_name.*gone", lambda f: {"unet": {"model_name": str(f / "gone")}}),
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_of_the_model_ends_a_dry_run_and_a_run_before_loading(
    tmp_path: Path, name: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    said, make = FAULTS[name]
    config = write_config(tmp_path, **make(tmp_path))
    monkeypatch.setattr(GenericTrainer, "assemble", None)
    capsys.readouterr()
    for arguments in (["--dry-run"], []):
        assert main(["--config-path", str(config), *arguments]) == 2
        shown = capsys.readouterr()
        assert shown.err.startswith("error: ") and said.split(".*")[-1] in shown.err, shown.err
        assert said.split(".*")[0] in shown.err and "Traceback" not in shown.err
        assert "cannot be estimated" not in shown.out
    assert events(tmp_path / "run")[-1]["status"] == "failed"


def put_into_the_cache(cache: Path, name: str, folder: Path) -> Path:
    """A folder as a download leaves it."""
    place = cache / f"models--{name.replace('/', '--')}"
    snapshot = place / "snapshots" / ("0" * 40)
    shutil.copytree(folder, snapshot)
    (place / "refs").mkdir()
    (place / "refs" / "main").write_text("0" * 40, encoding="utf-8")
    return snapshot


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    return tmp_path / "hub"


def without_free_space(said: str) -> str:
    """What a dry run says but for the room on the disk, which other programs change meanwhile."""
    return re.sub(r"[\d.]+ GiB free", "... GiB free", said)


def dry_run(capsys: pytest.CaptureFixture[str], config: Path) -> str:
    capsys.readouterr()
    code = main(["--config-path", str(config), "--dry-run"])
    shown = capsys.readouterr()
    assert code == 0, shown.err
    return without_free_space(shown.out)


def test_a_model_that_was_downloaded_is_predicted_like_its_folder(
    tmp_path: Path, cache: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = write_config(tmp_path, base_model_name="someone/a-model")
    assert "memory cannot be estimated: someone/a-model is not on this machine" in dry_run(capsys, config)
    snapshot = put_into_the_cache(cache, "someone/a-model", small_folder())
    made = dry_run(capsys, config)
    assert "predicted GPU memory" in made and made == dry_run(capsys, write_config(tmp_path))
    next((snapshot / "unet").glob("*.safetensors")).unlink()
    unfinished = write_config(tmp_path, base_model_name="someone/a-model")
    assert dry_run(capsys, unfinished) == made, "the configs are enough, and the run downloads the rest"
    (snapshot / "unet" / "config.json").unlink()
    assert "is not on this machine" in dry_run(
        capsys, write_config(tmp_path, base_model_name="someone/a-model")
    )


def test_a_folder_without_weights_is_predicted_and_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    whole = dry_run(capsys, write_config(tmp_path))
    bare = tmp_path / "bare"
    shutil.copytree(small_folder(), bare, ignore=shutil.ignore_patterns("*.safetensors"))
    assert main(["--config-path", str(write_config(tmp_path, base_model_name=str(bare))), "--dry-run"]) == 2
    shown = capsys.readouterr()
    assert without_free_space(shown.out) == whole
    assert "unet holds no .safetensors weights" in shown.err


@pytest.mark.slow  # a downloaded model and a folder without weights are predicted above
def test_parts_from_elsewhere_are_what_is_predicted(
    tmp_path: Path, cache: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    put_into_the_cache(cache, "someone/a-unet", small_folder() / "unet")
    base = tmp_path / "base"
    shutil.copytree(small_folder(), base)
    for weights in (base / "unet").glob("*.safetensors"):
        weights.unlink()
    whole = dry_run(capsys, write_config(tmp_path))
    for source in (str(small_folder() / "unet"), str(small_folder()), "someone/a-unet"):
        part = {"model_name": source, "gradient_checkpointing": False}
        assert dry_run(capsys, write_config(tmp_path, base_model_name=str(base), unet=part)) == whole


@pytest.mark.parametrize("write", [write_config, write_online], ids=["concepts", "online"])
def test_folders_that_a_run_cannot_make_end_the_dry_run_and_the_run_before_loading(
    write: Callable[..., Path], tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    file = _empty(tmp_path / "file")
    (tmp_path / "circle").symlink_to("circle")
    (tmp_path / "unplugged").symlink_to(tmp_path / "gone" / "disk")
    monkeypatch.setattr(GenericTrainer, "assemble", None)
    for place in (file, tmp_path / "circle", tmp_path / "unplugged"):
        for field in ("workspace_dir", "output_model_destination"):
            value = str(place / "x" / "out.safetensors") if field != "workspace_dir" else str(place)
            config = write(tmp_path, **{field: value})
            for arguments in (["--dry-run"], []):
                assert main(["--config-path", str(config), *arguments]) == 2
                said = capsys.readouterr().err
                assert field in said and str(place) in said
    assert not (tmp_path / "gone").exists()


def test_a_dry_run_tells_programs_everything_at_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = write_config(
        tmp_path, base_model_name=str(tmp_path / "nowhere"), cache_dir=str(_empty(tmp_path / "f"))
    )
    assert main(["--config-path", str(config), "--dry-run", "--json"]) == 2
    found = json.loads(capsys.readouterr().out)
    assert [error["field"] for error in found["errors"]] == ["cache_dir", "base_model_name"]
    assert all(error["message"] for error in found["errors"])
    config = write_config(tmp_path, epochs=0)
    assert main(["--config-path", str(config), "--dry-run", "--json"]) == 2
    (error,) = json.loads(capsys.readouterr().out)["errors"]
    assert error["field"] == "epochs"
    assert main(["--config-path", str(write_config(tmp_path)), "--dry-run", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["errors"] == []


def test_a_dry_run_whose_output_nobody_reads_is_no_bug(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def nobody_reads(text: str) -> None:
        raise BrokenPipeError

    monkeypatch.setattr("builtins.print", nobody_reads)
    with pytest.raises(BrokenPipeError):
        main(["--config-path", str(write_config(tmp_path)), "--dry-run"])


def test_programs_are_told_steps_and_memory_before_the_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = write_config(tmp_path, epochs=3)
    capsys.readouterr()
    assert main(["--config-path", str(config), "--dry-run", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["errors"] == [] and told["memory"] == {"unknown": "on the CPU, training uses the main memory"}
    assert main(["--config-path", str(config)]) == 0
    (started,) = [event for event in events(tmp_path / "run") if event["kind"] == "run_started"]
    assert told["steps"] == started["total_steps"]
    assert told["steps_per_epoch"] == 3
    capsys.readouterr()
    arguments = ["--config-path", str(config), "--set", "train_device=auto", "--dry-run"]
    assert main([*arguments, "--json"]) == 0
    needed = json.loads(capsys.readouterr().out)["memory"]["needed_bytes"]
    assert main(arguments) == 0
    first = next(line for line in capsys.readouterr().out.splitlines() if "predicted GPU memory" in line)
    said = re.search(r": ([\d.]+) ([GM])iB", first)
    assert said is not None
    assert abs(needed / (2**30 if said[2] == "G" else 2**20) - float(said[1])) < 0.01
