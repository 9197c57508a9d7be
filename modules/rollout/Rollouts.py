"""The images of a rollout with everything needed to train on them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from typing import Any

import torch

from modules.model.batch import Conditioning, Index, Sources
from modules.rollout.plan import RolloutPlan
from modules.rollout.transitions import FORMS, GAUSSIAN, MEAN, REDUCTIONS, Position, known_name
from modules.util.errors import DataError, list_offenders

JOINT, SPLIT = "JOINT", "SPLIT"
LAYOUTS = (JOINT, SPLIT)
STORAGE = {"FLOAT_32": torch.float32, "BFLOAT_16": torch.bfloat16, "FLOAT_16": torch.float16}
FORMAT = 1
_TEXT, _SOURCE = "texts.", "sources."


@dataclass(frozen=True)
class RolloutSettings:
    """Settings that generation and training must share, to the last bit.

    Args:
        plan: the steps.
        size: (height, width) of the images in pixels.
        cfg: guidance scale; above 1 the unconditional prediction is used.
        layout: ``SPLIT`` calls the denoiser twice, the second time without gradients; ``JOINT`` once, with a
            batch of twice the size.
        reduction, form: of the log-probability, see ``transitions.log_prob``.
        storage: type that trained latents are rounded to: FLOAT_32, BFLOAT_16 or FLOAT_16.
    """

    plan: RolloutPlan
    size: tuple[int, int]
    cfg: float = 1.0
    layout: str = SPLIT
    reduction: str = MEAN
    form: str = GAUSSIAN
    storage: str = "FLOAT_32"

    def __post_init__(self) -> None:
        for name, known, field in (
            ("layout", LAYOUTS, "rlhf_rollout_cfg_layout"),
            ("reduction", REDUCTIONS, "rlhf_logprob_reduction"),
            ("form", FORMS, "rlhf_logprob_form"),
            ("storage", tuple(STORAGE), "rlhf_rollout_storage_dtype"),
        ):
            object.__setattr__(self, name, known_name(name, getattr(self, name), known, field))

    @property
    def dtype(self) -> torch.dtype:
        return STORAGE[self.storage]

    def differences(self, other: RolloutSettings) -> list[str]:
        """The differing settings, one line each."""
        mine, theirs = _flat(self), _flat(other)
        return [f"{name}: {mine[name]!r} and {theirs[name]!r}" for name in mine if mine[name] != theirs[name]]

    def require_same(self, other: RolloutSettings) -> None:
        """Raise ``RuntimeError`` unless a rollout with these settings is trained on with the same."""
        if self == other:
            return
        raise RuntimeError(
            "the rollout was made with settings that differ from those of training (rollout and training):\n"
            + list_offenders(self.differences(other))
        )

    def to_dict(self) -> dict[str, Any]:
        """Convert to JSON data."""
        return asdict(self)

    @staticmethod
    def from_dict(data: Mapping[str, Any]) -> RolloutSettings:
        """The inverse of ``to_dict``, also after JSON turned tuples into lists.

        Raises:
            DataError: a setting is missing or unknown.
        """
        try:
            plan = dict(data["plan"])
            plan["positions"] = tuple(Position(**one) for one in plan["positions"])
            plan["trained"], plan["stds"] = tuple(plan["trained"]), tuple(plan["stds"])
            height, width = data["size"]
            # present in backups of earlier versions; it was never on
            data = {name: value for name, value in data.items() if name != "keep_means"}
            return RolloutSettings(**{**data, "plan": RolloutPlan(**plan), "size": (int(height), int(width))})
        except (KeyError, TypeError, ValueError) as error:
            raise DataError(f"the settings of a saved rollout cannot be read: {error}") from error


def _flat(settings: RolloutSettings) -> dict[str, Any]:
    own = {f.name: getattr(settings, f.name) for f in fields(settings) if f.name != "plan"}
    plan = {f.name: getattr(settings.plan, f.name) for f in fields(settings.plan)}
    levels = [(at.timestep, at.noise) for at in plan.pop("positions")]
    return {**own, **plan, "path": levels}


@dataclass(frozen=True)
class Rollouts:
    """N images on the CPU or anywhere, S trained steps each.

    Args:
        prompts, negatives: prompts of each image.
        seeds: seed of each image's noise.
        ids: id of each image, unique in the run.
        group_N: int64, which images belong to one prompt of one epoch.
        texts: conditioning of the U different prompts, negative ones included, with what each of them edits.
        text_N, negative_N: int64, rows of ``texts``; ``negative_N`` is ``None`` without guidance.
        final_NChw: float32, the finished latents.
        states_NPChw: latents at ``settings.plan.points``, in the storage type; P is 0 in decoupled modes.
        logp_NS: float32, log-probability of each trained step when it was taken.
        mask_NS: bool, whether a step of an image is trained on.
        settings: how they were made.
    """

    prompts: list[str]
    negatives: list[str]
    seeds: list[int]
    ids: list[str]
    group_N: torch.Tensor
    texts: Conditioning
    text_N: torch.Tensor
    negative_N: torch.Tensor | None
    final_NChw: torch.Tensor
    states_NPChw: torch.Tensor
    logp_NS: torch.Tensor
    mask_NS: torch.Tensor
    settings: RolloutSettings

    def __post_init__(self) -> None:
        counts = {name: len(getattr(self, name)) for name in (*_LISTS, *_TENSORS)}
        counts |= {name: len(tensor) for name in _OPTIONAL if (tensor := getattr(self, name)) is not None}
        if len(set(counts.values())) > 1:
            raise ValueError(f"rollouts whose parts differ in length: {counts}")
        plan = self.settings.plan
        found = (self.states_NPChw.shape[1], self.logp_NS.shape[1], self.mask_NS.shape[1])
        wanted = (len(plan.points), len(plan.trained), len(plan.trained))
        if found != wanted:
            raise ValueError(f"{wanted} points, log-probabilities and masks are needed, not {found}")
        if self.group_N.dtype != torch.int64:
            raise ValueError(
                f"groups are int64, not {self.group_N.dtype}: other types would merge large numbers"
            )

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def steps(self) -> tuple[int, ...]:
        """The trained steps; column s of ``logp_NS`` belongs to ``steps[s]``."""
        return self.settings.plan.trained

    def column(self, step: int) -> int:
        """The column of a step in ``logp_NS`` and ``mask_NS``.

        Raises:
            ValueError: the step is not trained.
        """
        if step not in self.steps:
            raise ValueError(f"step {step} is not among the trained ones: {list(self.steps)}")
        return self.steps.index(step)

    def x(self, step: int) -> torch.Tensor:
        """Latents at the start of a trained step, (N, C, h, w), storage type."""
        self.column(step)
        return self.states_NPChw[:, self.settings.plan.points.index(step)]

    def x_next(self, step: int) -> torch.Tensor:
        """Latents at its end."""
        self.column(step)
        return self.states_NPChw[:, self.settings.plan.points.index(step + 1)]

    def condition(self, device: torch.device | str | None = None) -> Conditioning:
        """The conditioning of each image, (N, ...)."""
        return self._rows(self.text_N, device)

    def negative(self, device: torch.device | str | None = None) -> Conditioning | None:
        """The unconditional conditioning, or ``None`` without guidance."""
        return None if self.negative_N is None else self._rows(self.negative_N, device)

    def _rows(self, row_N: torch.Tensor, device: torch.device | str | None) -> Conditioning:
        made = self.texts.select(row_N)
        return made if device is None else made.to(device)

    def select(self, index: Index) -> Rollouts:
        """The images ``index`` (a slice or positions), in that order. The table of texts is shared."""
        places = torch.arange(len(self))[index if isinstance(index, slice) else torch.as_tensor(index)]
        picked: dict[str, Any] = {name: [getattr(self, name)[i] for i in places.tolist()] for name in _LISTS}
        for name in (*_TENSORS, *_OPTIONAL):
            tensor = getattr(self, name)
            picked[name] = None if tensor is None else tensor[places.to(tensor.device)]
        return replace(self, **picked)

    def to(self, device: torch.device | str) -> Rollouts:
        """A copy with everything on ``device``."""
        moved: dict[str, Any] = {
            name: None if (tensor := getattr(self, name)) is None else tensor.to(device)
            for name in (*_TENSORS, *_OPTIONAL)
        }
        return replace(self, **moved, texts=self.texts.to(device))

    def batches(self, size: int) -> list[Rollouts]:
        """Slices of ``size`` images, in order; the last may be shorter."""
        return [self.select(slice(start, start + size)) for start in range(0, len(self), size)]

    @staticmethod
    def cat(parts: Sequence[Rollouts]) -> Rollouts:
        """Concatenate rollouts made with the same settings."""
        first = parts[0]
        for part in parts[1:]:
            first.settings.require_same(part.settings)
        joined: dict[str, Any] = {name: [x for part in parts for x in getattr(part, name)] for name in _LISTS}
        for name in _TENSORS:
            joined[name] = torch.cat([getattr(part, name) for part in parts])
        if any(part.texts is not first.texts for part in parts):
            offsets = torch.tensor([0, *(len(part.texts) for part in parts[:-1])]).cumsum(0).tolist()
            joined["texts"] = Conditioning.cat([part.texts for part in parts])
        else:
            offsets = [0] * len(parts)
        for name in ("text_N", "negative_N"):
            rows = [getattr(part, name) for part in parts]
            if all(row is not None for row in rows):
                joined[name] = torch.cat([row + n for row, n in zip(rows, offsets, strict=True)])
        return replace(first, **joined)

    # -- backups ------------------------------------------------------------------------------------------

    def to_tensors(self) -> dict[str, torch.Tensor]:
        """All tensors by name, for a file of tensors."""
        made = {name: getattr(self, name) for name in (*_TENSORS, *_OPTIONAL)}
        made |= {f"{_TEXT}{name}": tensor for name, tensor in self.texts.tensors.items()}
        made |= {f"{_SOURCE}{place}": tensor for place, tensor in enumerate(self.texts.sources)}
        return {name: tensor for name, tensor in made.items() if tensor is not None}

    def metadata(self) -> dict[str, Any]:
        """Everything else, as JSON data."""
        lists = {name: list(getattr(self, name)) for name in _LISTS}
        return {"format": FORMAT, "settings": self.settings.to_dict(), **lists}

    @staticmethod
    def from_tensors(tensors: Mapping[str, torch.Tensor], metadata: Mapping[str, Any]) -> Rollouts:
        """The inverse of ``to_tensors`` and ``metadata``.

        Raises:
            DataError: pieces are missing or inconsistent.
        """
        if metadata.get("format") != FORMAT:
            raise DataError(
                f"the saved rollout has format {metadata.get('format')!r}, this program reads {FORMAT}"
            )
        settings = RolloutSettings.from_dict(metadata.get("settings", {}))
        texts = {
            name.removeprefix(_TEXT): tensor for name, tensor in tensors.items() if name.startswith(_TEXT)
        }
        places = sorted(
            (name for name in tensors if name.startswith(_SOURCE)), key=lambda name: (len(name), name)
        )
        try:
            parts: dict[str, Any] = {name: list(metadata[name]) for name in _LISTS}
            parts |= {name: tensors[name] for name in _TENSORS}
            parts |= {name: tensors.get(name) for name in _OPTIONAL}
            return Rollouts(
                **parts,
                texts=Conditioning(texts, Sources(tensors[name] for name in places)),
                settings=settings,
            )
        except (KeyError, TypeError, ValueError) as error:
            raise DataError(f"the saved rollout is damaged: {error}") from error


_LISTS = ("prompts", "negatives", "seeds", "ids")
_OPTIONAL = ("negative_N",)
_TENSORS = ("group_N", "text_N", "final_NChw", "states_NPChw", "logp_NS", "mask_NS")
