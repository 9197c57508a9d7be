"""Schedules of one preference step: the same gradient at different prices in time and memory.

All of them do what these lines do::

    with torch.no_grad(), reference():                                   # where the loss has a reference
        r_chosen_B, r_rejected_B = score("chosen"), score("rejected")
    chosen_B, rejected_B = score("chosen"), score("rejected")            # graphs of both sides at once
    loss_B = objective(PairScores(chosen_B, rejected_B, r_chosen_B, r_rejected_B), options).loss_B
    (loss_scale * (loss_B.mean() + supervised_mix * supervised_B.mean())).backward()

They differ in how many graphs live at once and in how often a side is scored. For that the loss is differentiated
with respect to the scores alone (``scores.differentiate``): a schedule back-propagates the sum of scores times these
coefficients. So every objective runs in every schedule, and no schedule knows what a loss looks like.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from modules.objective.gradient_stash import has_backward_hooks, has_sharded, stash_gradients
from modules.objective.preference import LossOut, ObjectiveOptions, PreferenceLoss
from modules.objective.safeguard import rejected_share
from modules.objective.scores import (
    Backward,
    PairOut,
    PairScorer,
    ReferenceFactory,
    ScoreGradient,
    ScoreOut,
    ScorePair,
    Side,
    detached_float32,
    differentiate,
    split_both,
    summarise,
)
from modules.util.enum.DPOExecutionMode import DPOExecutionMode


@dataclass(frozen=True)
class Step:
    """All a schedule needs besides the reference scores.

    Args:
        scale: factor on the mean loss over the pairs of the scorer.
        supervised_mix: weight of the supervised loss of the chosen images; 0 skips it.
        parameters: what is trained; only the stashing schedule touches their gradients.
        backward: back-propagates a scalar.
        safeguard_mu: mu of ``safeguard.rejected_share``; ``None`` trains without the safeguard.
    """

    scorer: PairScorer
    objective: PreferenceLoss
    options: ObjectiveOptions
    parameters: Sequence[torch.nn.Parameter]
    backward: Backward
    scale: float = 1.0
    supervised_mix: float = 0.0
    safeguard_mu: float | None = None

    def forward(self, side: Side) -> ScoreOut:
        """Score ``side`` with gradients, with the supervised loss if it counts and chosen images are in."""
        wanted = self.supervised_mix != 0.0 and side != "rejected"
        with torch.enable_grad():
            out = self.scorer(side, wanted)
        expected = len(self.scorer) * (2 if side == "both" else 1)
        if out.score_B.shape != (expected,):
            raise RuntimeError(
                f"scoring {side} gave shape {tuple(out.score_B.shape)}, expected ({expected},)"
            )
        if wanted and (out.supervised_B is None or out.supervised_B.shape != (len(self.scorer),)):
            raise RuntimeError(
                "the scorer gave no supervised loss of shape (B,) although a supervised mix is set"
            )
        return out

    def weigh(
        self,
        scores: ScorePair,
        reference: ScorePair | None,
        errors: tuple[torch.Tensor | None, torch.Tensor | None],
    ) -> tuple[LossOut, ScoreGradient, torch.Tensor | None]:
        """The loss, the coefficient of every score, and the safeguard's share of each pair, (B,).

        Args:
            errors: of the chosen and the rejected side, each (B, D); used by the safeguard alone.
        """
        out, gradient = differentiate(self.objective, self.options, scores, reference, self.scale)
        if self.safeguard_mu is None:
            return out, gradient, None
        chosen_BD, rejected_BD = errors
        if chosen_BD is None or rejected_BD is None:
            raise RuntimeError("the scorer gave no errors although the safeguard is on")
        share_B = rejected_share(chosen_BD, rejected_BD, self.safeguard_mu)
        rejected_B = gradient.rejected_B * share_B.to(gradient.rejected_B)
        return out, ScoreGradient(gradient.chosen_B, rejected_B), share_B

    def surrogate(self, out: ScoreOut, weight: torch.Tensor) -> torch.Tensor:
        """A scalar whose gradient is ``sum(weight * dS)`` plus that of the supervised share."""
        total = (out.score_B * weight.to(out.score_B.dtype)).sum()
        if out.supervised_B is not None:
            total = total + (self.scale * self.supervised_mix) * out.supervised_B.mean()
        return total


def run(
    mode: str,
    strategy: str,
    scorer: PairScorer,
    reference: ReferenceFactory | None,
    objective: PreferenceLoss,
    options: ObjectiveOptions,
    *,
    parameters: Sequence[torch.nn.Parameter],
    supervised_mix: float = 0.0,
    loss_scale: float = 1.0,
    cached_reference: ScorePair | None = None,
    backward: Backward | None = None,
    safeguard_mu: float | None = None,
) -> PairOut:
    """Forward and backward of one micro-batch of B pairs; gradients are added to the parameters' ``.grad``.

    The trained quantity is ``loss_scale * (mean_i loss_i + supervised_mix * mean_i L_sup_i)``; with
    ``loss_scale`` set to B over the pairs of the whole optimizer step, accumulation is weighted by pairs. No
    collective is issued, and the reference context is closed again before the first forward pass that is
    differentiated.

    Args:
        mode: FULL_CONCURRENT (one reference and one policy pass over 2B images), POLICY_CONCURRENT (reference
            sides one after another, both policy graphs alive) or SEQUENTIAL (one policy graph at a time).
        strategy: how SEQUENTIAL is done: THREE_FORWARD, GRAD_STASH or AUTO; see ``resolve_strategy``.
        reference: makes the context in which the scorer uses the reference weights. Not needed with
            ``cached_reference`` or for a loss without reference.
        cached_reference: known reference scores (chosen, rejected), each (B,); saves the reference passes.
        backward: back-propagates a scalar, for gradient scalers; plain ``.backward()`` by default. What it is
            given is a surrogate with the right gradient, not the loss.
        safeguard_mu: multiply each pair's rejected side by ``safeguard.rejected_share`` with this mu; the scorer
            has to give errors. The loss that is reported stays that of the objective.

    Returns:
        Detached losses, rewards and margins; the loss is not multiplied by ``loss_scale``.

    Raises:
        ValueError: unknown mode or strategy; GRAD_STASH where gradients do not simply add up in ``.grad``.
        RuntimeError: no reference for a loss that needs one; an autocast region around the call.
    """
    schedule = _SCHEDULES.get(str(getattr(mode, "value", mode)))
    if schedule is None:
        raise ValueError(f"unknown execution mode {mode!r}; known: {', '.join(_SCHEDULES)}")
    strategy = resolve_strategy(strategy, parameters) if schedule is _sequential else ""
    _refuse_autocast(parameters)
    step = Step(
        scorer,
        objective,
        options,
        parameters,
        backward or _plain_backward,
        loss_scale,
        supervised_mix,
        safeguard_mu,
    )
    together = schedule is _full_concurrent
    anchor = reference_scores(scorer, reference, objective, cached_reference, together=together)
    return schedule(step, anchor, strategy)


@torch.no_grad()
def evaluate(
    scorer: PairScorer,
    reference: ReferenceFactory | None,
    objective: PreferenceLoss,
    options: ObjectiveOptions,
    *,
    cached_reference: ScorePair | None = None,
    together: bool = True,
) -> PairOut:
    """The losses and rewards of B pairs without any gradient.

    Args:
        together: both sides in one pass of 2B images, or (less memory) one side after the other.
    """
    anchor = reference_scores(scorer, reference, objective, cached_reference, together=together)
    out, _ = differentiate(objective, options, _score_sides(scorer, together), anchor, 1.0)
    return summarise(out, None, 0.0)


def reference_scores(
    scorer: PairScorer,
    reference: ReferenceFactory | None,
    objective: PreferenceLoss,
    cached: ScorePair | None = None,
    *,
    together: bool = True,
) -> ScorePair | None:
    """Scores (chosen, rejected) under the reference weights, without a graph.

    ``None`` if the loss has no use for them.
    The context is entered once, whatever the number of passes: switching weights is paid per layer.
    """
    if not objective.needs_reference:
        return None
    if cached is not None:
        if any(score.shape != (len(scorer),) for score in cached):
            raise RuntimeError(
                f"cached reference scores have shapes {[tuple(score.shape) for score in cached]}, "
                f"expected two of ({len(scorer)},)"
            )
        return detached_float32(cached[0]), detached_float32(cached[1])
    if reference is None:
        raise RuntimeError(
            f"the {objective.key} objective needs a reference: neither a context nor scores were given"
        )
    # no_grad rather than inference_mode: models keep lazily made tensors (rotary tables, casts), and one made
    # in inference mode could not be used in the differentiated pass that follows.
    with torch.no_grad(), reference():
        return _score_sides(scorer, together)


def resolve_strategy(
    strategy: str, parameters: Sequence[torch.nn.Parameter], world_size: int | None = None
) -> str:
    """What AUTO means: GRAD_STASH where gradients simply add up on one process, else THREE_FORWARD.

    Args:
        world_size: number of processes; asked of ``torch.distributed`` when not given.

    Raises:
        ValueError: unknown strategy; GRAD_STASH demanded with hooks that consume gradients during backward, or
            with sharded weights.
    """
    name = str(getattr(strategy, "value", strategy))
    if name not in ("AUTO", "THREE_FORWARD", "GRAD_STASH"):
        raise ValueError(f"unknown sequential strategy {strategy!r}; known: AUTO, THREE_FORWARD, GRAD_STASH")
    if name == "THREE_FORWARD":
        return name
    hooked, sharded = has_backward_hooks(parameters), has_sharded(parameters)
    if name == "GRAD_STASH":
        if hooked or sharded:
            reason = "an optimizer step fused into the backward pass" if hooked else "sharded parameters"
            raise ValueError(
                f"GRAD_STASH rescales gradients after a backward pass, which {reason} makes impossible; "
                "AUTO and THREE_FORWARD work"
            )
        return name
    processes = _world_size() if world_size is None else world_size
    return "THREE_FORWARD" if hooked or sharded or processes > 1 else "GRAD_STASH"


def _world_size() -> int:
    if not torch.distributed.is_available() or not torch.distributed.is_initialized():
        return 1
    return torch.distributed.get_world_size()


def _plain_backward(total: torch.Tensor) -> None:
    total.backward()


def _refuse_autocast(parameters: Sequence[torch.nn.Parameter]) -> None:
    """Autocast remembers the cast of each weight until its outermost region ends."""
    for kind in {"cpu", *(parameter.device.type for parameter in parameters)}:
        if kind != "meta" and torch.is_autocast_enabled(kind):
            raise RuntimeError("open autocast inside the scorer, not around the preference step")


def _score_sides(scorer: PairScorer, together: bool) -> ScorePair:
    if together:
        chosen_B, rejected_B = split_both(scorer("both").score_B)
        return detached_float32(chosen_B), detached_float32(rejected_B)
    return detached_float32(scorer("chosen").score_B), detached_float32(scorer("rejected").score_B)


def _full_concurrent(step: Step, reference: ScorePair | None, _strategy: str) -> PairOut:
    """One policy pass over both sides, one backward."""
    both = step.forward("both")
    chosen_BD, rejected_BD = (None, None) if both.error_BD is None else both.error_BD.tensor_split(2)
    out, gradient, share_B = step.weigh(split_both(both.score_B), reference, (chosen_BD, rejected_BD))
    step.backward(step.surrogate(both, torch.cat((gradient.chosen_B, gradient.rejected_B))))
    return summarise(out, both.supervised_B, step.supervised_mix, share_B)


def _policy_concurrent(step: Step, reference: ScorePair | None, _strategy: str) -> PairOut:
    """Two policy passes whose graphs live side by side, one backward."""
    chosen, rejected = step.forward("chosen"), step.forward("rejected")
    scores = (chosen.score_B, rejected.score_B)
    out, gradient, share_B = step.weigh(scores, reference, (chosen.error_BD, rejected.error_BD))
    step.backward(step.surrogate(chosen, gradient.chosen_B) + step.surrogate(rejected, gradient.rejected_B))
    return summarise(out, chosen.supervised_B, step.supervised_mix, share_B)


def _sequential(step: Step, reference: ScorePair | None, strategy: str) -> PairOut:
    if strategy == "THREE_FORWARD":
        return _three_forward(step, reference)
    return _grad_stash(step, reference)


def _three_forward(step: Step, reference: ScorePair | None) -> PairOut:
    """Learn the rejected score without a graph, then differentiate one side after the other."""
    with torch.no_grad():
        rejected = step.scorer("rejected")
    chosen = step.forward("chosen")
    scores = (chosen.score_B, detached_float32(rejected.score_B))
    out, gradient, share_B = step.weigh(scores, reference, (chosen.error_BD, rejected.error_BD))
    step.backward(step.surrogate(chosen, gradient.chosen_B))
    supervised_B = None if chosen.supervised_B is None else chosen.supervised_B.detach()
    del chosen
    step.backward(step.surrogate(step.forward("rejected"), gradient.rejected_B))
    return summarise(out, supervised_B, step.supervised_mix, share_B)


def _grad_stash(step: Step, reference: ScorePair | None) -> PairOut:
    """No extra forward: the first side's gradient is scaled once the second side's score is known.

    One gradient buffer can be scaled by one number only, hence the pairs one by one.
    """
    count = len(step.scorer)
    if count == 1:
        return _grad_stash_pair(step, reference)
    parts: list[PairOut] = []
    for index in range(count):
        anchor = (
            None if reference is None else (reference[0][index : index + 1], reference[1][index : index + 1])
        )
        single = Step(
            step.scorer.select(index, index + 1),
            step.objective,
            step.options,
            step.parameters,
            step.backward,
            step.scale / count,
            step.supervised_mix,
            step.safeguard_mu,
        )
        parts.append(_grad_stash_pair(single, anchor))
    return _concatenate(parts)


def _grad_stash_pair(step: Step, reference: ScorePair | None) -> PairOut:
    """One pair: the rejected side with a provisional coefficient, then both with the true one.

    The rejected side goes first because the chosen one may carry the supervised loss too, and a gradient that
    holds two terms cannot be rescaled for one of them.
    """
    with stash_gradients(step.parameters) as stash:
        rejected = step.forward("rejected")
        rejected_B = detached_float32(rejected.score_B)
        provisional = _provisional_weight(step, rejected_B, reference)
        step.backward(step.surrogate(rejected, provisional))
        error_BD = rejected.error_BD
        del rejected
        chosen = step.forward("chosen")
        scores = (chosen.score_B, rejected_B)
        out, gradient, share_B = step.weigh(scores, reference, (chosen.error_BD, error_BD))
        stash.merge(gradient.rejected_B / provisional)
    step.backward(step.surrogate(chosen, gradient.chosen_B))
    return summarise(out, chosen.supervised_B, step.supervised_mix, share_B)


def _provisional_weight(step: Step, rejected_B: torch.Tensor, reference: ScorePair | None) -> torch.Tensor:
    """The rejected coefficient if the margin were zero, (1,).

    It is close to the true one, so half-precision gradients of the first pass are neither far larger nor far
    smaller than they will be after scaling.
    """
    chosen_B = rejected_B if reference is None else rejected_B - reference[1] + reference[0]
    _, gradient = differentiate(step.objective, step.options, (chosen_B, rejected_B), reference, step.scale)
    usable = gradient.rejected_B.isfinite() & (gradient.rejected_B != 0)
    return torch.where(usable, gradient.rejected_B, torch.ones_like(gradient.rejected_B))


def _concatenate(parts: Sequence[PairOut]) -> PairOut:
    """Join single pairs; their mean loss is the loss of the batch."""
    supervised = [part.supervised_B for part in parts if part.supervised_B is not None]
    shares = [part.safeguard_B for part in parts if part.safeguard_B is not None]
    return PairOut(
        loss=torch.stack([part.loss for part in parts]).mean(),
        raw_loss_B=torch.cat([part.raw_loss_B for part in parts]),
        supervised_B=torch.cat(supervised) if supervised else None,
        chosen_reward_B=torch.cat([part.chosen_reward_B for part in parts]),
        rejected_reward_B=torch.cat([part.rejected_reward_B for part in parts]),
        margin_B=torch.cat([part.margin_B for part in parts]),
        accuracy_B=torch.cat([part.accuracy_B for part in parts]),
        safeguard_B=torch.cat(shares) if shares else None,
    )


_SCHEDULES: dict[str, Callable[[Step, ScorePair | None, str], PairOut]] = {
    DPOExecutionMode.FULL_CONCURRENT: _full_concurrent,
    DPOExecutionMode.POLICY_CONCURRENT: _policy_concurrent,
    DPOExecutionMode.SEQUENTIAL: _sequential,
}
