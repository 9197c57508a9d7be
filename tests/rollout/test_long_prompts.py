"""Rollouts of prompts with one to several chunks."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from modules.model.batch import OWN
from modules.rollout.generate import generate, step_log_prob
from modules.rollout.Rollouts import Rollouts
from tests.rollout.helpers import SETUP, adapted_model, recomputed, requests, settings_for
from tests.usual import usual

LONG = "a large blue square on the left of a small dog and a green circle on a red background"
PROMPTS = ("a red cat", LONG, LONG + ", " + LONG)


def long_rollouts(cfg: float, layout: str, batch_size: int) -> tuple[object, Rollouts]:
    model = adapted_model()
    model.prompt_chunks = 8
    wanted = [replace(one, prompt=PROMPTS[i % 3], negative=PROMPTS[1]) for i, one in enumerate(requests(6))]
    settings = settings_for(model, cfg=cfg, layout=layout)
    return model, generate(SETUP, model, wanted, settings, batch_size)


# both halves of guided predictions have prompts of several lengths
@pytest.mark.parametrize(
    ("cfg", "layout"), usual([(1.0, "SPLIT"), (3.0, "SPLIT"), (3.0, "JOINT")], (3.0, "JOINT"))
)
def test_the_ratio_is_one_and_company_changes_rounding_only(cfg: float, layout: str) -> None:
    model, made = long_rollouts(cfg, layout, 3)
    assert OWN in made.texts.tensors and made.final_NChw.isfinite().all()
    again = Rollouts.from_tensors(made.to_tensors(), made.metadata())
    for batch in again.batches(3):
        assert OWN in batch.condition().tensors
        for step in batch.steps:
            out = step_log_prob(SETUP, model, batch, step, made.settings)  # type: ignore[arg-type]
            assert torch.equal(out.logp_B.detach(), batch.logp_NS[:, batch.column(step)])
    alone_NS = recomputed(SETUP, model, made, 1)  # type: ignore[arg-type]
    torch.testing.assert_close(alone_NS, made.logp_NS, rtol=1e-4, atol=1e-4)
    assert all(OWN not in one.condition().tensors for one in made.batches(1))


def test_a_longer_prompt_in_another_batch_changes_nothing() -> None:
    model, made = long_rollouts(3.0, "JOINT", 1)
    joined = Rollouts.cat([made.select([0, 3]), made.select([2])])
    single = joined.batches(1)[0]
    out = step_log_prob(SETUP, model, single, 1, made.settings)  # type: ignore[arg-type]
    assert torch.equal(out.logp_B.detach(), made.logp_NS[:1, made.batches(1)[0].column(1)])
