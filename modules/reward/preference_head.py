"""A reward learned from picks: a head on features of a frozen model, by the Bradley-Terry likelihood.

Features are those of the trained denoiser, of its VAE, or of a CLIP model. On the denoiser's features, the
head is a Gaussian process (``taste_head``), otherwise a small network. A file holds tensors, a JSON
description, and the features of one fixed image, which reveal a different feature model.
"""

from __future__ import annotations

import json
import math
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from modules.reward.asking import worth_asking
from modules.reward.base import REWARDS, Reward, RewardBatch
from modules.reward.frozen_features import FeatureOptions, FrozenFeatures
from modules.reward.taste_head import WHOLE, TasteHead, check_taste
from modules.util.errors import ConfigError, DataError, UserError
from modules.util.files.result_file import check_result_file
from modules.util.jsonio import atomic_path, parse_json
from modules.util.owned_files import shown
from modules.util.tensors.tensor_files import write_safetensors

FORMAT = "preference-head-1"
TASTE_FORMAT = "preference-head-2"
"""A ``TasteHead``, and all settings of its features."""
PROBE_TOLERANCE = 0.02
FEWEST_FITS = 10


@dataclass(frozen=True)
class HeadReport:
    """Result of a training: weighted number of comparisons, and the share that the head gets right (ties
    count half).

    ``held_out_interval`` is the 95 % interval of that share for other prompts (``share_interval``). ``strength`` is
    that of the pull towards 0, if any.
    """

    train_pairs: int
    held_out_pairs: int
    train_accuracy: float
    held_out_accuracy: float | None
    strength: float | None
    held_out_interval: tuple[float, float] | None = None


@dataclass(frozen=True)
class UsualFit:
    """The usual match between judged images and their prompts (``DenoiserFeatures.prompt_fit``).

    Args:
        least: the value below which a tenth of them are.
        spread: standard deviation.
    """

    least: float
    spread: float

    @classmethod
    def of(cls, fit_N: Tensor) -> UsualFit | None:
        """The usual fit of images; ``None`` if they do not differ, or are too few."""
        spread = float(fit_N.double().std(correction=0))
        if len(fit_N) < FEWEST_FITS or not spread > 0:
            return None
        return cls(float(fit_N.double().quantile(0.1)), spread)

    def shortfall(self, fit_B: Tensor) -> Tensor:
        """Return how far images are below ``least``, in standard deviations; 0 for all others."""
        return ((self.least - fit_B) / self.spread).clamp(min=0.0)


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


Head = PreferenceHead | TasteHead


def save_head(
    path: str | Path,
    head: Head,
    features: FeatureOptions,
    probe_D: Tensor,
    report: HeadReport | None = None,
    usual_fit: UsualFit | None = None,
) -> None:
    """Write a head as safetensors with its description, atomically."""
    taste = isinstance(head, TasteHead)
    told = asdict(features)
    description = {
        "format": TASTE_FORMAT if taste else FORMAT,
        "features": told if taste else {name: told[name] for name in _FIRST_OPTIONS},
        "report": None if report is None else asdict(report),
        "usual_fit": None if usual_fit is None else asdict(usual_fit),
    }
    tensors = {**head.tensors, "probe_D": probe_D}
    tensors = {name: one.contiguous() for name, one in tensors.items()}
    with atomic_path(path) as temporary:
        write_safetensors(tensors, temporary, {"description": json.dumps(description, allow_nan=False)})


class SavedHead(NamedTuple):
    """Content of a head file; ``usual_fit`` is missing in those made without it."""

    head: Head
    features: FeatureOptions
    probe_D: Tensor
    usual_fit: UsualFit | None


def check_place(path: str | Path) -> None:
    """Check that ``save_head`` may write there: the place is free, or holds a head or an empty file.

    Raises:
        DataError: it holds something else.
    """
    file = Path(path)
    check_result_file(file, "--out", lambda _: True)
    if file.is_file() and file.stat().st_size:
        try:
            _read(file)
        except DataError as error:
            raise DataError(
                f"{shown(file)} already exists and is not a preference head: it is left as it is",
                "--out",
                "choose another name, or move the existing file away",
            ) from error


def load_head(path: str | Path) -> SavedHead:
    """Read a head.

    Raises:
        DataError: the file is missing, damaged, or not a head.
    """
    file = Path(path)
    if not file.is_file():
        raise DataError(
            f"the preference head {file} does not exist", "weights", "make one with scripts/train_reward.py"
        )
    description, tensors = _read(file)
    taste = description["format"] == TASTE_FORMAT
    told = description.get("features")
    if taste and isinstance(told, dict):
        told = {"version": 1, **told}
    options = _read_options(told, file, _ALL_OPTIONS if taste else _FIRST_OPTIONS)
    probe_D = tensors.pop("probe_D", None)
    fit = _read_fit(description.get("usual_fit"), file)
    if taste:
        check_taste(tensors, probe_D, file)
        _check_numbers(tensors, file)
        whole = {n: one if n in WHOLE else one.double() for n, one in tensors.items()}
        return SavedHead(TasteHead(whole), options, probe_D, fit)
    _check_tensors(tensors, probe_D, file)
    plain = PreferenceHead({name: one.double() for name, one in tensors.items()})
    return SavedHead(plain, options, probe_D, fit)


