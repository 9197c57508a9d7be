"""A backup holds all of a run, and brings all of it back into a run that was just put together."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
import torch

from modules.trainer.assembly import Run, assemble
from modules.trainer.distributed import Processes
from modules.trainer.optim.optimizers import optimizer_state
from modules.trainer.resume.backup_contents import Counters
from modules.trainer.resume.checkpoint import Snapshot, read_backup, write_backup
from modules.trainer.resume.run_state import restore, take_snapshot
from modules.util.config.TrainConfig import TrainConfig
from modules.util.enum.choices import TagDropoutSpecialTagsMode
from modules.util.errors import ConfigError, DataError, UserError
from modules.util.TrainProgress import TrainProgress
from tests.trainer.builders import settings, small_files_only

PREFERENCE: dict[str, Any] = {
    "ema": "CPU",
    "ema_update_step_interval": 1,
    "rlhf_dpo_validation": True,
    "rlhf_dpo_validation_percentage": 40.0,
    "rlhf_dpo_patience_enabled": True,
    "rlhf_dpo_adaptive_beta": True,
    "rlhf_dpo_validation_draws": 1,
    "samples": [{"prompt": "kept in the backup", "width": 64, "height": 64}],
}
SUPERVISED: dict[str, Any] = {
    "rlhf_enabled": False,
    "training_method": "FINE_TUNE",
    "train_dtype": "FLOAT_16",
    "output_model_destination": "out",
    "optimizer": {"optimizer": "SGD", "momentum": 0.9},
}


def job(folder: Path, changes: dict[str, Any]) -> TrainConfig:
    made = settings(folder, **changes)
    if not made["rlhf_enabled"]:
        made["concepts"] = [{**made["concepts"][0], "type": "STANDARD"}]
    return TrainConfig.from_dict(made)


def together(config: TrainConfig) -> Run:
    """A run's parts in this process."""
    folder = Path(config.workspace_dir)
    processes = Processes(0, 1, 0, torch.device("cpu"))
    return assemble(config, folder, folder / "samples", processes, lambda *_: True)


@pytest.fixture(params=[PREFERENCE, SUPERVISED], ids=["preference", "supervised"])
def config(request: pytest.FixtureRequest, tmp_path: Path) -> TrainConfig:
    return job(tmp_path, request.param)


@pytest.fixture
def trained(config: TrainConfig) -> Iterator[tuple[Run, TrainProgress, Counters]]:
    """Parts that differ from fresh ones in everything there is to bring back."""
    parts = together(config)
    generator = torch.Generator().manual_seed(9)
    for step in range(2):
        for parameter in parts.parameters:
            parameter.grad = torch.randn(parameter.shape, generator=generator).to(parameter.device)
        parts.optimizer.step()
        parts.optimizer.zero_grad()
        if parts.ema is not None:
            parts.ema.update(step)
    parts.scaler.update(False)
    if parts.patience is not None and parts.best is not None:
        for _ in range(2):
            parts.patience.update({"val_accuracy": 0.5, "val_loss": 0.75})
        parts.best.offer(2, 0.5, 0.75)
        state = parts.step.state_dict()
        state["adaptive_beta"] = {**state["adaptive_beta"], "beta": 55.0}
        parts.step.load_state_dict(state)
    with closing(parts):
        yield parts, TrainProgress(0, 2, 4, 2), Counters(1, 2, 3, 4, 5, 6)


def everything(parts: Run, config: TrainConfig) -> Snapshot:
    return take_snapshot(parts, config, TrainProgress(), Counters())


def assert_same(one: Any, other: Any, where: str = "") -> None:
    assert type(one) is type(other), where
    if isinstance(one, torch.Tensor):
        assert one.dtype == other.dtype, where
        assert torch.equal(one, other), where
    elif isinstance(one, dict):
        assert one.keys() == other.keys(), where
        for key in one:
            assert_same(one[key], other[key], f"{where}.{key}")
    elif isinstance(one, (list, tuple)):
        assert len(one) == len(other), where
        for index, (a, b) in enumerate(zip(one, other, strict=True)):
            assert_same(a, b, f"{where}[{index}]")
    else:
        assert one == other, where


