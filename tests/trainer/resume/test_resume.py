"""A run that was interrupted ends with the weights of one that was not."""

from __future__ import annotations

import hashlib
import json
import os
import random
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from modules.runner.RunDirectory import RunDirectory
from modules.trainer.callbacks import Callback
from modules.trainer.resume.checkpoint import find_backup, list_backups
from modules.util.config.TrainConfig import TrainConfig
from modules.util.errors import UserError
from modules.util.jsonio import write_json
from modules.util.TrainProgress import TrainProgress
from scripts.train import main
from tests.tiny import small_folder
from tests.trainer.builders import (
    command,
    environment,
    events,
    run_and_go_back,
    run_here,
    same_weights,
    start_training,
    train,
    write_config,
    write_likes,
    write_pairs,
)
from tests.usual import usual

SAMPLES = [{"prompt": "a red circle", "width": 64, "height": 64, "diffusion_steps": 2}]


class StopAt(Callback):
    """Asks for an end as the system does, after one step."""

    def __init__(self, step: int) -> None:
        self.at = step

    def step(
        self, progress: TrainProgress, metrics: Mapping[str, float], total: int, eta: float | None
    ) -> None:
        if progress.global_step == self.at:
            os.kill(os.getpid(), signal.SIGTERM)


def standard(folder: Path) -> list[dict[str, Any]]:
    """Ordinary concepts with everything that is random about images and captions."""
    write_pairs(folder / "data", 5)
    return [
        {
            "name": "all",
            "path": str(folder / "data" / "chosen"),
            "type": "STANDARD",
            "image": {"enable_random_flip": True, "enable_crop_jitter": True},
            "text": {"enable_tag_shuffling": True, "tag_delimiter": " "},
        }
    ]


CASES: dict[str, dict[str, Any]] = {
    "plain": {},
    "accumulated": {"gradient_accumulation_steps": 2, "epochs": 3},
    "everything": {
        "ema": "CPU",
        "ema_update_step_interval": 1,
        "rlhf_dpo_adaptive_beta": True,
        "rlhf_dpo_validation": True,
        "rlhf_dpo_validation_percentage": 30.0,
        "rlhf_dpo_patience_enabled": True,
        "rlhf_dpo_patience_value": 50,
        "rlhf_supervised_mix": 0.25,
        "learning_rate_scheduler": "COSINE",
        "learning_rate_warmup_steps": 2,
        "validate_after": 2,
        "validate_after_unit": "STEP",
        "sample_after": 2,
        "sample_after_unit": "STEP",
        "samples": SAMPLES,
        "epochs": 3,
    },
    "cached_reference": {"rlhf_dpo_reference_cache": True, "rlhf_dpo_reference_cache_draws": 2},
    "sequential": {"rlhf_dpo_execution_mode": "SEQUENTIAL"},
    "confidence": {"rlhf_dpo_confidence": "SMOOTHING", "rlhf_dpo_execution_mode": "SEQUENTIAL"},
    "kto": {
        "rlhf_dpo_objective": "KTO",
        "rlhf_dpo_execution_mode": "SEQUENTIAL",
        "rlhf_dpo_reference_cache": True,
        "rlhf_dpo_reference_cache_draws": 2,
        "gradient_accumulation_steps": 2,
        "epochs": 3,
    },
    "prodigy": {"optimizer": {"optimizer": "PRODIGY"}, "learning_rate": 1.0},
    "schedule_free": {"optimizer": {"optimizer": "SCHEDULE_FREE_ADAMW"}},
    "text_encoder": {"text_encoder": {"train": True}},
    "magnitudes_of_inputs": {"lora_decompose": True, "lora_decompose_output_axis": False},
    "text_encoder_that_stops": {
        "rlhf_enabled": False,
        "text_encoder": {
            "train": True,
            "dropout_probability": 0.3,
            "stop_training_after": 2,
            "stop_training_after_unit": "STEP",
        },
    },
    "supervised": {
        "rlhf_enabled": False,
        "dropout_probability": 0.2,
        "text_encoder": {"dropout_probability": 0.3},
        "offset_noise_weight": 0.1,
        "epochs": 3,
    },
    "rounded": {
        "rlhf_enabled": False,
        "training_method": "FINE_TUNE",
        "unet": {"weight_dtype": "BFLOAT_16"},
        "optimizer": {"optimizer": "ADAMW", "stochastic_rounding": True},
    },
    "fine_tune": {"rlhf_enabled": False, "training_method": "FINE_TUNE", "learning_rate": 1e-4, "epochs": 3},
}


