"""The model card of a published adapter, in the format of Hugging Face."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from modules.project.share.metadata import SPEC
from modules.util.display import counted

ADAPTER, PICTURE, RESULT, CARD = "adapter.safetensors", "before_after.png", "result.json", "README.md"
SHOWN_SETTINGS = (
    "model_type",
    "resolution",
    "rlhf_mode",
    "rlhf_dpo_objective",
    "rlhf_dpo_beta",
    "rlhf_nft_beta",
    "rlhf_group_size",
    "rlhf_prompts_per_epoch",
    "rlhf_rollout_steps",
    "learning_rate",
    "learning_rate_scheduler",
    "batch_size",
    "gradient_accumulation_steps",
    "epochs",
    "peft_type",
    "lora_rank",
    "lora_alpha",
    "seed",
)
"""Settings that a card may show. None of them can name a file or a folder."""

OF_PAIRS = ("rlhf_dpo_",)
OF_OWN_IMAGES = ("rlhf_nft_", "rlhf_group_", "rlhf_prompts_", "rlhf_rollout_")
"""Prefixes of settings that are irrelevant if a round learned the other way."""


@dataclass(frozen=True)
class About:
    """The author's information about an adapter.

    Args:
        title: title of the adapter.
        author: name to show; nothing is looked up.
        description: one or two sentences; a simple text by default.
        licence: its identifier on Hugging Face.
        trigger: trigger phrase of the adapter, if any.
        base_name: public name of the base model.
    """

    title: str
    author: str
    licence: str
    description: str = ""
    trigger: str = ""
    base_name: str = ""


@dataclass(frozen=True)
class Facts:
    """Facts that the project records about an adapter.

    Args:
        family: displayed name of the model family.
        rounds: one row for each round up to this one.
        settings: values of ``SHOWN_SETTINGS`` in the last round's training.
        arena: result of the votes; ``None`` without votes.
        resolution: ``WIDTHxHEIGHT``.
        edits: whether the model makes images from other images.
    """

    family: str
    rounds: Sequence[Mapping[str, Any]]
    settings: Mapping[str, Any]
    arena: Mapping[str, Any] | None
    resolution: str
    edits: bool = False

    @property
    def kind(self) -> str:
        """The task of the model in the terms of Hugging Face."""
        return "image-to-image" if self.edits else "text-to-image"

    @property
    def answers(self) -> int:
        """Number of answers of all rounds."""
        return sum(int(row["answers"]) for row in self.rounds)


def describe(about: About, facts: Facts) -> str:
    """The author's description, or a simple one."""
    return about.description or (
        f"An adapter for {about.base_name or facts.family}, trained on one person's taste: "
        f"{counted(facts.answers, 'answer')} in {counted(len(facts.rounds), 'round')}."
    )


def tags(facts: Facts) -> list[str]:
    """Tags for the card and the file."""
    kinds = {str(row["method"]) for row in facts.rounds}
    words = {"pairs": "preference-pairs", "taste": "learned-reward"}
    return [
        "lora",
        facts.kind,
        "preference",
        "tastemaker",
        *sorted(words[k] for k in kinds if k in words),
    ]


def spec(about: About, facts: Facts, date: str, thumbnail: str) -> dict[str, str]:
    """The ``modelspec.*`` metadata of the file, version 1.0.1."""
    trigger = {"modelspec.trigger_phrase": about.trigger} if about.trigger else {}
    return {
        "modelspec.sai_model_spec": SPEC,
        "modelspec.title": about.title,
        "modelspec.author": about.author,
        "modelspec.description": describe(about, facts),
        "modelspec.date": date,
        "modelspec.resolution": facts.resolution,
        "modelspec.license": about.licence,
        "modelspec.usage_hint": usage(about),
        "modelspec.tags": ", ".join(tags(facts)),
        "modelspec.thumbnail": thumbnail,
        **trigger,
    }


def usage(about: About) -> str:
    """Explain how to use it, in one or two sentences."""
    said = "Load it as a LoRA at strength 1; lower strengths keep more of the base model."
    return f"{said} Write {about.trigger!r} into the prompt." if about.trigger else said


def card(about: About, facts: Facts) -> str:
    """The text of ``README.md``."""
    header: dict[str, Any] = {
        "license": about.licence,
        "library_name": "diffusers",
        "pipeline_tag": facts.kind,
        "tags": tags(facts),
    }
    if about.base_name:
        header["base_model"] = about.base_name
        header["base_model_relation"] = "adapter"
    if about.trigger:
        header["instance_prompt"] = about.trigger
    # JSON is valid YAML, and quotes what a person wrote
    lines = [f"{name}: {json.dumps(value, ensure_ascii=False)}" for name, value in header.items()]
    parts = [
        "\n".join(["---", *lines, "---"]),
        f"# {about.title}",
        describe(about, facts),
        f"![The same prompts and seeds before and after]({PICTURE})",
        "Above: the base model. Below: the same prompts and seeds with this adapter.",
        f"By {about.author}. Licence: {about.licence}.",
        f"## Use\n\n{usage(about)}\n\n* Base model: {about.base_name or facts.family}\n* Resolution: "
        f"{facts.resolution}\n* File: `{ADAPTER}`",
        "## Is it better?\n\n" + _arena(facts.arena),
        "## How it was picked\n\n" + _rounds(facts),
        "## Settings of the last round\n\n" + _table(("setting", "value"), facts.settings.items()),
        f"`{RESULT}` has the same figures as JSON. Made with Tastemaker.",
    ]
    return "\n\n".join(parts) + "\n"


def _arena(arena: Mapping[str, Any] | None) -> str:
    if arena is None:
        return "The adapter was not compared with the base model."
    low, high = arena["interval"]
    decided = "The test has decided." if arena["decided"] else "The test has not decided; the two may be equal."
    return (
        "In a blind comparison with the base model, on prompts kept out of picking and with the same seeds, the "
        f"adapter's images were preferred in {arena['win_rate']:.0%} of {counted(arena['votes'], 'vote')} "
        f"(95 % interval: {low:.0%} to {high:.0%}). {decided} The votes are one person's."
    )


def _rounds(facts: Facts) -> str:
    learned = {"pairs": "the pairs", "taste": "a taste learned from the answers"}
    rows = [
        (
            n,
            row["candidates"],
            row["answers"],
            row["pairs"],
            learned.get(str(row["method"]), ""),
            row["steps"],
        )
        for n, row in enumerate(facts.rounds, start=1)
    ]
    return (
        "One person compared images of the model with each other; each round was trained on these answers.\n\n"
        + _table(("round", "images", "answers", "pairs", "learned from", "steps"), rows)
    )


def _table(names: Sequence[str], rows: Any) -> str:
    lines = [names, ["---"] * len(names), *rows]
    return "\n".join("| " + " | ".join(str(cell) for cell in line) + " |" for line in lines)
