"""Every family trains an adapter on weights in 8 and 4 bits, and without it is the model that was rounded."""

from __future__ import annotations

import pytest
import torch

from modules.adapter.reference import Reference
from modules.model.compact import quantize
from modules.model.noising.noise import NoiseOptions
from tests.contracts.test_family import VARIANTS, adapted, families
from tests.tiny import tiny_model, tiny_setup
from tests.tiny.batches import image_batch
from tests.usual import usual

KINDS = ("FLOAT_8", "NFLOAT_4")
CASES = [(key, prediction, kind) for key, prediction in families() for kind in KINDS]
# one of them in turn from family to family
TAKEN = [case for number, case in enumerate(CASES) if case[0] not in VARIANTS and number % 4 in (0, 3)]


@pytest.mark.parametrize(("key", "prediction", "kind"), usual(CASES, *TAKEN))
def test_the_adapter_has_finite_gradients_and_without_it_the_base_is_the_same_bit_by_bit(
    key: str, prediction: str, kind: str
) -> None:
    pytest.importorskip("bitsandbytes")
    setup, model = tiny_setup(key), tiny_model(key, prediction)
    batch = image_batch(setup, model, ["a", "b"])
    draw = setup.draw_noise(model, batch, NoiseOptions(), seed=1)
    assert quantize(model.denoiser, kind, torch.float32) > 0
    model.place("cpu")
    with torch.no_grad():
        base = setup.score(model, batch.latents_BChw, batch.cond, draw, batch.size)
    assert bool(torch.isfinite(base).all())
    handle = adapted(model)
    loss_B = setup.calculate_loss(model, batch, draw)
    assert not torch.equal(-loss_B.detach(), base)
    loss_B.mean().backward()
    gradients = [p.grad for _, p in handle.named_parameters() if p.grad is not None]
    assert gradients and all(bool(torch.isfinite(gradient).all()) for gradient in gradients)
    with torch.no_grad(), Reference(handle, "NEW_ADAPTER")():
        off = setup.score(model, batch.latents_BChw, batch.cond, draw, batch.size)
    assert torch.equal(off, base)
