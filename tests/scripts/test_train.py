"""The training command line: what it refuses before any model is loaded, and what it leaves behind."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from modules.runner.RunDirectory import RunDirectory
from scripts.train import main
from tests.children.warm import WarmProcess
from tests.trainer.builders import (
    ROOT,
    events,
    start_training,
    train_in_new_process,
    write_config,
    write_pairs,
)

NO_MODEL = "/no/such/model"
"""A run that got as far as loading it would say so."""
NOT_HERE = "nobody/no-such-model-here"
"""A name that only the hub can know."""


def edit(config: Path, **changes: Any) -> None:
    data = json.loads(config.read_text(encoding="utf-8"))
    config.write_text(json.dumps({**data, **changes}), encoding="utf-8")


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:200])


def as_file(path: Path) -> None:
    path.write_text("in the way", encoding="utf-8")


Mistake = Callable[[Path, Path], None]
MISTAKES: dict[str, tuple[Mistake, str]] = {
    "typo in a key": (lambda f, c: edit(c, lerning_rate=1.0), "lerning_rate.*learning_rate"),
    "wrong type": (lambda f, c: edit(c, batch_size="many"), "batch_size.*many"),
    "negative rate": (lambda f, c: edit(c, learning_rate=-1.0), "learning_rate.*-1"),
    "several at once": (
        lambda f, c: edit(c, learning_rate=-1.0, lora_rank=0, seed="x"),
        "seed.*learning_rate.*lora_rank|learning_rate.*lora_rank.*seed",
    ),
    "missing folder": (
        lambda f, c: edit(
            c,
            concepts=[
                {"path": str(f / "gone"), "type": "DPO_CHOSEN"},
                {"path": str(f / "data" / "rejected"), "type": "DPO_REJECTED"},
            ],
        ),
        "gone",
    ),
    "truncated image": (lambda f, c: truncate(f / "data" / "chosen" / "001.png"), "001.png"),
    "unmatched pair": (
        lambda f, c: (f / "data" / "rejected" / "002.png").unlink(),
        "chosen/002.png",
    ),
    "differing prompts": (
        lambda f, c: (f / "data" / "chosen" / "003.txt").write_text("something else", encoding="utf-8"),
        "prompt.*003|003.*prompt",
    ),
    "empty concept": (
        lambda f, c: [path.unlink() for path in (f / "data" / "chosen").iterdir()] and None,
        "chosen",
    ),
    "one side alone": (
        lambda f, c: edit(c, concepts=[{"path": str(f / "data" / "chosen"), "type": "DPO_CHOSEN"}]),
        "DPO_REJECTED",
    ),
    "full fine-tuning on preferences": (lambda f, c: edit(c, training_method="FINE_TUNE"), "FINE_TUNE|LORA"),
    "unwritable workspace": (lambda f, c: as_file(f / "run"), "workspace_dir"),
    "unwritable cache": (lambda f, c: as_file(f / "cache"), "cache_dir"),
    "another kind of file": (lambda f, c: c.write_text("{", encoding="utf-8"), "config.json"),
    "a newer program's file": (lambda f, c: edit(c, __version=99), "99"),
    "a file in the way": (
        lambda f, c: (edit(c, prevent_overwrites=True), as_file(f / "out.safetensors"))[0],
        "out.safetensors.*exists",
    ),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_is_one_clear_message_before_the_model_is_loaded(
    tmp_path: Path, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    config = write_config(tmp_path, base_model_name=NO_MODEL)
    make, expected = MISTAKES[name]
    make(tmp_path, config)
    assert main(["--config-path", str(config)]) == 2
    said = capsys.readouterr().err
    assert said.startswith("error: ")

    assert re.search(expected, said, re.DOTALL), said
    assert NO_MODEL not in said
    assert "Traceback" not in said


def test_a_missing_model_is_an_error_with_its_name(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = write_config(tmp_path, base_model_name=str(tmp_path / "no-model"))
    assert main(["--config-path", str(config)]) == 2
    assert "no-model" in capsys.readouterr().err
    last = events(tmp_path / "run")[-2:]
    assert [e["kind"] for e in last] == ["error", "run_finished"]
    assert last[0]["category"] == "user" and last[1]["status"] == "failed"


def test_wrong_arguments_end_with_two(capsys: pytest.CaptureFixture[str]) -> None:
    for argv in ([], ["--config-path"], ["--no-such-thing"]):
        with pytest.raises(SystemExit) as ended:
            main(argv)
        assert ended.value.code == 2
    assert main(["--config-path", "no/such/file.json"]) == 2
    assert "no/such/file.json" in capsys.readouterr().err


def test_an_unknown_name_of_set_hides_no_other_fault(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = write_config(tmp_path, epochs=0)
    overrides = ["--set", "no_such=1", "--set", "learning_rate=-1"]
    assert main(["--config-path", str(config), *overrides]) == 2
    said = capsys.readouterr().err
    assert "3 faults" in said
    assert all(f"- {name}: " in said for name in ("no_such", "epochs", "learning_rate"))


def test_samples_without_a_list_are_refused_and_not_counted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    missing = {"samples": None, "sample_definition_file_name": str(tmp_path / "none.json")}
    config = write_config(tmp_path, sample_after=1, sample_after_unit="STEP", **missing)
    assert main(["--config-path", str(config), "--dry-run"]) == 2
    found = capsys.readouterr()
    assert "sample_definition_file_name" in found.err and "none.json" in found.err
    assert not re.search(r"\d samples?\b", found.out)


def test_dry_run_says_what_would_be_done_and_does_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = write_config(tmp_path, base_model_name=NOT_HERE)
    assert main(["--config-path", str(config), "--dry-run", "--set", "epochs=7"]) == 0
    said = capsys.readouterr().out
    assert "6 pairs to train on" in said and "21 in the run" in said
    assert f"memory cannot be estimated: {NOT_HERE} is not on this machine" in said
    assert not (tmp_path / "run").exists() and not (tmp_path / "cache").exists()


def test_dry_run_predicts_the_memory_of_a_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--config-path", str(write_config(tmp_path)), "--dry-run"]) == 0
    lines = capsys.readouterr().out.splitlines()
    first = next(place for place, line in enumerate(lines) if line.startswith("predicted GPU memory at "))
    assert "6 pairs to train on" in "".join(lines[:first])
    said = "\n".join(lines[first:])
    for what in ("encoding prompts", "encoding images", "training step", "weights: unet", "optimizer state"):
        assert what in said, said
    assert re.search(r"activations and working memory +\d", said), said
    assert not (tmp_path / "run").exists() and not (tmp_path / "cache").exists()


LISTS_MODULES = """import atexit, os, sys
atexit.register(lambda: open(os.environ["MODULES_AT_THE_END"], "w").write("\\n".join(sys.modules)))
"""


def test_a_run_on_a_card_begins_with_its_predicted_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a card, the CPU stands in for it."""
    monkeypatch.setattr("scripts.train.has_memory_of_its_own", lambda device: True)
    config = write_config(tmp_path, max_steps=1)
    assert main(["--config-path", str(config)]) == 0
    told = events(tmp_path / "run")
    kinds = [event["kind"] for event in told]
    assert kinds.index("memory_plan") < kinds.index("run_started") < kinds.index("run_finished")
    plan = told[kinds.index("memory_plan")]
    assert 0 < plan["total_bytes"] == max(phase["total"] for phase in plan["phases"].values())
    assert told[-1]["status"] == "finished"


