"""Schedules of one preference step: the same gradient at different costs in time and memory.

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
from dataclasses import dataclass, replace

import torch

from modules.objective.gradient_stash import has_backward_hooks, has_sharded, stash_gradients
from modules.objective.norm_guard import excess_of_norm
from modules.objective.passes import score_sides
from modules.objective.preference import LossOut, ObjectiveOptions, PreferenceLoss
from modules.objective.safeguard import rejected_share
from modules.objective.scores import (
    Backward,
    Excess,
    PairOut,
    PairScorer,
    ReferenceFactory,
    ReferenceOut,
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
    """Everything a schedule needs besides the reference scores.

    Args:
        scale: factor on the mean loss over the pairs of the scorer.
        supervised_mix: weight of the supervised loss of the chosen images; 0 skips it.
        parameters: the trained parameters; only the stashing schedule touches their gradients.
        backward: back-propagates a scalar.
        safeguard_mu: mu of ``safeguard.rejected_share``; ``None`` trains without the safeguard.
        norm_guard: weight of ``norm_guard.excess_of_norm``, averaged over the images of both sides; 0 skips
            it.
        norms: norms of the reference's predictions for the chosen and the rejected side, each (B,); for the
            guard.
        anchor: weight of the mean squared distance to the reference's predictions, over both sides; 0 skips
            it.
        predictions: of the reference for the chosen and the rejected side, each (B, D); for the anchor.
    """

    scorer: PairScorer
    objective: PreferenceLoss
    options: ObjectiveOptions
    parameters: Sequence[torch.nn.Parameter]
    backward: Backward
    scale: float = 1.0
    supervised_mix: float = 0.0
    safeguard_mu: float | None = None
    norm_guard: float = 0.0
    norms: ScorePair | None = None
    anchor: float = 0.0
    predictions: ScorePair | None = None

    @property
    def guarded(self) -> bool:
        """True if the rejected side has a gradient besides that of its score."""
        return bool(self.norm_guard or self.anchor)

    def forward(self, side: Side) -> ScoreOut:
        """Score ``side`` with gradients, with the supervised loss if it counts and chosen images are included."""
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
            errors: errors of the chosen and the rejected side, each (B, D); used only by the safeguard.
        """
        out, gradient = differentiate(self.objective, self.options, scores, reference, self.scale)
        if self.safeguard_mu is None:
            return out, gradient, None
        chosen_BD, rejected_BD = errors
        if chosen_BD is None or rejected_BD is None:
            raise RuntimeError("the scorer gave no errors although the safeguard is on")
        share_B = rejected_share(chosen_BD, rejected_BD, self.safeguard_mu, gradient)
        rejected_B = gradient.rejected_B * share_B.to(gradient.rejected_B)
        return out, ScoreGradient(gradient.chosen_B, rejected_B), share_B

    def surrogate(self, out: ScoreOut, weight: torch.Tensor, excess: Excess) -> torch.Tensor:
        """A scalar whose gradient is ``sum(weight * dS)`` plus those of the supervised share and of the
        guards.

        Args:
            excess: the result of ``excess`` for ``out``.
        """
        total = (out.score_B * weight.to(out.score_B.dtype)).sum()
        if out.supervised_B is not None:
            total = total + (self.scale * self.supervised_mix) * out.supervised_B.mean()
        if excess.norm is not None:
            total = total + self.scale * self.norm_guard * excess.norm
        if excess.drift is not None:
            total = total + self.scale * self.anchor * excess.drift
        return total

    def excess(self, out: ScoreOut, side: Side) -> Excess:
        """This side's contribution to what the guards average over the 2B images of the pairs."""
        return Excess(
            self._excess_of_norm(out, side) if self.norm_guard else None,
            self._drift(out, side) if self.anchor else None,
        )

    def _drift(self, out: ScoreOut, side: Side) -> torch.Tensor:
        if self.predictions is None or out.predicted_BD is None:
            raise RuntimeError("the anchor needs the predictions of the model and the reference")
        known_BD = torch.cat(self.predictions) if side == "both" else self.predictions[side == "rejected"]
        return (out.predicted_BD - known_BD).square().mean(1).sum() / (2 * len(self.scorer))

    def _excess_of_norm(self, out: ScoreOut, side: Side) -> torch.Tensor:
        if self.norms is None or out.norm_B is None:
            raise RuntimeError(
                "the norm guard needs the norms of the model's and the reference's predictions"
            )
        known_B = torch.cat(self.norms) if side == "both" else self.norms[side == "rejected"]
        return excess_of_norm(out.norm_B, known_B).sum() / (2 * len(self.scorer))


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
    cached_reference: ReferenceOut | None = None,
    backward: Backward | None = None,
    safeguard_mu: float | None = None,
    norm_guard: float = 0.0,
    anchor: float = 0.0,
) -> PairOut:
    """Forward and backward of one micro-batch of B pairs; gradients are added to the parameters' ``.grad``.

    The trained quantity is ``loss_scale * (mean_i loss_i + supervised_mix * mean_i L_sup_i)``. With
    ``loss_scale`` set to B over the pairs of the whole optimizer step, accumulation is weighted by pairs. No
    collective is issued, and the reference context is closed again before the first forward pass that is
    differentiated.

    Args:
        mode: FULL_CONCURRENT (one reference and one policy pass over 2B images), POLICY_CONCURRENT (reference
            sides one after another, both policy graphs alive) or SEQUENTIAL (one policy graph at a time).
        strategy: variant of SEQUENTIAL: THREE_FORWARD, GRAD_STASH or AUTO; see ``resolve_strategy``.
        reference: creates the context in which the scorer uses the reference weights. Not needed with
            ``cached_reference`` or for a loss without reference.
        cached_reference: known scores (and norms) of the reference, each (B,); saves the reference passes.
        backward: back-propagates a scalar, for gradient scalers; plain ``.backward()`` by default. What it is
            given is a surrogate with the right gradient, not the loss.
        safeguard_mu: multiply each pair's rejected side by ``safeguard.rejected_share`` with this mu; the
            scorer has to give errors. The loss that is reported stays that of the objective.
        norm_guard: weight of the mean of ``norm_guard.excess_of_norm`` over the 2B images, part of the loss; the
            scorer has to give norms.
        anchor: weight of the mean square of prediction minus that of the reference; needs predictions.

    Returns:
        Detached losses, rewards and margins; the loss is not multiplied by ``loss_scale``.

    Raises:
        ValueError: unknown mode or strategy; GRAD_STASH where gradients do not simply add up in ``.grad``.
        RuntimeError: no reference for a loss that needs one; an autocast region around the call.
    """
    schedule = _SCHEDULES.get(str(getattr(mode, "value", mode)))
    if schedule is None:
        raise ValueError(f"unknown execution mode {mode!r}; known: {', '.join(_SCHEDULES)}")
    if schedule is _sequential:
        strategy = resolve_strategy(strategy, parameters, guarded=norm_guard > 0 or anchor > 0)
    _refuse_autocast(parameters)
    together, singly = schedule is _full_concurrent, schedule is _sequential and strategy == "GRAD_STASH"
    known = reference_scores(scorer, reference, objective, cached_reference, together=together, singly=singly)
    scores, norms, predictions = (None, None, None) if known is None else known
    step = Step(
        scorer, objective, options, parameters, backward or _plain_backward, loss_scale, supervised_mix,
        safeguard_mu, norm_guard, norms, anchor, predictions,
    )  # fmt: skip
    return schedule(step, scores, strategy)


