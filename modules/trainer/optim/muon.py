"""Choice of the weights that Muon updates; the others are left to AdamW.

Muon (Jordan et al. 2024) orthogonalises the update of a matrix, which is only meaningful for hidden layers:
matrices and kernels inside blocks. Vectors, embeddings and the first and last layers use AdamW.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import torch

from modules.model.text.LearnedWords import PREFIX
from modules.util.errors import ConfigError

HIDDEN = "block,layers,refiner"
"""Substrings of names that only layers inside blocks have: in UNets, transformers, their refiners, CLIP and T5."""
ADAM_RATE = 3e-4
MUON_LAYERS = ("muon_hidden_layers", "muon_adam_regex")
MUON_ARGUMENTS = (*MUON_LAYERS, "muon_adam_lr")
UNSCALED = "unscaled_lr"
"""Entry of AdamW's groups: their rate without ``learning_rate_scaler``. Backups of runs that did not scale it lack it.
"""


def hidden_layers(muon_hidden_layers: str = HIDDEN, muon_adam_regex: bool = False) -> re.Pattern[str]:
    """A pattern for the names of layers inside blocks. Arguments as in ``muon_groups``.

    Raises:
        ConfigError: there is no name, or the expression is invalid.
    """
    texts = [text.strip() for text in str(muon_hidden_layers).split(",") if text.strip()]
    if not texts:
        raise ConfigError(
            "muon_hidden_layers is empty, so there is no layer for Muon",
            "optimizer.params",
            f"name parts of layers, such as {HIDDEN}, or choose ADAMW",
        )
    try:
        return re.compile(str(muon_hidden_layers) if muon_adam_regex else "|".join(map(re.escape, texts)))
    except (re.error, RecursionError, OverflowError) as error:
        raise ConfigError(
            f"muon_hidden_layers is not a regular expression: {error}", "optimizer.params"
        ) from error


def muon_groups(
    groups: Sequence[tuple[str, float, Sequence[tuple[str, torch.nn.Parameter]]]],
    muon_hidden_layers: str = HIDDEN,
    muon_adam_regex: bool = False,
    muon_adam_lr: float = ADAM_RATE,
    *,
    rate_scale: float = 1.0,
) -> list[dict[str, Any]]:
    """Groups of parameters for the class, ``name`` for Muon and ``name/adam`` for AdamW.

    Args:
        groups: (name, learning rate, named parameters).
        muon_hidden_layers: substrings of names of layers inside blocks, separated by commas; a regular
            expression if ``muon_adam_regex``.
        muon_adam_lr: the learning rate of AdamW, before scaling.
        rate_scale: factor of ``learning_rate_scaler``, which the rates of ``groups`` already contain.

    Raises:
        ConfigError: no matrix has such a name, or the expression is invalid.
    """
    pattern = hidden_layers(muon_hidden_layers, muon_adam_regex)
    made: list[dict[str, Any]] = []
    rate_of_adam = muon_adam_lr * rate_scale
    matrices = 0
    for name, rate, named in groups:
        # a placeholder may contain the name of a layer
        layers = [] if name.startswith(PREFIX) else named
        hidden = [p for place, p in layers if p.dim() in (2, 4) and pattern.search(place)]
        known = {id(p) for p in hidden}
        rest = [p for _, p in named if id(p) not in known]
        matrices += sum(p.dim() in (2, 4) for p in rest)
        if hidden:
            made.append({"params": hidden, "lr": rate, "initial_lr": rate, "name": name, "use_muon": True})
        if rest:
            adam = {"lr": rate_of_adam, "initial_lr": rate_of_adam, "name": f"{name}/adam", "use_muon": False}
            made.append({"params": rest, **adam, UNSCALED: muon_adam_lr})
    if matrices and not any(group["use_muon"] for group in made):
        raise ConfigError(
            f"no trained layer has {muon_hidden_layers!r} in its name, so Muon would update nothing",
            "optimizer.params",
            "change muon_hidden_layers, or choose ADAMW",
        )
    return made
