"""The step against a restated one: equal gradients or no figure, and no lead where ranges overlap."""

from __future__ import annotations

import argparse
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from modules.util.config.load import read_config
from modules.util.config.onetrainer import onetrainer_import
from modules.util.errors import UserError
from modules.util.jsonio import write_json
from scripts.benchmarks import _onetrainer, _plain_step, step
from scripts.benchmarks._onetrainer import Observed

STUB = """
import json, sys, time
from pathlib import Path
from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.summary.writer.event_file_writer import EventFileWriter
writer = EventFileWriter(str(Path(sys.argv[1]) / "tensorboard"))
for number in range(4):
    end = time.process_time() + 0.1
    while time.process_time() < end:
        pass
    value = Summary.Value(tag="loss/train_step", simple_value=0.5)
    writer.add_event(Event(wall_time=time.time(), step=number, summary=Summary(value=[value])))
writer.close()
"""


@pytest.fixture(scope="module", autouse=True)
def threads() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def options(*arguments: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    step.add_arguments(parser)
    return parser.parse_args(["--rounds", "2", "--rank", "2", *arguments])


@pytest.fixture(scope="module")
def trainer(tmp_path_factory: pytest.TempPathFactory, threads: None) -> Iterator[object]:
    """One small model for all tests: what takes long is loading. It changes the number of threads."""
    made = _plain_step.started(tmp_path_factory.mktemp("plain"), 2, (32, 32, 32, 32), 8)
    yield made
    made.close()


def test_both_have_one_gradient_and_take_steps(trainer: object) -> None:
    plain = _plain_step.PlainTrainer(trainer)  # type: ignore[arg-type]
    assert _plain_step.check_gradients(trainer, plain) < 1e-4  # type: ignore[arg-type]
    shared = dict(trainer.parts.model.denoiser.named_parameters())  # type: ignore[attr-defined]
    assert plain.unet.get_submodule("conv_in").inner.weight is shared["conv_in.base_layer.weight"]
    before = [parameter.detach().clone() for parameter in plain.parameters]
    cases = {_plain_step.OURS: _plain_step.here(trainer), _plain_step.PLAIN: plain.step}  # type: ignore[arg-type]
    processor, wall = _plain_step.timed(cases, 2)
    assert [len(values) for values in (*processor.values(), *wall.values())] == [2, 2, 2, 2]
    assert (
        all(not torch.equal(a, b) for a, b in zip(before, plain.parameters, strict=True)) and plain.smooth > 0
    )
    assert trainer.progress.global_step == 4  # type: ignore[attr-defined]


def test_another_gradient_gives_no_figure(trainer: object) -> None:
    plain = _plain_step.PlainTrainer(trainer)  # type: ignore[arg-type]
    plain.parameters[0].data += 1.0
    with pytest.raises(RuntimeError, match="the gradient of onetrainer-like differs"):
        _plain_step.check_gradients(trainer, plain)  # type: ignore[arg-type]


def test_overlapping_ranges_are_parity() -> None:
    assert _plain_step.verdict([1.0, 2.0], [1.9, 3.0]) == "parity"
    assert _plain_step.verdict([1.0, 2.0], [2.0, 3.0]) == "parity"
    assert _plain_step.verdict([1.0, 1.8], [1.9, 3.0]) == "less"
    assert _plain_step.verdict([4.0, 5.0], [1.9, 3.0]) == "more"


def test_the_output_says_what_it_is() -> None:
    times = {_plain_step.OURS: [1.0, 1.2, 1.1], _plain_step.PLAIN: [1.1, 1.3, 1.2]}
    held = {_plain_step.OURS: 9, _plain_step.PLAIN: 10}
    text = step.table(_plain_step.rows("model", 1e-7, times, times, held))
    assert "parity" in text and "torch " in text and "is not another program" in text
    assert "0.900" in text, "memory"


@pytest.mark.parametrize("missing", ["everything", "the environment"])
def test_a_folder_that_is_no_copy_ends_with_one_error(tmp_path: Path, missing: str) -> None:
    if missing == "the environment":
        for part in _onetrainer._PARTS:
            (tmp_path / part).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / part).write_text("", encoding="utf-8")
    with pytest.raises(UserError, match="is not a copy" if missing == "everything" else "has no environment"):
        step.run(options("--with-onetrainer", str(tmp_path)))


def test_both_programs_are_told_the_same(tmp_path: Path) -> None:
    ours, theirs = _onetrainer.our_settings(tmp_path, 4, 20), _onetrainer.their_settings(tmp_path, 4, 20)
    same = ("resolution", "batch_size", "epochs", "learning_rate", "clip_grad_norm", "lora_rank", "lora_alpha",
            "base_model_name", "train_dtype", "layer_filter_preset", "dataloader_threads", "tensorboard")  # fmt: skip
    assert all(ours[name] == theirs[name] for name in same) and ours["epochs"] == 3
    assert ours["workspace_dir"] != theirs["workspace_dir"]


def test_the_settings_of_the_other_program_exist_and_mean_the_same(tmp_path: Path) -> None:
    made = _onetrainer.their_settings(tmp_path, 4, 20)
    # the importer has no use for these three
    assert made.keys() - {"__version", "train_device", "temp_device"} <= set(
        onetrainer_import.their_settings()
    )
    write_json(tmp_path / "theirs.json", made)
    theirs, _ = onetrainer_import.read_onetrainer(tmp_path / "theirs.json")
    ours = read_config(_onetrainer.our_settings(tmp_path, 4, 20))
    for name in ("model_type", "training_method", "peft_type", "resolution", "batch_size", "epochs", "learning_rate",
                 "clip_grad_norm", "lora_rank", "lora_alpha", "train_dtype", "layer_filter_preset"):  # fmt: skip
        assert getattr(theirs, name) == getattr(ours, name), name
    assert theirs.unet.gradient_checkpointing == ours.unet.gradient_checkpointing
    assert theirs.optimizer.optimizer == ours.optimizer.optimizer


def test_a_run_is_observed_from_outside(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(textwrap.dedent(STUB), encoding="utf-8")
    workspace = tmp_path / "run"
    found = _onetrainer.observed(
        [sys.executable, str(script), str(workspace)], tmp_path, workspace, tmp_path / "log.txt"
    )
    assert found.step > 0.05 and found.first > 0.1 and found.peak > 1 << 20
    script.write_text("raise SystemExit('broken')", encoding="utf-8")
    with pytest.raises(RuntimeError, match="broken"):
        _onetrainer.observed([sys.executable, str(script)], tmp_path, workspace, tmp_path / "log.txt")


def test_three_ratios() -> None:
    ours, theirs = [Observed(1.0, 8.0, 2**20), Observed(1.1, 9.0, 2**20)], [Observed(2.0, 9.0, 2**21)] * 2
    rows = _onetrainer.rows(Path("copy"), {"ours": ours, "theirs": theirs})
    assert [row.extra["verdict"] for row in rows] == ["less", "parity", "less"]
    assert [row.limit for row in rows] == [0.85, 0.8, 0.75] and rows[2].ratio == 0.5
    assert _onetrainer.processor_at(1.5, [(1.0, 2.0), (2.0, 4.0)]) == 3.0
