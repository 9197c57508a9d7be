"""Data passed between the data loader, the model setup and the trainer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import TypeVar

import torch

Index = slice | Sequence[int] | torch.Tensor
_T = TypeVar("_T", bound="_Batched")
_STAYS = "stays on the CPU"
"""Mark of a field of a batch that is only read on the CPU."""


def _pick(value: object, index: Index) -> object:
    """The samples ``index`` of a tensor or list; anything that is not per sample is returned unchanged."""
    if isinstance(value, torch.Tensor):
        if isinstance(index, slice):
            return value[index]
        return value[torch.as_tensor(index, device=value.device)]
    if isinstance(value, list):
        if isinstance(index, slice):
            return value[index]
        return [value[i] for i in torch.as_tensor(index).tolist()]
    if isinstance(value, Sources):
        return Sources(_pick(tensor, index) for tensor in value)  # type: ignore[misc]
    return value.select(index) if isinstance(value, _Batched) else value


def to_device(
    tensor: torch.Tensor, device: torch.device | str, dtype: torch.dtype | None = None
) -> torch.Tensor:
    """Move ``tensor`` to ``device``, with ``dtype`` if it is a floating-point tensor.

    Copies to another device are asynchronous, because work there waits for them. Copies to the CPU are
    complete on return.
    """
    wanted = dtype if dtype is not None and tensor.is_floating_point() else tensor.dtype
    place = torch.device(device)
    if place.type == "cuda" and tensor.device.type == "cpu":
        # from other memory, a copy of more than a few kilobytes waits until the device has nothing left to do
        tensor = tensor.to(wanted).pin_memory()
    return tensor.to(device=place, dtype=wanted, non_blocking=place.type != "cpu")


class Sources(tuple[torch.Tensor, ...]):
    """Latents of source images, (B, C, h, w) each: the first ones of all samples, the second ones, ...

    All samples have the same number. Those with the same index have the same size; indices may differ in
    size.
    """

    def to(self, device: torch.device | str, dtype: torch.dtype | None = None) -> Sources:
        return Sources(to_device(tensor, device, dtype) for tensor in self)

    def same_as(self, other: Sources) -> bool:
        """Return whether the images are equal, number for number."""
        return len(self) == len(other) and all(map(torch.equal, self, other))

    @staticmethod
    def cat(parts: Sequence[Sources]) -> Sources:
        """Concatenate along the batch."""
        shapes = [[tensor.shape[1:] for tensor in part] for part in parts]
        if any(other != shapes[0] for other in shapes):
            raise ValueError(f"samples with different source images in one batch: {shapes}")
        return Sources(torch.cat(tensors) for tensors in zip(*parts, strict=True))


NO_SOURCES = Sources()


@dataclass(frozen=True)
class _Batched:
    """Base of dataclasses whose tensors and lists are batch-first: selecting, concatenating and moving."""

    def select(self: _T, index: Index) -> _T:
        """The samples ``index`` (a slice or a list of positions), in that order."""
        return replace(self, **{f.name: _pick(getattr(self, f.name), index) for f in fields(self)})

    def to(self: _T, device: torch.device | str, dtype: torch.dtype | None = None) -> _T:
        """Move everything but what stays on the CPU; floating-point tensors get ``dtype`` if given."""
        moved: dict[str, torch.Tensor | _Batched | Sources] = {}
        for f in fields(self):
            value = None if _STAYS in f.metadata else getattr(self, f.name)
            if isinstance(value, torch.Tensor):
                moved[f.name] = to_device(value, device, dtype)
            elif isinstance(value, (_Batched, Sources)):
                moved[f.name] = value.to(device, dtype)
        return replace(self, **moved)


@dataclass(frozen=True)
class Conditioning(_Batched):
    """An encoded prompt: named tensors, batch-first, all with the same B (``hidden_BLE``).

    The names depend on the model family. If prompts keep their own lengths, ``mask_BL`` (bool) marks the
    tokens that count, and everything whose name ends in ``_BL`` or ``_BLE`` is padded with zeros.

    If they usually have the same length, there is no mask: rows of different lengths are padded when they are
    stacked, and only such a batch has ``own_BL`` (bool), which marks the tokens that belong to a row.

    ``sources`` are the clean latents of source images. Rows of ``unbind`` contain only the prompts, without
    sources. ``lengths`` are the numbers of tokens that ``mask_BL`` marks in each sample; ``None``
    if they are not known without reading the mask.
    """

    tensors: dict[str, torch.Tensor]
    sources: Sources = NO_SOURCES
    lengths: tuple[int, ...] | None = None

    def __post_init__(self) -> None:
        if not self.tensors:
            raise ValueError("a conditioning needs at least one tensor")
        sizes = {name: tensor.shape[0] for name, tensor in self.tensors.items()}
        sizes |= {f"source {number}": tensor.shape[0] for number, tensor in enumerate(self.sources, 1)}
        if len(set(sizes.values())) > 1:
            raise ValueError(f"conditioning tensors differ in batch size: {sizes}")

    def __len__(self) -> int:
        return next(iter(self.tensors.values())).shape[0]

    def __getitem__(self, name: str) -> torch.Tensor:
        return self.tensors[name]

    def tokens(self) -> tuple[int, ...]:
        """The number of tokens that ``mask_BL`` marks in each sample."""
        return _lengths(self[MASK]) if self.lengths is None else self.lengths

    def mask_if_needed(self) -> torch.Tensor | None:
        """``mask_BL``, or ``None`` if it marks every token: attention is faster without a mask."""
        mask_BL = self[MASK]
        return None if set(self.tokens()) <= {mask_BL.shape[1]} else mask_BL

    def select(self, index: Index) -> Conditioning:
        """The samples ``index``, in that order. On the CPU, where reading lengths is free, unneeded padding
        is removed.
        """
        picked = {name: _pick(tensor, index) for name, tensor in self.tensors.items()}
        sources = _pick(self.sources, index)
        lengths = self._lengths_of(index)
        return Conditioning(_without_common_padding(picked), sources, lengths)  # type: ignore[arg-type]

    def _lengths_of(self, index: Index) -> tuple[int, ...] | None:
        if self.lengths is None or (isinstance(index, torch.Tensor) and index.device.type != "cpu"):
            return None
        if isinstance(index, slice):
            return self.lengths[index]
        return tuple(self.lengths[i] for i in torch.as_tensor(index).tolist())

    def to(self, device: torch.device | str, dtype: torch.dtype | None = None) -> Conditioning:
        tensors = {name: to_device(tensor, device, dtype) for name, tensor in self.tensors.items()}
        lengths, mask_BL = self.lengths, self.tensors.get(MASK)
        if lengths is None and mask_BL is not None and mask_BL.device.type == "cpu":
            # on the device, the CPU would have to wait for them
            lengths = _lengths(mask_BL)
        return Conditioning(tensors, self.sources.to(device, dtype), lengths)

    @staticmethod
    def cat(parts: Sequence[Conditioning]) -> Conditioning:
        """Concatenate along the batch. Names and the other dimensions must agree."""
        names = [sorted(set(part.tensors) - {OWN}) for part in parts]
        if any(other != names[0] for other in names):
            raise ValueError(f"conditionings with different tensors cannot be joined: {names}")
        if len(parts) == 1:
            return parts[0]
        padded = _padded([part.tensors for part in parts], axis=1)
        joined = {name: torch.cat([tensors[name] for tensors in padded]) for name in padded[0]}
        known = [part.lengths for part in parts if part.lengths is not None]
        lengths = sum(known, ()) if len(known) == len(parts) else None
        return Conditioning(joined, Sources.cat([part.sources for part in parts]), lengths)

    def plus(self, **tensors: torch.Tensor) -> Conditioning:
        """A copy with additional tensors."""
        return Conditioning({**self.tensors, **tensors}, self.sources, None if MASK in tensors else self.lengths)

    def editing(self, sources: Sources) -> Conditioning:
        """A copy with source images."""
        return Conditioning(self.tensors, sources, self.lengths)

    def unbind(self) -> list[dict[str, torch.Tensor]]:
        """The samples one by one, without the batch axis and, if there is a mask, without the padding after
        their last token. ``own_BL``, which depends on the batch, is left out.
        """
        rows = [{name: tensor[i] for name, tensor in self.tensors.items()} for i in range(len(self))]
        for row in rows:
            mask = row.pop(OWN, row.get(MASK))
            if mask is not None:
                used = mask.nonzero()
                length = int(used[-1]) + 1 if len(used) else 1
                row.update({name: row[name][:length] for name in row if has_tokens(name)})
        return rows

    @staticmethod
    def stack(rows: Sequence[Mapping[str, torch.Tensor]]) -> Conditioning:
        """The inverse of ``unbind``: pads samples with zeros to the longest and stacks them."""
        padded = _padded(rows, axis=0)
        return Conditioning({name: torch.stack([row[name] for row in padded]) for name in padded[0]})


MASK = "mask_BL"
OWN = "own_BL"


def _lengths(mask_BL: torch.Tensor) -> tuple[int, ...]:
    return tuple(mask_BL.sum(dim=1).tolist())


def has_tokens(name: str) -> bool:
    """Return whether the axis after the batch is the token axis."""
    return name.endswith(("_BL", "_BLE"))


def _padded(parts: Sequence[Mapping[str, torch.Tensor]], axis: int) -> list[dict[str, torch.Tensor]]:
    """Pad token axes with zeros at the end to the longest. If lengths differ without a mask, add one."""
    made = [dict(part) for part in parts]
    key = next((name for name in (MASK, *made[0]) if name in made[0] and has_tokens(name)), None)
    if key is None:
        return made
    longest = max(part[key].shape[axis] for part in made)
    if MASK not in made[0] and any(OWN in part or part[key].shape[axis] < longest for part in made):
        for part in made:
            shape, device = part[key].shape[: axis + 1], part[key].device
            part.setdefault(OWN, torch.ones(shape, dtype=torch.bool, device=device))
    for part in made:
        missing = longest - part[key].shape[axis]
        for name in part if missing else ():
            if has_tokens(name):
                behind = part[name].dim() - axis - 1
                part[name] = torch.nn.functional.pad(part[name], (0, 0) * behind + (0, missing))
    return made


def _without_common_padding(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    own_BL = tensors.get(OWN)
    if own_BL is None or own_BL.device.type != "cpu" or not len(own_BL):
        return tensors
    longest = int(own_BL.sum(1).max())
    made = {name: tensor[:, :longest] if has_tokens(name) else tensor for name, tensor in tensors.items()}
    if bool(made[OWN].all()):
        del made[OWN]
    return made


@dataclass(frozen=True)
class NoiseDraw(_Batched):
    """One explicit draw of everything random in a denoising step.

    Args:
        timestep_B: int64 in [0, T) for discrete schedules, float32 in [0, 1000) for flow matching.
        noise_BChw: float32, the noise that the model has to find.
        perturbation_BChw: float32, added to the noise of the model's input only, not to its target; ``None``
            without perturbation.
        drop_caption_B: bool, which samples are trained with the empty prompt; ``None`` for none of them. It
            stays on the CPU, where prompts are chosen.
    """

    timestep_B: torch.Tensor
    noise_BChw: torch.Tensor
    perturbation_BChw: torch.Tensor | None = None
    drop_caption_B: torch.Tensor | None = field(default=None, metadata={_STAYS: True})

    def __len__(self) -> int:
        return self.timestep_B.shape[0]

    @staticmethod
    def cat(parts: Sequence[NoiseDraw]) -> NoiseDraw:
        """Concatenate along the batch."""
        joined = {}
        for f in fields(NoiseDraw):
            values = [getattr(part, f.name) for part in parts]
            present = [value for value in values if value is not None]
            if present and len(present) != len(values):
                raise ValueError(f"some draws have {f.name} and others have not")
            joined[f.name] = torch.cat(present) if present else None
        return NoiseDraw(**joined)  # type: ignore[arg-type]


@dataclass(frozen=True)
class ImageBatch(_Batched):
    """B images of one bucket.

    Args:
        latents_BChw: float32, scaled for the denoiser.
        cond: the encoded prompts; ``None`` if the text encoder is trained and encodes them in every pass.
        prompts: B texts.
        ids: B stable ids of the items, the same on every machine; they key the noise.
        visits: number of earlier visits of each item in this run; they key the noise too.
        size: (height, width) of the images in pixels.
        loss_weight_B: float32 weight of each sample.
        geometry_B6: float32 (height, width, crop top, crop left, target height, target width) in pixels of
            each image, for models that are told; ``None`` stands for uncropped images of ``size``.
        inpaint_BChw: float32 mask (1 where to paint) and latents of the image without the masked area, (B, 1
            + C, h, w), for models that see them; ``None`` means that everything is masked.
        loss_mask_B1hw: float32 from 0 to 1, how much each cell is learned; ``None`` learns all of them.
        prior_B: bool, which samples have the untouched model's prediction as their target; ``None`` for none.
        sources: clean latents of source images, for models that see them; empty for none.
        seen: their pixels, (B, 3, H, W) uint8 each, for text encoders that see them in every pass; empty if
            ``cond`` includes their states.
        blank: conditioning of the empty prompt with the source images, for models whose text encoder sees
            them; ``None`` if no caption is dropped.
    """

    latents_BChw: torch.Tensor
    cond: Conditioning | None
    prompts: list[str]
    ids: list[str]
    visits: list[int]
    size: tuple[int, int]
    loss_weight_B: torch.Tensor
    prior_B: torch.Tensor | None = None
    geometry_B6: torch.Tensor | None = None
    inpaint_BChw: torch.Tensor | None = None
    sources: Sources = NO_SOURCES
    seen: Sources = NO_SOURCES
    blank: Conditioning | None = None
    loss_mask_B1hw: torch.Tensor | None = None

    def __post_init__(self) -> None:
        counts = {
            "latents_BChw": self.latents_BChw.shape[0],
            "prompts": len(self.prompts),
            "ids": len(self.ids),
            "visits": len(self.visits),
            "loss_weight_B": self.loss_weight_B.shape[0],
        }
        counts |= {name: len(one) for name in ("cond", "blank") if (one := getattr(self, name)) is not None}
        for name in ("prior_B", "geometry_B6", "inpaint_BChw", "loss_mask_B1hw"):
            if getattr(self, name) is not None:
                counts[name] = getattr(self, name).shape[0]
        counts |= {f"source {number}": tensor.shape[0] for number, tensor in enumerate(self.sources, 1)}
        counts |= {f"seen {number}": tensor.shape[0] for number, tensor in enumerate(self.seen, 1)}
        if len(set(counts.values())) > 1:
            raise ValueError(f"a batch whose parts differ in length: {counts}")

    def __len__(self) -> int:
        return self.latents_BChw.shape[0]

    @staticmethod
    def cat(parts: Sequence[ImageBatch]) -> ImageBatch:
        """Concatenate batches of one size."""
        if len({part.size for part in parts}) > 1:
            raise ValueError(f"images of different sizes in one batch: {sorted({p.size for p in parts})}")
        return ImageBatch(
            latents_BChw=torch.cat([part.latents_BChw for part in parts]),
            cond=_cat_conds([part.cond for part in parts]),
            prompts=[prompt for part in parts for prompt in part.prompts],
            ids=[name for part in parts for name in part.ids],
            visits=[visit for part in parts for visit in part.visits],
            size=parts[0].size,
            loss_weight_B=torch.cat([part.loss_weight_B for part in parts]),
            prior_B=_cat_flags([part.prior_B for part in parts], [len(part) for part in parts]),
            geometry_B6=_cat_known([part.geometry_B6 for part in parts], "the geometry of their images"),
            inpaint_BChw=_cat_known([part.inpaint_BChw for part in parts], "what is masked"),
            sources=Sources.cat([part.sources for part in parts]),
            seen=Sources.cat([part.seen for part in parts]),
            blank=_cat_conds([part.blank for part in parts]),
            loss_mask_B1hw=_cat_known([part.loss_mask_B1hw for part in parts], "what is learned from them"),
        )


def _cat_conds(conds: Sequence[Conditioning | None]) -> Conditioning | None:
    """The conditionings of concatenated batches. Either all or none of them must have one."""
    known = [cond for cond in conds if cond is not None]
    if known and len(known) != len(conds):
        raise ValueError("some batches are encoded and others are not")
    return Conditioning.cat(known) if known else None


def _cat_known(tensors: Sequence[torch.Tensor | None], what: str) -> torch.Tensor | None:
    """A tensor of concatenated batches. Either all or none of them must have it."""
    known = [tensor for tensor in tensors if tensor is not None]
    if known and len(known) != len(tensors):
        raise ValueError(f"some batches know {what} and others do not")
    return torch.cat(known) if known else None


def _cat_flags(flags: Sequence[torch.Tensor | None], counts: Sequence[int]) -> torch.Tensor | None:
    """Flags of concatenated batches; ``None`` counts as false for all."""
    if all(flag is None for flag in flags):
        return None
    made = [torch.zeros(n, dtype=torch.bool) if f is None else f for f, n in zip(flags, counts, strict=True)]
    device = next(flag.device for flag in flags if flag is not None)
    return torch.cat([flag.to(device) for flag in made])


@dataclass(frozen=True)
class PairBatch(_Batched):
    """B pairs of one bucket: image i of ``chosen`` was preferred to image i of ``rejected``.

    ``pair_ids`` are stable ids; with the visits of the chosen side they key the noise. ``rejected`` is
    ``None`` only if the loader failed to deliver it, which the loss refuses. ``mask_B1hw`` is how much each
    cell of both images counts, float32 from 0 to 1; ``None`` counts all of them. ``sides_B2`` is which of the
    sides (chosen, rejected) have an image, bool on the CPU, ``None`` for all; what stands on a side without
    one is only there to be skipped.
    """

    pair_ids: list[str]
    chosen: ImageBatch
    rejected: ImageBatch | None
    mask_B1hw: torch.Tensor | None = None
    sides_B2: torch.Tensor | None = field(default=None, metadata={_STAYS: True})

    def __post_init__(self) -> None:
        if len(self.pair_ids) != len(self.chosen):
            raise ValueError(f"{len(self.pair_ids)} pair ids for {len(self.chosen)} chosen images")
        if self.rejected is not None and len(self.rejected) != len(self.chosen):
            raise ValueError(f"{len(self.chosen)} chosen but {len(self.rejected)} rejected images")
        if self.mask_B1hw is not None and len(self.mask_B1hw) != len(self.chosen):
            raise ValueError(f"{len(self.mask_B1hw)} masks for {len(self.chosen)} pairs")
        if self.sides_B2 is not None and self.sides_B2.shape != (len(self.chosen), 2):
            raise ValueError(f"sides of shape {tuple(self.sides_B2.shape)} for {len(self.chosen)} pairs")

    def both_sides(self) -> tuple[ImageBatch, ImageBatch]:
        """The chosen and the rejected images. Raises ``RuntimeError`` if the rejected ones are missing."""
        if self.rejected is None:
            raise RuntimeError(f"pair {self.pair_ids[0]} came without its rejected latents")
        return self.chosen, self.rejected

    def __len__(self) -> int:
        return len(self.pair_ids)
