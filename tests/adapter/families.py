"""Adapters on the tiny models of every family, for tests of files."""

from __future__ import annotations

from functools import cache
from typing import Any

import torch

from modules.adapter.AdapterOptions import AdapterOptions
from modules.adapter.PeftAdapter import AdapterHandle, attach
from modules.model.Model import Model
from modules.modelSetup.registry import MODEL_SETUPS
from tests.tiny import tiny_model, tiny_setup


def naming_families() -> list[str]:
    """One family for each way of naming the layers of its parts."""
    seen: dict[object, str] = {}
    for key in sorted(MODEL_SETUPS.keys()):
        spec = tiny_setup(key).spec
        texts = tuple(
            (part.kohya_prefix, part.comfy_name, part.comfy_sizes) for part in spec.of_kind("text_encoder")
        )
        seen.setdefault((spec.key_map, spec.part(spec.denoiser).classes, texts), key)
    return sorted(seen.values())


def trained(model: Model, **options: Any) -> AdapterHandle:
    """An adapter with all tensors away from zero, on all parts."""
    encoders = (name for name in model.spec.trained_encoders if name in model.text_encoders)
    parts = (model.spec.denoiser, *encoders)
    handle = attach(model, AdapterOptions(**({"rank": 2, "alpha": 1.0, "parts": parts} | options)))
    stir(handle)
    return handle


def stir(handle: AdapterHandle) -> None:
    source = torch.Generator().manual_seed(0)
    for _, parameter in handle.named_parameters():
        parameter.data += 0.1 * torch.randn(parameter.shape, generator=source)


def trained_family(key: str, **options: Any) -> AdapterHandle:
    return trained(tiny_model(key), **options)


@cache
def named_family(key: str) -> AdapterHandle:
    """An adapter on all parts that have names in every layout; only to be read."""
    spec = tiny_setup(key).spec
    parts = (spec.denoiser, *(part.name for part in spec.of_kind("text_encoder") if part.comfy_name))
    return trained_family(key, parts=parts)