def test_the_config_of_a_run_has_the_concepts_that_were_trained_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "concepts.json"
    concepts = write_pairs(tmp_path / "data")
    file.write_text(json.dumps(concepts))

    def edited_meanwhile(device: object) -> bool:
        file.write_text(json.dumps(write_pairs(tmp_path / "others", 2)))
        return False

    monkeypatch.setattr("scripts.train.has_memory_of_its_own", edited_meanwhile)
    config = write_config(tmp_path, max_steps=1, concepts=None, concept_file_name=str(file))
    assert main(["--config-path", str(config)]) == 0
    (started,) = [event for event in events(tmp_path / "run") if event["kind"] == "run_started"]
    kept = json.loads((tmp_path / "run" / "config.json").read_text(encoding="utf-8"))["concepts"]
    assert [one["path"] for one in kept] == [one["path"] for one in concepts]
    assert started["units"] == 6


def test_a_whole_run_through_the_command_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    listed = tmp_path / "modules.txt"
    (tmp_path / "sitecustomize.py").write_text(LISTS_MODULES, encoding="utf-8")
    monkeypatch.setenv("MODULES_AT_THE_END", str(listed))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    config = write_config(
        tmp_path,
        tensorboard=True,
        rlhf_dpo_validation=True,
        rlhf_dpo_validation_percentage=30.0,
        rlhf_dpo_timestep_margin_logging=True,
        sample_after=1,
        sample_after_unit="EPOCH",
        sample_before_training=True,
        samples=[{"prompt": "a red circle", "width": 64, "height": 64, "diffusion_steps": 2}],
        save_every=1,
        save_every_unit="EPOCH",
        save_skip_first=1,
        backup_before_save=True,
    )
    made = train_in_new_process(config, "--run-dir", str(tmp_path / "elsewhere"))
    assert made.returncode == 0, made.stderr
    run = tmp_path / "elsewhere"
    kinds = [e["kind"] for e in events(run)]
    assert kinds[-1] == "run_finished" and "run_started" in kinds and "error" not in kinds
    assert [e["seq"] for e in events(run)] == list(range(1, len(kinds) + 1))
    assert kinds.count("sample") == 3 and kinds.count("validation") == 2 and kinds.count("backup") == 1
    assert len(list((run / "save").glob("*.safetensors"))) == 1
    for event in events(run):
        if event["kind"] == "sample":
            with Image.open(run / event["path"]) as image:
                assert image.size == (64, 64)
    assert (tmp_path / "out.safetensors").is_file()
    assert json.loads((run / "config.json").read_text(encoding="utf-8"))["concepts"]
    _check_tensorboard(run / "tensorboard")
    loaded = set(listed.read_text(encoding="utf-8").splitlines())
    assert {"peft.tuners.lora.model", "diffusers.models.unets.unet_2d_condition"} <= loaded
    assert "bitsandbytes.functional" not in loaded, "it slows down every start"


