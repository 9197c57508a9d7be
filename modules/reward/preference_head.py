"""A reward learned from picks: a head on features of a frozen model, by the Bradley-Terry likelihood.

Features are those of the denoiser that is trained, of its VAE, or of a CLIP model. On the denoiser's the head is a
Gaussian process (``taste_head``), otherwise a small network. A file holds tensors, a JSON description, and the
features of one fixed image, which reveal a different feature model.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import NormalDist
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from modules.reward.asking import worth_asking
from modules.reward.base import REWARDS, Reward, RewardBatch
from modules.reward.frozen_features import FeatureOptions, FrozenFeatures
from modules.reward.taste_head import WHOLE, Answers, TasteHead, check_taste, fit_taste
from modules.util.errors import ConfigError, DataError, UserError
from modules.util.jsonio import atomic_path, parse_json
from modules.util.rng import digest64, generator
from modules.util.tensors.tensor_files import write_safetensors

FORMAT = "preference-head-1"
TASTE_FORMAT = "preference-head-2"
"""A ``TasteHead``, and all settings of its features."""
STRENGTHS = (0.01, 0.03, 0.1, 0.3, 1.0, 3.0)
FOLDS = 5
PROBE_TOLERANCE = 0.02
MOST_ANSWERS = 4000
"""A taste costs the cube of its answers."""


@dataclass(frozen=True)
class HeadOptions:
    """How a head is trained.

    Args:
        hidden: width of a hidden layer with tanh; 0 for a weighted sum of the features.
        strength: of the pull towards 0; ``None`` chooses among a few by cross-validation over groups.
        holdout: share of the groups that is kept for measuring.
        seed: of the split and the start.
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
    """Which images were preferred to which.

    Args:
        features_ND: of all images.
        better_P, worse_P: int64, rows of ``features_ND``.
        groups: what belongs together (a prompt); a group is never split between training and measuring.
        held_out_P: bool, comparisons to measure with; ``None`` lets the options' share decide.
        tied_P: bool, where both images were found equal, which only ``train_taste`` learns from.
    """

    features_ND: Tensor
    better_P: Tensor
    worse_P: Tensor
    groups: Sequence[str]
    held_out_P: Tensor | None = None
    tied_P: Tensor | None = None


@dataclass(frozen=True)
class HeadReport:
    """How a training went: comparisons and share of them that the head gets right (ties count half).

    ``held_out_interval`` holds 95 % of the posterior of that share by Wilson's formula. ``strength`` is that of the
    pull towards 0, where there is one.
    """

    train_pairs: int
    held_out_pairs: int
    train_accuracy: float
    held_out_accuracy: float | None
    strength: float | None
    held_out_interval: tuple[float, float] | None = None


class PreferenceHead:
    """Standardise, an optional hidden layer, one number whose differences are log odds.

    Args:
        tensors: ``mean_D``, ``scale_D``, ``out`` and, with a hidden layer, ``hidden_weight``, ``hidden_bias``.
    """

    def __init__(self, tensors: dict[str, Tensor]) -> None:
        self.tensors = tensors

    def __call__(self, features_BD: Tensor) -> Tensor:
        """(B,) float32."""
        t = self.tensors
        x = (features_BD.double() - t["mean_D"]) / t["scale_D"]
        if "hidden_weight" in t:
            x = torch.tanh(x @ t["hidden_weight"].T + t["hidden_bias"])
        return (x @ t["out"]).float()


