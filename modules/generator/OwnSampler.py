"""The program's own sampler, in a separate process."""

from __future__ import annotations

import base64
import json
import sys
from collections.abc import Generator as Stream
from collections.abc import Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

from modules.generator.Generator import Description, Generator, ImageRequest, MadeImage, check_adapter
from modules.runner.LineProcess import LineProcess
from modules.util.enum.choices import NoiseScheduler
from modules.util.errors import DataError, UserError
from modules.util.jsonio import parse_json
from modules.util.owned_files import shown
from modules.util.program_files import ROOT

PIXELS_AT_ONCE = 4 * 512 * 512
MOST_AT_ONCE = 16
_SETTINGS = {
    "negative": "negative_prompt", "width": "width", "height": "height", "steps": "diffusion_steps", "cfg": "cfg_scale",
    "sampler": "noise_scheduler",
}  # fmt: skip


class OwnSampler(Generator):
    """Images made by ``scripts/sample.py``. The same seed starts from the same noise with and without an
    adapter.

    Args:
        settings: ``model_type``, ``base`` (a folder, a file or a hub name) and ``device``.
    """

    takes_sources = True

    def __init__(self, settings: Mapping[str, Any]) -> None:
        self._type, self._base = str(settings["model_type"]), str(settings["base"])
        self._device = str(settings.get("device", "auto"))
        self._process: LineProcess | None = None

    def describe(self) -> Description:
        samplers = tuple(one.value for one in NoiseScheduler)
        return Description("Tastemaker's sampler", "", (self._base,), (), samplers)

    def cancel(self) -> None:
        if self._process is not None:
            self._process.end()
            self._process = None

    def refresh_adapters(self) -> None:
        """Do nothing: adapters are named by their files, so there is no list."""

    def check(self, requests: Sequence[ImageRequest]) -> None:
        looks_like_a_path = Path(self._base).is_absolute() or self._base.endswith(".safetensors")
        if looks_like_a_path and not Path(self._base).exists():
            raise DataError(
                f"there is no base model {shown(self._base)} on this computer",
                "--base-model",
                "taste.py new DIR --base-model M says where it is",
            )
        for adapter in {request.adapter for request in requests if request.adapter is not None}:
            check_adapter(adapter)

    def generate(self, requests: Sequence[ImageRequest]) -> Stream[MadeImage, None, None]:
        numbered = list(enumerate(requests))
        for _, found in groupby(
            numbered, key=lambda one: (one[1].adapter, one[1].strength, one[1].source_resolution)
        ):
            group = list(found)
            yield from self._run([request for _, request in group], [number for number, _ in group])

    def _run(self, requests: list[ImageRequest], numbers: list[int]) -> Stream[MadeImage, None, None]:
        """Make images of requests that differ in nothing that the program is told once."""
        first = requests[0]
        command = [sys.executable, str(ROOT / "scripts" / "sample.py"), "--requests", "-"]
        command += ["--model", self._base, "--model-type", self._type, "--device", self._device]
        command += ["--batch-size", str(_at_once(first))]
        if first.adapter is not None:
            command += ["--adapter", str(first.adapter), "--strength", str(first.strength)]
        if first.source_resolution is not None:
            command += ["--source-resolution", str(first.source_resolution)]
        lines = "".join(json.dumps(_sample(request)) + "\n" for request in requests)
        self._process = LineProcess(command, lines.encode(), "the sampler")
        try:
            for line in self._process.lines():
                said = parse_json(line, "line of the sampler")
                try:
                    yield MadeImage(numbers[said["number"]], base64.b64decode(said["png"], validate=True))
                except (KeyError, TypeError, IndexError, ValueError) as error:
                    raise UserError("the sampler printed something that is not an image") from error
        finally:
            self.cancel()


def _at_once(request: ImageRequest) -> int:
    pixels = (request.width or 1024) * (request.height or 1024)
    return max(1, min(MOST_AT_ONCE, PIXELS_AT_ONCE // pixels))


def _sample(request: ImageRequest) -> dict[str, Any]:
    made: dict[str, Any] = {"prompt": request.prompt, "seed": request.seed}
    if request.sources:
        made["source_path"] = str(request.sources[0])
    return made | {
        name: value for field, name in _SETTINGS.items() if (value := getattr(request, field)) is not None
    }
