"""Placing parts and switching modes."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from modules.adapter.AdapterOptions import AdapterOptions
from modules.adapter.PeftAdapter import attach
from modules.util.errors import ConfigError
from tests.tiny import tiny_model


def dropouts(module: nn.Module) -> list[nn.Dropout]:
    return [m for m in module.modules() if isinstance(m, nn.Dropout) and m.p > 0]


def test_modes_of_dropout() -> None:
    model = tiny_model()
    attach(model, AdapterOptions(rank=2, dropout=0.5))
    found = dropouts(model.denoiser)
    assert found
    model.set_mode("train")
    assert all(d.training for d in found) and not model.vae.training
    model.set_mode("no_dropout")
    assert model.denoiser.training and not any(d.training for d in found)
    model.set_mode("eval")
    assert not model.denoiser.training and not any(d.training for d in found)
    with pytest.raises(ValueError, match="unknown mode"):
        model.set_mode("loud")


def test_a_mode_is_set_anew_after_changes_from_outside() -> None:
    model = tiny_model()
    model.set_mode("eval")
    model.denoiser.train()
    model.layers_changed()
    model.set_mode("eval")
    assert not model.denoiser.training


def test_borrowed_parts_go_home() -> None:
    model = tiny_model()
    model.to("vae", "meta")
    assert model.where("vae").type == "meta"
    model = tiny_model()
    model.device = torch.device("cpu")
    with model.borrowed("vae") as vae:
        assert next(vae.parameters()).device.type == "cpu"
    assert model.where("vae").type == "cpu"


def test_released_parts_are_gone() -> None:
    model = tiny_model()
    model.release("text_encoder", "tokenizer")
    assert "text_encoder" not in model.modules()
    with pytest.raises(RuntimeError, match="'text_encoder'"):
        model.module("text_encoder")


def test_checkpointing_of_a_part_without_it() -> None:
    model = tiny_model()
    model.parts["unet"] = nn.Linear(2, 2)
    with pytest.raises(ConfigError) as caught:
        model.set_gradient_checkpointing("unet", True)
    assert caught.value.field == "unet.gradient_checkpointing"