def train_head(data: Comparisons, options: HeadOptions | None = None) -> tuple[PreferenceHead, HeadReport]:
    """Fit a head; equal data and options give equal numbers.

    Raises:
        DataError: nothing to train on, or features that are not numbers.
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
    strength = options.strength or _choose_strength(x_ND, data, train, options)
    found = _fit(x_ND, data.better_P[train], data.worse_P[train], strength, options)
    head = PreferenceHead({"mean_D": mean_D, "scale_D": scale_D, **found})
    score_N = head(data.features_ND)
    right_P = _right(score_N[data.better_P] - score_N[data.worse_P])
    report = HeadReport(
        len(train),
        int(held_P.sum()),
        float(right_P[train].mean()),
        float(right_P[held_P].mean()) if held_P.any() else None,
        strength,
        wilson(float(right_P[held_P].sum()), int(held_P.sum())),
    )
    return head, report


def wilson(right: float, count: int) -> tuple[float, float] | None:
    """The interval of a share by Wilson (1927), 95 %; ``None`` of nothing."""
    if not count:
        return None
    z2, share = NormalDist().inv_cdf(0.975) ** 2, right / count
    middle = (share + z2 / (2 * count)) / (1 + z2 / count)
    half = (z2 * (share * (1 - share) / count + z2 / (4 * count**2))) ** 0.5 / (1 + z2 / count)
    return max(0.0, middle - half), min(1.0, middle + half)


def train_taste(
    data: Comparisons, parts: Mapping[str, int], options: HeadOptions, image_groups: Sequence[str]
) -> tuple[TasteHead, HeadReport]:
    """Fit a taste to all answers that are not held out by name.

    Without comparisons to measure with, the accuracy is that of heads fitted without a fifth of the groups each, on
    the answers they have not seen; the head itself then learns from all answers, so a few are not wasted.

    Args:
        parts: widths of the parts of a row of features.
        image_groups: the prompt of every image.

    Raises:
        DataError: nothing to train on, too much, or features that are not numbers.
    """
    if not torch.isfinite(data.features_ND).all():
        raise DataError("the features of an image are not finite")
    count = len(data.groups)
    tied_P = data.tied_P if data.tied_P is not None else torch.zeros(count, dtype=torch.bool)
    held_P = data.held_out_P if data.held_out_P is not None else torch.zeros(count, dtype=torch.bool)

    def fit(index: Tensor) -> TasteHead:
        outcome_P = 1.0 - 0.5 * tied_P[index].double()
        answers = Answers(data.better_P[index], data.worse_P[index], outcome_P)
        return fit_taste(data.features_ND, parts, answers, image_groups)

    def right(head: TasteHead, index: Tensor) -> Tensor:
        index = index[~tied_P[index]]
        score_N = head(data.features_ND)
        return _right(score_N[data.better_P[index]] - score_N[data.worse_P[index]])

    train = torch.nonzero(~held_P).flatten()
    if not len(train) or tied_P[train].all():
        raise DataError("there is no comparison to train on")
    if len(train) > MOST_ANSWERS:
        raise DataError(
            f"{len(train)} comparisons are more than {MOST_ANSWERS}",
            "--features",
            "use the features 'vae' or 'clip'",
        )
    head = fit(train)
    if held_P.any():
        measured = right(head, torch.nonzero(held_P).flatten())
    elif options.holdout:
        fold_P = torch.tensor([digest64("preference-fold", options.seed, one) % FOLDS for one in data.groups])
        rows = [(train[fold_P[train] != fold], train[fold_P[train] == fold]) for fold in range(FOLDS)]
        # a fold of ties alone leaves nothing to learn a direction from
        rows = [(a, b) for a, b in rows if len(b) and not tied_P[a].all()]
        measured = torch.cat([right(fit(a), b) for a, b in rows]) if rows else torch.zeros(0)
    else:
        measured = torch.zeros(0)
    accuracy = float(measured.mean()) if len(measured) else None
    between = wilson(float(measured.sum()), len(measured))
    trained = float(right(head, train).mean())
    report = HeadReport(len(train), len(measured), trained, accuracy, None, between)
    return head, report


def _right(margin_P: Tensor) -> Tensor:
    return (margin_P > 0).double() + 0.5 * (margin_P == 0).double()


def _hold_out(groups: Sequence[str], options: HeadOptions) -> Tensor:
    """Bool (P,): the comparisons of a share of the groups, chosen by their names and the seed."""
    order = sorted(set(groups), key=lambda key: digest64("preference-holdout", options.seed, key))
    held = set(order[: round(options.holdout * len(order))])
    return torch.tensor([group in held for group in groups], dtype=torch.bool)


def _choose_strength(x_ND: Tensor, data: Comparisons, train: Tensor, options: HeadOptions) -> float:
    """The strength with the best likelihood on groups that a fit has not seen."""
    folds = [digest64("preference-fold", options.seed, data.groups[i]) % FOLDS for i in train.tolist()]
    fold_P = torch.tensor(folds)
    losses = dict.fromkeys(STRENGTHS, 0.0)
    for fold in range(FOLDS):
        inside, outside = train[fold_P != fold], train[fold_P == fold]
        if len(inside) == 0 or len(outside) == 0:
            continue
        for strength in STRENGTHS:
            found = _fit(x_ND, data.better_P[inside], data.worse_P[inside], strength, options)
            score_N = _apply(x_ND, found)
            margin_P = score_N[data.better_P[outside]] - score_N[data.worse_P[outside]]
            losses[strength] -= float(logsigmoid(margin_P).sum())
    if not any(losses.values()):
        return STRENGTHS[len(STRENGTHS) // 2]
    return min(STRENGTHS, key=lambda strength: losses[strength])


def _apply(x_ND: Tensor, t: dict[str, Tensor]) -> Tensor:
    if "hidden_weight" in t:
        x_ND = torch.tanh(x_ND @ t["hidden_weight"].T + t["hidden_bias"])
    return x_ND @ t["out"]


def _fit(
    x_ND: Tensor, better_P: Tensor, worse_P: Tensor, strength: float, options: HeadOptions
) -> dict[str, Tensor]:
    """Minimise -mean log sigmoid(margin) + strength/2 |weights|^2 in float64."""
    if options.hidden:
        return _fit_hidden(x_ND, better_P, worse_P, strength, options)
    return {"out": _fit_sum(x_ND[better_P] - x_ND[worse_P], strength)}


def _fit_sum(difference_PD: Tensor, strength: float, rounds: int = 100) -> Tensor:
    """The only minimum for a weighted sum, by Newton steps that are halved where they go uphill; (D,).

    It lies in the span of the differences, so there are never more unknowns than comparisons.
    """
    basis_DR = torch.linalg.qr(difference_PD.T)[0]
    z_PR = difference_PD @ basis_DR
    eye = torch.eye(z_PR.shape[1], dtype=z_PR.dtype)

    def loss(weight_R: Tensor) -> Tensor:
        return strength / 2 * weight_R.square().sum() - logsigmoid(z_PR @ weight_R).mean()

    weight_R = torch.zeros_like(z_PR[0])
    for _ in range(rounds):
        wrong_P = torch.sigmoid(-(z_PR @ weight_R))
        gradient_R = strength * weight_R - z_PR.T @ wrong_P / len(z_PR)
        if gradient_R.abs().max() < 1e-9:
            break
        spread_P = wrong_P * (1 - wrong_P) / len(z_PR)
        step_R = torch.linalg.solve((z_PR * spread_P[:, None]).T @ z_PR + strength * eye, gradient_R)
        size, before = 1.0, loss(weight_R)
        while loss(weight_R - size * step_R) > before and size > 1e-6:
            size /= 2
        weight_R = weight_R - size * step_R
    found_D: Tensor = basis_DR @ weight_R
    return found_D


def _fit_hidden(
    x_ND: Tensor, better_P: Tensor, worse_P: Tensor, strength: float, options: HeadOptions
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
        loss = -logsigmoid(score_N[better_P] - score_N[worse_P]).mean()
        loss = loss + strength / 2 * sum(one.square().sum() for one in parameters)
        loss.backward()
        return loss

    with torch.enable_grad():
        optimizer.step(closure)
    return {name: one.detach() for name, one in t.items()}


Head = PreferenceHead | TasteHead


def save_head(
    path: str | Path,
    head: Head,
    features: FeatureOptions,
    probe_D: Tensor,
    report: HeadReport | None = None,
) -> None:
    """Write a head as safetensors with its description, atomically."""
    taste = isinstance(head, TasteHead)
    told = asdict(features)
    description = {
        "format": TASTE_FORMAT if taste else FORMAT,
        "features": told if taste else {name: told[name] for name in _FIRST_OPTIONS},
        "report": None if report is None else asdict(report),
    }
    tensors = {**head.tensors, "probe_D": probe_D}
    tensors = {name: one.contiguous() for name, one in tensors.items()}
    with atomic_path(path) as temporary:
        write_safetensors(tensors, temporary, {"description": json.dumps(description, allow_nan=False)})


def load_head(path: str | Path) -> tuple[Head, FeatureOptions, Tensor]:
    """Read a head, its features and the features of the probe.

    Raises:
        DataError: missing, damaged, or something else.
    """
    from safetensors import SafetensorError, safe_open

    file = Path(path)
    if not file.is_file():
        raise DataError(
            f"the preference head {file} does not exist", "weights", "make one with scripts/train_reward.py"
        )
    try:
        with safe_open(file, "pt") as stream:
            text = (stream.metadata() or {}).get("description", "")
            tensors = {name: stream.get_tensor(name) for name in stream.keys()}  # noqa: SIM118
        description = parse_json(text, f"description in {file}")
    except (SafetensorError, OSError, UserError) as error:
        raise DataError(f"{file} is not a preference head: {error}", "weights") from error
    if not isinstance(description, dict) or description.get("format") not in (FORMAT, TASTE_FORMAT):
        raise DataError(f"{file} is not a preference head", "weights")
    taste = description["format"] == TASTE_FORMAT
    told = description.get("features")
    if taste and isinstance(told, dict):
        told = {"version": 1, **told}
    options = _read_options(told, file, _ALL_OPTIONS if taste else _FIRST_OPTIONS)
    probe_D = tensors.pop("probe_D", None)
    if taste:
        check_taste(tensors, probe_D, file)
        _check_numbers(tensors, file)
        return (
            TasteHead({n: one if n in WHOLE else one.double() for n, one in tensors.items()}),
            options,
            probe_D,
        )
    _check_tensors(tensors, probe_D, file)
    return PreferenceHead({name: one.double() for name, one in tensors.items()}), options, probe_D


_FIRST_OPTIONS: dict[str, type] = {"kind": str, "source": str, "size": int, "grid": int}
_ALL_OPTIONS = _FIRST_OPTIONS | {"family": str, "block": str, "timestep": int, "noise": int, "version": int}


def _read_options(data: Any, file: Path, kinds: dict[str, type]) -> FeatureOptions:
    if not isinstance(data, dict) or set(data) != set(kinds):
        raise DataError(f"{file} does not say what features it needs", "weights")
    if not all(type(data[name]) is kind for name, kind in kinds.items()):
        raise DataError(f"{file} does not say what features it needs", "weights")
    try:
        return FeatureOptions(**data)
    except ConfigError as error:
        raise DataError(f"{file}: {error.message}", "weights") from error


def _check_tensors(tensors: dict[str, Tensor], probe_D: Tensor | None, file: Path) -> None:
    width = 0 if probe_D is None else len(probe_D)
    shapes: dict[str, tuple[int, ...]] = {"mean_D": (width,), "scale_D": (width,), "out": (width,)}
    if "hidden_weight" in tensors:
        rows = len(tensors["hidden_weight"])
        shapes |= {"hidden_weight": (rows, width), "hidden_bias": (rows,), "out": (rows,)}
    if not width or {name: tuple(one.shape) for name, one in tensors.items()} != shapes:
        raise DataError(f"{file}: the tensors do not fit together", "weights")
    _check_numbers(tensors, file)


def _check_numbers(tensors: dict[str, Tensor], file: Path) -> None:
    if not all(torch.isfinite(one).all() for one in tensors.values()) or not (tensors["scale_D"] > 0).all():
        raise DataError(f"{file}: a tensor holds NaN, infinity, or a scale that is not above 0", "weights")


@REWARDS.register("preference_head")
class PreferenceReward(Reward):
    """What a head trained on your picks thinks of an image.

    Args:
        weights: file made by ``scripts/train_reward.py``.
        source: where the feature model is now; empty for where it was in training.
        batch_size: images in one forward of the feature model.
        caution: standard deviations of its own uncertainty that are taken off, so that images unlike all that were
            judged are not sought; 0 takes off none. Only a head on the denoiser's features knows its uncertainty.
    """

    needs = "a trained head and its feature model"

    def __init__(self, weights: str, source: str = "", batch_size: int = 8, caution: float = 0.0) -> None:
        super().__init__()
        if batch_size < 1:
            raise ConfigError(f"{batch_size} is not at least 1", "batch_size")
        if not 0 <= caution <= 100:
            raise ConfigError(f"{caution} is not between 0 and 100", "caution")
        self.weights, self.source, self.batch_size, self.caution = weights, source, batch_size, caution
        self._head: Head | None = None
        self._features: FrozenFeatures | None = None

    def weights_file(self) -> Path:
        return Path(self.weights)

    def load(self, device: torch.device | str = "cpu") -> None:
        super().load(device)
        if self._features is not None:
            self._features.to(device)
            return
        head, options, probe_D = load_head(self.weights)
        if self.caution and not isinstance(head, TasteHead):
            raise ConfigError(
                f"{self.weights} does not estimate its uncertainty",
                "caution",
                "set it to 0, or train the head on the features of the denoiser",
            )
        if self.source:
            options = FeatureOptions(**(asdict(options) | {"source": self.source}))
        features = FrozenFeatures(options, self.batch_size)
        features.load(device)
        now_D = features.probe()
        if now_D.shape != probe_D.shape or (now_D - probe_D).norm() > PROBE_TOLERANCE * probe_D.norm():
            raise DataError(
                f"the features of {options.source!r} are not those {self.weights} was trained with",
                "source",
                "give the same model, or train the head again",
            )
        self._head, self._features = head, features

    def unload(self) -> None:
        self._head = self._features = None

    def to(self, device: torch.device | str) -> None:
        super().to(device)
        if self._features is not None:
            self._features.to(device)

    def _loaded(self) -> tuple[Head, FrozenFeatures]:
        if self._head is None or self._features is None:
            raise RuntimeError(f"reward {self.name!r}: load() first")
        return self._head, self._features

    def features(self, images_BCHW: Tensor, prompts: list[str]) -> Tensor:
        """What the head sees of images, (B, D)."""
        return self._loaded()[1](images_BCHW, prompts)

    def worth_asking(self, features_ND: Tensor) -> Tensor:
        """What an answer about each two images tells about the taste, see ``asking.worth_asking``."""
        head = self._loaded()[0]
        return worth_asking(head, head(features_ND), features_ND)

    def _score(self, batch: RewardBatch) -> Tensor:
        head, features = self._loaded()
        features_BD = features(batch.images_BCHW, batch.prompts)
        liking_B = head(features_BD)
        if not self.caution or not isinstance(head, TasteHead):
            return liking_B
        return liking_B - self.caution * head.uncertainty(features_BD)
