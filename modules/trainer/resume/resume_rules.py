"""Settings that may change between a backup and the run that resumes from it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from modules.pipeline.nodes.prompts import augments_text
from modules.pipeline.nodes.transforms import AMOUNTS
from modules.util.config.BaseConfig import VERSION_KEY, BaseConfig
from modules.util.config.ConceptConfig import ConceptConfig
from modules.util.config.remote.RemoteConfig import RemoteConfig
from modules.util.config.rules.rules import NOISE_LEVELS
from modules.util.config.section.ModelPartConfig import (
    DenoiserConfig,
    FrozenPartConfig,
    FurtherTextEncoderConfig,
    ModelPartConfig,
    TextEncoderConfig,
    TrainingAdapterConfig,
    TransformerConfig,
)
from modules.util.config.settings import is_visible, iter_settings
from modules.util.config.TrainConfig import TrainConfig
from modules.util.enum.choices import LearningRateScheduler
from modules.util.enum.ConceptType import ConceptType
from modules.util.enum.DPORefMode import DPORefMode
from modules.util.errors import ConfigError

PARTS = (
    FrozenPartConfig,
    ModelPartConfig,
    TextEncoderConfig,
    FurtherTextEncoderConfig,
    DenoiserConfig,
    TrainingAdapterConfig,
    TransformerConfig,
    RemoteConfig,
)
"""Classes of the settings of a model part, of additions to its weights, and of the place of training."""


def _free(model: type[BaseConfig]) -> set[str]:
    extras = ((name, field.json_schema_extra) for name, field in model.model_fields.items())
    return {name for name, extra in extras if isinstance(extra, dict) and extra.get("free") is True}


FREE = _free(TrainConfig) | {VERSION_KEY}
"""Settings that do not affect the weights, or are compared by meaning instead (base model, data)."""

LENGTH = {"epochs", "max_steps"}
"""Settings that may change if the learning rate does not depend on the length of the run."""

RATES = {"learning_rate", "embedding_learning_rate"}
"""Settings that may change, in a part too, if the optimizer ignores them."""

_REFERENCE = {
    DPORefMode.NEW_ADAPTER: "the base model",
    DPORefMode.EXISTING_ADAPTER: "the adapter it started from",
}

REWARDS = "rlhf_rewards"
CACHING = "latent_caching"
TRAINED_TYPES = {
    False: (ConceptType.STANDARD, ConceptType.PRIOR_PREDICTION),
    True: (ConceptType.DPO_CHOSEN, ConceptType.DPO_REJECTED),
}
"""Types of concepts that are trained on, in runs on single images and on pairs."""
_CONTENTS = (
    *("name", "path", "source_path", "mask_path", "enabled", "include_subdirectories"),
    *("prompt_source", "caption_extension", "missing_caption", "prompt_path"),
    *("trigger_word", "caption_prefix", "caption_suffix"),
)
"""Settings of a concept that choose its images and captions, which are compared by content instead."""

PART_FREE = set().union(*(_free(part) for part in PARTS))
"""As ``FREE``, for the settings of a part."""


def check_resumable(config: TrainConfig, saved: Mapping[str, Any]) -> None:
    """Refuse to resume with settings that would train other weights than the interrupted run.

    Args:
        saved: the config in the backup.

    Raises:
        ConfigError: settings differ that must not change. All of them are listed.
    """
    unused = RATES if config.optimizer.ignores_rate else set()
    idle = set(NOISE_LEVELS) if config.trains_online else set()
    free = FREE | (LENGTH if _any_length(config) else set()) | unused | idle
    old = TrainConfig.from_dict(saved)
    now, before = config.to_dict(), old.to_dict()
    concepts = _trained_concepts(config)
    if any(map(_is_augmented, concepts)):
        # cached versions of an image take turns, others are new each time
        free -= {CACHING}
    changed: list[str] = []
    for name, value in now.items():
        if name in free or value == before[name] or (name == REWARDS and _moved_rewards(now, before)):
            continue
        if isinstance(value, dict):
            changed += [
                f"{name}.{key}: {before[name].get(key)} in the backup, {value.get(key)} now"
                for key in sorted(value.keys() | before[name].keys())
                if key not in PART_FREE | unused and value.get(key) != before[name].get(key)
            ]
        else:
            changed.append(f"{name}: {before[name]} in the backup, {value} now")
    if old.concepts is not None:
        changed += _changed_concepts(config, concepts, _trained_concepts(old))
    if changed:
        raise ConfigError(
            "the run cannot resume from its backup with other settings:\n"
            + "\n".join(f"    {c}" for c in changed),
            hint="restore them, or start a new run in another workspace or without continue_last_backup",
        )


def _trained_concepts(config: TrainConfig) -> list[ConceptConfig]:
    """The concepts whose images are trained on; none if images are made, or if the list is in a file that is gone."""
    if config.trains_online or (config.concepts is None and not Path(config.concept_file_name).is_file()):
        return []
    pairs = config.trains_pairs
    return [
        one
        for one in config.load_concepts()
        if one.enabled and one.type in TRAINED_TYPES[pairs] and (pairs or one.balancing > 0)
    ]


def _is_augmented(concept: ConceptConfig) -> bool:
    """Return whether the visits of an image or of its caption differ at random."""
    if concept.type not in TRAINED_TYPES[False]:
        return False
    image = concept.image
    random = [name for name in type(image).model_fields if name.startswith("enable_random_")]
    return any(getattr(image, name) for name in ("enable_crop_jitter", *random)) or augments_text(concept.text)


def _changed_concepts(
    config: TrainConfig, now: list[ConceptConfig], before: list[ConceptConfig]
) -> list[str]:
    """The settings of concepts that differ. Another number of concepts is found by comparing their images."""
    changed = []
    for one, old in zip(now, before, strict=True) if len(now) == len(before) else ():
        values, olds = _acting(config, one), _acting(config, old)
        changed += [
            f"concept {one.name or Path(one.path).name!r}: {name}: {olds[name]} in the backup, {value} now"
            for name, value in values.items()
            # what acts in one of them only has a switch, which differs too
            if name in olds and value != olds[name]
        ]
    return changed


def _acting(config: TrainConfig, concept: ConceptConfig) -> dict[str, Any]:
    """The settings of a concept that change the training, by name."""
    values = _flat(concept.to_dict())
    shown = {one.path for one in iter_settings(ConceptConfig) if is_visible(one.visible, values.get)}
    if config.trains_pairs:
        names = ["type", "image.enable_resolution_override", "image.resolution_override"]
        chosen = concept.type is ConceptType.DPO_CHOSEN
        names += ["balancing", "balancing_strategy"] * (chosen or config.takes_single_images)
        names += ["loss_weight"] * (chosen and config.rlhf_supervised_mix > 0)
        return {name: values[name] for name in names if name in shown}
    idle = set() if _is_augmented(concept) else {"image_variations", "text_variations"}
    image = concept.image
    idle |= {
        f"image.{amount}"
        for fixed, random, amount in AMOUNTS.values()
        if not getattr(image, fixed) and not getattr(image, random)
    }
    return {
        name: value
        for name, value in values.items()
        if name in shown - idle and name.rpartition(".")[2] not in _CONTENTS
    }


def _flat(values: Mapping[str, Any]) -> dict[str, Any]:
    """Settings by name, those inside a setting with its name before theirs."""
    made: dict[str, Any] = {}
    for name, value in values.items():
        inner = _flat(value) if isinstance(value, Mapping) else None
        made |= {name: value} if inner is None else {f"{name}.{key}": own for key, own in inner.items()}
    return made


def _moved_rewards(now: Mapping[str, Any], before: Mapping[str, Any]) -> bool:
    """Return whether rewards differ only in the location of their files: the old files are gone, and files of the
    same names exist at the new location. A base model that judges is compared by its weights, like the
    trained one.
    """
    bases = now["base_model_name"], before["base_model_name"]

    def same(own: Any, old: Any) -> bool:
        if own == old or (own, old) == bases:
            return True
        if not (isinstance(own, str) and isinstance(old, str)):
            return False
        gone = Path(old).is_absolute() and not Path(old).exists()
        return gone and Path(own).is_file() and Path(own).name == Path(old).name

    def all_same(own: Mapping[str, Any], old: Mapping[str, Any]) -> bool:
        return own.keys() == old.keys() and all(same(value, old[name]) for name, value in own.items())

    return len(now[REWARDS]) == len(before[REWARDS]) and all(
        {**own, "params": {}} == {**old, "params": {}} and all_same(own["params"], old["params"])
        for own, old in zip(now[REWARDS], before[REWARDS], strict=True)
    )


def check_same_start(
    config: TrainConfig, saved: Mapping[str, Any], state: Mapping[str, Any], processes: int
) -> None:
    """Refuse another kind of reference, or another number of processes, which determines the content of a
    step.

    Args:
        saved: the config in the backup.

    Raises:
        ConfigError: one of them has changed.
    """
    now, before = (
        config.effective_dpo_ref_mode(),
        TrainConfig.from_dict(saved).effective_dpo_ref_mode(),
    )
    if config.rlhf_enabled and now is not before:
        raise ConfigError(
            f"the reference was {_REFERENCE[before]}, and would now be {_REFERENCE[now]}",
            "lora_model_name",
            "restore it, or start a new run in another workspace or without continue_last_backup",
        )
    count = int(state.get("processes", processes))
    if count != processes:
        raise ConfigError(
            f"the run was started with {count} processes and cannot resume with {processes}: its steps would use "
            "other data",
            hint=f"start {count} processes, or start a new run from the saved model with lora_model_name",
        )


def _any_length(config: TrainConfig) -> bool:
    warmup = config.learning_rate_warmup_steps
    return config.learning_rate_scheduler is LearningRateScheduler.CONSTANT and not 0 < warmup <= 1
