"""A taste as a Gaussian process: learns from few answers what is liked, and how certain that is.

The liking of an image is a sum of independent smooth functions, one or two for each part of its features: a
weighted sum and, for parts with few numbers, a bounded curve, which can have its maximum in the middle. An
answer is the sign of a difference of two likings plus logistic noise. The weight of each function is chosen
by the evidence. Sources: Chu and Ghahramani 2005 (preference learning); Rasmussen and Williams 2006, sections
3.4 and 5.5 (Laplace).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from modules.util.errors import DataError

CURVED = 16
"""Parts with at most this many numbers also get a bounded curve."""
PRIOR_VARIANCE = 1.0
"""Prior variance of the difference of two typical images of a prompt, in squared logits, over all functions
together.
"""
PRIOR_SPREAD = 3.0
"""Standard deviation of the logarithm of a function's variance."""
NUGGET = 1e-6
TUNED_WITH = 400
"""Maximum number of answers, evenly spread, used to choose the variances. All answers count afterwards."""


@dataclass(frozen=True)
class Term:
    """One function of the sum: which columns it sees, and whether it is a curve or a weighted sum."""

    start: int
    stop: int
    curved: bool


def terms_of(parts: Mapping[str, int]) -> list[Term]:
    """The functions for features with these parts."""
    found, start = [], 0
    for width in parts.values():
        found.append(Term(start, start + width, False))
        if width <= CURVED:
            found.append(Term(start, start + width, True))
        start += width
    return found


def kernel(term: Term, one_ND: Tensor, other_MD: Tensor) -> Tensor:
    """Covariances (N, M) of a function's values; features have unit spread, so lengths are counted per column."""
    a, b = (x[:, term.start : term.stop] / math.sqrt(term.stop - term.start) for x in (one_ND, other_MD))
    if not term.curved:
        return a @ b.T
    return torch.exp(-0.5 * torch.cdist(a, b, compute_mode="donot_use_mm_for_euclid_dist").square())


def within_groups(features_ND: Tensor, groups: Sequence[str]) -> tuple[Tensor, Tensor]:
    """Mean, and standard deviation within groups, (D,) each: the variation within a prompt."""
    at = {name: place for place, name in enumerate(dict.fromkeys(groups))}
    group_N = torch.tensor([at[name] for name in groups])
    count_G = torch.bincount(group_N).to(features_ND.dtype)
    mean_GD = torch.zeros(len(at), features_ND.shape[1], dtype=features_ND.dtype)
    mean_GD.index_add_(0, group_N, features_ND)
    mean_GD /= count_G[:, None]
    apart_ND = features_ND - mean_GD[group_N]
    freedom = max(1, len(features_ND) - len(at))
    return features_ND.mean(dim=0), (apart_ND.square().sum(dim=0) / freedom).sqrt().clamp(min=1e-6)


@dataclass(frozen=True)
class Answers:
    """Answers about images, by row: the first against the second.

    Args:
        first_P, second_P: int64.
        outcome_P: float64, 1 if the first was preferred, 0.5 for a tie.
        weight_P: float64, how many answers each counts for; ``None`` if each counts as one.
    """

    first_P: Tensor
    second_P: Tensor
    outcome_P: Tensor
    weight_P: Tensor | None = None


def differences(covariance_NN: Tensor, answers: Answers) -> Tensor:
    """Covariance (P, P) of the differences, from that of the images."""
    half_PN = covariance_NN[answers.first_P] - covariance_NN[answers.second_P]
    return half_PN[:, answers.first_P] - half_PN[:, answers.second_P]


@dataclass(frozen=True)
class Mode:
    """Laplace's approximation at the most likely differences.

    Args:
        dual_P: K^-1 times those differences, which is also the gradient of the likelihood there.
        root_P: square root of minus the weighted likelihood's second derivative.
        factor_PP: lower Cholesky factor of 1 + root K root.
        evidence: logarithm of the approximate probability of the answers.
    """

    dual_P: Tensor
    root_P: Tensor
    factor_PP: Tensor
    evidence: float


