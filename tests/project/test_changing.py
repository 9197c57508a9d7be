"""What a second ``taste.py new`` may change in an existing project."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from modules.curation.CurationMode import CurationMode
from modules.curation.group_state import SessionSettings
from modules.curation.store import CurationStore
from modules.project.picking import settings_of
from modules.project.Project import Adapter, Project
from modules.project.proving import prepare
from modules.project.Round import Round
from tests.project.simulated import refused, told


@pytest.fixture
def project(tmp_path, prompts_file, drawer, capsys) -> Path:
    told(capsys, "new", tmp_path / "taste", "--prompts", prompts_file, "--base-model", "resources/demo_model")
    return tmp_path / "taste"


@pytest.mark.parametrize(
    "given",
    [
        ("--width", "512"), ("--steps", "7"), ("--sampler", "DDIM"), ("--negative", "blurry"), ("--seed", "9"),
        ("--card", "8"), ("--model-type", "FLUX_DEV_1"), ("--generator", "comfyui"), ("--near-duplicates", "-1"),
        ("--slot", "seed=3.seed"), ("--preset", "x"), ("--source-resolution", "512"),
    ],
)  # fmt: skip
def test_what_cannot_change_is_refused_by_name(project, capsys, given):
    before = (project / "project.json").read_bytes()
    said = refused(capsys, "new", project, "--base-model", "elsewhere", *given)
    assert "is already a project" in said and given[0] in said
    assert (project / "project.json").read_bytes() == before


def test_where_things_are_on_this_computer_can_change(project, capsys):
    places = ("--base-model", "resources/demo_model", "--device", "cpu", "--lora-folder", "loras")
    assert told(capsys, "new", project, *places)["next"] == "generate"


def test_the_images_to_compare_are_counted_for_all_contestants_together(project, tmp_path):
    (tmp_path / "mine.safetensors").write_bytes(b"x")
    adapters = [Adapter("mine", tmp_path / "mine.safetensors"), Adapter("base")]
    said: list[str] = []
    prepare(Project(project), adapters[:1], 1, said.append)
    prepare(Project(project), adapters, 3, said.append)
    assert said == ["mine: 1/1 image", *(f"mine: {n}/5 images" for n in (1, 2)),
                    *(f"base: {n}/5 images" for n in (3, 4, 5))]  # fmt: skip


def test_the_next_round_is_picked_as_the_last_one(project):
    project = Project(project)
    assert settings_of(project) == SessionSettings()
    with CurationStore(project.round.pairs) as store:
        store.note_way("TRIAGE")
        store.note_goal(3, 0.8)
    plan = Round(project.owned, 2).plan_path
    plan.parent.mkdir()
    plan.write_text("{}")
    assert project.round.number == 2
    assert settings_of(project) == SessionSettings(CurationMode("TRIAGE"), 3, 0.8)


def test_the_settings_that_peft_wrote_next_to_an_adapter_are_copied_with_it(project, tmp_path):
    project, folder = Project(project), tmp_path / "peft"
    folder.mkdir()
    (folder / "adapter_model.safetensors").write_bytes(b"x")
    (folder / "adapter_config.json").write_text('{"lora_alpha": 4}')
    (tmp_path / "plain.safetensors").write_bytes(b"y")
    given = Adapter("given", folder / "adapter_model.safetensors")
    kept = project.kept_for(project.round, given).file
    assert (kept.read_bytes(), (kept.parent / "adapter_config.json").read_text()) == (b"x", '{"lora_alpha": 4}')
    # those of an earlier adapter do not count for a later one
    assert project.kept_for(project.round, Adapter("plain", tmp_path / "plain.safetensors")).file == kept
    assert (kept.read_bytes(), (kept.parent / "adapter_config.json").read_text()) == (b"y", "{}")


def test_a_folder_given_as_an_adapter_is_told_with_the_file_to_name(project, tmp_path, prompts_file, capsys):
    (tmp_path / "peft").mkdir()
    wanted = "is a folder, not a file\n  -> name the file in it, such as adapter_model.safetensors"
    assert wanted in refused(capsys, "generate", project, "--adapter", tmp_path / "peft")
    new = ("new", tmp_path / "other", "--prompts", prompts_file, "--base-model", "resources/demo_model")
    assert wanted in refused(capsys, *new, "--adapter", tmp_path / "peft")
    assert not (tmp_path / "other").exists()
    assert "there is no adapter 'gone'" in refused(capsys, "generate", project, "--adapter", "gone")


@pytest.mark.parametrize(
    ("name", "copied"), [("base_model.model.x.lora_A.weight", True), ("unet.x.lora_A.weight", False)]
)
def test_the_settings_next_to_a_file_that_peft_did_not_write_stay_there(project, tmp_path, name, copied):
    """They belong to another adapter, and would change the strength of this one."""
    project, folder = Project(project), tmp_path / "adapters"
    folder.mkdir()
    save_file({name: torch.ones(1, 2)}, folder / "mine.safetensors", {"some": "facts"})
    (folder / "adapter_config.json").write_text('{"lora_alpha": 4}')
    kept = project.kept_for(project.round, Adapter("given", folder / "mine.safetensors")).file
    assert kept.read_bytes() == (folder / "mine.safetensors").read_bytes()
    assert (kept.parent / "adapter_config.json").exists() == copied
