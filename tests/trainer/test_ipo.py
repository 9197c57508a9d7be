"""IPO: its tau holds the model to the reference in place of beta."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest

from modules.objective.diagnostics import PreferenceDiagnostics
from modules.trainer import steps
from modules.trainer.callbacks import Callback
from tests.trainer.builders import run_here, write_config
from tests.usual import usual


class Warned(Callback):
    """Keeps the warnings."""

    def __init__(self) -> None:
        super().__init__()
        self.said: list[str] = []

    def warning(self, message: str) -> None:
        self.said.append(message)


@pytest.mark.parametrize(
    ("objective", "setting"),
    usual([("IPO", "rlhf_dpo_ipo_tau"), ("HINGE", "rlhf_dpo_beta")], ("IPO", "rlhf_dpo_ipo_tau")),
)
def test_a_run_that_goes_wrong_is_told_the_setting_that_acts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, objective: str, setting: str
) -> None:
    monkeypatch.setattr(steps, "PreferenceDiagnostics", partial(PreferenceDiagnostics, 10))
    real = steps.averages_of
    monkeypatch.setattr(
        steps, "averages_of", lambda sums: {**real(sums), "chosen_reward": -1.0, "accuracy": 1.0}
    )
    warned = Warned()
    config = write_config(tmp_path, rlhf_dpo_objective=objective, batch_size=1, epochs=10, max_steps=10)
    run_here(config, callback=warned)
    (advice,) = [one for one in warned.said if "REWARD_HACKING" in one]
    assert f"raise {setting}" in advice
    assert ("rlhf_dpo_beta" in advice) == (setting == "rlhf_dpo_beta")