@torch.no_grad()
def evaluate(
    scorer: PairScorer,
    reference: ReferenceFactory | None,
    objective: PreferenceLoss,
    options: ObjectiveOptions,
    *,
    cached_reference: ReferenceOut | None = None,
    together: bool = True,
) -> PairOut:
    """The losses and rewards of B pairs without any gradient.

    Args:
        together: both sides in one pass of 2B images, or (less memory) one side after the other.
    """
    known = reference_scores(scorer, reference, objective, cached_reference, together=together)
    anchor = None if known is None else known.scores
    out, _ = differentiate(objective, options, score_sides(scorer, together).scores, anchor, 1.0)
    return summarise(out, None, 0.0, sides_B2=options.sides_B2)


@torch.no_grad()
def sum_of_rewards(
    scorer: PairScorer,
    reference: ScorePair,
    sides_B2: torch.Tensor | None,
    *,
    together: bool = True,
    singly: bool = False,
) -> torch.Tensor:
    """Sum of the rewards (beta-free) of all images of B pairs, and their number, (2,), float64 on the CPU.

    Args:
        reference: reference scores of the pairs.
        sides_B2: which sides have an image; ``None`` for all.
        together, singly: as for ``reference_scores``.
    """
    policy = score_sides(scorer, together, singly).scores
    rewards_2B = torch.stack([ours - theirs for ours, theirs in zip(policy, reference, strict=True)])
    there_2B = torch.ones_like(rewards_2B) if sides_B2 is None else sides_B2.T.to(rewards_2B)
    return torch.stack([(rewards_2B * there_2B).double().sum(), there_2B.double().sum()]).cpu()


