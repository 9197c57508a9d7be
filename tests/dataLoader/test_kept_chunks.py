"""Kept text states of prompts in chunks: filed by what was encoded, and the same as the live ones."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from modules.dataLoader.BaseDataLoader import BaseDataLoader
from modules.dataLoader.create import create_data_loader
from modules.model.batch import OWN, ImageBatch
from modules.model.Model import Model
from modules.modelSetup import training
from modules.modelSetup.BaseModelSetup import BaseModelSetup
from modules.util.config.TrainConfig import TrainConfig
from tests.tiny import tiny_folder, tiny_setup
from tests.trainer.builders import settings, write_pairs
from tests.usual import usual

torch.set_num_threads(1)
FAMILIES = ["STABLE_DIFFUSION_15", "STABLE_DIFFUSION_XL_10_BASE"]
SHORT = "a red circle"
TWO = "a large blue square on the left of a small dog and a green circle"
FOUR = ("a large red square on a photo of a small dog on the right, " * 4).strip()


def prepared(
    folder: Path, key: str, captions: tuple[str, ...], **changes: Any
) -> tuple[BaseModelSetup, Model, BaseDataLoader]:
    """A loader of pictures with these captions, everything encoded."""
    concepts = [{**write_pairs(folder / "data", len(captions))[0], "type": "STANDARD"}]
    for number, caption in enumerate(captions):
        (folder / "data" / "chosen" / f"{number:03d}.txt").write_text(caption, encoding="utf-8")
    values = settings(
        folder,
        base_model_name=str(tiny_folder(key)),
        model_type=key,
        rlhf_enabled=False,
        concepts=concepts,
        batch_size=len(captions),
        cache_batch_size=2,
        **changes,
    )
    made, setup = TrainConfig.from_dict(values), tiny_setup(key)
    model = training.load_model(setup, made)
    own = create_data_loader(made, model, setup)
    own.prepare()
    return setup, model, own


@pytest.mark.parametrize("key", FAMILIES)
def test_kept_states_are_the_live_ones(tmp_path: Path, key: str) -> None:
    setup, model, own = prepared(tmp_path, key, (SHORT, TWO, FOUR), max_prompt_chunks=8)
    assert [setup.chunk_count(model, one) for one in (SHORT, TWO, FOUR)][:2] == [0, 2]
    (batch,) = own.batches()
    assert isinstance(batch, ImageBatch) and batch.cond is not None
    live = setup.encode_text(model, batch.prompts)
    assert OWN in live.tensors and batch.cond.tensors.keys() == live.tensors.keys()
    for name, tensor in live.tensors.items():
        assert batch.cond[name].dtype == tensor.dtype
        assert torch.allclose(batch.cond[name].float(), tensor.float(), atol=1e-6), name
    assert own.texts is not None
    for prompt in (SHORT, TWO, FOUR):
        row = own.texts.get(own.text_key(prompt))  # type: ignore[attr-defined]
        alone = setup.encode_text(model, [prompt])
        assert row.keys() == alone.tensors.keys(), "kept without company"
        assert row["hidden_BLE"].shape == alone["hidden_BLE"].shape[1:]


@pytest.mark.parametrize("key", usual(FAMILIES, "STABLE_DIFFUSION_15"))
def test_a_key_changes_with_the_number_of_chunks_alone(tmp_path: Path, key: str) -> None:
    captions = (SHORT, TWO, FOUR, "a cat BREAK a dog")

    def keys(**changes: Any) -> list[str]:
        own = prepared(tmp_path, key, captions, **changes)[2]
        return [own.text_key(one) for one in captions]  # type: ignore[attr-defined]

    cut, two, eight = (keys(max_prompt_chunks=most) for most in (1, 2, 8))
    assert cut[0] == two[0] == eight[0] and cut[3] == two[3] == eight[3], "one chunk is kept as ever"
    assert cut[1] != two[1] == eight[1]
    assert len({cut[2], two[2], eight[2]}) == 3
    weighted = [keys(max_prompt_chunks=most, prompt_weighting=True) for most in (1, 8)]
    assert weighted[0][0] == weighted[1][0] != cut[0]
    assert weighted[0][3] != weighted[1][3], "BREAK begins a chunk"


def test_cached_by_an_earlier_limit_is_not_encoded_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    prepared(tmp_path, FAMILIES[0], (SHORT, TWO, FOUR), max_prompt_chunks=2)
    encoded: list[str] = []
    kind = type(tiny_setup(FAMILIES[0]))
    states = kind.text_states

    def counted(self: BaseModelSetup, model: Model, prompts: list[str]) -> Any:
        encoded.extend(prompts)
        return states(self, model, prompts)

    monkeypatch.setattr(kind, "text_states", counted)
    prepared(tmp_path, FAMILIES[0], (SHORT, TWO, FOUR), max_prompt_chunks=8)
    assert encoded == [FOUR]
