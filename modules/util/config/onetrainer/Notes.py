"""What an import does not carry over, with what would train other weights first."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any, Self

from modules.util.config.BaseConfig import VERSION_KEY
from modules.util.config.faults import join_place, show

_SAME_WEIGHTS = re.compile(
    r"debug|tensorboard|samples?(?:\[|\Z)|sample_|samples_to|non_ema_sampling|backup|rolling_backup|save_|workspace_dir"
    r"|cache_dir|huggingface|offline_mode|include_train_config|async_|fused_gradient_reduce|output_model_format"
    r"|prevent_overwrites|validat|attention_mechanism|compile\Z|enable_autocast_cache|dataloader|only_cache"
    r"|latent_caching|clear_cache|train_device|temp_device|cloud|secrets|__version"
    r"|optimizer\.(?:fused|fused_back_pass|foreach|capturable|differentiable|log_every|is_paged|use_triton|compile|"
    r"fsdp_in_use)\Z|.*\.(?:offload_fraction|activation_offloading|gradient_checkpointing)\Z|quantization\.cache_dir"
)
"""Places whose values change how a run goes, what it shows or where it saves, and not the weights that come out."""


class Note(str):
    """A line about something that is not carried over.

    Attributes:
        changes_weights: without it the run trains other weights than it would have trained there.
    """

    changes_weights: bool

    def __new__(cls, text: str, changes_weights: bool) -> Self:
        made = super().__new__(cls, text)
        made.changes_weights = changes_weights
        return made


class Notes:
    """Lines as they are found."""

    def __init__(self) -> None:
        self._found: list[Note] = []

    def add(self, place: str, text: str, changes_weights: bool | None = None) -> None:
        """A line about ``place``; whether it changes the weights is known from the place if it is not said.

        Args:
            place: the setting.
            text: what follows its name, such as `` = true: not offered``.
            changes_weights: to say it.
        """
        if changes_weights is None:
            changes_weights = _SAME_WEIGHTS.match(place) is None
        self._found.append(Note(place + text, changes_weights))

    def extend(self, notes: Iterable[Note]) -> None:
        """Lines that were found elsewhere."""
        self._found.extend(notes)

    def differences(
        self, given: Mapping[str, Any], defaults: Mapping[str, Any], carried: Any, where: str
    ) -> None:
        """A line for each value that is not carried over and differs from its default."""
        for name, value in given.items():
            if name in carried:
                continue
            place = join_place((name,), where)
            default = defaults.get(name)
            if isinstance(value, Mapping) and isinstance(default, Mapping):
                self.differences(value, default, {VERSION_KEY, "uuid"}, place)
            elif name not in defaults:
                self.add(place, f" = {show(value)}: unknown")
            elif value != default:
                self.add(place, f" = {show(value)}: not offered")

    def listed(self) -> list[Note]:
        """All lines, those that change the weights first."""
        return sorted(self._found, key=lambda note: not note.changes_weights)
