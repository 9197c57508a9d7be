"""Where the trained model goes: nothing of a person is ever in its way, and one name is meant everywhere."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from modules.trainer.callbacks import Callback
from modules.trainer.resume.checkpoint import list_backups
from modules.util.errors import UserError
from modules.util.files.output_place import output_place
from modules.util.files.user_folder import settings_folder
from modules.util.owned_files import LIST_NAME
from scripts.train import main
from tests.guard import Guard
from tests.tiny import small_folder
from tests.trainer.builders import run_here, write_config
from tests.usual import usual

WHOLE: dict[str, Any] = {"training_method": "FINE_TUNE", "max_steps": 1, "rlhf_enabled": False}


def sana(folder: Path, **changes: Any) -> Path:
    """A family whose whole models are folders."""
    base = {"model_type": "SANA", "base_model_name": str(small_folder("SANA")), "unet": {}}
    part = {"transformer": {"gradient_checkpointing": False}}
    concepts = [{"name": "a", "path": str(folder / "data" / "chosen"), "type": "STANDARD"}]
    return write_config(folder, **{**WHOLE, **base, **part, "concepts": concepts, **changes})


def sd15(folder: Path, **changes: Any) -> Path:
    concepts = [{"name": "a", "path": str(folder / "data" / "chosen"), "type": "STANDARD"}]
    return write_config(folder, **{**WHOLE, "concepts": concepts, **changes})


@pytest.fixture(autouse=True)
def images(tmp_path: Path) -> None:
    from tests.trainer.builders import write_pairs

    write_pairs(tmp_path / "data", count=2)


def refused(config: Path, capsys: pytest.CaptureFixture[str], words: str) -> None:
    """Both the dry run and the run say so, before anything is trained."""
    for arguments in (["--dry-run"], []):
        capsys.readouterr()
        assert main(["--config-path", str(config), *arguments]) == 2
        shown = capsys.readouterr().err
        assert "output_model_destination" in shown and words in shown, shown
    assert not (config.parent / "run" / "backup").exists()


@pytest.mark.parametrize("layout", ["DIFFUSERS", "AUTO"])
def test_a_folder_with_a_file_of_a_person_is_refused_and_stays(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], layout: str
) -> None:
    with Guard(tmp_path / "m") as guard:
        config = sd15(tmp_path, output_model_destination=str(guard.folder), output_model_format=layout)
        refused(config, capsys, "mine")


def test_the_folder_beside_a_name_with_an_ending_is_what_is_written_and_so_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with Guard(tmp_path / "x" / "loras") as guard:
        destination = str(guard.folder.with_name("loras.safetensors"))
        refused(sana(tmp_path, output_model_destination=destination), capsys, "mine")
        prevented = sana(tmp_path, output_model_destination=destination, prevent_overwrites=True)
        refused(prevented, capsys, "loras already exists")


def test_the_same_name_is_checked_written_and_prevented(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = {"output_model_destination": str(tmp_path / "x" / "m.safetensors"), "prevent_overwrites": True}
    (tmp_path / "x").mkdir()
    # not what is written: the folder without the ending is
    (tmp_path / "x" / "m.safetensors").write_text("mine")
    config = sana(tmp_path, **settings)
    assert main(["--config-path", str(config)]) == 0
    assert (tmp_path / "x" / "m" / "model_index.json").is_file()
    assert (tmp_path / "x" / "m.safetensors").read_text() == "mine"
    refused_config = sana(tmp_path, **settings)
    capsys.readouterr()
    assert main(["--config-path", str(refused_config), "--dry-run"]) == 2
    assert "m already exists" in capsys.readouterr().err
    assert main(["--config-path", str(config), "--set", "prevent_overwrites=false"]) == 0
    assert sorted(p.name for p in (tmp_path / "x").iterdir()) == ["m", "m.safetensors"]


def test_the_base_model_is_never_the_output(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    import shutil

    base = Path(shutil.copytree(small_folder(), tmp_path / "base"))
    before = {p: p.read_bytes() for p in base.rglob("*") if p.is_file()}
    for place, layout in ((base, "DIFFUSERS"), (base / "unet" / "config.json", "SAFETENSORS")):
        config = sd15(
            tmp_path,
            base_model_name=str(base),
            output_model_destination=str(place),
            output_model_format=layout,
        )
        refused(config, capsys, "base")
    assert {p: p.read_bytes() for p in base.rglob("*") if p.is_file()} == before


@pytest.mark.parametrize("place", ["/dev/null", "fifo", "folder"])
def test_devices_fifos_and_folders_are_no_file_to_write(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], place: str
) -> None:
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "folder").mkdir()
    refused(write_config(tmp_path, output_model_destination=str(tmp_path / place)), capsys, "is a ")
    assert not Path("/dev/null").is_file()


@pytest.mark.parametrize("content", [b"a caption of a person", b"\x89PNG\r\n\x1a\n" + bytes(40), b'{"seed": 1}'])
def test_a_file_that_holds_no_weights_is_not_replaced(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], content: bytes
) -> None:
    mine = tmp_path / "mine"
    mine.write_bytes(content)
    refused(write_config(tmp_path, output_model_destination=str(mine)), capsys, "is not a safetensors file")
    assert mine.read_bytes() == content


class PutInTheWay(Callback):
    """Somebody makes a file at the destination while the run is training."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def step(self, *_: Any) -> None:
        self.path.parent.mkdir(exist_ok=True)
        self.path.write_text("mine")


