"""Text states are kept in the type their encoder gives them in, and come back as the encoder's own float32 numbers."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch

from modules.dataLoader.BaseDataLoader import BaseDataLoader
from modules.dataLoader.create import create_data_loader
from modules.model.batch import Conditioning, ImageBatch
from modules.modelSetup import training
from modules.modelSetup.BaseModelSetup import BaseModelSetup
from modules.util.config.TrainConfig import TrainConfig
from tests.dataLoader.builders import AveragingModel, AveragingSetup, concept, config, write_image
from tests.tiny import tiny_folder, tiny_setup
from tests.trainer.builders import settings, write_pairs
from tests.usual import usual

torch.set_num_threads(1)
PARTS = {"hidden_BLE": torch.bfloat16, "pooled_BE": torch.float16, "extra_BE": torch.float64}
"""A type for each tensor of ``Typed``."""


class Typed(AveragingSetup):
    """Several text encoders of unlike types.

    Args:
        wide: all of them give float32, as every text state was kept once.
    """

    def __init__(self, wide: bool = False) -> None:
        self.wide = wide

    def text_states(self, model: AveragingModel, prompts: Sequence[str]) -> Conditioning:
        hidden_BLE = super().text_states(model, prompts)["hidden_BLE"] / 7.0
        tensors = {"hidden_BLE": hidden_BLE, "pooled_BE": hidden_BLE[:, 0], "extra_BE": hidden_BLE[:, 0]}
        made = {name: tensor.to(PARTS[name]) for name, tensor in tensors.items()}
        made = {name: tensor.float() if self.wide else tensor for name, tensor in made.items()}
        return Conditioning({**made, "mask_BL": torch.ones(hidden_BLE.shape[:2], dtype=torch.bool)})


def kept(own: BaseDataLoader, prompt: str) -> dict[str, torch.Tensor]:
    assert own.texts is not None
    return own.texts.get(own.text_key(prompt))  # type: ignore[attr-defined]


def images(root: Path, first: int, count: int) -> TrainConfig:
    for number in range(first, first + count):
        write_image(root / "pets" / f"{number}.png", seed=number)
    return config(root, [concept(root / "pets")], batch_size=8)


def prepared(made: TrainConfig, setup: AveragingSetup) -> BaseDataLoader:
    own = create_data_loader(made, AveragingModel(), setup)  # type: ignore[arg-type]
    own.prepare()
    return own


def batch_of(own: BaseDataLoader) -> ImageBatch:
    (batch,) = own.batches()
    assert isinstance(batch, ImageBatch) and batch.cond is not None
    return batch


def test_sixteen_bits_stay_sixteen_bits_and_all_else_is_float32(tmp_path: Path) -> None:
    own = prepared(images(tmp_path, 0, 2), Typed())
    found = {name: tensor.dtype for name, tensor in kept(own, "a picture of 0").items()}
    assert found == {
        "hidden_BLE": torch.bfloat16,
        "pooled_BE": torch.float16,
        "extra_BE": torch.float32,
        "mask_BL": torch.bool,
    }
    batch = batch_of(own)
    states = Typed().text_states(AveragingModel(), batch.prompts).to("cpu", torch.float32)
    assert batch.cond is not None
    for name, tensor in states.tensors.items():
        assert batch.cond[name].dtype == tensor.dtype and torch.equal(batch.cond[name], tensor), name


def test_entries_of_earlier_versions_are_read_as_they_are(tmp_path: Path) -> None:
    """The first images were encoded when everything was kept in float32; the others join them in one batch."""
    prepared(images(tmp_path, 0, 2), Typed(wide=True))
    made = images(tmp_path, 2, 2)
    mixed = prepared(made, Typed())
    assert kept(mixed, "a picture of 0")["hidden_BLE"].dtype == torch.float32
    assert kept(mixed, "a picture of 3")["hidden_BLE"].dtype == torch.bfloat16
    mixed_batch = batch_of(mixed)
    fresh_batch = batch_of(prepared(made.model_copy(update={"cache_dir": str(tmp_path / "other")}), Typed()))
    assert mixed_batch.prompts == fresh_batch.prompts and len(mixed_batch) == 4
    assert mixed_batch.cond is not None and fresh_batch.cond is not None
    for name, tensor in fresh_batch.cond.tensors.items():
        assert torch.equal(mixed_batch.cond[name], tensor) and mixed_batch.cond[name].dtype == tensor.dtype


@pytest.mark.parametrize(
    ("weights", "key"),
    usual(
        itertools.product(["BFLOAT_16", "FLOAT_16", "FLOAT_32"], ["FLUX_DEV_1", "STABLE_DIFFUSION_35"]),
        ("BFLOAT_16", "FLUX_DEV_1"),
        ("FLOAT_16", "STABLE_DIFFUSION_35"),
        ("FLOAT_32", "FLUX_DEV_1"),
    ),
)
def test_kept_states_of_real_encoders_are_the_live_ones(tmp_path: Path, key: str, weights: str) -> None:
    setup: BaseModelSetup = tiny_setup(key)
    concepts = [{**write_pairs(tmp_path / "data", 3)[0], "type": "STANDARD"}]
    values = settings(
        tmp_path, base_model_name=str(tiny_folder(key)), model_type=key, rlhf_enabled=False, concepts=concepts
    )
    values.pop("unet")
    encoders = {name: {"weight_dtype": weights} for name in setup.spec.text_encoders}
    made = TrainConfig.from_dict({**values, **encoders, "batch_size": 3, "cache_batch_size": 3})
    model = training.load_model(setup, made)
    own = create_data_loader(made, model, setup)
    own.prepare()
    batch = batch_of(own)
    assert batch.cond is not None
    # each is encoded by itself
    prompts = batch.prompts
    live = Conditioning.stack([setup.encode_text(model, [prompt]).unbind()[0] for prompt in prompts])
    given = setup.text_states(model, prompts[:1])
    for name, tensor in live.tensors.items():
        assert batch.cond[name].dtype == tensor.dtype and torch.equal(batch.cond[name], tensor), name
        if tensor.is_floating_point():
            assert tensor.dtype == torch.float32
            assert kept(own, prompts[0])[name].dtype == given[name].dtype == encoder_type(weights)


def encoder_type(weights: str) -> torch.dtype:
    return {"BFLOAT_16": torch.bfloat16, "FLOAT_16": torch.float16, "FLOAT_32": torch.float32}[weights]
