"""Fits a head on features to comparisons, and measures how well it predicts unseen ones."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from modules.reward.preference_head import HeadReport, PreferenceHead
from modules.reward.taste_head import Answers, TasteHead, fit_taste
from modules.util.errors import ConfigError, DataError
from modules.util.rng import digest64, generator
from modules.util.statistics.clustered import share_interval

STRENGTHS = (0.01, 0.03, 0.1, 0.3, 1.0, 3.0)
FOLDS = 5
MOST_ANSWERS = 4000
"""Learning a taste takes time cubic in the number of answers."""


@dataclass(frozen=True)
class HeadOptions:
    """Options for training a head.

    Args:
        hidden: width of a hidden layer with tanh; 0 for a weighted sum of the features.
        strength: strength of the pull towards 0; ``None`` chooses among a few by cross-validation over
            groups.
        holdout: share of the groups held out for measuring.
        seed: seed of the split and the initial values.
    """

    hidden: int = 0
    strength: float | None = None
    holdout: float = 0.2
    seed: int = 42

    def __post_init__(self) -> None:
        if not 0 <= self.hidden <= 4096:
            raise ConfigError(f"{self.hidden} is not between 0 and 4096", "hidden")
        if self.strength is not None and not 0 < self.strength < 1e6:
            raise ConfigError(f"{self.strength} is not above 0", "strength")
        if not 0 <= self.holdout <= 0.9:
            raise ConfigError(f"{self.holdout} is not between 0 and 0.9", "holdout")


@dataclass(frozen=True)
class Comparisons:
    """Comparisons of images.

    Args:
        features_ND: features of all images.
        better_P, worse_P: int64, rows of ``features_ND``.
        groups: group of each comparison (a prompt); a group is never split between training and measuring.
        held_out_P: bool, comparisons to measure with; ``None`` lets the options' share decide.
        tied_P: bool, whether both images were judged equal; only ``train_taste`` learns from these.
        weight_P: above 0, how many answers each counts for; ``None`` if each counts as one.
    """

    features_ND: Tensor
    better_P: Tensor
    worse_P: Tensor
    groups: Sequence[str]
    held_out_P: Tensor | None = None
    tied_P: Tensor | None = None
    weight_P: Tensor | None = None

    def weights(self) -> Tensor:
        """Float64 (P,): how many answers each counts for."""
        if self.weight_P is None:
            return torch.ones(len(self.groups), dtype=torch.float64)
        return self.weight_P.double()


def train_head(data: Comparisons, options: HeadOptions | None = None) -> tuple[PreferenceHead, HeadReport]:
    """Fit a head. Equal data and options give equal results.

    Raises:
        DataError: there is nothing to train on, or features are NaN or infinite.
    """
    options = options or HeadOptions()
    if data.tied_P is not None and data.tied_P.any():
        raise ValueError("a weighted sum does not learn from ties")
    if not torch.isfinite(data.features_ND).all():
        raise DataError("the features of an image are not finite")
    held_P = data.held_out_P if data.held_out_P is not None else _hold_out(data.groups, options)
    train = torch.nonzero(~held_P).flatten()
    if len(train) == 0:
        raise DataError("there is no comparison to train on")
    features_ND = data.features_ND.double()
    used = torch.unique(torch.cat([data.better_P[train], data.worse_P[train]]))
    mean_D = features_ND[used].mean(dim=0)
    scale_D = features_ND[used].std(dim=0, correction=0).clamp(min=1e-6)
    x_ND = (features_ND - mean_D) / scale_D
    weight_P = data.weights()
    strength = options.strength or _choose_strength(x_ND, data, train, options)
    found = _fit(x_ND, data.better_P[train], data.worse_P[train], weight_P[train], strength, options)
    head = PreferenceHead({"mean_D": mean_D, "scale_D": scale_D, **found})
    score_N = head(data.features_ND)
    right_P = _right(score_N[data.better_P] - score_N[data.worse_P])
    trained, measured = (
        _Share(right_P[index], weight_P[index], [data.groups[i] for i in index.tolist()])
        for index in (train, torch.nonzero(held_P).flatten())
    )
    return head, _report(weight_P[train], trained, measured, strength)


@dataclass(frozen=True)
class _Share:
    """Weighted share of correct comparisons: whether each is right, its weight and its group.

    Args:
        heads: number of heads that judged them, each a part.
    """

    right_P: Tensor
    weight_P: Tensor
    groups: Sequence[str]
    heads: int = 1

    @property
    def count(self) -> float:
        return float(self.weight_P.sum())

    @property
    def share(self) -> float:
        return float((self.right_P * self.weight_P).sum()) / self.count

    @property
    def interval(self) -> tuple[float, float] | None:
        parts = self.heads if self.heads > 1 else None
        return share_interval(self.right_P.tolist(), self.groups, self.weight_P.tolist(), parts)


def _report(weight_T: Tensor, trained: _Share, measured: _Share, strength: float | None) -> HeadReport:
    return HeadReport(
        round(float(weight_T.sum())),
        round(measured.count),
        trained.share,
        measured.share if measured.count else None,
        strength,
        measured.interval,
    )


def train_taste(
    data: Comparisons, parts: Mapping[str, int], options: HeadOptions, image_groups: Sequence[str]
) -> tuple[TasteHead, HeadReport]:
    """Fit a taste to all answers that are not held out by name.

    Without comparisons for measuring, the accuracy is that of heads fitted without a fifth of the groups
    each, on the unseen answers. The head itself then learns from all answers, so that none are wasted.

    Args:
        parts: widths of the parts of a row of features.
        image_groups: the prompt of every image.

    Raises:
        DataError: there is nothing to train on, too much, or features are NaN or infinite.
    """
    if not torch.isfinite(data.features_ND).all():
        raise DataError("the features of an image are not finite")
    count = len(data.groups)
    tied_P = data.tied_P if data.tied_P is not None else torch.zeros(count, dtype=torch.bool)
    held_P = data.held_out_P if data.held_out_P is not None else torch.zeros(count, dtype=torch.bool)
    weight_P = data.weights()

    def fit(index: Tensor) -> TasteHead:
        outcome_P = 1.0 - 0.5 * tied_P[index].double()
        answers = Answers(data.better_P[index], data.worse_P[index], outcome_P, weight_P[index])
        return fit_taste(data.features_ND, parts, answers, image_groups)

    def right(head: TasteHead, index: Tensor) -> _Share:
        index = index[~tied_P[index]]
        score_N = head(data.features_ND)
        right_P = _right(score_N[data.better_P[index]] - score_N[data.worse_P[index]])
        return _Share(right_P, weight_P[index], [data.groups[i] for i in index.tolist()])

    train = torch.nonzero(~held_P).flatten()
    if not len(train) or tied_P[train].all():
        raise DataError("there is no comparison to train on")
    if len(train) > MOST_ANSWERS:
        raise DataError(
            f"{len(train)} comparisons are more than {MOST_ANSWERS}",
            "--features",
            "use the features 'vae' or 'clip'",
        )
    head, found = fit(train), list[_Share]()
    if held_P.any():
        found = [right(head, torch.nonzero(held_P).flatten())]
    elif options.holdout:
        fold_P = torch.tensor([digest64("preference-fold", options.seed, one) % FOLDS for one in data.groups])
        rows = [(train[fold_P[train] != fold], train[fold_P[train] == fold]) for fold in range(FOLDS)]
        # a fold of ties alone leaves nothing to learn a direction from
        found = [right(fit(a), b) for a, b in rows if len(b) and not tied_P[a].all()]
    nothing = weight_P[:0]
    measured = _Share(
        torch.cat([nothing, *(one.right_P for one in found)]),
        torch.cat([nothing, *(one.weight_P for one in found)]),
        [group for one in found for group in one.groups],
        sum(1 for one in found if one.groups),
    )
    return head, _report(weight_P[train], right(head, train), measured, None)


def _right(margin_P: Tensor) -> Tensor:
    return (margin_P > 0).double() + 0.5 * (margin_P == 0).double()


def _hold_out(groups: Sequence[str], options: HeadOptions) -> Tensor:
    """Bool (P,): the comparisons of a share of the groups, chosen by their names and the seed."""
    order = sorted(set(groups), key=lambda key: digest64("preference-holdout", options.seed, key))
    held = set(order[: round(options.holdout * len(order))])
    return torch.tensor([group in held for group in groups], dtype=torch.bool)


def _choose_strength(x_ND: Tensor, data: Comparisons, train: Tensor, options: HeadOptions) -> float:
    """The strength with the best likelihood on groups that were not fitted."""
    folds = [digest64("preference-fold", options.seed, data.groups[i]) % FOLDS for i in train.tolist()]
    fold_P = torch.tensor(folds)
    losses, weight_P = dict.fromkeys(STRENGTHS, 0.0), data.weights()
    for fold in range(FOLDS):
        inside, outside = train[fold_P != fold], train[fold_P == fold]
        if len(inside) == 0 or len(outside) == 0:
            continue
        for strength in STRENGTHS:
            sides = data.better_P[inside], data.worse_P[inside], weight_P[inside]
            found = _fit(x_ND, *sides, strength, options)
            score_N = _apply(x_ND, found)
            margin_P = score_N[data.better_P[outside]] - score_N[data.worse_P[outside]]
            losses[strength] -= float((weight_P[outside] * logsigmoid(margin_P)).sum())
    if not any(losses.values()):
        return STRENGTHS[len(STRENGTHS) // 2]
    return min(STRENGTHS, key=lambda strength: losses[strength])


def _apply(x_ND: Tensor, t: dict[str, Tensor]) -> Tensor:
    if "hidden_weight" in t:
        x_ND = torch.tanh(x_ND @ t["hidden_weight"].T + t["hidden_bias"])
    return x_ND @ t["out"]


def _fit(
    x_ND: Tensor, better_P: Tensor, worse_P: Tensor, weight_P: Tensor, strength: float, options: HeadOptions
) -> dict[str, Tensor]:
    """Minimise -mean log sigmoid(margin) + strength/2 |weights|^2 in float64; the mean is by the weights."""
    share_P = weight_P / weight_P.mean()
    if options.hidden:
        return _fit_hidden(x_ND, better_P, worse_P, share_P, strength, options)
    return {"out": _fit_sum(x_ND[better_P] - x_ND[worse_P], share_P, strength)}


def _fit_sum(difference_PD: Tensor, share_P: Tensor, strength: float, rounds: int = 100) -> Tensor:
    """The unique minimum for a weighted sum, by Newton steps that are halved if they increase the loss; (D,).

    It is in the span of the differences, so that there are never more unknowns than comparisons.
    """
    basis_DR = torch.linalg.qr(difference_PD.T)[0]
    z_PR = difference_PD @ basis_DR
    eye = torch.eye(z_PR.shape[1], dtype=z_PR.dtype)

    def loss(weight_R: Tensor) -> Tensor:
        return strength / 2 * weight_R.square().sum() - (share_P * logsigmoid(z_PR @ weight_R)).mean()

    weight_R = torch.zeros_like(z_PR[0])
    for _ in range(rounds):
        wrong_P = torch.sigmoid(-(z_PR @ weight_R))
        gradient_R = strength * weight_R - z_PR.T @ (share_P * wrong_P) / len(z_PR)
        if gradient_R.abs().max() < 1e-9:
            break
        spread_P = share_P * wrong_P * (1 - wrong_P) / len(z_PR)
        step_R = torch.linalg.solve((z_PR * spread_P[:, None]).T @ z_PR + strength * eye, gradient_R)
        size, before = 1.0, loss(weight_R)
        while loss(weight_R - size * step_R) > before and size > 1e-6:
            size /= 2
        weight_R = weight_R - size * step_R
    found_D: Tensor = basis_DR @ weight_R
    return found_D


def _fit_hidden(
    x_ND: Tensor, better_P: Tensor, worse_P: Tensor, share_P: Tensor, strength: float, options: HeadOptions
) -> dict[str, Tensor]:
    """A minimum near a seeded start, by L-BFGS."""
    width = x_ND.shape[1]
    stream = generator("preference-head", options.seed)

    def start(*shape: int) -> Tensor:
        length: float = shape[-1] ** 0.5
        return torch.randn(*shape, generator=stream, dtype=torch.float64) / length

    t = {
        "hidden_weight": start(options.hidden, width),
        "hidden_bias": torch.zeros(options.hidden, dtype=torch.float64),
        "out": start(options.hidden),
    }
    parameters = [one.requires_grad_() for one in t.values()]
    optimizer = torch.optim.LBFGS(
        parameters, max_iter=100, tolerance_grad=1e-6, history_size=20, line_search_fn="strong_wolfe"
    )

    def closure() -> Tensor:
        optimizer.zero_grad()
        score_N = _apply(x_ND, t)
        loss = -(share_P * logsigmoid(score_N[better_P] - score_N[worse_P])).mean()
        loss = loss + strength / 2 * sum(one.square().sum() for one in parameters)
        loss.backward()
        return loss

    with torch.enable_grad():
        optimizer.step(closure)
    return {name: one.detach() for name, one in t.items()}
