"""Decodes and resizes images ahead of time, in threads, into a cache with a byte limit."""

from __future__ import annotations

import threading
import tkinter as tk
from collections import OrderedDict
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from PIL import Image, ImageChops, ImageOps

from modules.ui.widgets.tk_support import Pump
from modules.util.errors import UserError
from modules.util.pairs.decoding import IMAGE_ERRORS
from modules.util.pairs.grey_levels import eight_bits, is_deep

Box = tuple[int, int]


@dataclass(frozen=True)
class Compared:
    """An image compared with its source.

    Args:
        source: the image it was made from.
        difference: show the absolute difference of their pixels; otherwise the source at the image's size.
    """

    path: Path
    source: Path
    difference: bool = False

    @property
    def name(self) -> str:
        """Name of the file shown."""
        return self.path.name if self.difference else self.source.name


@dataclass(frozen=True)
class Masked:
    """An image overlaid with its mask: black areas of the mask are covered in red, white ones stay visible.

    Args:
        mask: the mask, of any size.
    """

    path: Path
    mask: Path

    @property
    def name(self) -> str:
        """Name of the file shown."""
        return self.path.name


Shown = Path | Compared | Masked
Key = tuple[Shown, Box | None]

DEFAULT_BUDGET = 384 * 2**20
COVER, COVERING = (200, 30, 40), 0.65
"""Overlay of masked areas: colour and opacity."""
BACKGROUND = (96, 96, 96)
"""Background of transparent pixels."""


class ImagePrefetcher:
    """Provides images fitted into boxes, decoded before they are needed.

    ``want`` lists what is likely to be shown next, most urgent first. It replaces the previous list, so that
    a fast person leaves no queue behind. A box of ``None`` means the original size, for zooming.

    Args:
        ready: called from a worker thread with the key of each image that was decoded (or failed).
        workers: number of decoding threads.
        budget: bytes of pixels to keep; the least recently used are dropped first.
    """

    def __init__(self, ready: Callable[[Key], None], workers: int = 2, budget: int = DEFAULT_BUDGET) -> None:
        self._ready = ready
        self._budget = budget
        self._cache: OrderedDict[Key, Image.Image] = OrderedDict()
        self._bytes = 0
        self._failed: dict[Shown, str] = {}
        self._epoch = 0
        self._wanted: list[Key] = []
        self._running: set[Key] = set()
        self._condition = threading.Condition()
        self._closed = False
        self._threads = [
            threading.Thread(target=self._work, daemon=True, name=f"prefetch-{i}") for i in range(workers)
        ]
        for thread in self._threads:
            thread.start()

    def want(self, keys: Iterable[Key]) -> None:
        """Replace the list of images to decode, most urgent first.

        Only as much as fits the budget is decoded ahead; otherwise the last would evict the first.
        """
        taken: list[Key] = []
        expected = 0
        for key in dict.fromkeys(keys):
            expected += key[1][0] * key[1][1] * 3 if key[1] is not None else 4 * 2**20 * 3
            if taken and expected > self._budget:
                break
            taken.append(key)
        with self._condition:
            self._wanted = [k for k in taken if k not in self._cache and k[0] not in self._failed]
            for key in reversed(taken):
                if key in self._cache:
                    self._cache.move_to_end(key)
            self._condition.notify_all()

    def get(self, path: Shown, box: Box | None) -> Image.Image | None:
        """The image if it is decoded; never waits."""
        with self._condition:
            image = self._cache.get((path, box))
            if image is not None:
                self._cache.move_to_end((path, box))
            return image

    def get_now(self, path: Shown, box: Box | None) -> Image.Image | None:
        """The image, decoded synchronously if needed; ``None`` if it cannot be read (see ``failure``)."""
        return self.get(path, box) or self._load((path, box))

    def forget_all(self) -> None:
        """Drop everything decoded or being decoded, because the files have changed."""
        with self._condition:
            self._cache.clear()
            self._bytes = 0
            self._failed.clear()
            self._epoch += 1

    def failure(self, path: Shown) -> str | None:
        """Return the reason why an image cannot be shown, if decoding failed."""
        return self._failed.get(path)

    def close(self) -> None:
        """Stop the threads, waiting for decodes in progress."""
        with self._condition:
            self._closed = True
            self._wanted = []
            self._condition.notify_all()
        for thread in self._threads:
            thread.join(timeout=5)

    def _next(self) -> Key | None:
        with self._condition:
            while True:
                if self._closed:
                    return None
                for index, key in enumerate(self._wanted):
                    if key not in self._running:
                        del self._wanted[index]
                        self._running.add(key)
                        return key
                self._condition.wait()

    def _work(self) -> None:
        while (key := self._next()) is not None:
            if key not in self._cache:
                self._load(key)
            with self._condition:
                self._running.discard(key)
                closed = self._closed
            if not closed:
                self._ready(key)

    def _load(self, key: Key) -> Image.Image | None:
        path, box = key
        epoch = self._epoch
        try:
            image = load_shown(path, box)
        except (*IMAGE_ERRORS, UserError) as error:
            if epoch == self._epoch:
                self._failed[path] = str(error) or type(error).__name__
            return None
        with self._condition:
            if epoch != self._epoch:
                return None
            old = self._cache.pop(key, None)
            self._bytes += _size(image) - (0 if old is None else _size(old))
            self._cache[key] = image
            while self._bytes > self._budget and len(self._cache) > 1:
                _, dropped = self._cache.popitem(last=False)
                self._bytes -= _size(dropped)
        return image


