from __future__ import annotations

import hashlib
import math
import sys
from collections.abc import Callable, Container, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from modules.dataLoader.mixin.DataLoaderMasksMixin import DataLoaderMasksMixin
from modules.dataLoader.mixin.DataLoaderTextsMixin import DataLoaderTextsMixin
from modules.dataLoader.samplers import MicroBatch
from modules.dataLoader.source import DataSource, UnitSet
from modules.model import memory
from modules.model.batch import ImageBatch, PairBatch, Sources
from modules.pipeline import Rules as ruling
from modules.pipeline.cache.CompleteSets import loaded_code
from modules.pipeline.cache.ContentCache import ContentCache
from modules.pipeline.cache.FileIndex import FileIndex
from modules.pipeline.Item import Item
from modules.pipeline.nodes import CachedTensors as naming
from modules.pipeline.nodes import PlanImage as planning
from modules.pipeline.nodes import transforms
from modules.pipeline.nodes.CachedTensors import CACHE_FORMAT, CachedTensors, content_key
from modules.pipeline.nodes.ChoosePrompt import ChoosePrompt
from modules.pipeline.nodes.conditioning import LoadCondition, PlanCondition, load_condition
from modules.pipeline.nodes.LoadPixels import LoadPixels
from modules.pipeline.nodes.masks import CellMask, Mask, MaskFromCells, PlanMask
from modules.pipeline.nodes.PlanImage import PlanImage
from modules.pipeline.nodes.sources import CachedSources, LoadSources, PlanSources, SourcePlan, load_source
from modules.pipeline.nodes.transforms import Transform
from modules.pipeline.Rules import Rules
from modules.util import bucket, rng

if TYPE_CHECKING:
    from modules.model.Model import Model
    from modules.modelSetup.BaseModelSetup import BaseModelSetup
    from modules.util.config.TrainConfig import TrainConfig


MASKS = 3
"""Number of masks that an image with cached latents uses in turn; each is another masked image to encode."""
_CODE = loaded_code([sys.modules[__name__], memory, naming, planning, ruling, transforms, bucket, rng])
"""Digest of the code that decides the keys of latents; ``None`` without the program's sources."""


@dataclass(frozen=True)
class EncodeTask:
    """One image to encode: its cache key, how to get its pixels, and which of them are hidden.

    Args:
        plan: plan of a source image; ``None`` for the result.
        condition: path of a picture shown instead of the masked image.
    """

    key: str
    side: str
    unit: int
    visit: int
    size: tuple[int, int]
    mask: Mask | CellMask | None = None
    plan: SourcePlan | None = None
    condition: str = ""


