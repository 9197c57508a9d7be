"""The prompts of online training, from a file, or the captions of the concepts."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

from modules.dataLoader.create import sides_multiple
from modules.dataLoader.source import collect_source, raise_faults
from modules.model.Model import Model
from modules.modelSetup.BaseModelSetup import BaseModelSetup
from modules.pipeline.nodes.images import load_rgb, read_size
from modules.pipeline.nodes.sources import same_aspect, source_size
from modules.pipeline.nodes.transforms import Transform, apply_transform
from modules.reward.combine import RewardSet
from modules.rollout.generate import RolloutSource
from modules.trainer.online.settings import (
    create_sampler,
    needs_negatives_of_sources,
    nominal_steps_per_epoch,
    nominal_total_steps,
    reward_set,
)
from modules.util.config.TrainConfig import TrainConfig
from modules.util.display import counted
from modules.util.errors import ConfigError, DataError, UserError, list_offenders, refused_as
from modules.util.owned_files import shown
from modules.util.pairs.dpo_pair_files import file_sha256
from modules.util.prompts_file import FIELD, read_prompt_rows


@dataclass(frozen=True)
class OnlinePrompt:
    """A prompt and the images it edits.

    Args:
        text: the prompt; of an edit the instruction.
        sources: paths of the images that are edited; empty for a prompt alone.
    """

    text: str
    sources: tuple[str, ...] = ()


def collect_prompts(config: TrainConfig) -> list[OnlinePrompt]:
    """The run's prompts in a fixed order; headers of the images that are edited are looked at.

    Raises:
        UserError: there are none, the concepts cannot be used, or the source images do not suit the model.
    """
    if config.rlhf_prompts_file.strip():
        rows = read_prompt_rows(config.rlhf_prompts_file)
        prompts = [OnlinePrompt(row.text, tuple(map(str, row.sources))) for row in rows]
        _check_sources(config, prompts, FIELD)
        return prompts
    source = collect_source(config, config.load_concepts())
    raise_faults(source.faults)
    found = [
        OnlinePrompt(text.strip(), item.sources) for item in source.train.items() for text in item.prompts
    ]
    prompts = [one for one in dict.fromkeys(found) if one.text]
    if not prompts:
        raise ConfigError(
            "there are no prompts: the enabled concepts have no captions",
            FIELD,
            "name a text file with one prompt per line",
        )
    _check_sources(config, prompts, "concepts")
    return prompts


def _check_sources(config: TrainConfig, prompts: Sequence[OnlinePrompt], field: str) -> None:
    """Raise everything that is wrong with the images that are edited."""
    spec, label = config.model_type.spec, config.model_type.label
    without = [one.text for one in prompts if not one.sources]
    counts = sorted({len(one.sources) for one in prompts})
    faults: list[UserError] = []
    if counts[-1] and not spec.sources:
        count = len(prompts) - len(without)
        raise DataError(
            f"{counted(count, 'prompt has', 'prompts have')} a source image, but {label} takes none",
            field,
            "choose a model that edits images as model_type, or remove the source images",
        )
    if without and (spec.edits_only or counts[-1]):
        why = f"{label} edits images" if spec.edits_only else "others have one"
        faults.append(
            DataError(
                f"{counted(len(without), 'prompt has', 'prompts have')} no source image, but {why}:\n"
                f"{list_offenders([shown(text, 60) for text in without])}",
                field,
                'write {"prompt": ..., "source": ...} in each line of a .jsonl file'
                if field == FIELD
                else "set source_path in each concept",
            )
        )
    elif len(counts) > 1:
        faults.append(
            DataError(
                f"some prompts have {counted(counts[0], 'source image')} and others {counts[-1]}",
                field,
                "give all prompts of a run the same number of source images",
            )
        )
    if counts[-1] > spec.sources:
        first = next(one for one in prompts if len(one.sources) > spec.sources)
        faults.append(
            DataError(
                f"{shown(first.sources[0])}: there are {len(first.sources)} source images, but {label} takes at most "
                f"{spec.sources}",
                field,
                f"move {shown(first.sources[spec.sources])} elsewhere",
            )
        )
    faults += _unreadable(prompts, field) + _needs_of_sources(config, counts[-1] > 0)
    raise_faults(faults)


def _unreadable(prompts: Sequence[OnlinePrompt], field: str) -> list[UserError]:
    bad: list[str] = []
    for path in dict.fromkeys(path for one in prompts for path in one.sources):
        try:
            read_size(path)
        except DataError as error:
            bad.append(error.message)
    if not bad:
        return []
    what = f"{counted(len(bad), 'source image')} cannot be used:\n{list_offenders(bad)}"
    return [DataError(what, field, "add, repair or replace them")]


def unmet_needs(rewards: RewardSet, edits: bool) -> list[UserError]:
    """Rewards that need source images where there are none. A server says what it needs only once it is loaded.

    Args:
        edits: whether the prompts have source images.
    """
    return [
        ConfigError(
            f"the reward {term.reward.name!r} compares with source images, but the prompts have none",
            "rlhf_reward",
            "give the prompts source images, or choose another reward",
        )
        for term in rewards.terms
        if "source" in term.reward.required_fields and not edits
    ]


def _needs_of_sources(config: TrainConfig, edits: bool) -> list[UserError]:
    """Settings that want source images, or something of them."""
    faults = unmet_needs(reward_set(config), edits)
    if edits and needs_negatives_of_sources(config):
        faults.append(
            ConfigError(
                f"{config.rlhf_dgpo_kl_cfg:g} needs images that are made with guidance: the text encoder of "
                f"{config.model_type.label} reads the negative prompt with the source image",
                "rlhf_dgpo_kl_cfg",
                "set rlhf_rollout_cfg_scale above 1, or this to 1",
            )
        )
    return faults


def online_summary(config: TrainConfig, world_size: int = 1) -> list[str]:
    """A summary of an online run and the servers it would contact, without loading a model.

    Raises:
        UserError: prompts are unusable, or too few.
    """
    prompts = collect_prompts(config)
    create_sampler(config, len(prompts), 0, world_size)
    steps = nominal_steps_per_epoch(config, world_size)
    images = config.rlhf_prompts_per_epoch * config.rlhf_group_size
    total = nominal_total_steps(config, world_size)
    rewards = reward_set(config)
    names = ", ".join(rewards.names)
    edited = {path for one in prompts for path in one.sources}
    return [
        *(line for term in rewards.terms for line in term.reward.contacts()),
        f"{counted(len(prompts), 'prompt')}; an epoch makes {config.rlhf_group_size} images for each of "
        f"{counted(config.rlhf_prompts_per_epoch, 'prompt')}, {images} in all, scored by {names}",
        *([f"{counted(len(edited), 'source image is', 'source images are')} edited"] if edited else []),
        f"{counted(steps, 'step')} in an epoch, {total} in the run",
    ]


def source_digests(prompts: Sequence[OnlinePrompt]) -> dict[str, str]:
    """Digests of the contents of all images that are edited, by path.

    Raises:
        DataError: one cannot be read.
    """
    made: dict[str, str] = {}
    for path in dict.fromkeys(path for one in prompts for path in one.sources):
        with refused_as(f"{shown(path)} cannot be read", FIELD, kind=DataError):
            made[path] = file_sha256(path)
    return made


def digest_of(prompts: Sequence[OnlinePrompt], digests: Mapping[str, str]) -> str:
    """Digest of a list of prompts, with the contents of what they edit; where that is nothing, as it ever was."""
    hasher = hashlib.blake2b(digest_size=16)
    for one in prompts:
        hasher.update(f"{len(one.text)}:{one.text}".encode(errors="surrogatepass"))
        for path in one.sources:
            hasher.update(f"source:{digests[path]}".encode())
    return hasher.hexdigest()


class EditedImages:
    """Reads the images that prompts edit. All are cropped in the middle to the shape of the images that are made, so
    that images of different prompts fit into one batch.

    Args:
        size: (height, width) of the images that are made.
        resolution: side of a square of a source's area; ``None`` for that of the images that are made.
        digests: of the files when the run began, by path.
    """

    def __init__(
        self,
        setup: BaseModelSetup,
        model: Model,
        size: tuple[int, int],
        resolution: int | None,
        digests: Mapping[str, str],
    ) -> None:
        self._shape = (size[1], size[0])
        multiple = sides_multiple(setup, model)
        self._transform = Transform(source_size(self._shape, self._shape, size, multiple, resolution))
        self._digests = digests

    def of(self, prompts: Sequence[OnlinePrompt]) -> dict[OnlinePrompt, RolloutSource]:
        """The images of those prompts that have some, each read once.

        Raises:
            DataError: a file cannot be read, or is another one than when the run began.
        """
        edits = [one for one in dict.fromkeys(prompts) if one.sources]
        read = {path: self._pixels(path) for path in dict.fromkeys(p for one in edits for p in one.sources)}
        return {one: RolloutSource(tuple(read[path] for path in one.sources), one.sources) for one in edits}

    def _pixels(self, path: str) -> torch.Tensor:
        """(3, H, W) uint8."""
        with refused_as(f"{shown(path)} cannot be read", kind=DataError):
            changed = file_sha256(path) != self._digests[path]
        if changed:
            raise DataError(
                f"{shown(path)} has changed since the run began",
                hint="put the original image back, or start a new run",
            )
        return torch.from_numpy(apply_transform(load_rgb(path), self._transform)).permute(2, 0, 1)

    def told_of_crops(self, prompts: Sequence[OnlinePrompt]) -> str:
        """Say how many source images are cropped, because they have another shape; empty if none is."""
        paths = dict.fromkeys(path for one in prompts for path in one.sources)
        other = [shown(path) for path in paths if not same_aspect(read_size(path), self._shape)]
        if not other:
            return ""
        return (
            f"{counted(len(other), 'source image has', 'source images have')} a different shape from "
            f"rlhf_rollout_size, and the middle is cut out:\n{list_offenders(other)}"
        )
