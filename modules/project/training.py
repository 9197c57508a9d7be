"""Trains a round's adapter on its picks, in the run folder of the round."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from enum import StrEnum
from pathlib import Path
from typing import Any

from modules.curation.commands import finalize
from modules.project.presets import again_config, chosen_from_data, find_preset, round_config, taste_config
from modules.project.Project import Project
from modules.project.Round import Round
from modules.project.taste_head import TasteHead, judged_rounds, learn_taste
from modules.runner.launcher import TrainerProcess, attach, launch, settle
from modules.runner.outcome import Outcome
from modules.runner.status import StatusFollower
from modules.runner.trash import check_only_own
from modules.util.config.load import check_config, load_layered
from modules.util.config.TrainConfig import TrainConfig
from modules.util.display import counted
from modules.util.errors import UserError
from modules.util.program_files import PRESETS

VALIDATION_PERCENTAGE = 10.0
GUARD = 10.0
"""Penalty per standard deviation by which an image matches its prompt less well than it should."""
POLL_SECONDS = 0.2
Progress = Callable[[str], None]


class Method(StrEnum):
    """Kinds of data that a round learns from."""

    PAIRS = "pairs"
    TASTE = "taste"


def train(
    project: Project,
    progress: Progress,
    overrides: Sequence[str] = (),
    again: bool = False,
    method: Method | None = None,
    say: Progress | None = None,
) -> dict[str, Any]:
    """Train on the picks of the current round, or resume a run that was stopped.

    With a learned taste, a few answers have an effect through hundreds of the model's own images. The answers
    of all rounds teach a head what is liked, and the head judges the images made during training.

    Ctrl+C (``KeyboardInterrupt``) stops the run with a backup. If the starting process is killed, the run
    continues and is found again.

    Args:
        overrides: ``name=value`` settings.
        again: whether to discard what was trained in this round, after checking that it can be trained again.
        method: the pairs themselves (by default), or a taste learned from all answers.
        say: called with lines that should stay visible: what is trained, and warnings; ``progress`` by
            default.

    Raises:
        UserError: there is nothing to train on, or the run failed.
    """
    with project.busy():
        one = project.round
        process = attach(one.run)
        if again and process is None:
            _check_before_forgetting(project, one, overrides, method or Method.PAIRS)
            one.forget_training()
        if one.trained:
            raise UserError(
                f"{one.name} is already trained",
                hint="continue with compare or next; --again trains it once more",
            )
        outcome = settle(one.run) if process is None else None
        if outcome is None or outcome.category != "finished" or not one.adapter_path.is_file():
            if process is None:
                process = launch(
                    one.run, _prepare(project, one, overrides, method, progress, say or progress)
                )
            outcome = follow(process, progress)
        if outcome.category == "stopped":
            raise UserError(f"the training of {one.name} was stopped", hint="run train again to resume it")
        if not outcome.ok:
            raise UserError(
                f"the training of {one.name} failed: {outcome.message}", hint=outcome.hint or None
            )
        record = {
            "steps": steps_of(one),
            "pairs": one.pair_count,
            "adapter": project.stored_name(one.adapter_path),
            "method": method_of(one),
            "taste": one.taste_of_run or None if method_of(one) is Method.TASTE else None,
        }
        project.note_source_resolution(again_config(one.config_path, {}, ()).source_resolution)
        one.write_trained(record)
        return {"round": one.number, **record}


def method_of(one: Round) -> Method | None:
    """Return the method of a started round; ``None`` before that."""
    if not one.config_path.is_file():
        return None
    config = again_config(one.config_path, {}, ())
    return Method.PAIRS if config.trains_pairs else Method.TASTE


def _check_before_forgetting(
    project: Project, one: Round, overrides: Sequence[str], method: Method
) -> None:
    """Raise what would refuse the new training of a round while its former one is still there.

    Raises:
        UserError: a setting is wrong, there is nothing to train on, or the run's folder holds files of a person.
    """
    check_only_own(one.run.path)
    if method is Method.PAIRS:
        _check_count(one)
        config = round_config(project.file, _names(project, one, project.folder), one.pair_count, overrides)
    else:
        judged_rounds(project, one)
        rewards = [_reward_of_taste(project, one)]
        names = _names_of_taste(project, one, rewards, project.folder)
        config = taste_config(project.file, names, len(project.tasks()), overrides)
    check_config(config)


def _prepare(
    project: Project,
    one: Round,
    overrides: Sequence[str],
    method: Method | None,
    progress: Progress,
    say: Progress,
) -> dict[str, Any]:
    """Write and check the round's config and the files it needs. Returns the config to run."""
    resumes = one.config_path.is_file() and one.has_backup
    before = method_of(one)
    if resumes and method is not None and method is not before:
        raise UserError(
            f"{one.name} was started with --method {before}", "--method", "leave it out, or add --again"
        )
    used = before if resumes and before is not None else method or Method.PAIRS
    if used is Method.PAIRS:
        config = _prepare_pairs(project, one, overrides, resumes, say)
    else:
        config = _prepare_taste(project, one, overrides, resumes, progress, say)
    for warning in check_config(config):
        say(f"warning: {warning}")
    return config.to_dict()