SIGNALLED = ("accumulated", "everything", "text_encoder_that_stops")
"""These are stopped as the system does; the others resume from a backup that the whole run made on its way."""


@pytest.mark.parametrize(
    "name",
    usual(
        CASES,
        # "kto" accumulates, and caches the scores of the reference
        *("everything", "kto", "text_encoder_that_stops", "schedule_free", "rounded", "magnitudes_of_inputs"),
    ),
)
@pytest.mark.parametrize("stop", usual([1, 3], 3))
def test_stopped_and_continued_equals_uninterrupted(tmp_path: Path, name: str, stop: int) -> None:
    changes = dict(CASES[name])
    if not changes.get("rlhf_enabled", True):
        changes["concepts"] = standard(tmp_path)
    if "rlhf_dpo_confidence" in changes:
        changes["concepts"] = write_pairs(tmp_path / "data")
        write_json(tmp_path / "data" / "chosen" / "confidence.json", {"000": 0.9, "001": 0.6, "004": 0.5})
    if name == "kto":
        changes["concepts"] = write_likes(tmp_path / "data")
    config = write_config(tmp_path / "run", **changes)
    if name in SIGNALLED:
        straight = run_here(write_config(tmp_path / "whole", **changes))
        whole = tmp_path / "whole" / "out.safetensors"
        assert run_here(config, callback=StopAt(stop)).progress.global_step == stop
    else:
        straight, whole = run_and_go_back(config, stop), tmp_path / "run" / "whole.safetensors"
    assert straight.progress.global_step == straight.total_steps > stop
    continued = run_here(config, "continue_last_backup=true")
    assert continued.progress.to_dict() == straight.progress.to_dict()
    for (_, ours), (_, theirs) in zip(continued.parts.named, straight.parts.named, strict=True):
        assert torch.equal(ours, theirs)
    if changes.get("training_method") != "FINE_TUNE":
        assert same_weights(whole, tmp_path / "run" / "out.safetensors")


def test_training_an_existing_adapter_further_keeps_its_first_reference(tmp_path: Path) -> None:
    run_here(write_config(tmp_path / "first", epochs=1))
    changes = {"lora_model_name": str(tmp_path / "first" / "out.safetensors"), "seed": 7}
    config = write_config(tmp_path / "run", **changes)
    straight = run_and_go_back(config, 2)
    continued = run_here(config, "continue_last_backup=true")
    assert continued.parts.reference.mode == "EXISTING_ADAPTER"
    first = straight.parts.reference.snapshot_state()
    assert all(torch.equal(t, first[n]) for n, t in continued.parts.reference.snapshot_state().items())
    assert same_weights(tmp_path / "run" / "whole.safetensors", tmp_path / "run" / "out.safetensors")


def test_a_run_of_the_same_config_has_the_same_weights(tmp_path: Path) -> None:
    for name in ("one", "two"):
        run_here(write_config(tmp_path / name, max_steps=2))
    assert same_weights(tmp_path / "one" / "out.safetensors", tmp_path / "two" / "out.safetensors")
    run_here(write_config(tmp_path / "three", seed=43, max_steps=1))
    assert not same_weights(tmp_path / "one" / "out.safetensors", tmp_path / "three" / "out.safetensors")


def test_resume_refuses_other_settings_and_other_data(tmp_path: Path) -> None:
    config = write_config(tmp_path)
    run_here(config, callback=StopAt(2))
    changed = r"(?s)seed: 42 in the backup, 1 now.*rlhf_dpo_beta: 100.0 in the backup, 200.0 now"
    with pytest.raises(UserError, match=changed):
        run_here(config, "continue_last_backup=true", "rlhf_dpo_beta=200", "seed=1")
    write_pairs(tmp_path / "data", 5)
    (tmp_path / "data" / "chosen" / "001.txt").write_text("a red square", encoding="utf-8")
    (tmp_path / "data" / "rejected" / "001.txt").write_text("a red square", encoding="utf-8")
    with pytest.raises(UserError, match="have changed since the backup"):
        run_here(config, "continue_last_backup=true")


