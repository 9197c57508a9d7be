"""The prompts of online training, from a text file or the captions of the concepts."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

from modules.dataLoader.source import collect_source, raise_faults
from modules.trainer.online.settings import (
    create_sampler,
    nominal_steps_per_epoch,
    nominal_total_steps,
    reward_set,
)
from modules.util.config.TrainConfig import TrainConfig
from modules.util.errors import ConfigError
from modules.util.prompts_file import read_prompts_file


def collect_prompts(config: TrainConfig) -> list[str]:
    """The run's prompts in a fixed order.

    Raises:
        UserError: there are none, or the concepts cannot be used.
    """
    if config.rlhf_prompts_file.strip():
        return read_prompts_file(config.rlhf_prompts_file)
    source = collect_source(config, config.load_concepts())
    raise_faults(source.faults)
    captions = [caption.strip() for item in source.train.items() for caption in item.prompts]
    prompts = [caption for caption in dict.fromkeys(captions) if caption]
    if not prompts:
        raise ConfigError(
            "there are no prompts: the enabled concepts have no captions",
            "rlhf_prompts_file",
            "name a text file with one prompt per line",
        )
    return prompts


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
    return [
        *(line for term in rewards.terms for line in term.reward.contacts()),
        f"{len(prompts)} prompts; an epoch makes {config.rlhf_group_size} images of "
        f"{config.rlhf_prompts_per_epoch} of them, {images} in all, scored by {names}",
        f"{steps} steps in an epoch, {total} in the run",
    ]


def digest_of(prompts: Sequence[str]) -> str:
    """Digest of a list of prompts."""
    hasher = hashlib.blake2b(digest_size=16)
    for prompt in prompts:
        hasher.update(f"{len(prompt)}:{prompt}".encode(errors="surrogatepass"))
    return hasher.hexdigest()
