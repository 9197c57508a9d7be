"""Accelerators of a run and the images it makes: rollouts, and samples between the steps."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from itertools import product
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch

from modules.accelerator.base import ACCELERATORS, Accelerator
from tests.trainer.builders import run_here, same_weights
from tests.trainer.online.builders import Listening, write_online
from tests.usual import usual

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


@pytest.mark.parametrize("forced", usual([True, False], True))
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


class TwoPrograms(Watching):
    """A denoiser whose program without gradients is off by a part in ten thousand, as compiled ones are by less."""

    name = "two_programs"
    requires_grad_rollout = True

    def setup(self, models: Mapping[str, torch.nn.Module]) -> None:
        super().setup(models)
        noted = self._denoiser.forward

        def off(sample_BChw: torch.Tensor, *arguments: Any, **named: Any) -> Any:
            made = noted(sample_BChw, *arguments, **named)
            if not torch.is_grad_enabled():
                made.sample = made.sample * (1.0 + 1e-4)
            return made

        self._denoiser.forward = off  # type: ignore[method-assign]


@pytest.mark.slow
@pytest.mark.parametrize("layout", ["SPLIT", "JOINT"])
def test_compiled_programs_keep_the_first_ratio_and_the_names_of_weights(
    tmp_path: Path, layout: str, fresh_dynamo: None
) -> None:
    """The eager backend changes no number, so what is left is the way the programs are called."""
    compiled = {"shared": [{"name": "torch_compile", "params": {"backend": "eager"}}]}
    changes = {"epochs": 1, "rlhf_rollout_cfg_scale": 3.0, "rlhf_rollout_cfg_layout": layout}
    heard = Listening()
    run_here(write_online(tmp_path / "compiled", acceleration=compiled, **changes), callback=heard)
    assert [m["rl/ratio_error"] for m in heard.metrics if "rl/reward_mean" in m] == [0.0]
    run_here(write_online(tmp_path / "plain", **changes))
    assert same_weights(tmp_path / "compiled" / "out.safetensors", tmp_path / "plain" / "out.safetensors")


@pytest.fixture
def fresh_dynamo() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


@pytest.mark.parametrize(
    ("mode", "layout", "source"),
    usual(
        product(("GRPO", "GSPO"), ("SPLIT", "JOINT"), ("ROLLOUT", "RECOMPUTE")),
        *(("GRPO", "SPLIT", "RECOMPUTE"), ("GSPO", "JOINT", "ROLLOUT")),
    ),
)
def test_the_first_ratio_is_exactly_one_where_programs_differ(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: str, layout: str, source: str
) -> None:
    """Rollout, old probabilities and training all run the program with gradients."""
    ACCELERATORS.keys()
    monkeypatch.setitem(ACCELERATORS._items, "two_programs", TwoPrograms)
    monkeypatch.setattr(TwoPrograms, "calls", set())
    heard = Listening()
    config = write_online(
        tmp_path, mode, epochs=1, rlhf_rollout_steps=2, rlhf_rollout_cfg_scale=3.0,
        rlhf_rollout_cfg_layout=layout, rlhf_old_logprob_source=source, rlhf_kl_beta=0.1,
        acceleration={"shared": ["two_programs"]},
    )  # fmt: skip
    run_here(config, callback=heard)
    assert [m["rl/ratio_error"] for m in heard.metrics if "rl/reward_mean" in m] == [0.0]
    assert heard.metrics[0]["rl/kl"] == 0.0, "the reference is asked by the same program"
    assert {with_gradients for _, _, with_gradients in TwoPrograms.calls} == {True}
