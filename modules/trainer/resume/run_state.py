"""Writes the complete state of a run to a backup, and restores it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from modules.trainer.assembly import Run
from modules.trainer.optim.optimizers import load_optimizer_state, optimizer_state
from modules.trainer.resume.backup_contents import Counters
from modules.trainer.resume.checkpoint import Snapshot
from modules.util.config.TrainConfig import TrainConfig
from modules.util.errors import ConfigError, DataError, refused_as
from modules.util.owned_files import Owned
from modules.util.tensors.peft_config import NAME as PEFT_CONFIG
from modules.util.TrainProgress import TrainProgress


def take_snapshot(
    parts: Run,
    config: TrainConfig,
    progress: TrainProgress,
    counters: Counters,
    rollout: tuple[dict[str, torch.Tensor], dict[str, Any]] | None = None,
) -> Snapshot:
    """The contents of a backup.

    Args:
        rollout: data of the loader: in online training, the images of the current epoch.
    """
    weights = parts.handle.state_dict() if parts.handle is not None else dict(parts.named)
    made = Snapshot(progress, {"weights": weights}, config=config.packed().to_dict())
    if parts.model.words is not None:
        made.tensors["embeddings"] = parts.model.words.state_dict()
    if parts.ema is not None:
        made.tensors["ema"] = parts.ema.state_dict()
    if parts.reference is not None and parts.reference.snapshot_state():
        made.tensors["reference"] = parts.reference.snapshot_state()
    if parts.old_policy is not None:
        made.tensors["old_policy"] = parts.old_policy.state_dict()
    if rollout is not None and rollout[0]:
        made.tensors["rollout"] = rollout[0]
    made.optimizer = optimizer_state(parts.optimizer, [name for name, _ in parts.named])
    made.state = {
        "identity": parts.identity(),
        "processes": parts.loader.world_size,
        "execution_mode": parts.config.rlhf_dpo_execution_mode.value,
        "step": parts.step.state_dict(),
        "scaler": parts.scaler.state_dict(),
        "counters": asdict(counters),
        "weight_files": {part: path.name for part, path in parts.model.weight_files.items()},
    }
    if rollout is not None:
        made.state["rollout"] = rollout[1]
    if parts.ema is not None:
        made.state["ema_begun"] = parts.ema.begun
    if parts.patience is not None:
        made.state["patience"] = parts.patience.state_dict()
    if parts.best is not None:
        made.state["best"] = parts.best.state_dict()
        if parts.best.path is not None:
            made.files["best"] = parts.best.path
    return made


def restore(parts: Run, backup: Snapshot, counters: Counters, base: str, writes: bool) -> None:
    """Restore the state from a backup.

    Args:
        base: name of the base model, for the error.
        writes: whether this process restores files.

    Raises:
        UserError: the backup belongs to another model, other data or other settings.
    """
    state = backup.state
    _check_identity(parts.identity(), state["identity"], base)
    if parts.handle is not None:
        parts.handle.load_state_dict(backup.tensors["weights"])
    else:
        _copy_weights(parts.named, backup.tensors["weights"])
    if parts.model.words is not None:
        _copy_weights(parts.model.words.named(), _tensors(backup, "embeddings"))
    if parts.reference is not None:
        parts.reference.load_snapshot(backup.tensors.get("reference", {}))
    load_optimizer_state(parts.optimizer, backup.optimizer, [name for name, _ in parts.named])
    if parts.ema is not None:
        # earlier versions did not note it; they are right unless the step of the first update was skipped
        begun = state.get("ema_begun", backup.progress.global_step >= parts.ema.interval)
        parts.ema.load_state_dict(_tensors(backup, "ema"), begun)
    if parts.old_policy is not None:
        parts.old_policy.load_state_dict(_tensors(backup, "old_policy"))
    parts.loader.restore(backup.tensors.get("rollout", {}), state.get("rollout"))
    try:
        parts.step.load_state_dict(state["step"])
    except (KeyError, ValueError) as error:
        raise DataError(f"the state of the loss in the backup is damaged: {error}") from error
    parts.scaler.load_state_dict(state["scaler"])
    counters.load(state["counters"])
    if parts.patience is not None and "patience" in state:
        parts.patience.load_state_dict(state["patience"])
    if parts.best is not None and "best" in state:
        parts.best.load_state_dict(state["best"])
        if writes and parts.best.path is not None:
            _bring_back(backup.files["best"], parts.best.path)


def _check_identity(now: Mapping[str, str], saved: Mapping[str, str], base: str) -> None:
    if now["base"] != saved["base"]:
        raise ConfigError(
            f"{base} is not the model the backup was made with",
            "base_model_name",
            "name the same model and training adapter as before, or start a new run",
        )
    if others := _other_parts(now["rest"], saved.get("rest", now["rest"])):
        raise ConfigError(
            f"{base} has changed since the backup was made ({', '.join(others)})",
            "base_model_name",
            "restore the model, or start a new run",
        )
    if now["adapter"] != saved.get("adapter", now["adapter"]):
        raise ConfigError(
            "the adapter in the backup was scaled differently: the run was started from another adapter file",
            "lora_model_name",
            "name the file the run was started from, unchanged, or none if it was started without. Earlier versions "
            f"did not read an {PEFT_CONFIG} next to it: to resume a run of theirs, name a copy of the file alone",
        )
    if now["embeddings"] != saved.get("embeddings", ""):
        raise ConfigError(
            "the embeddings began with other values when the backup was made: the file of one of them has changed",
            "additional_embeddings",
            "restore the files the run was started with, or start a new run",
        )
    if now["tags"] != saved.get("tags", now["tags"]):
        raise DataError(
            "the list of special tags has changed since the backup was made: the run cannot resume from it",
            field="concepts",
            hint="restore the file that tag_dropout_special_tags names, or start a new run",
        )
    if now["data"] != saved["data"]:
        raise DataError(
            "images, captions, pairs or prompts have changed since the backup was made: the run cannot resume from it",
            field="concepts",
            hint="restore the data, or start a new run from the saved model with lora_model_name. If nothing was "
            "changed, the run began with an older version of the program, which held back other pairs for validation",
        )


def _other_parts(now: str, saved: str) -> list[str]:
    """Names of the parts whose digests differ."""
    one, other = (dict(part.partition("=")[::2] for part in text.split()) for text in (now, saved))
    return sorted(name for name in one.keys() | other.keys() if one.get(name) != other.get(name))


def _tensors(backup: Snapshot, name: str) -> Mapping[str, torch.Tensor]:
    if name not in backup.tensors:
        raise DataError(f"the backup holds no {name.replace('_', ' ')}", hint="resume from another backup")
    return backup.tensors[name]


def _copy_weights(named: list[tuple[str, torch.nn.Parameter]], saved: Mapping[str, torch.Tensor]) -> None:
    if {name: p.shape for name, p in named} != {name: tensor.shape for name, tensor in saved.items()}:
        raise DataError("the weights of the backup belong to other parts of the model")
    with torch.no_grad():
        for name, parameter in named:
            parameter.copy_(saved[name])


def _bring_back(source: Path, target: Path) -> None:
    """Restore the file of the best weights from a backup."""
    with refused_as(f"the best weights cannot be restored to {target}", hint="make room on the disk"):
        Owned(target.parent, local=True).take(source, target.name)
