"""The making of an image: model, sampler and settings, as recorded by the program that made it."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from modules.util.enum.choices import NoiseScheduler
from modules.util.image_metadata.containers.fields import Fields
from modules.util.image_metadata.containers.source import Source
from modules.util.image_metadata.formats.a1111 import looks_like_a1111, settings_text
from modules.util.image_metadata.formats.comfy import is_graph
from modules.util.image_metadata.formats.comfy_makers import MakerWalk
from modules.util.image_metadata.formats.comfy_values import Budget, parse_graph
from modules.util.image_metadata.formats.found import COMFYUI, load_json
from modules.util.image_metadata.limits import Unusable
from modules.util.image_metadata.reader import open_fields

_NAMES = (
    "parameters",
    "prompt",
    "invokeai_metadata",
    "sd-metadata",
    "Comment",
    "generation_data",
    "parameters-json",
)
_EXIF = ("usercomment", "imagedescription", "make", "model")
_SETTING = re.compile(r'([A-Z][\w /.-]{0,60}): ?("(?:[^"\\]|\\.){0,4000}"|[^,\n]{0,400})')
_MODELS = (
    "model_weights",
    "model",
    "base_model",
    "Model",
    "model_name",
    "sd_model_name",
    "use_stable_diffusion_model",
)
_SAMPLERS = ("sampler", "Sampler", "sampler_name", "scheduler")
_SCHEDULES = ("Schedule type", "scheduler")
_STEPS = ("steps", "Steps", "num_inference_steps")
_SCALES = ("cfgscale", "cfg_scale", "CFG scale", "guidance_scale", "cfg", "scale")
_ADAPTERS = ("loras", "Adapter", "Lora hashes")
_INSIDE = ("sui_image_params", "image")
_LOADS = ("ckpt_name", "unet_name")
_OWN = {"Steps", "Sampler", "CFG scale", "Seed", "Size", "Model", "Adapter"}
"""Settings that the built-in sampler writes. Other programs also write their version or a hash into such a line."""
TASTEMAKER = "Tastemaker"
_MOST_STEPS, _MOST_SCALE, _MOST_LETTERS = 1000, 100.0, 300


class Making(NamedTuple):
    """Facts about the making of an image. Values the file does not hold are empty or ``None``.

    Args:
        model: name of the model, or the path of its file on the computer where the image was made.
        sampler, schedule: as the program calls them.
        adapted: whether a LoRA was used.
        graph: the workflow of ComfyUI, in API format.
        program: the program that made it, where the text is not written as that program writes its own.
    """

    model: str = ""
    sampler: str = ""
    schedule: str = ""
    steps: int | None = None
    cfg: float | None = None
    adapted: bool = False
    graph: Mapping[str, Any] | None = None
    program: str = ""


def read_making(path: str | os.PathLike[str]) -> Making:
    """Read it from the header of an image file. Never raises because of the file's content or state."""
    try:
        with Source(path) as source:
            fields = open_fields(source)
            while True:
                said = [one for text in _texts(fields) if (one := _said(text)) is not None]
                if said:
                    return _best(said)
                if not fields.more():
                    break
    except Unusable:
        pass  # the prompt reader reports why
    return Making()


def _best(said: Sequence[Making]) -> Making:
    """Choose from several texts of one image: the first, unless it was only added to what the program wrote."""
    first = said[0]
    graph = next((one for one in said if one.graph is not None), None)
    if graph is not None:
        # only ComfyUI writes one; nodes that save images can add a line of settings
        return graph._replace(program=COMFYUI)
    if first.program and first.program != TASTEMAKER and len(said) > 1:
        return said[1]._replace(program=first.program)
    return first


def _texts(fields: Fields) -> Iterator[str]:
    for name in _NAMES:
        yield from fields.texts(name)
    if fields.exif_places or fields.has_exif:
        exif = fields.exif()
        yield from fields.prefixed().values()
        yield from (exif[name] for name in _EXIF if name in exif)
    yield from fields.comment_texts() if fields.comments else ()


def _said(text: str) -> Making | None:
    """Read one text; ``None`` if it is about something else."""
    text = text.strip("\0 \t\r\n\ufeff")
    if text[:1] == "{":
        try:
            data = load_json(text)
        except Unusable:
            data = None
        if isinstance(data, dict):
            return _of_graph(data) if is_graph(data) else _of_settings(data)
    told = {name: value.strip('" ') for name, value in _SETTING.findall(settings_text(text))}
    asked = told.get("Asked by") == TASTEMAKER
    if not asked and not looks_like_a1111(text):
        return None
    made = _of_settings(told) or Making()
    own = told.keys() <= _OWN and "CFG scale" in told and made.sampler in NoiseScheduler.__members__
    program = _name(told.get("Program")) if asked else TASTEMAKER if own else ""
    made = made._replace(adapted=made.adapted or "<lora:" in text, program=program)
    return None if made == Making() else made


def _of_settings(data: Mapping[str, Any]) -> Making | None:
    for name in _INSIDE:
        inside = data.get(name)
        if isinstance(inside, dict):
            data = {**data, **inside}
    made = Making(
        _name(_first(data, _MODELS)),
        _name(_first(data, _SAMPLERS)),
        _name(_first(data, _SCHEDULES)),
        _count(_first(data, _STEPS)),
        _scale(_first(data, _SCALES)),
        any(data.get(name) for name in _ADAPTERS),
    )
    return None if made == Making() else made


def _of_graph(data: Mapping[str, Any]) -> Making:
    """Read a ComfyUI graph: the inputs of the sampler before the saved picture, and the loaded model."""
    try:
        walk = MakerWalk(parse_graph(dict(data)), Budget())
        names = [sampler for output in walk.outputs() for name in walk.nearest(output)
                 for sampler in (name, *walk.samplers_of(name))]  # fmt: skip
    except Unusable:
        return Making()
    graph = walk.graph
    own = [graph[name][1] for name in dict.fromkeys(names)]
    every = [inputs for _, inputs in graph.values()]

    def value(name: str) -> Any:
        """The value of the sampler, else the one on which all nodes that have it agree."""
        said = [inputs[name] for inputs in own if _plain(inputs.get(name))]
        others = {inputs[name] for inputs in every if _plain(inputs.get(name))}
        return said[0] if said else others.pop() if len(others) == 1 else None

    models = {inputs[name] for inputs in every for name in _LOADS if _plain(inputs.get(name))}
    return Making(
        _name(models.pop()) if len(models) == 1 else "",
        _name(value("sampler_name")),
        _name(value("scheduler")),
        _count(value("steps")),
        _scale(value("cfg")),
        any(_plain(inputs.get("lora_name")) for inputs in every),
        data,
    )


def _plain(value: Any) -> bool:
    return isinstance(value, str | int | float) and not isinstance(value, bool)


def _first(data: Mapping[str, Any], names: tuple[str, ...]) -> Any:
    return next((data[name] for name in names if data.get(name) not in (None, "")), None)


def _name(value: Any) -> str:
    if isinstance(value, dict):  # InvokeAI stores its model as an object
        value = value.get("model_name", value.get("name"))
    good = isinstance(value, str) and value.isprintable() and len(value) <= _MOST_LETTERS
    return value.strip() if good else ""


def _count(value: Any) -> int | None:
    try:
        found = int(str(value))
    except ValueError:
        return None
    return found if 1 <= found <= _MOST_STEPS else None


def _scale(value: Any) -> float | None:
    try:
        found = float(str(value))
    except ValueError:
        return None
    return found if math.isfinite(found) and 0.0 <= found <= _MOST_SCALE else None
