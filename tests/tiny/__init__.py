"""Random-weight models small enough for tests.

``tiny_folder`` writes a model once for all processes of a test session and is only to be read; ``tiny_model`` loads one
once per process and gives a copy of its own to everyone who asks.
"""

from __future__ import annotations

import atexit
import importlib
import os
import shutil
import tempfile
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

    from modules.model.Model import Model
    from modules.modelSetup.BaseModelSetup import BaseModelSetup
    from tests.tiny.copies import Original

# Latents of 8x8 are the smallest the two levels of the tiny UNets take without trouble.
SIZE = (32, 32)


def _tiny_modules() -> list[ModuleType]:
    names = sorted(path.stem for path in Path(__file__).parent.glob("*.py") if path.stem != "__init__")
    return [importlib.import_module(f"tests.tiny.{name}") for name in names]


def pipeline_options(key: str, cfg: float, size: tuple[int, int] = SIZE) -> dict[str, Any]:
    """What the family's own pipeline is called with besides prompt, size and steps: the ``PIPELINE`` of the module
    that knows the family, model type -> function of the guidance scale, and its ``SIZED``, model type -> function of
    the size (height, width); ``None`` takes an argument out.
    """
    found: dict[str, Any] = {}
    for module in _tiny_modules():
        if key in getattr(module, "PIPELINE", {}):
            found |= module.PIPELINE[key](cfg)
        if key in getattr(module, "SIZED", {}):
            found |= module.SIZED[key](size)
    return found


def wide_size(key: str) -> tuple[int, int]:
    """The smallest (height, width) above ``SIZE`` that is not square and that the family takes."""
    return SIZE[0], SIZE[1] + max(16, tiny_setup(key).spec.size_multiple)


def pipeline_class(key: str) -> Any:
    """The class of the family's own pipeline, or what stands for it (``PIPELINE_CLASS`` of a module)."""
    import diffusers

    for module in _tiny_modules():
        if key in getattr(module, "PIPELINE_CLASS", {}):
            return module.PIPELINE_CLASS[key]
    return getattr(diffusers, tiny_setup(key).spec.pipeline_class)


def takes_one_prompt(key: str) -> bool:
    """Whether the family's own pipeline is only asked for one image at a time (``ONE_BY_ONE`` of a module)."""
    return any(key in getattr(module, "ONE_BY_ONE", ()) for module in _tiny_modules())


def source_side(key: str) -> int:
    """Sides in pixels of an image that the family's own pipeline is given to edit (``SOURCE_SIDES`` of a module)."""
    from tests.tiny.source_images import SIDE

    found = [getattr(module, "SOURCE_SIDES", {}).get(key) for module in _tiny_modules()]
    return next((side for side in found if side), SIDE)


def pipeline_parts(key: str, folder: Path, monkeypatch: Any) -> dict[str, Any]:
    """Components the family's own pipeline is given because it cannot load them here: the ``PIPELINE_PARTS`` of the
    module that knows the family.
    """
    for module in _tiny_modules():
        if key in getattr(module, "PIPELINE_PARTS", {}):
            return dict(module.PIPELINE_PARTS[key](folder, monkeypatch))
    return {}


@lru_cache
def factories() -> dict[str, Callable[[Path, str, int], object]]:
    """The ``FAMILIES`` of all modules here: model type -> what writes a folder (folder, prediction, VAE factor)."""
    found: dict[str, Callable[[Path, str, int], object]] = {}
    for module in _tiny_modules():
        found |= getattr(module, "FAMILIES", {})
    return found


ROOT_VARIABLE = "TASTEMAKER_TINY_MODELS"


@lru_cache
def root() -> Path:
    """Where models are written: made by the first process that asks, and shared with the processes it starts."""
    given = os.environ.get(ROOT_VARIABLE)
    if given and Path(given).is_dir():
        return Path(given)
    made = Path(tempfile.mkdtemp(prefix="tiny-models-"))
    atexit.register(shutil.rmtree, made, ignore_errors=True)
    os.environ[ROOT_VARIABLE] = str(made)
    return made


@lru_cache
def tiny_folder(key: str = "STABLE_DIFFUSION_15", prediction: str = "", factor: int = 4) -> Path:
    """A model folder of a family, written once; do not change what is in it.

    Args:
        prediction: epsilon or v_prediction for families that have both; theirs if empty.
    """
    prediction = prediction or tiny_setup(key).spec.prediction
    return _written(f"{key}-{prediction}-{factor}", lambda own: factories()[key](own, prediction, factor))


@lru_cache
def small_folder(key: str = "STABLE_DIFFUSION_15", prediction: str = "") -> Path:
    """A model folder for tests about runs and not about the model: that of Stable Diffusion 1.5 has fewer layers than
    ``tiny_folder`` gives it, those of other families are the same.
    """
    if key != "STABLE_DIFFUSION_15":
        return tiny_folder(key, prediction)
    from tests.tiny.stable_diffusion import write_pipeline

    prediction = prediction or "epsilon"
    return _written(f"small-{prediction}", lambda own: write_pipeline(own, prediction, small=True))


def _written(name: str, write: Callable[[Path], object]) -> Path:
    import torch

    torch.set_num_threads(1)
    folder = root() / name
    if not folder.exists():
        own = Path(tempfile.mkdtemp(prefix="part-", dir=root())) / folder.name
        write(own)
        try:
            own.rename(folder)
        except OSError:
            # another process may have been faster; its files are the same
            if not folder.is_dir():
                raise
        shutil.rmtree(own.parent)
    return folder


def tiny_setup(key: str = "STABLE_DIFFUSION_15") -> BaseModelSetup:
    from modules.modelSetup.registry import create_model_setup

    return create_model_setup(key)


def tiny_model(
    key: str = "STABLE_DIFFUSION_15",
    prediction: str = "",
    factor: int = 4,
    dtype: torch.dtype | None = None,
) -> Model:
    """A tiny model as it is when it was loaded, to do anything with; float32 by default. For float64 the
    weights of float32 are copied, which have the same values.
    """
    import torch

    if dtype != torch.float64:
        made: Model = _loaded(key, prediction, factor, dtype).copy()
        return made
    double: Model = _loaded(key, prediction, factor, None).copy()
    for module in double.modules().values():
        for tensor in module.state_dict(keep_vars=True).values():
            if tensor.is_floating_point():
                tensor.data = tensor.data.double()
    return double


@lru_cache
def _loaded(key: str, prediction: str, factor: int, dtype: torch.dtype | None) -> Original:
    import torch

    from modules.model.dtypes import PartDtypes
    from tests.tiny.copies import Original

    folder = tiny_folder(key, prediction, factor)
    model = tiny_setup(key).load(str(folder), PartDtypes(default=dtype or torch.float32))
    return Original(model, model.spec)