def test_resume_refuses_another_scale_of_the_adapter(tmp_path: Path) -> None:
    changes = {"rlhf_enabled": False, "concepts": standard(tmp_path), "epochs": 1}
    run_here(write_config(tmp_path / "first", **changes, lora_alpha=1.0, max_steps=1))
    first = tmp_path / "first" / "out.safetensors"
    config = write_config(tmp_path / "second", **changes, lora_model_name=str(first))
    run_here(config, callback=StopAt(1))
    with pytest.raises(UserError, match="scaled differently"):
        run_here(config, "continue_last_backup=true", "lora_model_name=")


def test_a_damaged_backup_is_passed_over_for_the_one_before(tmp_path: Path) -> None:
    config = write_config(
        tmp_path, backup_after=1, backup_after_unit="STEP", rolling_backup=False, max_steps=4
    )
    run_here(config)
    whole = (tmp_path / "out.safetensors").rename(tmp_path / "whole.safetensors")
    last, newest, *_ = list_backups(tmp_path / "run" / "backup")
    shutil.rmtree(last)
    weights = newest / "weights" / "weights.safetensors"
    weights.write_bytes(weights.read_bytes()[:-3])
    told: list[str] = []

    class Warned(Callback):
        def warning(self, message: str) -> None:
            told.append(message)

    assert run_here(config, "continue_last_backup=true", callback=Warned()).progress.global_step == 4
    assert any(newest.name in message and "damaged" in message for message in told)
    assert same_weights(whole, tmp_path / "out.safetensors")


def test_a_backup_of_nan_weights_with_no_steps_left_is_not_saved_as_the_model(tmp_path: Path) -> None:
    config = write_config(tmp_path, backup_after=1, backup_after_unit="STEP", max_steps=2)
    whole = run_here(config)
    (tmp_path / "out.safetensors").rename(tmp_path / "first.safetensors")
    newest = list_backups(tmp_path / "run" / "backup")[0]
    assert f"-backup-{whole.total_steps}-" in newest.name
    weights, manifest = newest / "weights" / "weights.safetensors", newest / "manifest.json"
    tensors = {name: torch.full_like(tensor, float("nan")) for name, tensor in load_file(weights).items()}
    save_file(tensors, weights)
    listed = json.loads(manifest.read_text())
    digest = hashlib.blake2b(weights.read_bytes(), digest_size=20).hexdigest()
    listed["files"]["weights/weights.safetensors"] = digest
    manifest.write_text(json.dumps(listed))
    run_here(config, "continue_last_backup=true")
    assert same_weights(tmp_path / "first.safetensors", tmp_path / "out.safetensors")


def test_starting_anew_keeps_the_backups_of_the_run_before(tmp_path: Path) -> None:
    config = write_config(tmp_path)
    run_here(config, callback=StopAt(2))
    run_here(config, callback=StopAt(1))
    found, _ = find_backup(tmp_path / "run" / "backup")
    assert found is not None and "-backup-1-" in found.name
    aside = list((tmp_path / "run").glob("backup-before-*/*-backup-2-*"))
    assert len(aside) == 1


def _flip_weight(path: Path) -> None:
    tensors = load_file(path)
    name = next(name for name, tensor in tensors.items() if tensor.is_floating_point() and tensor.numel() > 8)
    tensors[name].view(-1).view(torch.uint8)[1] ^= 1
    save_file(tensors, path)


def _edit(path: Path, change: Callable[[dict[str, Any]], None]) -> None:
    data = json.loads(path.read_text(encoding="utf-8"))
    change(data)
    path.write_text(json.dumps(data), encoding="utf-8")


OTHER_BASES: dict[str, Callable[[Path], None]] = {
    "vae": lambda base: _flip_weight(base / "vae" / "diffusion_pytorch_model.safetensors"),
    "scheduler": lambda base: _edit(
        base / "scheduler" / "scheduler_config.json", lambda data: data.update(beta_end=0.0121)
    ),
    "tokenizer": lambda base: _edit(
        base / "tokenizer" / "tokenizer.json", lambda data: data["model"]["merges"].reverse()
    ),
}


