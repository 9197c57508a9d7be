"""Learning rates of another program's file that its optimizer ignores."""

from __future__ import annotations

from modules.util.config.foreign.Notes import Notes
from modules.util.config.TrainConfig import TrainConfig

_WHY = "no effect, there or here: with relative_step, ADAFACTOR derives its rate from the number of the step"


def leave_out_ignored_rates(config: TrainConfig, notes: Notes) -> None:
    """Empty the rates that the optimizer ignores, because a rate that has no effect is refused here."""
    if not config.optimizer.ignores_rate:
        return
    usual = TrainConfig()
    for place, owner in (*((f"{part}.", getattr(config, part)) for part in config.trained_parts()), ("", config)):
        for name in ("learning_rate", "embedding_learning_rate", "learning_rate_warmup_steps"):
            value = getattr(owner, name, None)
            empty = getattr(usual, name) if owner is config else None
            if value is not None and value != empty:
                setattr(owner, name, empty)
                notes.add(f"{place}{name}", value, _WHY, ours=empty, changes_weights=False)
