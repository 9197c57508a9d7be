"""Which curves are drawn together. No Tk here."""

from __future__ import annotations

from collections.abc import Iterable

GROUPS: dict[str, dict[str, str]] = {
    "Loss": {
        "loss/train_step": "training",
        "loss/validation": "validation",
        "dpo/val_loss": "validation",
        "loss/supervised": "supervised",
    },
    "Preference loss": {"dpo/raw_loss": "training", "dpo/val_loss": "validation"},
    "Accuracy": {"dpo/accuracy": "training", "dpo/val_accuracy": "validation"},
    "Margin": {"dpo/reward_margin": "margin"},
    "Rewards": {"dpo/chosen_reward": "chosen", "dpo/rejected_reward": "rejected"},
    "Validation rewards": {"dpo/val_chosen_reward": "chosen", "dpo/val_rejected_reward": "rejected"},
}
"""Titles of diagrams, and for each the curves in it with their names in the legend."""
_PREFIXES = {
    "lr": "Learning rate",
    "learning_rate": "Learning rate",
    "memory": "Memory",
    "reward": "Reward",
    "dpo/margin_by_t": "Margin by timestep",
}
_ALSO = {"loss/dpo"}
"""Logged twice under another name."""


def group_curves(tags: Iterable[str]) -> dict[str, dict[str, str]]:
    """Title to (tag to short name), for the tags there are; a tag nobody knows gets a diagram by its prefix."""
    there = sorted(set(tags) - _ALSO)
    made: dict[str, dict[str, str]] = {}
    for title, members in GROUPS.items():
        found = {tag: name for tag, name in members.items() if tag in there}
        if found:
            made[title] = found
    known = {tag for members in GROUPS.values() for tag in members}
    for tag in there:
        if tag not in known:
            prefix, _, name = tag.rpartition("/")
            title = _PREFIXES.get(prefix) or _words(prefix or tag)
            made.setdefault(title, {})[tag] = name or tag
    return made


def _words(name: str) -> str:
    text = name.replace("/", " ").replace("_", " ")
    return text[:1].upper() + text[1:]