def test_a_base_model_that_was_changed_is_refused_by_the_part(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """One bit of its numbers, or one of its settings: the run would end with other weights."""
    base = tmp_path / "base"
    shutil.copytree(small_folder(), base)
    config = write_config(tmp_path, base_model_name=str(base), max_steps=2)
    run_here(config, callback=StopAt(1))
    for part, change in OTHER_BASES.items():
        shutil.rmtree(base / part)
        shutil.copytree(small_folder() / part, base / part)
        change(base)
        capsys.readouterr()
        assert main(["--config-path", str(config), "--set", "continue_last_backup=true"]) == 2, part
        assert f"{base} has changed since the backup was made ({part})" in capsys.readouterr().err
        shutil.rmtree(base / part)
        shutil.copytree(small_folder() / part, base / part)
    assert main(["--config-path", str(config), "--set", "continue_last_backup=true"]) == 0


def _killed_run(config: Path, seconds: float) -> int:
    """Train in a forked process that is killed after a while; its exit status."""
    child = os.fork()
    if child == 0:
        status = 1
        try:
            run_here(config, "continue_last_backup=true")
            status = 0
        finally:
            os._exit(status)
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            return status
        time.sleep(0.002)
    os.kill(child, signal.SIGKILL)
    return os.waitpid(child, 0)[1]


class KillAt(Callback):
    """Kills its process after a step, as the system does when memory runs out."""

    def __init__(self, step: int) -> None:
        self._step = step

    def step(self, progress: Any, metrics: Any, total: int, eta: float | None) -> None:
        if progress.global_step == self._step:
            os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.parametrize(("killed_at", "resumed_from"), [(15, 14), (1, 0)])
def test_by_default_a_killed_run_loses_at_most_a_tenth(
    tmp_path: Path, killed_at: int, resumed_from: int
) -> None:
    default = TrainConfig()
    settings = {"backup_after": default.backup_after, "backup_after_unit": default.backup_after_unit.value}
    changes = {**settings, "epochs": 10, "concepts": write_pairs(tmp_path / "data", 4)}
    config = write_config(tmp_path / "two", **changes)
    child = os.fork()
    if child == 0:
        try:
            run_here(config, callback=KillAt(killed_at))
        finally:
            os._exit(1)
    assert os.WTERMSIG(os.waitpid(child, 0)[1]) == signal.SIGKILL
    if not resumed_from:
        assert not list_backups(tmp_path / "two" / "run" / "backup")
        return
    facts: list[dict[str, Any]] = []

    class Listening(Callback):
        def started(self, told: Any) -> None:
            facts.append(dict(told))

    run_here(config, "continue_last_backup=true", callback=Listening())
    assert facts[0]["total_steps"] == 20
    assert facts[0]["progress"]["global_step"] == resumed_from >= killed_at - 2
    run_here(write_config(tmp_path / "one", **changes))
    assert same_weights(tmp_path / "one" / "out.safetensors", tmp_path / "two" / "out.safetensors")


def test_backups_by_the_clock_alone_are_a_choice(tmp_path: Path) -> None:
    off = {"backup_after_unit": "MINUTE", "backup_each_tenth": False}
    for name, changes in {"off": off, "never": {"backup_after_unit": "NEVER"}}.items():
        run_here(write_config(tmp_path / name, max_steps=3, **changes))
        assert not list_backups(tmp_path / name / "run" / "backup")


KILLED = {
    "backup_after": 1,
    "backup_after_unit": "STEP",
    "epochs": 8,
    "ema": "CPU",
    "ema_update_step_interval": 1,
    "rlhf_dpo_validation": True,
    "rlhf_dpo_validation_percentage": 30.0,
}


@pytest.mark.slow
def test_killed_ten_times_at_random_moments(tmp_path: Path) -> None:
    torch.set_num_threads(1)
    begin = time.monotonic()
    run_here(write_config(tmp_path / "one", **KILLED))
    whole = time.monotonic() - begin
    config = write_config(tmp_path / "two", **KILLED)
    rng = random.Random(0)
    killed = 0
    for attempt in range(200):
        status = _killed_run(config, rng.uniform(0.05, 0.6) * whole if killed < 10 else 300.0)
        killed += os.WIFSIGNALED(status)
        if killed < 10 and status == 0:
            # too fast to be hit: begin again
            config = write_config(tmp_path / f"again{attempt}", **KILLED)
        elif killed >= 10 and not os.WIFSIGNALED(status):
            assert status == 0
            break
    assert killed == 10
    assert same_weights(tmp_path / "one" / "out.safetensors", config.parent / "out.safetensors")


@pytest.mark.slow
def test_killed_ten_times_through_the_command_line(tmp_path: Path) -> None:
    whole = write_config(tmp_path / "one", **KILLED)
    assert train(whole).returncode == 0
    config = write_config(tmp_path / "two", **{**KILLED, "epochs": 8})
    rng = random.Random(1)
    for _ in range(10):
        process = subprocess.Popen(
            command(config, "--set", "continue_last_backup=true"),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env=environment(),
        )
        time.sleep(rng.uniform(2.0, 9.0))
        process.kill()
        assert process.wait() in (-signal.SIGKILL, 0)
    assert train(config, "--set", "continue_last_backup=true").returncode == 0
    assert same_weights(tmp_path / "one" / "out.safetensors", tmp_path / "two" / "out.safetensors")


@pytest.mark.parametrize("number", usual([signal.SIGINT, signal.SIGTERM], signal.SIGTERM))
def test_signals_make_a_backup_and_a_clean_stop(tmp_path: Path, number: signal.Signals) -> None:
    config = write_config(tmp_path, epochs=100_000)
    process = start_training(config)
    run = tmp_path / "run"
    end = time.monotonic() + 90
    while time.monotonic() < end:
        if (run / "events.jsonl").exists() and any(e["kind"] == "step" for e in events(run)):
            break
        time.sleep(0.1)
    process.send_signal(number)
    assert process.wait(60) == 0, config.with_name("output.txt").read_text(encoding="utf-8")
    assert events(run)[-1]["status"] == "stopped"
    assert find_backup(run / "backup")[0] is not None
    assert RunDirectory(run).trainer() is None


@pytest.mark.parametrize("change", ["edited", "removed"])
def test_a_backup_has_the_concepts_that_the_run_began_with(tmp_path: Path, change: str) -> None:
    file = tmp_path / "concepts.json"
    text = json.dumps(standard(tmp_path))
    file.write_text(text)

    class Changes(StopAt):
        def started(self, facts: Mapping[str, Any]) -> None:
            if change == "removed":
                file.unlink()
            else:
                file.write_text(json.dumps([{**json.loads(text)[0], "balancing": 3.0}]))

    config = write_config(tmp_path, rlhf_enabled=False, concepts=None, concept_file_name=str(file))
    assert run_here(config, callback=Changes(1)).progress.global_step == 1
    (backup,) = list_backups(tmp_path / "run" / "backup")
    (concept,) = json.loads((backup / "config.json").read_text())["concepts"]
    assert concept.get("balancing", 1.0) == 1.0
    if change == "edited":
        with pytest.raises(UserError, match="balancing: 1.0 in the backup, 3.0 now"):
            run_here(config, "continue_last_backup=true")
    file.write_text(text)
    assert run_here(config, "continue_last_backup=true").progress.global_step > 1


def test_a_backup_has_the_concepts_that_were_trained_on_if_the_file_changes_while_the_run_starts(
    tmp_path: Path,
) -> None:
    file = tmp_path / "concepts.json"
    concepts = standard(tmp_path)
    file.write_text(json.dumps(concepts))
    write_pairs(tmp_path / "others", 2)
    units = []

    class Changes(StopAt):
        def phase(self, name: str, done: int, total: int) -> None:
            file.write_text(json.dumps([{**concepts[0], "path": str(tmp_path / "others" / "chosen")}]))

        def started(self, facts: Mapping[str, Any]) -> None:
            units.append(facts["units"])

    config = write_config(tmp_path, rlhf_enabled=False, concepts=None, concept_file_name=str(file))
    run_here(config, callback=Changes(1))
    (backup,) = list_backups(tmp_path / "run" / "backup")
    (concept,) = json.loads((backup / "config.json").read_text())["concepts"]
    assert (units, concept["path"]) == ([5], concepts[0]["path"])
