"""The base class of rewards: each gives every generated image one finite number; higher is better.

Images are (B, 3, H, W) float32 on the CPU with values in [0, 1]. Every answer is checked, because a reward
that is silently NaN, incomplete or constant ruins a run that looks healthy.
"""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Literal, get_type_hints

import torch
from pydantic import ConfigDict, TypeAdapter, ValidationError
from torch import Tensor

from modules.util.display import counted
from modules.util.errors import ConfigError, DataError
from modules.util.Registry import Registry

Kind = Literal["pointwise", "pairwise", "groupwise"]
Metadata = Mapping[str, Any]

BLACK = 0.5 / 255
"""Values up to this are black in a file with 8 bits per channel."""
SLACK = 1e-3
"""Tolerance of decoded values outside [0, 1]; they are clamped when converted to bytes."""


class RewardError(DataError):
    """Images that cannot be scored, or an answer that is not one finite number per image.

    It is the only error for which ``skip_group`` skips a group. Rewards raise it only for faults of images.
    """


class RewardUnavailable(RewardError):
    """Nothing can be scored at the moment, whatever the images: the server is unreachable or does not answer."""


@dataclass
class RewardBatch:
    """Images to score.

    Args:
        images_BCHW: float32 on the CPU, values in [0, 1]. prompts: one text per image.
        group_B: int64; equal for the images made for one prompt slot. ``None``: every image on its own. metadata: one
            mapping per image, for rewards that need more than the prompt. Empty: none.
        group_size: how many images every group must have; ``None`` leaves it open.
        sources: of each image, what it was made from by editing: (3, h, w) uint8 each. Empty: none of any.
        source_names: their names, for a person; never sent anywhere.
    """

    images_BCHW: Tensor
    prompts: list[str]
    group_B: Tensor | None = None
    metadata: list[Metadata] = field(default_factory=list)
    group_size: int | None = None
    sources: list[tuple[Tensor, ...]] = field(default_factory=list)
    source_names: list[tuple[str, ...]] = field(default_factory=list)

    def __post_init__(self) -> None:
        images = self.images_BCHW
        if images.ndim != 4 or images.shape[1] != 3:
            raise RewardError(f"images must be (B, 3, H, W), not {tuple(images.shape)}")
        if images.dtype != torch.float32 or images.device.type != "cpu":
            raise RewardError(f"images must be float32 on the CPU, not {images.dtype} on {images.device}")
        count = len(images)
        if self.group_B is None:
            self.group_B = torch.arange(count)
        self.metadata = self.metadata or [{} for _ in range(count)]
        self.sources = self.sources or [()] * count
        self.source_names = self.source_names or [()] * count
        for (one, many), number in (
            (("prompt", ""), len(self.prompts)),
            (("group id", ""), len(self.group_B)),
            (("metadata", "metadata"), len(self.metadata)),
            (("source image", ""), len(self.sources)),
            (("source name", ""), len(self.source_names)),
        ):
            if number != count:
                raise RewardError(f"{counted(count, 'image')} but {counted(number, one, many)}")
        if self.group_B.dtype != torch.int64:
            raise RewardError(f"group ids must be int64, not {self.group_B.dtype}")

    def __len__(self) -> int:
        return len(self.images_BCHW)

    @property
    def groups(self) -> Tensor:
        """The group ids, int64 (B,)."""
        assert self.group_B is not None
        return self.group_B

    def group_ids(self) -> list[int]:
        """The ids of the groups in order of first occurrence."""
        return list(dict.fromkeys(self.groups.tolist()))

    def members(self, group: int) -> list[int]:
        """Indices of the images of one group."""
        return torch.nonzero(self.groups == group).flatten().tolist()

    def select(self, index: list[int]) -> RewardBatch:
        """The images at ``index``, in that order."""
        return RewardBatch(
            self.images_BCHW[index],
            [self.prompts[i] for i in index],
            self.groups[index],
            [self.metadata[i] for i in index],
            self.group_size,
            [self.sources[i] for i in index],
            [self.source_names[i] for i in index],
        )