def _read(file: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """The description and the tensors of a head file. Raises ``DataError`` if it is not a head."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(file, "pt") as stream:
            text = (stream.metadata() or {}).get("description", "")
            description = parse_json(text, f"description in {file}")
            if not isinstance(description, dict) or description.get("format") not in (FORMAT, TASTE_FORMAT):
                raise DataError(f"{file} is not a preference head", "weights")
            return description, {name: stream.get_tensor(name) for name in stream.keys()}  # noqa: SIM118
    except DataError:
        raise
    except (SafetensorError, OSError, UserError) as error:
        raise DataError(f"{file} is not a preference head: {error}", "weights") from error


def _read_fit(data: Any, file: Path) -> UsualFit | None:
    if data is None:
        return None
    told = isinstance(data, dict) and data.keys() == {"least", "spread"}
    if (
        not told
        or not all(type(one) in (int, float) and math.isfinite(one) for one in data.values())
        or not data["spread"] > 0
    ):
        raise DataError(f"{file} does not say how well its images fit their prompts", "weights")
    return UsualFit(float(data["least"]), float(data["spread"]))


_FIRST_OPTIONS: dict[str, type] = {"kind": str, "source": str, "size": int, "grid": int}
_ALL_OPTIONS = _FIRST_OPTIONS | {"family": str, "block": str, "timestep": int, "noise": int, "version": int}


def _read_options(data: Any, file: Path, kinds: dict[str, type]) -> FeatureOptions:
    if not isinstance(data, dict) or {name: type(value) for name, value in data.items()} != kinds:
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
    """The score of an image by a taste head trained on your picks.

    Args:
        weights: file made by ``scripts/train_reward.py``.
        source: current location of the feature model; empty for its location in training.
        batch_size: images per forward pass of the feature model.
        caution: number of standard deviations of its uncertainty to subtract, so that images unlike all
            judged ones are not sought; 0 subtracts nothing. Only heads on the features of the denoiser or
            of pictures know their uncertainty.
        guard: penalty per standard deviation by which an image matches its prompt less well than nine of ten
            judged images; 0 for none. The model itself measures this (``prompt_fit``).
    """

    needs = "a trained head and its feature model"
    has_weights = True

    def __init__(
        self, weights: str, source: str = "", batch_size: int = 8, caution: float = 0.0, guard: float = 0.0
    ) -> None:
        super().__init__()
        if batch_size < 1:
            raise ConfigError(f"{batch_size} is not at least 1", "batch_size")
        for name, value in (("caution", caution), ("guard", guard)):
            if not 0 <= value <= 100:
                raise ConfigError(f"{value} is not between 0 and 100", name)
        self.weights, self.source, self.batch_size = weights, source, batch_size
        self.caution, self.guard = caution, guard
        self._head: Head | None = None
        self._usual_fit: UsualFit | None = None
        self._features: FrozenFeatures | None = None

    def weights_file(self) -> Path:
        return Path(self.weights)

    def load(self, device: torch.device | str = "cpu") -> None:
        super().load(device)
        if self._features is not None:
            self._features.to(device)
            return
        head, options, probe_D, usual_fit = load_head(self.weights)
        if self.caution and not isinstance(head, TasteHead):
            raise ConfigError(
                f"{self.weights} does not estimate its uncertainty",
                "caution",
                "set it to 0, or train the head on the features of the denoiser or of pictures",
            )
        if self.guard and usual_fit is None:
            raise ConfigError(
                f"{self.weights} does not know how well images fit their prompts",
                "guard",
                "set it to 0, or train the head again on the features of the denoiser",
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
        self._head, self._features, self._usual_fit = head, features, usual_fit

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
        """The head's features of images, (B, D)."""
        return self._loaded()[1](images_BCHW, prompts)

    def worth_asking(self, features_ND: Tensor) -> Tensor:
        """Information about the taste in an answer about each two images, see ``asking.worth_asking``."""
        head = self._loaded()[0]
        return worth_asking(head, head(features_ND), features_ND)

    def _score(self, batch: RewardBatch) -> Tensor:
        head, features = self._loaded()
        features_BD = features(batch.images_BCHW, batch.prompts)
        liking_B = head(features_BD)
        if self.caution and isinstance(head, TasteHead):
            liking_B = liking_B - self.caution * head.uncertainty(features_BD)
        if self.guard and self._usual_fit is not None:
            fit_B = features.prompt_fit(batch.images_BCHW, batch.prompts)
            liking_B = liking_B - self.guard * self._usual_fit.shortfall(fit_B)
        return liking_B
