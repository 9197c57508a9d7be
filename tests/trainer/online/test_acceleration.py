"""Accelerators of a run and the images it makes: rollouts, and samples between the steps."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch

from modules.accelerator.base import ACCELERATORS, Accelerator
from tests.trainer.builders import run_here
from tests.trainer.online.builders import write_online

SAMPLE = {"prompt": "a red circle", "width": 64, "height": 64, "diffusion_steps": 2, "seed": 1}


class Watching(Accelerator):
    """Notes the sides of the latents of every call of the denoiser, whether images are being made as the plan knows,
    and whether the call had gradients.
    """

    name = "watching"
    safety = "lossless"
    stage = "both"
    calls: ClassVar[set[tuple[int, bool, bool]]] = set()

    def setup(self, models: Mapping[str, torch.nn.Module]) -> None:
        self._open = False
        [denoiser] = models.values()
        self._forward = denoiser.forward

        def noted(sample_BChw: torch.Tensor, *arguments: Any, **named: Any) -> Any:
            self.calls.add((sample_BChw.shape[-1], self._open, torch.is_grad_enabled()))
            return self._forward(sample_BChw, *arguments, **named)

        self._denoiser = denoiser
        denoiser.forward = noted

    @contextmanager
    def rollout_context(self) -> Iterator[None]:
        self._open = True
        try:
            yield
        finally:
            self._open = False

    def teardown(self) -> None:
        self._denoiser.__dict__.pop("forward", None)


@pytest.mark.parametrize("forced", [True, False])
def test_samples_are_made_with_the_gradients_the_accelerators_ask_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, forced: bool
) -> None:
    ACCELERATORS.keys()
    monkeypatch.setitem(ACCELERATORS._items, "watching", Watching)
    monkeypatch.setattr(Watching, "requires_grad_rollout", forced)
    monkeypatch.setattr(Watching, "calls", set())
    config = write_online(
        tmp_path, samples=[SAMPLE], sample_before_training=True, epochs=1, rlhf_rollout_steps=2,
        acceleration={"shared": ["watching"]},
    )  # fmt: skip
    run_here(config)
    samples = {call[1:] for call in Watching.calls if call[0] == 16}
    images = {call[1:] for call in Watching.calls if call[0] == 8}
    assert samples == {(True, forced)}
    assert images == {(True, forced), (False, True)}, "rollouts, and training"