def _prepare_pairs(
    project: Project, one: Round, overrides: Sequence[str], resumes: bool, say: Progress
) -> TrainConfig:
    """Finalise the picks and make the config."""
    _check_count(one)
    counts = finalize(one.pairs, VALIDATION_PERCENTAGE)
    pairs, held_out = int(counts["train"]), int(counts["val"])

    def names(root: Path | None) -> dict[str, Any]:
        made = _names(project, one, root)
        made["concept_file_name"] = _place(project, one.pairs / "concepts.json", root)
        return made if held_out else {**made, "rlhf_dpo_validation": False}

    if resumes:
        return _resumed(one, names(project.folder), overrides, say)
    config = round_config(project.file, names(project.folder), pairs, overrides)
    one.write_config(round_config(project.file, names(None), pairs, overrides).sparse_dict())
    chosen = chosen_from_data(project.file, names(project.folder), pairs, overrides)
    said = ", ".join(f"{name} {value}" for name, value in chosen.items())
    known = find_preset(project.file).relative_to(PRESETS)
    say(f"{one.name}: {counted(pairs, 'pair')}, preset {known}, chosen from the data: {said}")
    return config


def _check_count(one: Round) -> None:
    if one.pair_count < 2:
        few = counted(one.pair_count, "pair")
        raise UserError(f"{one.name} has {few}: too few to train on", hint="pick some first")


def _prepare_taste(
    project: Project,
    one: Round,
    overrides: Sequence[str],
    resumes: bool,
    progress: Progress,
    say: Progress,
) -> TrainConfig:
    """Learn the taste from the answers of all rounds and make the config."""
    if resumes:
        return _resumed(
            one, _names_of_taste(project, one, _begun_rewards(one), project.folder), overrides, say
        )
    preset = find_preset(project.file, taste=True)
    head = learn_taste(project, one, progress)
    project.keep_sources()
    tasks = project.tasks()
    one.write_prompts(tasks)
    rewards = [_reward_of_taste(project, one, guards=not head.no_fit)]
    again = _follows_a_taste(project, one)
    config, stored = (
        taste_config(project.file, _names_of_taste(project, one, rewards, root), len(tasks), overrides, again)
        for root in (project.folder, None)
    )
    one.write_config(stored.sparse_dict())
    for line in _about(head, config, preset, again):
        say(f"{one.name}: {line}")
    if head.guesses is not None:
        low, high = head.guesses
        say(
            f"warning: the learned taste may be no better than guessing: it is right in {low:.0%} to {high:.0%} of "
            "comparisons, and the adapter learns its mistakes too. Pick some more images before you train on it"
        )
    return config


def _about(head: TasteHead, config: TrainConfig, preset: Path, again: bool) -> Iterator[str]:
    """Lines that say what is trained, and on what."""
    right = "not measured" if head.accuracy is None else f"right in {head.accuracy:.0%} of {head.measured_on}"
    known = preset.relative_to(PRESETS)
    yield f"preset {known}; the learned taste is {right} comparisons about other prompts"
    begin: TrainConfig = load_layered(preset, None, (), check=False)
    usual = begin.epochs
    why = (
        "; its adapter was already trained on a taste, so fewer are enough"
        if again and config.epochs < usual
        else ""
    )
    yield f"epochs {config.epochs} (preset: {usual}){why}"
    if config.rlhf_prompts_per_epoch < begin.rlhf_prompts_per_epoch:
        said = counted(config.rlhf_prompts_per_epoch, "prompt")
        yield f"{said} in each epoch (preset: {begin.rlhf_prompts_per_epoch}), because the project has few"
    if head.no_fit:
        yield f"the score of images that do not show their prompt is not lowered: {head.no_fit}"