def test_what_is_put_in_the_way_during_a_run_stays_and_so_does_what_was_learnt(tmp_path: Path) -> None:
    config = sd15(tmp_path, output_model_destination=str(tmp_path / "m"), output_model_format="DIFFUSERS")
    with pytest.raises(UserError, match=r"does not name \(mine\)"):
        run_here(config, callback=PutInTheWay(tmp_path / "m" / "mine"))
    assert [p.name for p in (tmp_path / "m").iterdir()] == ["mine"]
    (backup,) = list_backups(tmp_path / "run" / "backup")
    assert "backup-1-" in backup.name
    (tmp_path / "m" / "mine").unlink()
    run_here(config, "continue_last_backup=true")
    assert (tmp_path / "m" / LIST_NAME).is_file()


@pytest.mark.parametrize(
    ("destination", "layout", "adapter", "single", "path", "folder"),
    [
        ("x/m.safetensors", "AUTO", True, False, "x/m.safetensors", False),
        ("x/m.safetensors", "AUTO", False, True, "x/m.safetensors", False),
        ("x/m.safetensors", "AUTO", False, False, "x/m", True),
        ("x/m", "AUTO", False, True, "x/m", True),
        ("x/m.safetensors", "DIFFUSERS", False, True, "x/m.safetensors", True),
        ("x/m", "SAFETENSORS", False, False, "x/m", False),
    ],
)
def test_name_and_layout_of_the_output(
    destination: str, layout: str, adapter: bool, single: bool, path: str, folder: bool
) -> None:
    place = output_place(destination, layout, adapter, single)
    assert (place.path.as_posix(), place.folder) == (path, folder)


def test_the_next_start_brings_a_half_replaced_model_back_and_sweeps_what_a_kill_left(tmp_path: Path) -> None:
    config = sd15(tmp_path, output_model_destination=str(tmp_path / "m"), output_model_format="DIFFUSERS")
    assert main(["--config-path", str(config)]) == 0
    before = (tmp_path / "m" / "model_index.json").read_bytes()
    (tmp_path / "m").rename(tmp_path / ".tastemaker-former-m")
    (tmp_path / ".tastemaker-0123456789abcdef.tmp").write_text("half a model")
    cache = Path(json.loads(config.read_text())["cache_dir"])
    halves = [
        tmp_path / "run",
        tmp_path / "run/samples/0 - a",
        tmp_path / "run/rollouts/epoch-1",
        settings_folder(),
    ]
    halves += [cache / name for name in ("", "latents", "texts", "reference")]
    for folder in halves:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / ".tastemaker-0123456789abcdef.tmp").write_text("half")
    (tmp_path / ".editor.tmp").write_text("mine")
    assert main(["--config-path", str(config), "--set", "only_cache=true"]) == 0
    assert not [folder for folder in halves if (folder / ".tastemaker-0123456789abcdef.tmp").exists()]
    assert (tmp_path / "m" / "model_index.json").read_bytes() == before
    left = {p.name for folder in (tmp_path, tmp_path / "run") for p in folder.iterdir() if p.name[0] == "."}
    assert left == {".editor.tmp"}


@pytest.mark.parametrize(
    ("name", "changes", "told"),
    usual(
        [("old", {}, True), ("old", {"prevent_overwrites": False}, True), ("new", {}, False)],
        *(("old", {}, True), ("new", {}, False)),
    ),
)
def test_a_new_run_says_that_it_replaces_an_earlier_result(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str, changes: dict[str, Any], told: bool
) -> None:
    old = tmp_path / "old.safetensors"
    save_file({"a": torch.zeros(1)}, old)
    config = sd15(tmp_path, output_model_destination=str(tmp_path / f"{name}.safetensors"), **changes)
    assert main(["--config-path", str(config), "--dry-run"]) == 0
    said = [line for line in capsys.readouterr().out.splitlines() if "replaces it when it saves" in line]
    assert len(said) == told and all(str(old) in line and "prevent_overwrites" in line for line in said)


def test_a_resumed_run_replaces_its_own_result_without_a_warning(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = sd15(tmp_path, max_steps=2, output_model_destination=str(tmp_path / "m.safetensors"))
    arguments = ["--config-path", str(config), "--set", "backup_after=1", "--set", "backup_after_unit=STEP"]
    assert main(arguments) == 0
    assert main([*arguments, "--set", "continue_last_backup=true", "--dry-run"]) == 0
    assert "replaces it when it saves" not in capsys.readouterr().out
