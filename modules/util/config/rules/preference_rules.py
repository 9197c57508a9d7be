"""Rules for preference training without a reference."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from modules.util.config.rules.rules import ConfigWarning, Finding, rule
from modules.util.errors import UnsupportedError

if TYPE_CHECKING:
    from modules.util.config.TrainConfig import TrainConfig

HIGHEST_WITHOUT_REFERENCE = 500.0
"""Errors of two images differ by about 0.01 to 0.1, so above this beta the logistic function is flat for most pairs."""


@rule(
    "rlhf_enabled", "rlhf_mode", "rlhf_dpo_objective", "rlhf_dpo_beta", "rlhf_dpo_reference_cache", "rlhf_norm_guard",
    "rlhf_dpo_anchor_weight", "rlhf_dpo_mapo_weight",
)  # fmt: skip
def _without_reference(c: TrainConfig) -> Iterator[Finding]:
    if not c.trains_pairs or c.rlhf_mode.spec.needs_reference(c):
        return
    kind = c.rlhf_dpo_objective
    for name, there, off in (
        ("rlhf_dpo_reference_cache", c.rlhf_dpo_reference_cache, "false"),
        ("rlhf_norm_guard", c.rlhf_norm_guard > 0, "0"),
        ("rlhf_dpo_anchor_weight", c.rlhf_dpo_anchor_weight > 0, "0"),
    ):
        if there:
            yield UnsupportedError(
                f"needs a reference, which {kind} does not have",
                name,
                f"set it to {off}, or rlhf_dpo_objective to SIGMOID",
            )
    if c.rlhf_dpo_beta == 0 or c.rlhf_dpo_mapo_weight == 0:
        place = "rlhf_dpo_beta" if c.rlhf_dpo_beta == 0 else "rlhf_dpo_mapo_weight"
        yield ConfigWarning(f"is 0: {kind} then learns only from the chosen images", place)
    elif c.rlhf_dpo_beta > HIGHEST_WITHOUT_REFERENCE:
        yield ConfigWarning(
            f"{c.rlhf_dpo_beta:g} is high for {kind}, which compares the errors of two different images: most pairs "
            "then have no effect, and the others a very strong one; 10 to 50 is usual",
            "rlhf_dpo_beta",
        )