def _reward_of_taste(project: Project, one: Round, guards: bool = False) -> dict[str, Any]:
    params = {"weights": _place(project, one.taste_path, None)} | ({"guard": GUARD} if guards else {})
    return {"reward": "preference_head", "name": "taste", "params": params}


def _begun_rewards(one: Round) -> list[dict[str, Any]]:
    """The rewards the round was started with, whatever was learned since."""
    config = again_config(one.config_path, {}, ())
    return [reward.to_dict() for reward in config.rlhf_rewards]


def _names_of_taste(
    project: Project, one: Round, rewards: Sequence[dict[str, Any]], root: Path | None
) -> dict[str, Any]:
    """As ``_names``, plus the files that judge during training.

    Args:
        rewards: rewards, in which the file of the learned taste is relative to the project folder.
    """
    weights = _place(project, one.taste_path, None)
    places = {"weights": _place(project, one.taste_path, root)}
    if root is not None:
        # the learned taste records where the base model was on the computer where it was learned
        places["source"] = project.file.model.base
    return {
        **_names(project, one, root),
        "rlhf_prompts_file": _place(project, one.prompts_path, root),
        "rlhf_rewards": [
            {
                **reward,
                "params": reward["params"] | (places if reward["params"].get("weights") == weights else {}),
            }
            for reward in rewards
        ],
    }


def _follows_a_taste(project: Project, one: Round) -> bool:
    """Return whether the adapter the round starts from was trained on a taste of this project."""
    source = one.plan.get("adapter", "")
    others = [other for other in project.rounds() if project.stored_name(other.adapter_path) == source]
    return any(method_of(other) is Method.TASTE for other in others)


def _resumed(one: Round, names: dict[str, Any], overrides: Sequence[str], say: Progress) -> TrainConfig:
    say(f"{one.name}: resuming with the settings of {one.name}/config.json")
    return again_config(one.config_path, {**names, "continue_last_backup": True}, overrides)


def _place(project: Project, path: Path, root: Path | None) -> str:
    """The path of a project file: absolute below ``root``, or else relative to the project folder."""
    name = path.relative_to(project.folder).as_posix()
    return name if root is None else str(root / name)


def _names(project: Project, one: Round, root: Path | None) -> dict[str, Any]:
    """Settings that name files; see ``_place``."""
    source = one.plan.get("adapter", "")
    inside = source and not Path(source).is_absolute()
    names = {
        "model_type": project.file.model.type,
        "base_model_name": project.file.model.base,
        "workspace_dir": _place(project, one.run.path, root),
        "cache_dir": _place(project, project.folder / "cache", root),
        "output_model_destination": _place(project, one.adapter_path, root),
        "lora_model_name": _place(project, project.folder / source, root) if inside else source,
        "seed": project.file.seed,
    }
    device = project.file.generator.get("device", "auto")
    if device != "auto":
        names["train_device"] = device
    return names


def follow(process: TrainerProcess, progress: Progress) -> Outcome:
    """Wait for a run and report its steps. Ctrl+C makes it stop with a backup, and waits for that."""
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
            progress("stopping with a backup; press Ctrl+C again to end it immediately")


def _said(follower: StatusFollower) -> str:
    status = follower.status
    if status.step is not None:
        made = status.step.get("progress") or {}
        return f"step {made.get('global_step', '?')}"
    phase = status.phase or {}
    return f"{phase.get('name', status.state)} {phase.get('done', '')}".strip()


def steps_of(one: Round) -> int:
    """Number of optimizer steps of the round's run so far."""
    follower = StatusFollower(one.run)
    follower.poll()
    made = (follower.status.step or {}).get("progress") or {}
    return int(made.get("global_step", 0))