def reference_scores(
    scorer: PairScorer,
    reference: ReferenceFactory | None,
    objective: PreferenceLoss,
    cached: ReferenceOut | None = None,
    *,
    together: bool = True,
    singly: bool = False,
) -> ReferenceOut | None:
    """Scores (chosen, rejected) under the reference weights, and norms if the scorer returns them, without a
    graph.

    ``None`` if the loss does not use them.
    The context is entered only once, because switching weights has a cost per layer.

    Args:
        together: both sides in one pass of 2B images, or one side after the other.
        singly: one image per pass. Passes of as many images as those of the policy are rounded as they are, so that
            rewards are exactly 0 while the weights are those of the reference.

    Raises:
        RuntimeError: neither a context nor scores were given, or scores of another shape than two of (B,).
    """
    if not objective.needs_reference:
        return None
    if cached is not None:
        if any(score.shape != (len(scorer),) for score in cached.scores):
            raise RuntimeError(
                f"cached reference scores have shapes {[tuple(score.shape) for score in cached.scores]}, "
                f"expected two of ({len(scorer)},)"
            )
        chosen_B, rejected_B = cached.scores
        scores = detached_float32(chosen_B), detached_float32(rejected_B)
        return ReferenceOut(scores, cached.norms, cached.predictions)
    if reference is None:
        raise RuntimeError(
            f"the {objective.key} objective needs a reference: neither a context nor scores were given"
        )
    # no_grad rather than inference_mode: models cache lazily created tensors (rotary tables, casts), and
    # one created in inference mode could not be used in the differentiated pass that follows.
    with torch.no_grad(), reference():
        return score_sides(scorer, together, singly)


