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
    "Reward": {"rl/reward_mean": "mean of an epoch"},
    "Reward spread": {"rl/reward_std": "deviation"},
    "Policy loss": {
        "rl/policy_loss": "policy",
        "rl/dgpo_loss": "group",
        "rl/dsm_loss": "denoising",
        "rl/kl_loss": "KL",
    },
    "KL": {"rl/kl": "to the reference", "rl/kl_div": "to the reference", "rl/approx_kl": "to the old policy"},
    "Probability ratio": {"rl/ratio_mean": "mean", "rl/ratio_max": "largest"},
    "Clipped": {
        "rl/clipfrac": "share",
        "rl/clipfrac_low": "below",
        "rl/clipfrac_high": "above",
        "rl/clip_ratio": "share",
        "rl/advantage_clipped": "advantages",
    },
    "Validation rewards": {"dpo/val_chosen_reward": "chosen", "dpo/val_rejected_reward": "rejected"},
}
"""Titles of diagrams, and for each the curves in it with their names in the legend."""
_PREFIXES = {
    "lr": "Learning rate",
    "learning_rate": "Learning rate",
    "memory": "Memory",
    "dpo/margin_by_t": "Margin by timestep",
    "rl": "Online training",
}
_REWARDS = {
    "mean": "Reward by name",
    "std": "Reward spread by name",
    "zero_std_ratio": "Prompts without difference",
    "scale": "Reward scale",
}
"""Last part of a tag ``reward/NAME/...`` to the diagram all rewards are in."""
_ALSO = {"loss/dpo", "rl/loss", "rl/zero_std_ratio", *(f"reward/total/{fact}" for fact in _REWARDS)}
"""Logged twice under another name, or told by others."""


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
            if prefix.startswith("reward/") and name in _REWARDS:
                made.setdefault(_REWARDS[name], {})[tag] = prefix.removeprefix("reward/")
                continue
            title = _PREFIXES.get(prefix) or _words(prefix or tag)
            made.setdefault(title, {})[tag] = name or tag
    return made


def _words(name: str) -> str:
    text = name.replace("/", " ").replace("_", " ")
    return text[:1].upper() + text[1:]
