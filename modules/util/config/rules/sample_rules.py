"""Rules for samples: how they read their prompts is possible with the model family."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from modules.util.config.faults import raise_all
from modules.util.config.rules.family_rules import (
    layers_are_skipped_of_clip_alone,
    lengths_of_prompts,
    padding_is_never_there,
)
from modules.util.config.rules.rules import Finding, rule
from modules.util.config.SampleConfig import READING, SampleConfig
from modules.util.config.TrainConfig import TrainConfig
from modules.util.enum.ModelType import ModelType
from modules.util.errors import UnsupportedError, UserError

_OF_RUNS = (layers_are_skipped_of_clip_alone, lengths_of_prompts, padding_is_never_there)


@rule("model_type", "samples")
def _samples_read_prompts_as_a_run_can(c: TrainConfig) -> Iterator[Finding]:
    for number, sample in enumerate(c.samples or ()):
        yield from faults_of_reading(c.model_type, sample, f"samples[{number}]")


def check_reading(family: ModelType, samples: Sequence[SampleConfig]) -> None:
    """Raise ``UserError`` if samples read their prompts as their family cannot."""
    raise_all(
        [fault for n, one in enumerate(samples) for fault in faults_of_reading(family, one, f"samples[{n}]")]
    )


def faults_of_reading(family: ModelType, sample: SampleConfig, place: str) -> Iterator[UserError]:
    """Report what a sample says about reading prompts that its family cannot do; nothing if it is switched off.

    Args:
        place: the sample, as errors call it.
    """
    asked = sample.reading() if sample.enabled else {}
    if not asked:
        return
    names = {f"{part}.{own}": name for name, (part, own) in READING.items()}
    for part, settings in asked.items():
        for own in settings if part not in family.parts else ():
            yield UnsupportedError(
                f"{family.label} has no {part}", f"{place}.{names[f'{part}.{own}']}", "leave it empty"
            )
    run = TrainConfig.from_dict({"model_type": family.value, **asked})
    for check in _OF_RUNS:
        for found in check(run):
            if isinstance(found, UserError) and found.field in names:
                yield type(found)(found.message, f"{place}.{names[found.field]}", "leave it empty")
