"""Training a round's adapter on its picks, in the run folder of the round."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from modules.curation.commands import finalize
from modules.project.presets import again_config, find_preset, from_data, round_config
from modules.project.Project import Project
from modules.project.Round import Round
from modules.runner.launcher import TrainerProcess, attach, launch, settle
from modules.runner.outcome import Outcome
from modules.runner.status import StatusFollower
from modules.util.config.load import check_config
from modules.util.errors import UserError
from modules.util.program_files import PRESETS

VALIDATION_PERCENTAGE = 10.0
POLL_SECONDS = 0.2
Progress = Callable[[str], None]


def train(
    project: Project, progress: Progress, overrides: Sequence[str] = (), again: bool = False
) -> dict[str, Any]:
    """Train on the picks of the round at work, or resume a run that was stopped.

    Ctrl+C (``KeyboardInterrupt``) stops the run with a backup; a run whose starter was killed continues and is
    found again.

    Args:
        overrides: ``name=value`` settings.
        again: forget what was trained in this round.

    Raises:
        UserError: there is nothing to train on, or the run failed.
    """
    with project.busy():
        one = project.round
        process = attach(one.run)
        if again and process is None:
            one.forget_training()
        if one.trained:
            raise UserError(
                f"{one.name} is trained already", hint="compare or next come now; --again trains it once more"
            )
        outcome = settle(one.run) if process is None else None
        if outcome is None or outcome.category != "finished" or not one.adapter_path.is_file():
            if process is None:
                process = launch(one.run, _prepare(project, one, overrides, progress))
            outcome = follow(process, progress)
        if outcome.category == "stopped":
            raise UserError(f"the training of {one.name} was stopped", hint="call train again to resume it")
        if not outcome.ok:
            raise UserError(
                f"the training of {one.name} failed: {outcome.message}", hint=outcome.hint or None
            )
        record = {
            "steps": steps_of(one),
            "pairs": one.pair_count,
            "adapter": project.stored_name(one.adapter_path),
        }
        one.write_trained(record)
        return {"round": one.number, **record}


def _prepare(project: Project, one: Round, overrides: Sequence[str], progress: Progress) -> dict[str, Any]:
    """Finalise the picks, write the round's config, check it; the config to run."""
    if one.pair_count < 2:
        raise UserError(f"{one.name} has {one.pair_count} pairs: too few to train on", hint="pick some first")
    counts = finalize(one.pairs, VALIDATION_PERCENTAGE)
    pairs, held_out = int(counts["train"]), int(counts["val"])
    names = _names(project, one, project.folder, held_out)
    resumes = one.config_path.is_file() and one.run.backup_dir.is_dir() and any(one.run.backup_dir.iterdir())
    if resumes:
        names["continue_last_backup"] = True
        config = again_config(one.config_path, names, overrides)
        progress(f"{one.name}: resuming with the settings of {one.name}/config.json")
    else:
        config = round_config(project.file, names, pairs, overrides)
        relative = round_config(project.file, _names(project, one, None, held_out), pairs, overrides)
        one.write_config(relative.sparse_dict())
        follows = from_data(config, project.file, pairs)
        said = ", ".join(f"{name} {value}" for name, value in follows.items())
        known = find_preset(project.file).relative_to(PRESETS)
        progress(f"{one.name}: {pairs} pairs, preset {known}, from the data: {said}")
    for warning in check_config(config):
        progress(f"warning: {warning}")
    return config.to_dict()


def _names(project: Project, one: Round, root: Path | None, held_out: int) -> dict[str, Any]:
    """Settings that name files: absolute below ``root``, or as one writes them in the project's folder."""

    def place(path: Path) -> str:
        name = path.relative_to(project.folder).as_posix()
        return name if root is None else str(root / name)

    source = one.plan.get("adapter", "")
    names = {
        "model_type": project.file.model.type,
        "base_model_name": project.file.model.base,
        "concept_file_name": place(one.pairs / "concepts.json"),
        "workspace_dir": place(one.run.path),
        "cache_dir": place(project.folder / "cache"),
        "output_model_destination": place(one.adapter_path),
        "lora_model_name": place(project.folder / source)
        if source and not Path(source).is_absolute()
        else source,
        "seed": project.file.seed,
    }
    device = project.file.generator.get("device", "auto")
    if device != "auto":
        names["train_device"] = device
    if not held_out:
        names["rlhf_dpo_validation"] = False
    return names


def follow(process: TrainerProcess, progress: Progress) -> Outcome:
    """Wait for a run, telling its steps; Ctrl+C asks it to stop with a backup and waits for that."""
    follower = StatusFollower(process.run)
    asked = False
    while True:
        try:
            outcome = process.poll()
            if outcome is not None:
                return outcome
            follower.poll()
            progress(_said(follower))
            time.sleep(POLL_SECONDS)
        except KeyboardInterrupt:
            if asked or process.run.trainer() is None:
                process.end()
                raise
            asked = True
            process.run.post("stop")
            progress("stopping with a backup; once more ends it at once")


def _said(follower: StatusFollower) -> str:
    status = follower.status
    if status.step is not None:
        made = status.step.get("progress") or {}
        return f"step {made.get('global_step', '?')}"
    phase = status.phase or {}
    return f"{phase.get('name', status.state)} {phase.get('done', '')}".strip()


def steps_of(one: Round) -> int:
    """How many optimizer steps the round's run has taken."""
    follower = StatusFollower(one.run)
    follower.poll()
    made = (follower.status.step or {}).get("progress") or {}
    return int(made.get("global_step", 0))
