"""Attaching adapters: seeded, exact at the start, and gone when switched off."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from peft import LoHaConfig, LoKrConfig, LoraConfig, OFTConfig, inject_adapter_in_model

from modules.adapter.AdapterOptions import AdapterOptions
from modules.adapter.layers import adaptable_layers
from modules.adapter.PeftAdapter import AdapterHandle, attach
from modules.model.Model import Model
from modules.util.errors import ConfigError, DataError
from tests.tiny import SIZE, tiny_model, tiny_setup
from tests.tiny.batches import images

KINDS = [
    AdapterOptions(rank=4, alpha=2.0),
    AdapterOptions(rank=4, alpha=2.0, decompose=True),
    AdapterOptions(rank=4, alpha=2.0, decompose=True, decompose_outputs=False),
    AdapterOptions(rank=4, alpha=2.0, rank_stabilized=True),
    AdapterOptions(rank=4, alpha=2.0, kind="LOHA"),
    AdapterOptions(rank=4, alpha=2.0, kind="LOKR"),
    AdapterOptions(rank=4, kind="OFT_2"),
]
NAMES = ["lora", "dora", "dora-of-inputs", "rslora", "loha", "lokr", "oft"]


def image(model: Model) -> torch.Tensor:
    return images(tiny_setup(), model, ["a red cat"], seeds=[2], steps=1, size=SIZE)


def stirred(handle: AdapterHandle) -> AdapterHandle:
    source = torch.Generator().manual_seed(0)
    for _, parameter in handle.named_parameters():
        parameter.data += 0.1 * torch.randn(parameter.shape, generator=source)
    return handle


@pytest.mark.parametrize("options", KINDS, ids=NAMES)
def test_a_fresh_adapter_changes_nothing_and_a_trained_one_does(options: AdapterOptions) -> None:
    model = tiny_model()
    base = image(model)
    handle = attach(model, options)
    assert_trained_once(handle)
    assert torch.allclose(image(model), base, atol=1e-6)
    stirred(handle)
    assert not torch.allclose(image(model), base, atol=1e-4)
    with handle.disabled():
        assert torch.equal(image(model), base)


@pytest.mark.parametrize("options", KINDS, ids=NAMES)
def test_initial_values_depend_on_seed_and_name_alone(options: AdapterOptions) -> None:
    options = replace(options, patterns=("mid_block",))
    torch.manual_seed(1)
    first = attach(tiny_model(), options).state_dict()
    torch.manual_seed(2)
    torch.rand(7)
    before = torch.get_rng_state()
    second = attach(tiny_model(), options).state_dict()
    assert torch.equal(torch.get_rng_state(), before), "the global generator was used"
    assert first.keys() == second.keys()
    assert all(torch.equal(first[name], second[name]) for name in first)


def assert_trained_once(handle: AdapterHandle) -> None:
    names, parameters = zip(*handle.named_parameters(), strict=True)
    assert len(set(names)) == len(names)
    own = [p for module in handle.model.modules().values() for p in module.parameters() if p.requires_grad]
    assert sorted(map(id, parameters)) == sorted(map(id, own))


SETTINGS: dict[str, Any] = {
    "lora": LoraConfig(r=4, lora_alpha=2, rank_pattern={"conv_in": 3}),
    "dora": LoraConfig(r=4, lora_alpha=2, rank_pattern={"conv_in": 3}, use_dora=True),
    "loha": LoHaConfig(r=4, alpha=2, rank_pattern={"conv_in": 3}),
    "lokr": LoKrConfig(r=4, alpha=2, rank_pattern={"conv_in": 3}),
    "oft": OFTConfig(r=0, oft_block_size=4),
}


@pytest.mark.parametrize(("name", "settings"), SETTINGS.items())
def test_layers_are_those_that_peft_injects(name: str, settings: Any) -> None:
    kind = {"dora": "LORA", "oft": "OFT_2"}.get(name, name.upper())
    ranks = {} if kind == "OFT_2" else {"conv_in": 3}
    options = AdapterOptions(rank=4, alpha=2.0, kind=kind, decompose=name == "dora", rank_pattern=ranks)
    model, other = tiny_model(), tiny_model()
    handle = attach(model, options)
    settings.target_modules = {path.removeprefix("unet.") for path in handle.layers}
    inject_adapter_in_model(settings, other.denoiser)

    def described(denoiser: torch.nn.Module) -> list[object]:
        kinds = [(path, type(module), module.training) for path, module in denoiser.named_modules()]
        return kinds + [(path, p.shape, p.requires_grad) for path, p in denoiser.named_parameters()]

    assert described(model.denoiser) == described(other.denoiser)
    theirs = other.denoiser.get_submodule("conv_in" if ranks else "time_embedding.linear_1")
    assert handle.layers["unet.conv_in" if ranks else "unet.time_embedding.linear_1"].r == theirs.r


def test_another_seed_gives_other_values_and_layers_differ() -> None:
    first = attach(tiny_model(), AdapterOptions(rank=4, seed=1)).state_dict()
    second = attach(tiny_model(), AdapterOptions(rank=4, seed=2)).state_dict()
    downs = [name for name in first if "lora_A" in name]
    assert all(not torch.equal(first[name], second[name]) for name in downs)
    alike = [n for n in downs if first[n].shape == first[downs[1]].shape and n != downs[1]]
    assert alike and all(not torch.equal(first[n], first[downs[1]]) for n in alike)


def test_fewer_layers_leave_the_others_values_alone() -> None:
    whole = attach(tiny_model(), AdapterOptions(rank=4)).state_dict()
    part = attach(tiny_model(), AdapterOptions(rank=4, patterns=("attn1",))).state_dict()
    assert 0 < len(part) < len(whole)
    assert all("attn1" in name and torch.equal(tensor, whole[name]) for name, tensor in part.items())


def test_text_encoders_get_their_linear_layers_whatever_the_filter() -> None:
    handle = attach(tiny_model(), AdapterOptions(rank=4, patterns=("attn1",), parts=("unet", "text_encoder")))
    text = [path for path in handle.layers if path.startswith("text_encoder.")]
    assert len(text) == 2 * 6
    assert {len(handle.named_parameters("text_encoder")), len(handle.named_parameters("unet"))} == {
        24,
        2 * (len(handle.layers) - 12),
    }


def test_exactly_the_chosen_layers_are_adapted() -> None:
    model = tiny_model()
    names = adaptable_layers(model.denoiser)
    handle = attach(model, AdapterOptions(rank=4, patterns=(r"^conv_in$",), regex=True))
    assert list(handle.layers) == ["unet.conv_in"]
    assert adaptable_layers(model.denoiser) == names


def test_disabling_keeps_the_gradient_flags() -> None:
    handle = attach(tiny_model(), AdapterOptions(rank=4))
    first, second = [p for _, p in handle.named_parameters()][:2]
    second.requires_grad_(False)
    with pytest.raises(KeyError), handle.disabled():
        assert first.requires_grad and not second.requires_grad
        with handle.disabled():
            pass
        assert all(layer.disable_adapters for layer in handle.layers.values())
        raise KeyError
    assert first.requires_grad and not second.requires_grad
    assert not any(layer.disable_adapters for layer in handle.layers.values())


def test_only_adapters_are_trainable() -> None:
    model = tiny_model()
    handle = attach(model, AdapterOptions(rank=4, parts=("unet", "text_encoder")))
    own = {id(p) for _, p in handle.named_parameters()}
    for module in model.modules().values():
        assert {id(p) for p in module.parameters() if p.requires_grad} <= own
    assert all(p.requires_grad for _, p in handle.named_parameters())


def test_number_types() -> None:
    model = tiny_model(dtype=torch.bfloat16)
    handle = attach(model, AdapterOptions(rank=4, decompose=True))
    assert {p.dtype for _, p in handle.named_parameters()} == {torch.float32}
    layer = next(iter(handle.layers.values()))
    weight = layer.get_base_layer().weight.float()
    magnitude = layer.lora_magnitude_vector["default"].weight.flatten()
    assert torch.allclose(magnitude, weight.flatten(1).norm(dim=1)), "not rounded to the base's type"
    handle = attach(tiny_model(), AdapterOptions(rank=4, dtype=torch.bfloat16))
    assert {p.dtype for _, p in handle.named_parameters()} == {torch.bfloat16}


def test_state_round_trip_and_misfits() -> None:
    handle = stirred(attach(tiny_model(), AdapterOptions(rank=4)))
    state = {name: tensor.clone() for name, tensor in handle.state_dict().items()}
    other = attach(tiny_model(), AdapterOptions(rank=4))
    other.load_state_dict(state)
    assert all(torch.equal(other.state_dict()[name], state[name]) for name in state)
    first, second = list(state)[:2]
    bad = dict(state) | {"stranger": torch.ones(1), second: torch.ones(2, 2)}
    del bad[first]
    with pytest.raises(DataError) as caught:
        other.load_state_dict(bad)
    for word in (first, second, "stranger", "(2, 2)"):
        assert word in str(caught.value)


def test_fingerprints_ignore_adapters() -> None:
    model = tiny_model()
    attach(model, AdapterOptions(rank=4, decompose=True, parts=("unet", "text_encoder")))
    clean = tiny_model()
    for part in ("unet", "text_encoder"):
        assert model.fingerprint(part) == clean.fingerprint(part)


def test_a_second_adapter_is_refused() -> None:
    model = tiny_model()
    attach(model, AdapterOptions(rank=4))
    with pytest.raises(RuntimeError, match="already attached"):
        attach(model, AdapterOptions(rank=4))


def test_rotations_skip_what_peft_rotates_wrongly() -> None:
    model = tiny_model()
    handle = attach(model, AdapterOptions(kind="OFT_2", rank=4))
    assert handle.layers and not any("conv1" in path for path in handle.layers)
    with pytest.raises(ConfigError, match="neither"):
        attach(tiny_model(), AdapterOptions(kind="OFT_2", rank=4, patterns=("conv_in",)))


def test_rotations_of_layers_that_have_nothing_to_rotate_are_reported_or_refused() -> None:
    """Layers 7 wide have no divisor near 2, and peft gives them blocks of 1."""
    model = tiny_model()
    model.denoiser.time_embedding.linear_1 = torch.nn.Linear(7, 32)
    (note,) = attach(model, AdapterOptions(kind="OFT_2", rank=2)).notes
    assert "1 layer of 63 will not be trained" in note and "unet.time_embedding.linear_1" in note
    model = tiny_model()
    model.denoiser.time_embedding.linear_1 = torch.nn.Linear(7, 32)
    with pytest.raises(ConfigError, match="nothing would be trained") as caught:
        attach(model, AdapterOptions(kind="OFT_2", rank=2, patterns=("time_embedding.linear_1",)))
    assert caught.value.field == "lora_rank"
    assert not attach(tiny_model(), AdapterOptions(kind="OFT_2", rank=4)).notes


@pytest.mark.parametrize(
    ("values", "field"),
    [
        ({"kind": "ADAPTER"}, "peft_type"),
        ({"rank": 0}, "lora_rank"),
        ({"alpha": 0.0}, "lora_alpha"),
        ({"kind": "LOHA", "decompose": True}, "lora_decompose"),
        ({"kind": "LOKR", "rank_stabilized": True}, "lora_rs"),
        ({"parts": ()}, None),
    ],
)
def test_bad_options_are_refused(values: dict[str, object], field: str | None) -> None:
    with pytest.raises(ConfigError) as caught:
        AdapterOptions(**values)  # type: ignore[arg-type]
    assert caught.value.field == field


def test_a_row_of_zeros_does_not_become_nan_in_dora() -> None:
    model = tiny_model()
    with torch.no_grad():
        next(layer for layer in model.denoiser.modules() if isinstance(layer, torch.nn.Linear)).weight[0] = 0.0
    base = image(model)
    handle = attach(model, AdapterOptions(rank=4, alpha=2.0, decompose=True))
    assert torch.allclose(image(model), base, atol=1e-6)
    assert torch.isfinite(image(model)).all()
    stirred(handle)
    assert torch.isfinite(image(model)).all()
