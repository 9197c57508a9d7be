"""Where the prompts of online training come from: a text file, or the captions of the concepts."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path

from modules.dataLoader.source import collect_source, raise_faults
from modules.trainer.online_settings import create_sampler, nominal_steps_per_epoch, reward_set
from modules.util.config.TrainConfig import TrainConfig
from modules.util.errors import ConfigError, DataError

MAX_FILE_BYTES = 64 * 2**20
MAX_PROMPT_LETTERS = 20_000
MAX_PROMPTS = 1_000_000


def read_prompts_file(path: str | Path) -> list[str]:
    """One prompt a line; empty lines and lines that begin with ``#`` do not count, blanks around a prompt neither.

    The same prompt may be there twice: it is then drawn twice as often.

    Raises:
        DataError: the file cannot be read, is no UTF-8 text, is too large or holds no prompt.
    """
    file = Path(path)
    try:
        if file.stat().st_size > MAX_FILE_BYTES:
            raise DataError(f"{file} is larger than {MAX_FILE_BYTES >> 20} MiB", "rlhf_prompts_file")
        text = file.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise DataError(f"{file} cannot be read: {error.strerror}", "rlhf_prompts_file") from error
    except UnicodeDecodeError as error:
        raise DataError(f"{file} is not UTF-8 text", "rlhf_prompts_file", "save it as UTF-8") from error
    if "\0" in text:
        raise DataError(f"{file} is no text", "rlhf_prompts_file")
    prompts = []
    for number, raw in enumerate(text.splitlines(), start=1):
        line = raw.strip()
        if not line or line.startswith("#"):
            continue
        if len(line) > MAX_PROMPT_LETTERS:
            raise DataError(
                f"{file}, line {number}: a prompt of {len(line)} letters; at most {MAX_PROMPT_LETTERS}",
                "rlhf_prompts_file",
            )
        prompts.append(line)
    if not prompts:
        raise DataError(f"{file} holds no prompt", "rlhf_prompts_file", "write one prompt a line")
    if len(prompts) > MAX_PROMPTS:
        raise DataError(f"{file} holds {len(prompts)} prompts; at most {MAX_PROMPTS}", "rlhf_prompts_file")
    return prompts


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
            "name a text file with one prompt a line",
        )
    return prompts


def online_summary(config: TrainConfig, world_size: int = 1) -> list[str]:
    """What an online run would do, found out without a model.

    Raises:
        UserError: prompts that cannot be used, or too few of them.
    """
    prompts = collect_prompts(config)
    create_sampler(config, len(prompts), 0, world_size)
    steps = nominal_steps_per_epoch(config, world_size)
    images = config.rlhf_prompts_per_epoch * config.rlhf_group_size
    total = config.max_steps or steps * config.epochs
    names = ", ".join(reward_set(config).names)
    return [
        f"{len(prompts)} prompts; an epoch makes {config.rlhf_group_size} images of "
        f"{config.rlhf_prompts_per_epoch} of them, {images} in all, scored by {names}",
        f"{steps} steps in an epoch, {total} in the run",
    ]


def digest_of(prompts: Sequence[str]) -> str:
    """Tells lists of prompts apart."""
    hasher = hashlib.blake2b(digest_size=16)
    for prompt in prompts:
        hasher.update(f"{len(prompt)}:{prompt}".encode(errors="surrogatepass"))
    return hasher.hexdigest()