def _check_tensorboard(folder: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    log = EventAccumulator(str(next(folder.iterdir())))
    log.Reload()
    tags = set(log.Tags()["scalars"])
    assert tags >= {
        "loss/train_step", "loss/dpo", "dpo/raw_loss", "dpo/chosen_reward", "dpo/rejected_reward", "dpo/accuracy",
        "dpo/reward_margin", "dpo/val_loss", "dpo/val_accuracy", "dpo/val_chosen_reward", "dpo/val_rejected_reward",
        "grad_norm", "lr/unet_lora",
    }  # fmt: skip
    assert tags & {f"dpo/margin_by_t/q{q}" for q in range(1, 5)}
    assert [point.step for point in log.Scalars("loss/train_step")] == [1, 2, 3, 4]
    assert log.Scalars("dpo/raw_loss")[0].value == pytest.approx(0.6931, abs=1e-4)
    assert log.Tags()["images"]


@pytest.mark.slow  # tests/runner/test_real_trainer.py gives these commands through runctl
def test_commands_reach_a_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    config = write_config(
        tmp_path,
        epochs=100_000,
        samples=[{"prompt": "a red circle", "width": 64, "height": 64, "diffusion_steps": 2}],
    )
    process = start_training(config)
    run = RunDirectory(tmp_path / "run")
    try:
        wait_for(run, process, lambda es: any(e["kind"] == "step" for e in es))
        for kind in ("backup", "sample", "save", "pause"):
            order = run.post(kind)
            wait_for(run, process, lambda es, order=order: answered(es, order))
        paused = [e for e in events(run.path) if e["kind"] == "step"]
        order = run.post("backup")
        wait_for(run, process, lambda es, order=order: answered(es, order))
        assert [e for e in events(run.path) if e["kind"] == "step"] == paused
        order = run.post("resume")
        wait_for(run, process, lambda es, order=order: answered(es, order))
        wait_for(run, process, lambda es: len([e for e in es if e["kind"] == "step"]) > len(paused))
        capsys.readouterr()
        with monkeypatch.context() as hurried:
            hurried.setattr("modules.runner.RunDirectory.LOCK_PATIENCE", 0.1)
            assert main(["--config-path", str(config)]) == 2
        assert "another process is training" in capsys.readouterr().err
        run.post("stop")
        assert process.wait(60) == 0
    finally:
        process.kill()
    kinds = [e["kind"] for e in events(run.path)]
    assert {"backup", "sample", "save"} <= set(kinds)
    assert events(run.path)[-1]["status"] == "stopped", config.with_name("output.txt").read_text(encoding="utf-8")


def answered(found: list[dict[str, Any]], order: str) -> bool:
    return any(e["kind"] == "command" and e["id"] == order and e["state"] == "done" for e in found)


def wait_for(
    run: RunDirectory,
    process: WarmProcess | subprocess.Popen[bytes],
    there: Callable[[list[dict[str, Any]]], bool],
) -> None:
    end = time.monotonic() + 90
    while time.monotonic() < end and process.poll() is None:
        if run.events_path.exists() and there(run.reader().poll()):
            return
        time.sleep(0.05)
    raise AssertionError(
        f"it did not happen; the run {'has ended' if process.poll() is not None else 'continues'}"
    )


def _killed_after_a_backup(config: Path) -> None:
    """Train in a forked process that is killed between two of its backups."""
    child = os.fork()
    if child == 0:
        main(["--config-path", str(config)])
        os._exit(1)
    log = config.parent / "run" / "events.jsonl"
    end = time.monotonic() + 300
    while not (log.exists() and '"backup"' in log.read_text(encoding="utf-8")):
        assert time.monotonic() < end
        time.sleep(0.002)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)


