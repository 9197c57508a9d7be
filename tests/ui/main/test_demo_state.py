"""The demo project's folder, settings and processes, without a window."""

from __future__ import annotations

from pathlib import Path

import pytest

from modules.ui.demo.demo_project import (
    BETA_FOR_MANY,
    LOOKS,
    MANY_PAIRS,
    MAX_PROMPTS,
    SAMPLE_PROMPTS,
    STEPS_FOR_FEW,
    STEPS_FOR_MANY,
    DemoProject,
    MakerProcess,
)
from modules.util.config.load import find_problems
from modules.util.config.TrainConfig import TrainConfig
from modules.util.errors import DataError, UserError


def test_an_empty_folder_is_no_project(tmp_path: Path) -> None:
    project = DemoProject(tmp_path / "new")
    assert (project.image_count(), project.pair_counts(), project.size()) == (0, (0, 0), None)
    with pytest.raises(DataError, match="no pairs"):
        project.finalise()
    project.prepare(5, 3)
    assert project.size() == (5, 3)
    (project.folder / "demo-size.json").write_text("[1", encoding="utf-8")
    assert project.size() is None
    (tmp_path / "file").write_text("", encoding="utf-8")
    with pytest.raises(UserError, match="cannot be created"):
        DemoProject(tmp_path / "file").prepare(5, 3)


@pytest.mark.parametrize("pairs", [1, 6, 40, 96, 400])
def test_the_settings_make_samples_at_the_beginning_and_at_the_end(tmp_path: Path, pairs: int) -> None:
    project = DemoProject(tmp_path)
    made = project.make_config(TrainConfig, pairs)
    assert find_problems(made).errors == []
    assert made.sample_before_training and made.epochs == LOOKS * made.sample_after
    assert made.epochs == LOOKS * made.validate_after
    per_epoch = -(-pairs // made.batch_size)
    many = pairs >= MANY_PAIRS
    assert made.epochs == 60 or made.epochs * per_epoch >= (STEPS_FOR_MANY if many else STEPS_FOR_FEW)
    assert (made.rlhf_dpo_beta == BETA_FOR_MANY) is many
    samples = made.load_samples()
    assert [sample.prompt for sample in samples] == list(SAMPLE_PROMPTS)
    assert TrainConfig.from_dict(made.to_dict()) == made


def test_each_set_of_pairs_gets_a_run_of_its_own(tmp_path: Path) -> None:
    project = DemoProject(tmp_path)
    assert Path(project.make_config(TrainConfig, 8).workspace_dir) == tmp_path / "run-1"
    (tmp_path / "run-1").mkdir()
    made = project.make_config(TrainConfig, 8)
    assert Path(made.workspace_dir) == tmp_path / "run-2"
    assert Path(made.output_model_destination).name == "adapter-2.safetensors"


def test_sampled_prompts_are_new_to_the_training() -> None:
    from scripts.demo.pairs import prompt_split

    for_pairs, new = prompt_split(1)
    assert len(for_pairs) == MAX_PROMPTS
    assert set(SAMPLE_PROMPTS) <= {wish.caption() for wish in new}


@pytest.mark.slow
def test_the_real_script_says_what_is_wrong(tmp_path: Path) -> None:
    made = MakerProcess.images(DemoProject(tmp_path), 95, 1)
    made._popen.wait(120)
    made._reader.join(10)
    assert not made.running()
    problem = made.problem()
    assert problem is not None and "95" in problem.message and "Traceback" not in problem.message
