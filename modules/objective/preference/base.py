"""Inputs and outputs of every preference loss, and the registry of the losses."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

import torch

from modules.util.Registry import Registry


@dataclass(frozen=True)
class PairScores:
    """Scores of B pairs; a score is minus the mean squared error of a prediction, so higher is better.

    All tensors have shape (B,) and one floating type; half types are refused because margins between two scores are
    smaller than their rounding. The reference pair is ``None`` for losses without a reference.
    """

    policy_chosen: torch.Tensor
    policy_rejected: torch.Tensor
    reference_chosen: torch.Tensor | None = None
    reference_rejected: torch.Tensor | None = None

    def __post_init__(self) -> None:
        if (self.reference_chosen is None) != (self.reference_rejected is None):
            raise ValueError("reference scores come for both sides or for neither")
        present = [
            ("policy_chosen", self.policy_chosen),
            ("policy_rejected", self.policy_rejected),
            ("reference_chosen", self.reference_chosen),
            ("reference_rejected", self.reference_rejected),
        ]
        for name, score_B in present:
            if score_B is None:
                continue
            if score_B.dim() != 1 or score_B.shape != self.policy_chosen.shape:
                raise ValueError(
                    f"{name} has shape {tuple(score_B.shape)}; scores are (B,) and alike, "
                    f"policy_chosen is {tuple(self.policy_chosen.shape)}"
                )
            if score_B.dtype not in (torch.float32, torch.float64):
                raise TypeError(f"{name} is {score_B.dtype}; scores are float32 or float64")

    def rewards(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Beta-free rewards (cw, cl), each (B,): policy minus reference, or the bare scores without one."""
        if self.reference_chosen is None or self.reference_rejected is None:
            return self.policy_chosen, self.policy_rejected
        return (
            self.policy_chosen - self.reference_chosen.detach(),
            self.policy_rejected - self.reference_rejected.detach(),
        )


@dataclass(frozen=True)
class ObjectiveOptions:
    """Options of preference losses.

    Args:
        beta: strength of the anchor to the reference; multiplies the margin. Finite and >= 0.
        label_smoothing: assumed share of flipped labels, 0 <= s < 0.5. SIGMOID only.
        ipo_tau: regularisation of IPO, > 0; its target margin is 1 / (2 tau).
        mapo_weight: weight of the comparison of both images, next to the error of the chosen one. MAPO only.
        flip_B: probability that the label of each pair is wrong, on top of ``label_smoothing``. SIGMOID only.
        gap_B: logit that each pair should exceed. SIGMOID only.
        reference_point: what the reward of an image, times beta, is compared with. KTO only.
        class_weights: weights of a like and of a dislike. KTO only.
        sides_B2: bool, which of the pairs' sides (chosen, rejected) have an image; ``None`` for all. KTO
            only.
    """

    beta: float = 5000.0
    label_smoothing: float = 0.0
    ipo_tau: float = 1000.0
    mapo_weight: float = 0.1
    flip_B: torch.Tensor | None = field(default=None, compare=False)
    gap_B: torch.Tensor | None = field(default=None, compare=False)
    reference_point: float = 0.0
    class_weights: tuple[float, float] = (0.5, 0.5)
    sides_B2: torch.Tensor | None = field(default=None, compare=False)

    @property
    def weighs_labels(self) -> bool:
        """True if labels are weighted, for all pairs or individually."""
        return self.label_smoothing != 0.0 or self.flip_B is not None or self.gap_B is not None

    def select(self, index: slice) -> ObjectiveOptions:
        """The options for some of the pairs."""
        by_pair = (self.flip_B, self.gap_B, self.sides_B2)
        flip_B, gap_B, sides_B2 = (None if one is None else one[index] for one in by_pair)
        return replace(self, flip_B=flip_B, gap_B=gap_B, sides_B2=sides_B2)


@dataclass(frozen=True)
class LossOut:
    """The result of a preference loss.

    Every tensor has shape (B,), and entry i depends on the scores of pair i only.
    ``loss_B`` is trained on; ``raw_loss_B`` is the same loss without label smoothing, which is what
    validation compares. ``margin_B`` and the rewards are free of beta.
    """

    loss_B: torch.Tensor
    raw_loss_B: torch.Tensor
    logits_B: torch.Tensor
    margin_B: torch.Tensor
    chosen_reward_B: torch.Tensor
    rejected_reward_B: torch.Tensor


BETA = "rlhf_dpo_beta"
LossFunction = Callable[[PairScores, ObjectiveOptions], LossOut]


@dataclass(frozen=True)
class PreferenceLoss:
    """A registered loss.

    Args:
        needs_reference: whether it compares with reference scores.
        label_smoothing: whether label smoothing applies to it.
        single_images: whether it accepts pairs with a missing side, and compares with a reference point.
        accuracy_tells: whether a higher accuracy on pairs means better weights; otherwise a lower loss does.
        strength: the setting that holds the model to the reference, higher values more closely.
    """

    key: str
    function: LossFunction
    needs_reference: bool
    label_smoothing: bool
    single_images: bool = False
    accuracy_tells: bool = True
    strength: str = BETA

    def __call__(self, scores: PairScores, options: ObjectiveOptions) -> LossOut:
        if self.needs_reference and scores.reference_chosen is None:
            raise RuntimeError(f"the {self.key} objective needs reference scores")
        if options.weighs_labels and not self.label_smoothing:
            raise ValueError(f"label smoothing is not defined for the {self.key} objective")
        if options.sides_B2 is not None and not self.single_images:
            raise ValueError(f"the {self.key} objective needs both sides of every pair")
        return self.function(scores, options)


PREFERENCE_LOSSES: Registry[PreferenceLoss] = Registry("preference loss", "modules.objective.preference")


def preference_loss(
    key: str,
    needs_reference: bool = True,
    label_smoothing: bool = False,
    single_images: bool = False,
    accuracy_tells: bool = True,
    strength: str = BETA,
) -> Callable[[LossFunction], LossFunction]:
    """Decorator that registers a pure function of scores under ``key``."""

    def decorate(function: LossFunction) -> LossFunction:
        PREFERENCE_LOSSES.register(key)(
            PreferenceLoss(
                key, function, needs_reference, label_smoothing, single_images, accuracy_tells, strength
            )
        )
        return function

    return decorate


def get_preference_loss(key: str) -> PreferenceLoss:
    """The loss registered under ``key`` (``SIGMOID``, ``IPO``, ``HINGE``, ...).

    Raises:
        ValueError: the loss is unknown. The message lists similar and known ones.
    """
    return PREFERENCE_LOSSES.get(str(getattr(key, "value", key)))
