"""Which files of a run are packed for the other computer."""

from __future__ import annotations

from pathlib import Path

import pytest

from modules.remote.packing import pack
from modules.util.config.load import load_config
from modules.util.errors import UserError
from tests.remote.support import write_light


@pytest.mark.parametrize(
    ("read", "refused"),
    [
        ({}, None),
        ({"masked_training": True}, None),
        ({"mask_source": "FOLDER"}, None),
        ({"masked_training": True, "mask_source": "FOLDER"}, "concepts[0].mask_path"),
        ({"text": {"prompt_source": "concept"}}, "concepts[0].text.prompt_path"),
    ],
    ids=str,
)
def test_a_file_of_a_concept_may_be_missing_if_the_run_does_not_read_it(tmp_path, remote, read, refused):
    settings, gone = dict(read), str(tmp_path / "gone")
    concept = {
        "path": str(tmp_path / "images"), "mask_path": gone, "text": {"prompt_path": gone, **settings.pop("text", {})},
    }  # fmt: skip
    config = load_config(write_light(tmp_path, remote, concepts=[concept], **settings))
    if refused is None:
        assert sorted(Path(name).name for name in pack(config, "/far", "run-1", {}).files) == [
            "a.png", "a.txt", "model.safetensors",
        ]  # fmt: skip
        return
    with pytest.raises(UserError) as caught:
        pack(config, "/far", "run-1", {})
    assert caught.value.field == refused


def test_configs_and_tokenizers_next_to_a_model_file_are_packed_with_it(tmp_path, remote):
    config = load_config(write_light(tmp_path, remote))
    model = Path(config.base_model_name)
    for name in ("model.safetensors.config/scheduler/scheduler_config.json", "tokenizer/vocab.json", "images/b.png"):
        (model.parent / name).parent.mkdir(parents=True, exist_ok=True)
        (model.parent / name).write_text("{}")
    made = pack(config, "/far", "run-1", {})
    folder = Path(made.config.base_model_name).relative_to("/far/inputs/run-1").parent
    assert {str(Path(name).relative_to(folder)) for name in made.files if name.startswith(f"{folder}/")} == {
        model.name, "model.safetensors.config/scheduler/scheduler_config.json", "tokenizer/vocab.json",
    }  # fmt: skip


def test_the_settings_that_peft_wrote_next_to_an_adapter_are_packed_with_it(tmp_path, remote):
    adapter = tmp_path / "peft" / "adapter_model.safetensors"
    adapter.parent.mkdir()
    for name in (adapter.name, "adapter_config.json", "README.md"):
        (adapter.parent / name).write_text("{}")
    made = pack(load_config(write_light(tmp_path, remote, lora_model_name=str(adapter))), "/far", "run-1", {})
    folder = Path(made.config.lora_model_name).relative_to("/far/inputs/run-1").parent
    assert {Path(name).name for name in made.files if name.startswith(f"{folder}/")} == {
        adapter.name, "adapter_config.json",
    }  # fmt: skip