def test_a_new_run_where_one_was_killed_tells_the_command_that_resumes_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = write_config(tmp_path, epochs=20, backup_after=2, backup_after_unit="STEP")
    run = tmp_path / "run"
    _killed_after_a_backup(config)
    step = max(e["progress"]["global_step"] for e in events(run) if e["kind"] == "backup")
    lines = []
    for arguments in (["--dry-run"], ["--set", "base_model_name=gone"]):
        capsys.readouterr()
        assert main(["--config-path", str(config), *arguments]) == (0 if "--dry-run" in arguments else 2)
        lines += [line for line in capsys.readouterr().out.splitlines() if f"step {step} of 60" in line]
    assert len(lines) == 2 and all(f"warning: {run} holds a run that ended early" in line for line in lines)
    # the second one failed while it loaded: it never began, and the backups are where they were
    python, script, *command = shlex.split(lines[0].partition(" instead: ")[2])
    assert (python, Path(script).name) == (sys.executable, "train.py")
    assert main([*command, "--set", f"max_steps={step + 1}"]) == 0
    resumed = [e for e in events(run) if e["kind"] == "run_started"][-1]
    assert resumed["progress"]["global_step"] == step
    capsys.readouterr()
    assert main(["--config-path", str(config), "--dry-run"]) == 0
    assert "ended early" not in capsys.readouterr().out


def test_supervised_runs_and_full_fine_tuning(tmp_path: Path) -> None:
    write_pairs(tmp_path / "data", 5)
    concepts = [
        {"path": str(tmp_path / "data" / "chosen"), "type": "STANDARD"},
        {"path": str(tmp_path / "data" / "rejected"), "type": "VALIDATION"},
    ]
    config = write_config(
        tmp_path,
        concepts=concepts,
        rlhf_enabled=False,
        training_method="FINE_TUNE",
        validation=True,
        output_model_format="DIFFUSERS",
        output_model_destination=str(tmp_path / "model"),
        learning_rate=1e-4,
    )
    assert main(["--config-path", str(config)]) == 0
    from diffusers import StableDiffusionPipeline

    StableDiffusionPipeline.from_pretrained(str(tmp_path / "model"))
    assert (
        "loss/validation" in next(e for e in events(tmp_path / "run") if e["kind"] == "validation")["metrics"]
    )


def test_an_undefined_loss_ends_the_run_with_advice_and_a_backup(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from modules.trainer.steps import PreferenceStep

    real, seen = PreferenceStep.metrics, []

    def spoiled(self: PreferenceStep) -> dict[str, float]:
        seen.append(1)
        made = real(self)
        return {**made, "loss/train_step": float("nan")} if len(seen) >= 3 else made

    monkeypatch.setattr(PreferenceStep, "metrics", spoiled)
    config = write_config(tmp_path)
    assert main(["--config-path", str(config)]) == 2
    said = capsys.readouterr().err
    assert "loss is nan" in said and "lower the learning rate" in said
    assert any((tmp_path / "run" / "backup").glob("*-backup-2-*"))
    seen.clear()
    tolerant = write_config(tmp_path / "tolerant", nan_patience=10)
    assert main(["--config-path", str(tolerant)]) == 0


def test_a_fault_of_the_program_keeps_its_traceback(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from modules.trainer.steps import PreferenceStep

    def broken(self: PreferenceStep) -> dict[str, float]:
        raise ZeroDivisionError("oh")

    monkeypatch.setattr(PreferenceStep, "metrics", broken)
    assert main(["--config-path", str(write_config(tmp_path))]) == 1
    assert "ZeroDivisionError" in capsys.readouterr().err
    error = next(e for e in events(tmp_path / "run") if e["kind"] == "error")
    assert error["category"] == "bug" and "broken" in error["traceback"]


def test_a_config_error_needs_no_torch(tmp_path: Path) -> None:
    config = write_config(tmp_path, learning_rate=-1.0)
    code = (
        "import sys; sys.argv[0] = 'train'; from scripts.train import main; status = main(sys.argv[1:]);"
        "assert status == 2, status; heavy = {'torch', 'diffusers', 'transformers', 'peft'} & set(sys.modules);"
        "assert not heavy, heavy"
    )
    made = subprocess.run(
        [sys.executable, "-c", code, "--config-path", str(config)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert made.returncode == 0, made.stderr


def test_patience_ends_a_run_early(tmp_path: Path) -> None:
    config = write_config(
        tmp_path,
        epochs=50,
        learning_rate=1e-12,
        rlhf_dpo_validation=True,
        rlhf_dpo_validation_percentage=30.0,
        rlhf_dpo_patience_enabled=True,
        rlhf_dpo_patience_value=3,
    )
    assert main(["--config-path", str(config)]) == 0
    last = events(tmp_path / "run")[-1]
    # the first validation sets the bests, the next three do not beat them
    assert last["status"] == "finished" and last["progress"]["epoch"] == 4
