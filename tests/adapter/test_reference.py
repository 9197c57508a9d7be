"""The reference: exact, restored whatever happens, never silently wrong."""

from __future__ import annotations

import pytest
import torch

from modules.adapter.AdapterOptions import AdapterOptions
from modules.adapter.PeftAdapter import AdapterHandle, attach
from modules.adapter.reference import EXISTING_ADAPTER, NEW_ADAPTER, Reference, create_reference
from modules.util.enum.DPORefMode import DPORefMode
from modules.util.errors import DataError
from tests.tiny import tiny_model

MODES = [NEW_ADAPTER, EXISTING_ADAPTER]


INPUTS = {"decompose": True, "decompose_outputs": False}


def make(**options: object) -> AdapterHandle:
    given = {"rank": 2, "patterns": ("mid_block",), **options}
    handle = attach(tiny_model(), AdapterOptions(**given))  # type: ignore[arg-type]
    move(handle, 0.1)
    return handle


def move(handle: AdapterHandle, amount: float) -> None:
    for _, parameter in handle.named_parameters():
        parameter.data += amount


@pytest.mark.parametrize("options", [{}, {"decompose": True}, INPUTS, {"kind": "LOKR"}, {"kind": "OFT_2"}])
def test_the_snapshot_has_every_tensor_and_never_changes(options: dict[str, object]) -> None:
    handle = make(**options)
    start = {name: tensor.clone() for name, tensor in handle.state_dict().items()}
    reference = Reference(handle, EXISTING_ADAPTER)
    move(handle, 1.0)
    pointers = {name: tensor.data_ptr() for name, tensor in handle.named_tensors()}
    for _ in range(2):
        with reference():
            inside = handle.state_dict()
            assert all(torch.equal(inside[name], start[name]) for name in start)
        assert {name: tensor.data_ptr() for name, tensor in handle.named_tensors()} == pointers
    snapshot = reference.snapshot_state()
    assert snapshot.keys() == start.keys()
    assert all(torch.equal(snapshot[name], start[name]) for name in start)
    if options.get("decompose"):
        assert any("magnitude" in name for name in snapshot)


@pytest.mark.parametrize("mode", MODES)
def test_an_exception_inside_restores_everything(mode: str) -> None:
    handle = make()
    reference = Reference(handle, mode)
    move(handle, 1.0)
    live = {name: tensor.clone() for name, tensor in handle.state_dict().items()}
    flags = [p.requires_grad for _, p in handle.named_parameters()]
    with pytest.raises(MemoryError), reference():
        raise MemoryError
    assert all(torch.equal(handle.state_dict()[name], live[name]) for name in live)
    assert [p.requires_grad for _, p in handle.named_parameters()] == flags
    assert not any(layer.disable_adapters for layer in handle.layers.values())
    with reference():
        pass


@pytest.mark.parametrize("mode", MODES)
def test_contexts_do_not_nest(mode: str) -> None:
    reference = Reference(make(), mode)
    with reference(), pytest.raises(RuntimeError, match="inside itself"), reference():
        pass


@pytest.mark.parametrize("mode", MODES)
def test_optimizer_state_is_untouched(mode: str) -> None:
    handle = make()
    parameters = [p for _, p in handle.named_parameters()]
    optimizer = torch.optim.AdamW(parameters, lr=0.1)
    reference = Reference(handle, mode)
    for parameter in parameters:
        parameter.grad = torch.ones_like(parameter)
    optimizer.step()
    state = {p: optimizer.state[p]["exp_avg"].clone() for p in parameters}
    with reference():
        pass
    assert all(torch.equal(optimizer.state[p]["exp_avg"], state[p]) for p in parameters)
    before = [p.detach().clone() for p in parameters]
    optimizer.step()
    assert all(not torch.equal(p, old) for p, old in zip(parameters, before, strict=True))


@pytest.mark.parametrize("mode", MODES)
def test_self_check_passes_and_leaves_no_trace(mode: str) -> None:
    handle = make()
    reference = Reference(handle, mode)
    before = {name: tensor.clone() for name, tensor in handle.state_dict().items()}
    reference.self_check()
    assert all(torch.equal(handle.state_dict()[name], before[name]) for name in before)


def test_self_check_finds_a_swap_without_effect(monkeypatch: pytest.MonkeyPatch) -> None:
    from contextlib import nullcontext

    handle = make()
    reference = Reference(handle, EXISTING_ADAPTER)
    before = {name: tensor.clone() for name, tensor in handle.state_dict().items()}
    monkeypatch.setattr(reference, "_swapped", nullcontext)
    with pytest.raises(RuntimeError, match="not the snapshot"):
        reference.self_check()
    assert all(torch.equal(handle.state_dict()[name], before[name]) for name in before)
    bare = Reference(handle, NEW_ADAPTER)
    monkeypatch.setattr(handle, "disabled", nullcontext, raising=False)
    with pytest.raises(RuntimeError, match="still switched on"):
        bare.self_check()


def test_a_snapshot_survives_a_backup() -> None:
    handle = make()
    reference = Reference(handle, EXISTING_ADAPTER)
    start = {name: tensor.clone() for name, tensor in handle.state_dict().items()}
    move(handle, 1.0)
    resumed = attach(tiny_model(), AdapterOptions(rank=2, patterns=("mid_block",)))
    resumed.load_state_dict(handle.state_dict())
    again = Reference(resumed, EXISTING_ADAPTER)
    again.load_snapshot(reference.snapshot_state())
    with again():
        assert all(torch.equal(resumed.state_dict()[name], start[name]) for name in start)


def test_a_snapshot_that_does_not_fit_is_an_error() -> None:
    reference = Reference(make(), EXISTING_ADAPTER)
    state = reference.snapshot_state()
    missing = dict(list(state.items())[1:])
    with pytest.raises(DataError, match="missing"):
        reference.load_snapshot(missing)
    other = Reference(attach(tiny_model(), AdapterOptions(rank=3, patterns=("mid_block",))), EXISTING_ADAPTER)
    with pytest.raises(DataError, match="another shape"):
        other.load_snapshot(state)
    with pytest.raises(DataError, match="bare reference"):
        Reference(make(), NEW_ADAPTER).load_snapshot(state)


def test_wrong_uses_are_refused() -> None:
    handle = make()
    with pytest.raises(NotImplementedError, match="FINE_TUNE"):
        create_reference("FINE_TUNE", NEW_ADAPTER, handle)
    with pytest.raises(RuntimeError, match="none is attached"):
        create_reference("LORA", NEW_ADAPTER, None)
    with pytest.raises(ValueError, match="OTHER"):
        create_reference("LORA", "OTHER", handle)
    assert create_reference("LORA", DPORefMode.EXISTING_ADAPTER, handle).mode == EXISTING_ADAPTER