class DataLoaderText2ImageMixin(DataLoaderTextsMixin, DataLoaderMasksMixin):
    """Images and their prompts for text-to-image models: the modules, the cache keys, the batches.

    Uses the attributes of ``BaseDataLoader``.
    """

    model: Model
    setup: BaseModelSetup
    units: UnitSet
    source: DataSource
    rules: list[Rules]
    files: FileIndex
    latents: ContentCache | None
    texts: ContentCache | None
    trains_text: bool
    dataset: Any
    config: TrainConfig

    @property
    def masks(self) -> int:
        """Number of masks that an image uses in turn; 0 for a new one at every visit."""
        if self.units.dpo and self.config.rlhf_dpo_reference_cache:
            # cached scores belong to a single look of a pair
            return 1
        return 0 if self.latents is None else MASKS

    # -- pipeline ------------------------------------------------------------------------------------------

    _plans: dict[str, PlanImage]

    def modules(self) -> list[Any]:
        """The modules after the first one."""
        self._plans = {}
        return [*(self._side_modules(side) for side in self.sides), *self.pair_mask_modules()]

    def _side_modules(self, side: str) -> list[Any]:
        self._plans[side] = PlanImage(
            self.rules, self.files, side, cached=self.latents is not None, outlines=self.outlines()
        )
        made: list[Any] = [
            self._plans[side],
            LoadPixels(self.files, side),
            ChoosePrompt(self.rules, side, cached=self.texts is not None),
        ]
        if self.latents is not None:
            inputs, outputs = [f"{side}item", f"{side}transform"], (f"{side}latent_key", f"{side}latents")
            made.append(CachedTensors(inputs, self.latent_key, self.latents, *outputs))
        made += self.mask_modules()
        if self.setup.spec.inpainting:
            made.append(MaskFromCells(side) if self.masked else PlanMask(side, self.masks))
            shown = {name: found.mask for name, found in self.source.conditions.items()}
            made.append(PlanCondition(shown, self.masked, side))
            made += [LoadCondition(self.files, side)] if self.latents is None else []
        if self.setup.spec.inpainting and self.latents is not None:
            inputs, outputs = (
                [*inputs, f"{side}mask", f"{side}condition"],
                (f"{side}masked_key", f"{side}masked"),
            )
            made.append(CachedTensors(inputs, self.masked_key, self.latents, *outputs))
        if self.setup.spec.sources:
            made.append(PlanSources(self.rules, self.files, side))
            if self.latents is None or self.encodes_shown:
                made.append(LoadSources(self.files, side))
            if self.latents is not None:
                made.append(CachedSources(self.source_key, self.latents, side))
        return [*made, *self.text_modules(side)]

    def outputs(self) -> list[str]:
        """The fields of a dataset item."""
        names = ["item", "latents" if self.latents is not None else "pixels", *self.text_outputs()]
        if self.setup.spec.size_conditioning:
            names.append("geometry")
        if self.setup.spec.inpainting:
            names += ["mask", "condition_pixels"] if self.latents is None else ["mask", "masked"]
        if self.setup.spec.sources:
            names += ["source_pixels"] if self.latents is None or self.encodes_shown else []
            names += ["source_latents"] if self.latents is not None else []
        if self.masked:
            names.append("cells")
        of_pairs = ["there"] if self.units.dpo else []
        of_pairs += ["pair_mask"] if self.pairs_masked else []
        return ["name", *(f"{side}{name}" for side in self.sides for name in names), *of_pairs]

    # -- cache ---------------------------------------------------------------------------------------------

    def latent_identity(self) -> str:
        """Everything that latents depend on besides the image: the VAE's weights and config, and the scaling."""
        vae = self.model.fingerprint(self.setup.spec.vae)
        return content_key("vae", vae, repr(self.model.latent_scale), repr(self.model.latent_shift))

    def latent_key(self, item: Item, transform: Transform) -> str:
        """Digest of the file's content, its transform and the VAE."""
        return self._key_of(item.path, transform)

    def source_key(self, plan: SourcePlan) -> str:
        """As ``latent_key``, for a source image."""
        return self._key_of(plan.path, plan.transform)

    def _key_of(self, path: str, transform: Transform) -> str:
        parts = [self.latents_of, self.files.content(path), transform.text()]
        tiles = memory.tiling(self.model.vae, transform.size)
        return content_key(CACHE_FORMAT, "latents", "float32", *parts, *([tiles] if tiles else []))

    def masked_key(self, item: Item, transform: Transform, mask: Mask | CellMask, condition: str = "") -> str:
        """As ``latent_key``, for a masked image, or for the picture shown instead."""
        if condition:
            return content_key(
                "condition", self._key_of(condition, transform), repr(self.files.size(item.path))
            )
        return content_key("masked", self.latent_key(item, transform), mask.text())

    latents_of: str

    def latent_set(self) -> str | None:
        """Digest of all that decides which entries the images need; ``None`` where masks or other images do too."""
        spec = self.setup.spec
        if _CODE is None or spec.inpainting or spec.sources or self._outlines is not None:
            return None
        tiles = repr((memory.MOST_PIXELS, memory.TILE, memory.STRIDE))
        start = content_key(_CODE, self.latents_of, tiles, *self.sides, *map(repr, self.rules))
        made = hashlib.blake2b(start.encode(), digest_size=16)
        for entry in self.units.entries:
            for side in self.sides:
                item: Item = getattr(entry, side[:-1]) if side else entry
                width, height = self.files.size(item.path)
                line = f"{entry.id}\0{item.concept}\0{self.files.content(item.path)}\0{width}\0{height}\n"
                made.update(line.encode("utf-8", "surrogatepass"))
        return made.hexdigest()

    def encode_tasks(self, known: Container[str]) -> Iterator[EncodeTask | None]:
        """Yield every image of every variation; ``None`` for one that is known or has the same content as an
        earlier one.

        Args:
            known: keys that need no task.
        """
        begun: set[str] = set()
        for unit, entry in enumerate(self.units.entries):
            for side in self.sides:
                item: Item = getattr(entry, side[:-1]) if side else entry
                for visit in range(self._distinct_visits(item)):
                    for task in self._encoded(side, unit, visit, known):
                        if task is None or task.key in begun or task.key in known:
                            yield None
                        else:
                            begun.add(task.key)
                            yield task

    def _distinct_visits(self, item: Item) -> int:
        """Number of visits after which an image looks the same again."""
        variations = self.rules[item.concept].variations
        drawn = self.setup.spec.inpainting and not self.masked
        return math.lcm(variations, self.masks) if drawn else variations

    def _encoded(
        self, side: str, unit: int, visit: int, known: Container[str]
    ) -> Iterator[EncodeTask | None]:
        """Yield what is cached of a visit."""
        entry = self.units.entries[unit]
        item: Item = getattr(entry, side[:-1]) if side else entry
        # most of the time of a start without changes: computes what the pipeline would, without going
        # through it
        crop, transform = self._plans[side].plan(item, entry.id, visit)
        key = self.latent_key(item, transform)
        if not (self.setup.spec.inpainting or self.setup.spec.sources):
            yield None if key in known else EncodeTask(key, side, unit, visit, crop)
            return

        def get(name: str) -> Any:
            return self.dataset.pipeline.get(f"{side}{name}", visit, unit)

        task = EncodeTask(key, side, unit, visit, crop)
        yield task
        if self.setup.spec.inpainting and self.masked:
            own, white = self.both_masks(item, transform)
            found = self.source.conditions.get(item.id)
            for mask, condition in ((own, "" if found is None else found.mask), (white, "")):
                key = self.masked_key(item, transform, mask, condition)
                yield replace(task, key=key, mask=mask, condition=condition)
        elif self.setup.spec.inpainting:
            yield replace(task, key=get("masked_key"), mask=get("mask"), condition=get("condition"))
        if self.setup.spec.sources:
            for key, plan in zip(get("source_keys"), get("sources"), strict=True):
                yield replace(task, key=key, size=plan.transform.size, plan=plan)

    def pixels(self, task: EncodeTask) -> np.ndarray[Any, Any]:
        """(H, W, 3) of an image to encode, 0 to 255."""
        if task.plan is not None:
            return load_source(task.plan, self.files)
        if task.condition:
            item, transform = (
                self.dataset.pipeline.get(f"{task.side}{name}", task.visit, task.unit)
                for name in ("item", "transform")
            )
            return load_condition(task.condition, item, transform, self.files)
        pixels = self.dataset.pipeline.get(f"{task.side}pixels", task.visit, task.unit)
        return pixels if task.mask is None else task.mask.hide(pixels, self.model.latent_factor)

    def encode_images(self, pixels: Sequence[np.ndarray[Any, Any]]) -> torch.Tensor:
        """Encode (H, W, 3) images of one size, 0 to 255, to latents (B, C, h, w) on the CPU, float32.

        Each is encoded separately, because in a batch its last digits would depend on the other images.
        """
        return torch.cat([self._encode_image(one) for one in pixels])

    def _encode_image(self, pixels: np.ndarray[Any, Any]) -> torch.Tensor:
        rgb_1CHW = torch.from_numpy(pixels).permute(2, 0, 1)[None].float() / 255.0
        return self.setup.encode_image(self.model, rgb_1CHW).float().cpu()

    # -- batches -------------------------------------------------------------------------------------------

    def collate(
        self, items: Sequence[dict[str, Any]], micro: MicroBatch, size: tuple[int, int]
    ) -> ImageBatch | PairBatch:
        """Collate the items of a micro-batch into the input of the model.

        Args:
            size: (height, width) of their bucket.
        """
        visits = [visit for _, visit in micro.visits]
        encode = self.prompt_encoder()
        sides = [self._image_batch(items, visits, side, size, encode) for side in self.sides]
        if not self.units.dpo:
            return sides[0]
        there_B2 = torch.tensor([item["there"] for item in items])
        return PairBatch(
            [item["name"] for item in items],
            sides[0],
            sides[1],
            self.pair_masks(items),
            None if bool(there_B2.all()) else there_B2,
        )

    def _image_batch(
        self,
        items: Sequence[dict[str, Any]],
        visits: list[int],
        side: str,
        size: tuple[int, int],
        encode: Callable[..., dict[str, torch.Tensor]],
    ) -> ImageBatch:
        if self.latents is not None:
            latents_BChw = torch.stack([item[f"{side}latents"]["latents"] for item in items])
        else:
            with self.on_device(self.setup.spec.vae):
                latents_BChw = self.encode_images([item[f"{side}pixels"] for item in items])
        inpaint_BChw = self._inpaint(items, side, latents_BChw) if self.setup.spec.inpainting else None
        geometry_B6 = None
        if self.setup.spec.size_conditioning:
            geometry_B6 = torch.tensor([item[f"{side}geometry"] for item in items], dtype=torch.float32)
        rules = [self.rules[item[f"{side}item"].concept] for item in items]
        prior = torch.tensor([own.is_prior for own in rules])
        return ImageBatch(
            latents_BChw=latents_BChw,
            cond=self.conditioning(items, side, encode),
            prompts=[item[f"{side}prompt"] for item in items],
            ids=[item[f"{side}item"].id for item in items],
            visits=list(visits),
            size=size,
            loss_weight_B=torch.tensor([own.loss_weight for own in rules], dtype=torch.float32),
            prior_B=prior if bool(prior.any()) else None,
            geometry_B6=geometry_B6,
            inpaint_BChw=inpaint_BChw,
            sources=self._sources(items, side) if self.setup.spec.sources else Sources(),
            seen=self.seen(items, side),
            blank=self.blank(items, side),
            loss_mask_B1hw=self.loss_masks(items),
        )

    def _sources(self, items: Sequence[dict[str, Any]], side: str) -> Sources:
        """Latents of the source images. All items have the same number, of the same sizes."""
        if self.latents is not None:
            rows = [item[f"{side}source_latents"] for item in items]
        else:
            with self.on_device(self.setup.spec.vae):
                rows = [
                    [self.encode_images([pixels])[0] for pixels in item[f"{side}source_pixels"]]
                    for item in items
                ]
        return Sources(torch.stack(place) for place in zip(*rows, strict=True))

    def _inpaint(
        self, items: Sequence[dict[str, Any]], side: str, latents_BChw: torch.Tensor
    ) -> torch.Tensor:
        """Masks and latents of the masked images, (B, 1 + C, h, w)."""
        masks: list[Mask | CellMask] = [item[f"{side}mask"] for item in items]
        if self.latents is not None:
            masked_BChw = torch.stack([item[f"{side}masked"]["latents"] for item in items])
        else:
            factor = self.model.latent_factor
            shown = [item[f"{side}condition_pixels"] for item in items]
            pixels = [
                mask.hide(item[f"{side}pixels"], factor) if picture is None else picture
                for item, mask, picture in zip(items, masks, shown, strict=True)
            ]
            with self.on_device(self.setup.spec.vae):
                masked_BChw = self.encode_images(pixels)
        cells_Bhw = torch.from_numpy(np.stack([mask.cells(*latents_BChw.shape[-2:]) for mask in masks]))
        return torch.cat([cells_Bhw[:, None].float(), masked_BChw], dim=1)