def check_images(images_BCHW: Tensor, allow_black: bool = False) -> None:
    """Refuse invalid images.

    Raises:
        RewardError: there are NaN or infinite values, values outside [0, 1], or (unless allowed) a completely
            black image, as produced by an overflowing decoder or a safety filter.
    """
    flat_BD = images_BCHW.flatten(1)
    if flat_BD.numel() == 0:
        return
    finite_B = torch.isfinite(flat_BD).all(dim=1)
    if not finite_B.all():
        raise RewardError(f"image {_places(~finite_B)} holds NaN or infinity", hint="decode in float32")
    low_B, high_B = flat_BD.amin(dim=1), flat_BD.amax(dim=1)
    outside_B = (low_B < -SLACK) | (high_B > 1 + SLACK)
    if outside_B.any():
        raise RewardError(f"image {_places(outside_B)} has values outside [0, 1]")
    black_B = high_B < BLACK
    if black_B.any() and not allow_black:
        raise RewardError(
            f"image {_places(black_B)} is entirely black",
            hint="usually a decoder in too small a number format, or a safety filter",
        )


def check_scores(scores: Tensor, count: int, name: str) -> Tensor:
    """The answer as float32 (B,) on the CPU, without gradient. Anything else raises ``RewardError``."""
    if not isinstance(scores, Tensor):
        raise RewardError(f"reward {name!r} answered with {type(scores).__name__}, not with a tensor")
    if scores.shape != (count,):
        raise RewardError(
            f"reward {name!r} answered {tuple(scores.shape)} for {count} images, not ({count},)"
        )
    scores = scores.detach().to(device="cpu", dtype=torch.float32)
    finite_B = torch.isfinite(scores)
    if not finite_B.all():
        raise RewardError(f"reward {name!r} is NaN or infinite for image {_places(~finite_B)}")
    return scores


def _places(mask_B: Tensor) -> str:
    found = torch.nonzero(mask_B).flatten().tolist()
    return ", ".join(map(str, found[:8])) + (", ..." if len(found) > 8 else "")


def to_uint8(images_BCHW: Tensor) -> Tensor:
    """(B, 3, H, W) in [0, 1] -> uint8, rounded to the nearest."""
    return (images_BCHW.clamp(0, 1) * 255).round().to(torch.uint8)


@dataclass(frozen=True)
class RewardOutline:
    """A reward's model without weights, to predict its memory.

    Args:
        module: the model on the meta device, in the type of its weights.
        score: one pass of it on the meta device, for up to this many images.
    """

    module: torch.nn.Module
    score: Callable[[int], object]


