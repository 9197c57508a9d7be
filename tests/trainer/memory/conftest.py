"""For plans of which the training step does not matter."""

from __future__ import annotations

import pytest

from modules.trainer.memory.memory_step import ShapeDryRun, StepBytes


@pytest.fixture
def without_a_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """The passes of a step take most of the time of a plan: they are left out, as if they held nothing."""
    monkeypatch.setattr(ShapeDryRun, "step", lambda *_: StepBytes(0, 0))