def detached(snapshot: Snapshot) -> dict[str, Any]:
    sets = {
        name: {key: tensor.detach().clone() for key, tensor in tensors.items()}
        for name, tensors in snapshot.tensors.items()
    }
    return {"tensors": sets, "optimizer": snapshot.optimizer, "state": snapshot.state}


def test_everything_comes_back_through_a_file(
    config: TrainConfig, trained: tuple[Run, TrainProgress, Counters], tmp_path: Path
) -> None:
    parts, progress, counters = trained
    path = write_backup(tmp_path / "backup", take_snapshot(parts, config, progress, counters))
    best = parts.best.path if parts.best is not None else None
    best_bytes = b"" if best is None else best.read_bytes()
    if best is not None:
        best.unlink()

    fresh, fresh_counters = together(config), Counters()
    backup = read_backup(path)
    with closing(fresh), pytest.raises(AssertionError):
        assert_same(detached(everything(parts, config)), detached(everything(fresh, config)))
    restore(fresh, backup, fresh_counters, config.base_model_name, writes=True)
    assert_same(detached(everything(parts, config)), detached(everything(fresh, config)))
    assert (backup.progress, fresh_counters) == (progress, counters)
    for (name, one), (_, other) in zip(parts.named, fresh.named, strict=True):
        assert torch.equal(one, other), name
    if best is not None:
        assert fresh.best is not None
        assert fresh.best.path == best
        assert best.read_bytes() == best_bytes
    TrainConfig.from_dict(backup.config)
    assert backup.config["concepts"] == config.packed().to_dict()["concepts"] != []
    assert backup.config["samples"] == config.packed().to_dict()["samples"]


def test_a_preference_backup_has_all_there_is(tmp_path: Path) -> None:
    config = job(tmp_path, PREFERENCE)
    with closing(together(config)) as parts:
        made = everything(parts, config)
    assert made.tensors.keys() == {"weights", "ema"}
    kept = {"identity", "processes", "step", "scaler", "counters", "patience", "best", "execution_mode"}
    kept |= {"weight_files", "ema_begun"}
    assert made.state.keys() == kept
    assert made.state["execution_mode"] == config.rlhf_dpo_execution_mode.value
    assert made.state["step"].keys() == {"diagnostics", "adaptive_beta"}
    assert made.state["counters"].keys() == {field.name for field in fields(Counters)}
    assert made.files == {}


def test_what_does_not_belong_together_is_refused(tmp_path: Path) -> None:
    config = job(tmp_path, SUPERVISED)
    with closing(together(config)) as parts:
        backup = everything(parts, config)
        identity = dict(backup.state["identity"])

        backup.state["identity"] = {**identity, "base": "another"}
        with pytest.raises(ConfigError, match="is not the model") as caught:
            restore(parts, backup, Counters(), "models/base", writes=True)
        assert (caught.value.field, "models/base" in caught.value.message) == ("base_model_name", True)

        backup.state["identity"] = {**identity, "data": "another"}
        with pytest.raises(DataError, match="have changed since the backup") as changed:
            restore(parts, backup, Counters(), "models/base", writes=True)
        assert changed.value.field == "concepts"

        backup.state["identity"] = identity
        backup.tensors["weights"] = {"other": torch.zeros(1)}
        with pytest.raises(DataError, match="other parts of the model"):
            restore(parts, backup, Counters(), "models/base", writes=True)


def test_a_changed_list_of_special_tags_is_refused(tmp_path: Path) -> None:
    listed = tmp_path / "tags.txt"
    listed.write_text("red\n")
    config = job(tmp_path, SUPERVISED)
    assert config.concepts is not None
    text = config.concepts[0].text
    text.tag_dropout_enable, text.tag_dropout_special_tags = True, str(listed)
    text.tag_dropout_special_tags_mode = TagDropoutSpecialTagsMode.WHITELIST
    with closing(together(config)) as parts:
        backup = everything(parts, config)
        listed.write_text("blue\n")
        assert everything(parts, config).state["identity"] == backup.state["identity"], "it is read once"
    with closing(together(config)) as parts:
        with pytest.raises(DataError, match="the list of special tags has changed") as caught:
            restore(parts, backup, Counters(), "models/base", writes=True)
        assert caught.value.field == "concepts"
        del backup.state["identity"]["tags"]  # an earlier version did not note it
        restore(parts, backup, Counters(), "models/base", writes=True)