def prefetcher_of(
    owner: tk.Misc, pump: Pump, arrived: Callable[[Shown], object], budget: int, workers: int = 2
) -> ImagePrefetcher:
    """Make a prefetcher for a widget, which ends with it.

    Args:
        arrived: called on the Tk thread with each image that was decoded (or failed).
    """

    def tell(key: Key) -> None:
        if owner.winfo_exists():
            arrived(key[0])

    made = ImagePrefetcher(lambda key: pump.post(lambda: tell(key)), workers, budget)
    owner.bind("<Destroy>", lambda event: made.close() if event.widget is owner else None, add="+")
    return made


def load_shown(shown: Shown, box: Box | None) -> Image.Image:
    """Load what is to be shown, fitted and raising as ``load_fitted``."""
    if isinstance(shown, Compared):
        return load_compared(shown, box)
    return load_masked(shown, box) if isinstance(shown, Masked) else load_fitted(shown, box)


def load_masked(masked: Masked, box: Box | None) -> Image.Image:
    """Load an image overlaid with its mask, which is read as in training.

    Raises:
        DataError: the mask cannot be read.
    """
    from modules.tools.dataset.masking import opened_mask

    image = load_fitted(masked.path, box)
    mask = opened_mask(masked.mask).resize(image.size, Image.Resampling.BILINEAR)
    hidden = mask.point(lambda level: round((255 - level) * COVERING))
    return Image.composite(Image.new("RGB", image.size, COVER), image, hidden)


def load_fitted(path: Path, box: Box | None) -> Image.Image:
    """Load an image as upright RGB, scaled up or down to fit ``box`` (width, height).

    JPEG is decoded at a fraction of its size if that suffices.

    Raises:
        OSError, ValueError, SyntaxError, Image.DecompressionBombError: the image is not readable.
    """
    with Image.open(path) as opened:
        turned = opened.format == "JPEG" and opened.getexif().get(0x0112, 1) >= 5
        if box is not None and opened.format == "JPEG":
            width, height = reversed(opened.size) if turned else opened.size
            size = fit((width, height), box)
            opened.draft("RGB", (size[1], size[0]) if turned else size)
        image = _to_rgb(opened)
        image = ImageOps.exif_transpose(image)
    if box is None:
        return image
    size = fit(image.size, box)
    return image if image.size == size else image.resize(size, Image.Resampling.BICUBIC, reducing_gap=2.0)


def load_compared(compared: Compared, box: Box | None) -> Image.Image:
    """Load an image's source at the image's scale, or their absolute difference, fitted as in
    ``load_fitted``.

    A source of another shape is shown uncropped; for the difference, its centre is used.

    Raises:
        OSError, ValueError, SyntaxError, Image.DecompressionBombError: one of the images is not readable.
    """
    image, source = load_fitted(compared.path, box), load_fitted(compared.source, None)
    if not compared.difference:
        return source.resize(fit(source.size, image.size), Image.Resampling.BICUBIC, reducing_gap=2.0)
    return ImageChops.difference(image, ImageOps.fit(source, image.size, Image.Resampling.BICUBIC))


def fit(size: Box, box: Box) -> Box:
    """The largest size with the same aspect ratio inside ``box``, at least one pixel each way."""
    scale = min(box[0] / size[0], box[1] / size[1])
    return max(1, round(size[0] * scale)), max(1, round(size[1] * scale))


def _to_rgb(image: Image.Image) -> Image.Image:
    image.load()
    if image.mode == "RGB":
        return image
    if is_deep(image):
        return Image.fromarray(eight_bits(image)).convert("RGB")
    if image.mode in ("RGBA", "LA", "PA") or "transparency" in image.info:
        layer = image.convert("RGBA")
        under = Image.new("RGB", layer.size, BACKGROUND)
        under.paste(layer, mask=layer.getchannel("A"))
        return under
    return image.convert("RGB")


def _size(image: Image.Image) -> int:
    return image.width * image.height * 3