class Reward(ABC):
    """One number per image; larger is better.

    A subclass implements ``_score``; callers use ``score``, which checks inputs and outputs. The first line
    of its docstring describes it in the window. Constructors check their values and load nothing; ``load``
    brings weights into memory.
    """

    kind: Kind = "pointwise"
    needs: ClassVar[str] = ""
    """Requirements besides the images, in a few words ("model weights"); empty for nothing."""
    required_fields: tuple[str, ...] = ()
    """``"prompt"`` (texts must not be empty), ``"source"`` (what the image was made from) and names of metadata every
    image must have.
    """
    allow_black = False
    has_weights: ClassVar[bool] = False
    """True if it holds weights on its device."""

    def __init__(self) -> None:
        self.name = type(self).__name__
        self.device = torch.device("cpu")

    def load(self, device: torch.device | str = "cpu") -> None:
        """Make ready on ``device``. May be called twice. Errors that a user can fix are ``UserError``."""
        self.device = torch.device(device)

    def contacts(self) -> list[str]:
        """The data it sends and the addresses, one line each, for the dry run. Lines about other computers are
        warnings.
        """
        return []

    def weights_file(self) -> Path | None:
        """A local file that determines its scores, if any. A run does not resume with another one."""
        return None

    def model_folders(self) -> list[Path]:
        """Local folders of models that determine its scores. A run does not resume with other ones."""
        return []

    def outline(self) -> RewardOutline | None:
        """Its model without weights; ``None`` if it has none, or if their shapes are not known on this machine."""
        return None

    def unload(self) -> None:  # noqa: B027 - most rewards hold nothing
        """Release memory. ``load`` makes it ready again."""

    def to(self, device: torch.device | str) -> None:
        """Move what is loaded; does nothing otherwise."""
        self.device = torch.device(device)

    @abstractmethod
    def _score(self, batch: RewardBatch) -> Tensor:
        """(B,) of any float type on any device."""

    def unjudged(self) -> frozenset[int]:
        """Groups of the last scored batch that were not judged. Nothing is learned from them, whatever other rewards
        say.
        """
        return frozenset()

    def check_fields(self, batch: RewardBatch) -> None:
        """Refuse a batch that lacks what this reward needs (``ConfigError``, because no image will ever have it)."""
        for one in self.required_fields:
            if one == "prompt":
                missing = [i for i, text in enumerate(batch.prompts) if not text.strip()]
                what = "a prompt"
            elif one == "source":
                missing = [i for i, images in enumerate(batch.sources) if not images]
                what = "a source image"
            else:
                missing = [i for i, data in enumerate(batch.metadata) if one not in data]
                what = f"the field {one!r}"
            if missing:
                raise ConfigError(f"reward {self.name!r} needs {what}, but image {missing[0]} has none")

    def score(self, batch: RewardBatch) -> Tensor:
        """float32 (B,), finite, on the CPU.

        Raises:
            RewardError: unusable images or an unusable answer.
            ConfigError: the batch lacks a field this reward needs, or a group is incomplete.
        """
        self.check_fields(batch)
        check_images(batch.images_BCHW, self.allow_black)
        if len(batch) == 0:
            return torch.zeros(0)
        with torch.no_grad():
            return check_scores(self._score(batch), len(batch), self.name)


Factory = Callable[..., Reward]
REWARDS: Registry[Factory] = Registry("reward", "modules.reward")


def create_reward(key: str, params: Mapping[str, Any] | None = None, name: str | None = None) -> Reward:
    """Build a reward by its key.

    Args:
        key: an entry of ``REWARDS``.
        params: constructor arguments, as they come from JSON; types are checked strictly.
        name: its name in logs; by default the key.

    Raises:
        ConfigError: the key or a parameter is unknown, or a value has a wrong type or range. The field says
            which.
    """
    factory = REWARDS.get(key)
    target = factory.__init__ if inspect.isclass(factory) else factory
    known = [n for n in inspect.signature(target).parameters if n != "self"]
    hints = get_type_hints(target)
    checked = {}
    for param, value in dict(params or {}).items():
        place = f"{name or key}.{param}"
        if param not in known:
            takes = f"it takes {', '.join(known)}" if known else "it takes none"
            raise ConfigError(f"reward {key!r} has no parameter {param!r}", place, hint=takes)
        checked[param] = _checked(value, hints[param], place)
    required = [
        n for n, p in inspect.signature(target).parameters.items() if n in known and p.default is p.empty
    ]
    if missing := [n for n in required if n not in checked]:
        raise ConfigError(f"reward {key!r} needs {', '.join(missing)}", f"{name or key}.{missing[0]}")
    reward = factory(**checked)
    reward.name = name or key
    return reward


def _checked(value: Any, hint: Any, place: str) -> Any:
    adapter: TypeAdapter[Any] = TypeAdapter(hint, config=ConfigDict(strict=True, allow_inf_nan=False))
    try:
        return adapter.validate_python(value)
    except ValidationError as error:
        raise ConfigError(f"{value!r}: {error.errors()[0]['msg']}", place) from error