def test_the_identity_follows_the_data_and_not_the_place(tmp_path: Path) -> None:
    config = job(tmp_path / "one", SUPERVISED)
    with closing(together(config)) as parts:
        first = parts.identity()
    (tmp_path / "two").mkdir()
    (tmp_path / "one" / "data").rename(tmp_path / "two" / "data")
    moved = config.copy_of()
    assert moved.concepts is not None
    moved.concepts[0].path = str(tmp_path / "two" / "data" / "chosen")
    with closing(together(moved)) as parts:
        assert parts.identity() == first
    caption = tmp_path / "two" / "data" / "chosen" / "000.txt"
    caption.write_text("another caption")
    with closing(together(moved)) as parts:
        assert parts.identity()["base"] == first["base"]
        assert parts.identity()["data"] != first["data"]


def test_a_process_that_does_not_write_leaves_files_alone(tmp_path: Path) -> None:
    config = job(tmp_path, PREFERENCE)
    with closing(together(config)) as parts:
        assert parts.best is not None
        parts.best.offer(2, 0.5, 0.75)
        path = write_backup(tmp_path / "backup", everything(parts, config))
        assert parts.best.path is not None
        parts.best.path.unlink()
        restore(parts, read_backup(path), Counters(), config.base_model_name, writes=False)
        assert parts.best.step == 2
        assert not parts.best.path.exists()


MAPO = {**PREFERENCE, "rlhf_dpo_objective": "MAPO", "rlhf_dpo_adaptive_beta": False}


def test_without_a_reference_the_loss_decides_what_is_best_and_when_to_stop(tmp_path: Path) -> None:
    with closing(together(job(tmp_path, MAPO))) as parts:
        assert parts.best is not None and parts.patience is not None
        rows = [(1, 0.9, 0.75), (2, 0.3, 0.5), (3, 1.0, 0.6)]
        assert [parts.best.offer(*row) for row in rows] == [True, True, False]
        values = [{"val_accuracy": 0.5, "val_loss": loss} for _, _, loss in rows]
        assert [parts.patience.update(one).counter for one in values] == [0, 0, 1]


def test_what_was_best_by_its_accuracy_is_not_compared_with_a_loss(tmp_path: Path) -> None:
    config = job(tmp_path, MAPO)
    with closing(together(config)) as parts:
        assert parts.best is not None and parts.patience is not None
        parts.best.offer(2, 0.9, 0.25)
        saved = everything(parts, config)
        # as earlier versions wrote it
        del saved.state["best"]["by_accuracy"]
        saved.state["patience"] = {"counter": 3, "bests": {"val_accuracy": 0.9, "val_loss": 0.25}}
        path = write_backup(tmp_path / "backup", saved)
    with closing(together(config)) as parts:
        restore(parts, read_backup(path), Counters(), config.base_model_name, writes=True)
        assert parts.best is not None and parts.patience is not None
        assert parts.best.step is None and parts.patience.counter == 0
        assert parts.best.offer(4, 0.3, 0.75)


def test_taking_a_snapshot_changes_nothing(
    config: TrainConfig, trained: tuple[Run, TrainProgress, Counters], tmp_path: Path
) -> None:
    parts, progress, counters = trained
    before = [parameter.detach().clone() for parameter in parts.parameters]
    names = [name for name, _ in parts.named]
    state = optimizer_state(parts.optimizer, names)
    write_backup(tmp_path / "backup", take_snapshot(parts, config, progress, counters))
    with small_files_only(1000), pytest.raises(UserError, match="cannot be written"):
        write_backup(tmp_path / "full", take_snapshot(parts, config, progress, counters))
    assert all(torch.equal(p, b) for p, b in zip(parts.parameters, before, strict=True))
    assert_same(optimizer_state(parts.optimizer, names), state)


def test_a_validation_that_an_earlier_version_left_undone_is_due() -> None:
    counters = Counters()
    counters.load({"undefined_steps": 0, "saves_due": 1, "validated_at": 3, "samples_due": 2, "validating_at": 6})
    assert counters == Counters(saves_due=1, validated_at=3, samples_due=2, due_at=6, due=1)
    counters = Counters()
    counters.load({"saves_due": 1, "validating_at": -1})
    assert counters == Counters(saves_due=1)