def find_mode(k_PP: Tensor, outcome_P: Tensor, weight_P: Tensor | None = None, rounds: int = 60) -> Mode:
    """Newton's method, with steps halved if they decrease the objective (Rasmussen and Williams, algorithm
    3.1), float64.

    An answer of weight w has the likelihood of one to the power of w.
    """
    if weight_P is None:
        weight_P = torch.ones_like(outcome_P)
    eye_PP = torch.eye(len(outcome_P), dtype=k_PP.dtype)

    def height(dual_P: Tensor) -> tuple[Tensor, float]:
        f_P = k_PP @ dual_P
        likely = weight_P * (outcome_P * logsigmoid(f_P) + (1 - outcome_P) * logsigmoid(-f_P))
        return f_P, float(likely.sum() - 0.5 * dual_P @ f_P)

    dual_P = torch.zeros_like(outcome_P)
    f_P, best = height(dual_P)
    for _ in range(rounds):
        p_P = torch.sigmoid(f_P)
        root_P = (weight_P * p_P * (1 - p_P)).sqrt()
        factor_PP = torch.linalg.cholesky(eye_PP + root_P[:, None] * k_PP * root_P)
        b_P = root_P.square() * f_P + weight_P * outcome_P - weight_P * p_P
        inner_P1 = torch.cholesky_solve((root_P * (k_PP @ b_P))[:, None], factor_PP)
        step_P = b_P - root_P * inner_P1[:, 0] - dual_P
        size, before = 1.0, best
        while True:
            tried_P = dual_P + size * step_P
            f_P, now = height(tried_P)
            if now >= before or size < 1e-4:
                break
            size /= 2
        dual_P, best = tried_P, now
        if abs(best - before) < 1e-10:
            break
    p_P = torch.sigmoid(f_P)
    root_P = (weight_P * p_P * (1 - p_P)).sqrt()
    factor_PP = torch.linalg.cholesky(eye_PP + root_P[:, None] * k_PP * root_P)
    return Mode(dual_P, root_P, factor_PP, best - float(factor_PP.diagonal().log().sum()))


