"""Small rollouts of the tiny v-prediction model."""

from __future__ import annotations

import torch

from modules.adapter.AdapterOptions import AdapterOptions
from modules.adapter.PeftAdapter import attach
from modules.model.Model import Model
from modules.modelSetup.BaseModelSetup import BaseModelSetup
from modules.rollout.generate import (
    NO_HOOKS,
    RolloutHooks,
    RolloutRequest,
    generate,
    image_seed,
    step_log_prob,
)
from modules.rollout.plan import PlanOptions, plan_for
from modules.rollout.Rollouts import Rollouts, RolloutSettings
from modules.rollout.transitions import DDIM
from tests.tiny import SIZE, tiny_model, tiny_setup

SETUP = tiny_setup()
PROMPTS = ("a red cat", "blue square")
LAYERS = ("attn1.to_q", "attn2.to_v", "ff.net.2", "conv1")


def adapted_model(**options: object) -> Model:
    """A tiny model with an adapter away from zero, dropout included, of some layers of each kind."""
    model = tiny_model(prediction="v_prediction")
    handle = attach(model, AdapterOptions(rank=4, alpha=4.0, dropout=0.3, patterns=LAYERS))
    source = torch.Generator().manual_seed(0)
    for _, parameter in handle.named_parameters():
        parameter.data += 0.1 * torch.randn(parameter.shape, generator=source)
    return model


def requests(count: int = 4, epoch: int = 0) -> list[RolloutRequest]:
    """Images alternating between two prompts."""
    return [
        RolloutRequest(PROMPTS[i % 2], i % 2, image_seed(7, epoch, i % 2, i // 2), f"{epoch}/{i}", "dog")
        for i in range(count)
    ]


def settings_for(model: Model, plan: dict[str, object] | None = None, **options: object) -> RolloutSettings:
    chosen = PlanOptions(**({"steps": 4, "kind": DDIM} | (plan or {})))  # type: ignore[arg-type]
    made = plan_for(SETUP, model, chosen, SIZE, seed=3, epoch=0)
    return RolloutSettings(made, SIZE, **({"cfg": 3.0} | options))  # type: ignore[arg-type]


def rolled(model: Model, settings: RolloutSettings, count: int = 4, batch_size: int = 2) -> Rollouts:
    return generate(SETUP, model, requests(count), settings, batch_size)


@torch.no_grad()
def recomputed(
    setup: BaseModelSetup, model: Model, made: Rollouts, batch_size: int, hooks: RolloutHooks = NO_HOOKS
) -> torch.Tensor:
    """Log-probabilities of the trained steps in batches of ``batch_size``, (N, S)."""
    return torch.cat(
        [
            torch.stack(
                [step_log_prob(setup, model, part, step, made.settings, hooks).logp_B for step in made.steps],
                1,
            )
            for part in made.batches(batch_size)
        ]
    )