def resolve_strategy(
    strategy: str,
    parameters: Sequence[torch.nn.Parameter],
    world_size: int | None = None,
    *,
    guarded: bool = False,
) -> str:
    """Resolve AUTO: GRAD_STASH if gradients simply add up on one process, else THREE_FORWARD.

    Args:
        world_size: number of processes; asked of ``torch.distributed`` when not given.
        guarded: whether the norm guard or the anchor is on; GRAD_STASH then needs two rejected passes and
            saves nothing.

    Raises:
        ValueError: unknown strategy; GRAD_STASH demanded with hooks that consume gradients during backward,
            or with sharded weights.
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
    return "THREE_FORWARD" if hooked or sharded or guarded or processes > 1 else "GRAD_STASH"


def passes_singly(
    mode: object, strategy: str, parameters: Sequence[torch.nn.Parameter], *, guarded: bool = False
) -> bool:
    """Return whether ``run`` passes one image at a time through the model. Arguments as for ``resolve_strategy``."""
    sequential = _SCHEDULES.get(str(getattr(mode, "value", mode))) is _sequential
    return sequential and resolve_strategy(strategy, parameters, guarded=guarded) == "GRAD_STASH"


def _world_size() -> int:
    if not torch.distributed.is_available() or not torch.distributed.is_initialized():
        return 1
    return torch.distributed.get_world_size()


def _plain_backward(total: torch.Tensor) -> None:
    total.backward()


def _refuse_autocast(parameters: Sequence[torch.nn.Parameter]) -> None:
    """Refuse an enclosing autocast region, which caches the cast of each weight until its end."""
    for kind in {"cpu", *(parameter.device.type for parameter in parameters)}:
        if kind != "meta" and torch.is_autocast_enabled(kind):
            raise RuntimeError("open autocast inside the scorer, not around the preference step")


def _full_concurrent(step: Step, reference: ScorePair | None, _strategy: str) -> PairOut:
    """One policy pass over both sides, one backward."""
    both = step.forward("both")
    chosen_BD, rejected_BD = (None, None) if both.error_BD is None else both.error_BD.tensor_split(2)
    out, gradient, share_B = step.weigh(split_both(both.score_B), reference, (chosen_BD, rejected_BD))
    excess = step.excess(both, "both")
    step.backward(step.surrogate(both, torch.cat((gradient.chosen_B, gradient.rejected_B)), excess))
    return _summary(step, out, both.supervised_B, share_B, excess)


def _policy_concurrent(step: Step, reference: ScorePair | None, _strategy: str) -> PairOut:
    """Two policy passes whose graphs are alive at the same time, one backward."""
    chosen, rejected = step.forward("chosen"), step.forward("rejected")
    scores = (chosen.score_B, rejected.score_B)
    out, gradient, share_B = step.weigh(scores, reference, (chosen.error_BD, rejected.error_BD))
    excesses = step.excess(chosen, "chosen"), step.excess(rejected, "rejected")
    step.backward(
        step.surrogate(chosen, gradient.chosen_B, excesses[0])
        + step.surrogate(rejected, gradient.rejected_B, excesses[1])
    )
    return _summary(step, out, chosen.supervised_B, share_B, *excesses)


def _sequential(step: Step, reference: ScorePair | None, strategy: str) -> PairOut:
    if strategy == "THREE_FORWARD":
        return _three_forward(step, reference)
    return _grad_stash(step, reference)


def _three_forward(step: Step, reference: ScorePair | None) -> PairOut:
    """Compute the rejected score without a graph, then differentiate one side after the other."""
    with torch.no_grad():
        rejected = step.scorer("rejected")
    chosen = step.forward("chosen")
    scores = (chosen.score_B, detached_float32(rejected.score_B))
    out, gradient, share_B = step.weigh(scores, reference, (chosen.error_BD, rejected.error_BD))
    excess = step.excess(chosen, "chosen")
    step.backward(step.surrogate(chosen, gradient.chosen_B, excess))
    supervised_B = None if chosen.supervised_B is None else chosen.supervised_B.detach()
    del chosen
    rejected = step.forward("rejected")
    rejected_excess = step.excess(rejected, "rejected")
    step.backward(step.surrogate(rejected, gradient.rejected_B, rejected_excess))
    return _summary(step, out, supervised_B, share_B, excess, rejected_excess)


def _grad_stash(step: Step, reference: ScorePair | None) -> PairOut:
    """No extra forward: the first side's gradient is scaled once the second side's score is known.

    One gradient buffer can be scaled by one number only, hence the pairs one by one.
    """
    count = len(step.scorer)
    if count == 1:
        return _grad_stash_pair(step, reference)
    parts: list[PairOut] = []
    for index in range(count):
        anchor = _pair_of(reference, index)
        single = replace(
            step,
            scorer=step.scorer.select(index, index + 1),
            options=step.options.select(slice(index, index + 1)),
            scale=step.scale / count,
            norms=_pair_of(step.norms, index),
            predictions=_pair_of(step.predictions, index),
        )
        parts.append(_grad_stash_pair(single, anchor))
    return _concatenate(parts)


def _pair_of(both: ScorePair | None, index: int) -> ScorePair | None:
    """The values of one pair, each (1,)."""
    return None if both is None else (both[0][index : index + 1], both[1][index : index + 1])


def _grad_stash_pair(step: Step, reference: ScorePair | None) -> PairOut:
    """One pair: the rejected side with a provisional coefficient, then both with the true one.

    The rejected side goes first because the chosen one may carry the supervised loss too, and a gradient that
    holds two terms cannot be rescaled for one of them.
    """
    with stash_gradients(step.parameters) as stash:
        rejected = step.forward("rejected")
        rejected_B = detached_float32(rejected.score_B)
        provisional = _provisional_weight(step, rejected_B, reference)
        step.backward(step.surrogate(rejected, provisional, Excess()))
        error_BD = rejected.error_BD
        del rejected
        chosen = step.forward("chosen")
        scores = (chosen.score_B, rejected_B)
        out, gradient, share_B = step.weigh(scores, reference, (chosen.error_BD, error_BD))
        stash.merge(gradient.rejected_B / provisional)
    excess = step.excess(chosen, "chosen")
    step.backward(step.surrogate(chosen, gradient.chosen_B, excess))
    rejected_excess = Excess()
    if step.guarded:
        # a pass of its own, because the gradient that is scaled afterwards may hold nothing else
        again = step.forward("rejected")
        rejected_excess = step.excess(again, "rejected")
        step.backward(step.surrogate(again, torch.zeros_like(rejected_B), rejected_excess))
    return _summary(step, out, chosen.supervised_B, share_B, excess, rejected_excess)


def _summary(
    step: Step,
    out: LossOut,
    supervised_B: torch.Tensor | None,
    safeguard_B: torch.Tensor | None,
    *excesses: Excess,
) -> PairOut:
    made = summarise(out, supervised_B, step.supervised_mix, safeguard_B, step.options.sides_B2)
    guard = [step.norm_guard * one.norm.detach() for one in excesses if one.norm is not None]
    guard += [step.anchor * one.drift.detach() for one in excesses if one.drift is not None]
    return replace(made, loss=made.loss + sum(guard)) if guard else made


def _provisional_weight(step: Step, rejected_B: torch.Tensor, reference: ScorePair | None) -> torch.Tensor:
    """The rejected coefficient for a margin of zero, (1,).

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
    sides = [part.sides_B2 for part in parts if part.sides_B2 is not None]
    return PairOut(
        loss=torch.stack([part.loss for part in parts]).mean(),
        raw_loss_B=torch.cat([part.raw_loss_B for part in parts]),
        supervised_B=torch.cat(supervised) if supervised else None,
        chosen_reward_B=torch.cat([part.chosen_reward_B for part in parts]),
        rejected_reward_B=torch.cat([part.rejected_reward_B for part in parts]),
        margin_B=torch.cat([part.margin_B for part in parts]),
        accuracy_B=torch.cat([part.accuracy_B for part in parts]),
        safeguard_B=torch.cat(shares) if shares else None,
        sides_B2=torch.cat(sides) if sides else None,
    )


_SCHEDULES: dict[str, Callable[[Step, ScorePair | None, str], PairOut]] = {
    DPOExecutionMode.FULL_CONCURRENT: _full_concurrent,
    DPOExecutionMode.POLICY_CONCURRENT: _policy_concurrent,
    DPOExecutionMode.SEQUENTIAL: _sequential,
}
