"""The choices of the config: which sequential strategy is taken, which is refused, and that all run."""

from __future__ import annotations

import pytest

from modules.objective import execution
from modules.objective.execution import resolve_strategy
from modules.objective.preference import ObjectiveOptions, get_preference_loss
from modules.util.enum.choices import DPOSequentialStrategy
from modules.util.enum.DPOExecutionMode import DPOExecutionMode
from tests.objective.toy import ToyNet, ToyReference, toy_pairs


class TestStrategy:
    def test_auto(self) -> None:
        parameters = ToyNet().trained()
        assert resolve_strategy("AUTO", parameters) == "GRAD_STASH"
        assert resolve_strategy("AUTO", parameters, world_size=2) == "THREE_FORWARD"
        assert resolve_strategy("GRAD_STASH", parameters, world_size=2) == "GRAD_STASH"

    def test_fused_backward(self) -> None:
        parameters = ToyNet().trained()
        parameters[0].register_post_accumulate_grad_hook(lambda parameter: None)
        assert resolve_strategy("AUTO", parameters) == "THREE_FORWARD"
        assert resolve_strategy("THREE_FORWARD", parameters) == "THREE_FORWARD"
        with pytest.raises(ValueError, match="fused"):
            resolve_strategy("GRAD_STASH", parameters)

    def test_unknown(self) -> None:
        with pytest.raises(ValueError, match="unknown sequential strategy"):
            resolve_strategy("FASTEST", [])


def test_every_choice_of_the_config_runs() -> None:
    # AUTO is one of the others by the time a step is taken
    for mode in set(DPOExecutionMode) - {DPOExecutionMode.AUTO}:
        for strategy in DPOSequentialStrategy:
            net = ToyNet()
            out = execution.run(
                mode,
                strategy,
                toy_pairs(net, 2),
                ToyReference(net, existing=False),
                get_preference_loss("SIGMOID"),
                ObjectiveOptions(),
                parameters=net.trained(),
            )
            assert out.loss.isfinite()
            assert all(parameter.grad is not None for parameter in net.trained())