class TasteHead:
    """A fitted taste, completely defined by its tensors.

    Args:
        tensors: ``mean_D``, ``scale_D``; ``support_ND`` (scaled), ``first_P``, ``second_P``, ``dual_P``,
            ``root_P``, ``factor_PP``; ``variance_T``, one for each term; ``part_widths``.
    """

    def __init__(self, tensors: dict[str, Tensor]) -> None:
        self.tensors = tensors
        widths = {str(place): int(width) for place, width in enumerate(tensors["part_widths"].tolist())}
        self.terms = terms_of(widths)

    def _covariance(self, one_ND: Tensor, other_MD: Tensor) -> Tensor:
        made = torch.zeros(len(one_ND), len(other_MD), dtype=torch.float64)
        for term, variance in zip(self.terms, self.tensors["variance_T"].tolist(), strict=True):
            made += variance * kernel(term, one_ND, other_MD)
        return made

    def _scaled(self, features_BD: Tensor) -> Tensor:
        return (features_BD.double() - self.tensors["mean_D"]) / self.tensors["scale_D"]

    def _to_answers(self, x_BD: Tensor) -> Tensor:
        """Covariances (B, P) of images with the answered differences."""
        k_BN = self._covariance(x_BD, self.tensors["support_ND"])
        return k_BN[:, self.tensors["first_P"]] - k_BN[:, self.tensors["second_P"]]

    def __call__(self, features_BD: Tensor) -> Tensor:
        """Likings (B,) float32; differences are log odds of being preferred."""
        return (self._to_answers(self._scaled(features_BD)) @ self.tensors["dual_P"]).float()

    def uncertainty(self, features_BD: Tensor) -> Tensor:
        """Standard deviation (B,) float32 of each liking relative to that of the mean answered image."""
        x_BD = self._scaled(features_BD)
        support_ND = self.tensors["support_ND"]
        anchor_1D = support_ND.mean(dim=0, keepdim=True)
        k_BP = self._to_answers(x_BD) - self._to_answers(anchor_1D)
        prior_B = torch.stack([self._covariance(x[None], x[None])[0, 0] for x in x_BD])
        prior_B = (
            prior_B
            + self._covariance(anchor_1D, anchor_1D)[0, 0]
            - 2 * self._covariance(x_BD, anchor_1D)[:, 0]
        )
        return (prior_B - self._known(k_BP)).clamp(min=0).sqrt().float()

    def _known(self, k_BP: Tensor) -> Tensor:
        """Reduction of the prior variance by the answers, (B,)."""
        half_PB = self.tensors["root_P"][:, None] * k_BP.T
        solved: Tensor = torch.linalg.solve_triangular(self.tensors["factor_PP"], half_PB, upper=False)
        return solved.square().sum(dim=0)

    def differ(self, features_ND: Tensor, pairs_Q2: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and variance (Q,) float64 of differences in liking between images, by row."""
        x_ND = self._scaled(features_ND)
        to_NP = self._to_answers(x_ND)
        first, second = pairs_Q2.T
        k_QP = to_NP[first] - to_NP[second]
        own_NN = self._covariance(x_ND, x_ND)
        prior_Q = own_NN[first, first] + own_NN[second, second] - 2 * own_NN[first, second]
        return k_QP @ self.tensors["dual_P"], (prior_Q - self._known(k_QP)).clamp(min=1e-12)


def fit_taste(
    features_ND: Tensor, parts: Mapping[str, int], answers: Answers, scale_groups: Sequence[str]
) -> TasteHead:
    """Fit a taste to answers. Equal arguments give equal results.

    Args:
        features_ND: features of all available images; those without an answer contribute to the scale of the
            features.
        parts: widths of the parts of a row.
        scale_groups: the prompt of every image.
    """
    features_ND = features_ND.double()
    mean_D, scale_D = within_groups(features_ND, scale_groups)
    used, place = torch.unique(torch.cat([answers.first_P, answers.second_P]), return_inverse=True)
    first_P, second_P = place.tensor_split(2)
    weight_P = None if answers.weight_P is None else answers.weight_P.double()
    own = Answers(first_P, second_P, answers.outcome_P.double(), weight_P)
    support_ND = ((features_ND - mean_D) / scale_D)[used]
    terms = terms_of(parts)
    all_ND = (features_ND - mean_D) / scale_D
    kernels, sizes = [], []
    for term in terms:
        sizes.append(_typical_difference(term, all_ND, scale_groups))
        kernels.append(differences(kernel(term, support_ND, support_ND), own) / sizes[-1])
    logs = _choose_variances(kernels, own)
    mode = find_mode(_total(kernels, logs), own.outcome_P, own.weight_P)
    variance_T = torch.tensor(
        [math.exp(one) / size for one, size in zip(logs, sizes, strict=True)], dtype=torch.float64
    )
    return TasteHead(
        {
            "mean_D": mean_D, "scale_D": scale_D, "support_ND": support_ND, "first_P": first_P,
            "second_P": second_P, "dual_P": mode.dual_P, "root_P": mode.root_P, "factor_PP": mode.factor_PP,
            "variance_T": variance_T, "part_widths": torch.tensor(list(parts.values())),
        }
    )  # fmt: skip


def _typical_difference(term: Term, x_ND: Tensor, groups: Sequence[str]) -> float:
    """Mean variance of the difference of two images of a group, before any scaling of the function."""
    members: dict[str, list[int]] = {}
    for place, name in enumerate(groups):
        members.setdefault(name, []).append(place)
    total, count = 0.0, 0
    for index in members.values():
        k = kernel(term, x_ND[index], x_ND[index])
        n = len(index)
        # over pairs i < j of k_ii + k_jj - 2 k_ij
        total += float(n * k.diagonal().sum() - k.sum())
        count += n * (n - 1) // 2
    return max(total / max(count, 1), 1e-9)


def _total(kernels: Sequence[Tensor], logs: Sequence[float]) -> Tensor:
    made = NUGGET * torch.eye(len(kernels[0]), dtype=torch.float64)
    for one, k_PP in zip(logs, kernels, strict=True):
        made = made + math.exp(one) * k_PP
    return made


def _choose_variances(kernels: Sequence[Tensor], answers: Answers) -> list[float]:
    """Logarithms of the variances with the highest evidence times a wide prior, by a pattern search."""
    stride = -(-len(answers.outcome_P) // TUNED_WITH)
    kernels, outcome_P = [k[::stride, ::stride] for k in kernels], answers.outcome_P[::stride]
    weight_P = None if answers.weight_P is None else answers.weight_P[::stride]
    middle = math.log(PRIOR_VARIANCE / len(kernels))

    def height(logs: Sequence[float]) -> float:
        far = sum((one - middle) ** 2 for one in logs)
        return find_mode(_total(kernels, logs), outcome_P, weight_P).evidence - far / (2 * PRIOR_SPREAD**2)

    logs, step = [middle] * len(kernels), 2.0
    best = height(logs)
    while step > 0.6:
        moved = False
        for place in range(len(logs)):
            for change in (step, -step):
                tried = [*logs[:place], logs[place] + change, *logs[place + 1 :]]
                now = height(tried)
                if now > best + 1e-2:
                    logs, best, moved = tried, now, True
                    break
        if not moved:
            step /= 2
    return logs


def information(mean_Q: Tensor, variance_Q: Tensor) -> Tensor:
    """Expected information of an answer about each difference, in nats (Q,).

    It is the entropy of the answer minus its expected entropy once the difference is known (Houlsby et al.
    2011), by Gauss-Hermite integration with 9 points.
    """
    import numpy as np

    points, weights = np.polynomial.hermite_e.hermegauss(9)
    at_KQ = mean_Q + variance_Q.sqrt() * torch.from_numpy(points)[:, None]
    weight_K1 = torch.from_numpy(weights / weights.sum())[:, None]
    p_KQ = torch.sigmoid(at_KQ)
    return entropy((weight_K1 * p_KQ).sum(dim=0)) - (weight_K1 * entropy(p_KQ)).sum(dim=0)


def entropy(p: Tensor) -> Tensor:
    """Entropy of an answer that is yes with this probability, in nats."""
    p = p.clamp(1e-12, 1 - 1e-12)
    return -(p * p.log() + (1 - p) * (1 - p).log())


WHOLE = ("first_P", "second_P", "part_widths")
"""Integer tensors."""


def check_taste(tensors: dict[str, Tensor], probe_D: Tensor | None, file: Path) -> None:
    """Refuse tensors that are not those of a ``TasteHead``."""
    wrong = DataError(f"{file}: the tensors do not fit together", "weights")
    one_axis = ("dual_P", "part_widths", "variance_T")
    if probe_D is None or probe_D.ndim != 1 or any(tensors.get(n, probe_D[None]).ndim != 1 for n in one_axis):
        raise wrong
    width, answers = len(probe_D), len(tensors["dual_P"])
    images = len(tensors.get("support_ND", ()))
    shapes: dict[str, tuple[int, ...]] = {
        "mean_D": (width,),
        "scale_D": (width,),
        "support_ND": (images, width),
    }
    shapes |= dict.fromkeys(("first_P", "second_P", "dual_P", "root_P"), (answers,))
    shapes |= {"factor_PP": (answers, answers)}
    shapes |= {name: tuple(tensors[name].shape) for name in ("part_widths", "variance_T")}
    if {name: tuple(one.shape) for name, one in tensors.items()} != shapes or not images or not answers:
        raise wrong
    if any((tensors[name].dtype == torch.int64) != (name in WHOLE) for name in tensors):
        raise wrong
    widths = tensors["part_widths"].tolist()
    terms = terms_of({str(place): one for place, one in enumerate(widths)})
    if min(widths, default=0) < 1 or sum(widths) != width or len(terms) != len(tensors["variance_T"]):
        raise wrong
    rows = torch.cat([tensors["first_P"], tensors["second_P"]])
    if not ((rows >= 0) & (rows < images)).all():
        raise wrong
    if not (tensors["factor_PP"].diagonal() > 0).all() or not (tensors["variance_T"] > 0).all():
        raise wrong
