"""What embeddings do in each way of training, what their files hold, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from zipfile import ZIP_DEFLATED, ZipFile

import pytest
import torch
from diffusers.loaders import TextualInversionLoaderMixin
from safetensors.torch import load_file, save_file
from transformers.models.clip.modeling_clip import CLIPMLP

from modules.adapter.embedding_files import BUNDLE
from modules.model.text.LearnedWords import PREFIX
from modules.modelSetup import training
from modules.modelSetup.families.StableDiffusionSetup import StableDiffusionSetup
from modules.modelSetup.registry import create_model_setup
from modules.util.errors import UserError
from modules.util.files.output_place import word_files
from tests.tiny import small_folder
from tests.trainer.builders import run_here
from tests.trainer.embeddings.test_training import WORD, XL, words_config, words_of
from tests.usual import usual

NAME = f"{PREFIX}{WORD}.text_encoder"
ALONE: dict[str, Any] = {
    "training_method": "EMBEDDING",
    "additional_embeddings": [],
    "embedding": {"placeholder": WORD, "token_count": 2},
    "learning_rate": 1e-2,
    "embedding_learning_rate": None,
}


def test_an_embedding_alone_leaves_the_model_and_learns(tmp_path: Path) -> None:
    trainer = run_here(words_config(tmp_path, **ALONE, preserve_embedding_norm=True))
    assert [name for name, _ in trainer.parts.named] == [NAME]
    model = trainer.parts.model
    fresh = create_model_setup("STABLE_DIFFUSION_15").load(str(small_folder()))
    for part, module in fresh.modules().items():
        own = model.module(part).state_dict()
        assert all(torch.equal(weight, own[name]) for name, weight in module.state_dict().items()), part
    saved = load_file(tmp_path / "out.safetensors")
    assert saved.keys() == {"emb_params"}
    assert torch.equal(saved["emb_params"], words_of(trainer)[NAME])
    table = fresh.module("text_encoder").get_input_embeddings().weight
    median = float(table.norm(dim=1).median())
    assert saved["emb_params"].norm(dim=1).tolist() == pytest.approx([median, median], abs=1e-6)
    start = model.words.start[NAME]
    assert not torch.allclose(saved["emb_params"], start * (median / start.norm(dim=1, keepdim=True)))


@pytest.mark.parametrize("lora", [False, True], ids=["alone", "with a LoRA"])
def test_output_vectors_of_a_clip_learn_from_prompts_that_are_encoded_once(
    lora: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[str] = []
    encode = StableDiffusionSetup._encode

    def counted(self: Any, model: Any, prompts: Any) -> Any:
        read.extend(map(str, prompts))
        return encode(self, model, prompts)

    monkeypatch.setattr(StableDiffusionSetup, "_encode", counted)
    word = {"placeholder": WORD, "token_count": 2, "is_output_embedding": True}
    changes = {"additional_embeddings": [word]} if lora else {**ALONE, "embedding": word}
    trainer = run_here(words_config(tmp_path, **changes))
    model = trainer.parts.model
    assert not model.trains_text and trainer.progress.epoch == 2
    # once for its initial vectors, then each caption once
    assert read.count("a red circle") == 1 and len(read) == 3
    name = f"{NAME}_out"
    rows = words_of(trainer)[name]
    assert bool((rows != model.words.start[name]).any(1).all())
    saved = load_file(tmp_path / "out.safetensors")
    key = f"{BUNDLE}{WORD}.clip_l_out" if lora else "emp_params_out"
    assert [one for one in saved if "_out" in one and "lora" not in one] == [key]
    assert torch.equal(saved[key], rows)


STOPPED = {"stop_training_after": 1, "stop_training_after_unit": "EPOCH"}
FREE = {"optimizer": {"optimizer": "SCHEDULE_FREE_ADAMW"}}


@pytest.mark.parametrize(
    ("changes", "stops"),
    usual(
        [({"ema": "CPU"}, {}), (FREE, {}), ({"ema": "CPU"}, STOPPED), (FREE, STOPPED)],
        *(({"ema": "CPU"}, STOPPED), (FREE, STOPPED)),
    ),
    ids=["average", "schedule-free", "average, stopped", "schedule-free, stopped"],
)
def test_averages_of_words_have_the_length_that_words_keep(
    changes: dict[str, Any], stops: dict[str, Any], tmp_path: Path
) -> None:
    """The average of several vectors is shorter than each of them."""
    word = {"placeholder": WORD, "token_count": 2, "initial_embedding_text": "cat", **stops}
    config = words_config(tmp_path, preserve_embedding_norm=True, additional_embeddings=[word], **changes)
    trainer = run_here(config)
    norm = trainer.parts.model.words.norms["text_encoder"]
    saved = load_file(tmp_path / "out.safetensors")[f"{BUNDLE}{WORD}.clip_l"]
    assert saved.norm(dim=1).tolist() == pytest.approx([norm, norm], rel=1e-5)
    if stops and changes is FREE:
        assert torch.equal(saved, words_of(trainer)[NAME]), "the rest was trained with what is saved"


def test_dpo_compares_with_the_words_as_they_began(tmp_path: Path) -> None:
    trainer = run_here(words_config(tmp_path, rlhf_enabled=True, epochs=1))
    parts, model = trainer.parts, trainer.parts.model
    setup = parts.setup
    ended = words_of(trainer)[NAME]
    began = model.words.start[NAME]
    assert not torch.equal(ended, began)
    with torch.no_grad():
        now = setup.encode_text(model, [f"photo of {WORD}"], train=True)["hidden_BLE"].clone()
        with parts.reference():
            assert torch.equal(words_of(trainer)[NAME], began)
            before = setup.encode_text(model, [f"photo of {WORD}"], train=True)["hidden_BLE"].clone()
        assert torch.equal(words_of(trainer)[NAME], ended)
    assert not torch.equal(now, before)


@pytest.fixture(scope="module")
def first(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Path]:
    """A run of a LoRA with a word, and the file that it saved; only to be read."""
    folder = tmp_path_factory.mktemp("first")
    return run_here(words_config(folder, max_steps=1)), folder / "out.safetensors"


# all layouts are seen in test_output_vectors.py
@pytest.mark.parametrize("layout", usual(["KOHYA_LORA", "DIFFUSERS_LORA", "COMFY_LORA", "LEGACY_LORA"], "KOHYA_LORA"))
def test_words_travel_in_the_file_of_an_adapter(
    layout: str, first: tuple[Any, Path], tmp_path: Path
) -> None:
    trainer, file = first
    if layout != "KOHYA_LORA":
        file = training.save(trainer.parts.model, tmp_path / "other.safetensors", layout)
    saved = load_file(file)
    key = f"{BUNDLE}{WORD}.clip_l"
    assert [name for name in saved if name.startswith(BUNDLE)] == [key]
    assert torch.equal(saved[key], words_of(trainer)[NAME])
    # another run that does not name it can use it, and one that names it goes on from there
    again = run_here(
        words_config(
            tmp_path / "again", lora_model_name=str(file), additional_embeddings=[], max_steps=1,
        )
    )  # fmt: skip
    assert torch.equal(words_of(again)[NAME], saved[key])
    assert torch.equal(load_file(tmp_path / "again/out.safetensors")[key], saved[key])


def test_words_of_an_adapter_that_the_model_knows_already_are_kept_and_named(
    first: tuple[Any, Path], tmp_path: Path
) -> None:
    file = tmp_path / "foreign.safetensors"
    own = load_file(first[1])
    save_file({**own, f"{BUNDLE}Cat.clip_l": torch.ones(1, 24)}, file)
    config = words_config(
        tmp_path / "again", lora_model_name=str(file), additional_embeddings=[], max_steps=1
    )
    parts = run_here(config).parts
    assert sorted(word.placeholder.lower() for word in parts.model.words.words) == sorted([WORD, "cat"])
    said = "mean the embeddings of this file wherever a prompt uses them: Cat"
    assert any(said in note for note in parts.handle.notes)
    saved = load_file(tmp_path / "again/out.safetensors")
    kept = [tensor for name, tensor in saved.items() if name.lower() == f"{BUNDLE}cat.clip_l".lower()]
    assert len(kept) == 1 and torch.equal(kept[0], torch.ones(1, 24)), "nothing of the LoRA is lost"


def test_words_beside_an_adapter_are_files_of_their_own(tmp_path: Path) -> None:
    trainer = run_here(words_config(tmp_path, bundle_additional_embeddings=False, max_steps=1))
    assert not any(name.startswith(BUNDLE) for name in load_file(tmp_path / "out.safetensors"))
    saved = load_file(tmp_path / "out_embeddings/cat-toy.safetensors")
    assert torch.equal(saved["emb_params"], words_of(trainer)[NAME])
    # and are read again
    again = run_here(
        words_config(
            tmp_path / "again",
            max_steps=1,
            additional_embeddings=[
                {
                    "placeholder": WORD,
                    "train": False,
                    "model_name": str(tmp_path / "out_embeddings/cat-toy.safetensors"),
                }
            ],
        )
    )
    assert torch.equal(words_of(again)[NAME], saved["emb_params"])
    assert not again.parts.model.trains_text


def test_states_of_the_encoder_are_computed_again_for_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where nothing but words is trained, and to the same vectors as with states that are kept."""
    calls, forward = [0], CLIPMLP.forward

    def counted(self: CLIPMLP, *args: Any) -> Any:
        calls[0] += 1
        return forward(self, *args)

    monkeypatch.setattr(CLIPMLP, "forward", counted)
    found = []
    for on in (False, True):
        encoder = {"train": False, "gradient_checkpointing": on}
        calls[0] = 0
        config = words_config(tmp_path / str(on), **ALONE, text_encoder=encoder, max_steps=2)
        found.append((words_of(run_here(config))[NAME], calls[0]))
    (kept, few), (again, more) = found
    assert more > few and torch.equal(kept, again)


@pytest.mark.slow
def test_both_encoders_of_xl_get_vectors(tmp_path: Path) -> None:
    config = words_config(
        tmp_path, model_type=XL, base_model_name=str(small_folder(XL)), text_encoder_2={"train_embedding": False},
        **{**ALONE, "training_method": "EMBEDDING"}, resolution="32",
    )  # fmt: skip
    trainer = run_here(config)
    start, saved = trainer.parts.model.words.start, load_file(tmp_path / "out.safetensors")
    assert saved.keys() == {"clip_l", "clip_g"}
    assert not torch.equal(saved["clip_l"], start[NAME])
    assert torch.equal(saved["clip_g"], start[f"{NAME}_2"])


class Reader(TextualInversionLoaderMixin):
    """The part of a diffusers pipeline that reads embeddings."""

    components: dict[str, Any] = {}
    hf_device_map = None

    def __init__(self, encoder: Any, tokenizer: Any) -> None:
        self.text_encoder, self.tokenizer = encoder, tokenizer


@pytest.mark.parametrize("key", ["STABLE_DIFFUSION_15", XL])
def test_diffusers_reads_the_file_and_gives_the_same_states(key: str, tmp_path: Path) -> None:
    config = words_config(
        tmp_path, **ALONE, model_type=key, base_model_name=str(small_folder(key)), max_steps=2
    )
    trainer = run_here(config)
    prompt = f"photo of {WORD}, a cat"
    ours_BLE = trainer.parts.setup.encode_text(trainer.parts.model, [prompt])["hidden_BLE"]
    fresh, saved = trainer.parts.setup.load(str(small_folder(key))), load_file(tmp_path / "out.safetensors")
    theirs = []
    names = ["emb_params"] if len(fresh.text_encoders) == 1 else ["clip_l", "clip_g"]
    for part, name in zip(fresh.text_encoders, names, strict=True):
        encoder, tokenizer = fresh.module(part), fresh.parts[part.replace("text_encoder", "tokenizer")]
        reader = Reader(encoder, tokenizer)
        # of files for several encoders people hand the tensors over themselves
        file = str(tmp_path / "out.safetensors") if name == "emb_params" else saved[name]
        reader.load_textual_inversion(file, token=WORD)
        text = reader.maybe_convert_prompt(prompt, tokenizer)
        ids = tokenizer(
            text, padding="max_length", max_length=16, truncation=True, return_tensors="pt"
        ).input_ids
        with torch.no_grad():
            out = encoder(ids, output_hidden_states=True)
        theirs.append(out.last_hidden_state if name == "emb_params" else out.hidden_states[-2])
    assert torch.equal(ours_BLE, torch.cat(theirs, dim=-1))


def refusal(path: Path) -> str:
    with pytest.raises(UserError) as caught:
        run_here(path)
    return str(caught.value)


@pytest.mark.parametrize(
    ("one", "words"),
    [
        ({"placeholder": "cat"}, ("additional_embeddings[0].placeholder", "one token of the vocabulary")),
        ({"placeholder": "Cat"}, ("additional_embeddings[0].placeholder", "one token of the vocabulary")),
        ({"placeholder": "a word"}, ("additional_embeddings[0].placeholder", "without blanks")),
        ({"placeholder": "<other>"}, ("concepts", "no caption contains <other>")),
        ({"placeholder": WORD, "model_name": "wide.safetensors"}, ("model_name", "have 12 numbers", "takes 24")),
        ({"placeholder": WORD, "model_name": "nan.safetensors"}, ("model_name", "NaN")),
        ({"placeholder": WORD, "model_name": "xl.safetensors"}, ("model_name", "clip_g, clip_l", "emb_params")),
        ({"placeholder": WORD, "model_name": "none.safetensors"}, ("model_name", "does not exist")),
        ({"placeholder": WORD, "model_name": "text.pt"}, ("model_name", "damaged")),
        ({"placeholder": WORD, "model_name": "bomb.pt"}, ("model_name", "compressed")),
        ({"placeholder": WORD, "model_name": "out.safetensors"}, ("model_name", "holds output vectors", "is false")),
        ({"placeholder": WORD, "model_name": "sparse.pt"}, ("model_name", "instead of one row per token")),
    ],
    ids=str,
)  # fmt: skip
def test_what_cannot_be_a_word_is_refused(
    one: dict[str, Any], words: tuple[str, ...], tmp_path: Path
) -> None:
    save_file({"emb_params": torch.zeros(1, 12)}, tmp_path / "wide.safetensors")
    save_file({"emb_params": torch.full((1, 24), torch.nan)}, tmp_path / "nan.safetensors")
    save_file({"clip_l": torch.zeros(1, 24), "clip_g": torch.zeros(1, 24)}, tmp_path / "xl.safetensors")
    (tmp_path / "text.pt").write_text("not tensors")
    save_file(
        {"emb_params": torch.zeros(1, 24), "emb_params_out": torch.zeros(1, 24)}, tmp_path / "out.safetensors"
    )
    torch.save({"emb_params": torch.zeros(1, 24)}, tmp_path / "plain.pt")
    with ZipFile(tmp_path / "plain.pt") as plain, ZipFile(tmp_path / "bomb.pt", "w", ZIP_DEFLATED) as packed:
        for entry in plain.infolist():
            packed.writestr(entry.filename, plain.read(entry))
    torch.save({"emb_params": torch.zeros(1, 24).to_sparse()}, tmp_path / "sparse.pt")
    if "model_name" in one:
        one = {**one, "model_name": str(tmp_path / one["model_name"])}
    said = refusal(words_config(tmp_path / "run", additional_embeddings=[one]))
    assert all(word in said for word in words), said


def test_files_of_words_are_checked_before_training(tmp_path: Path) -> None:
    apart = {"bundle_additional_embeddings": False, "max_steps": 1}
    config = words_config(tmp_path / "run", **apart)
    saved = Path(json.loads(config.read_text())["output_model_destination"])
    folder = saved.with_name(f"{saved.stem}_embeddings")
    folder.parent.mkdir(parents=True, exist_ok=True)
    folder.write_text("mine")
    assert "is a file" in refusal(config) and folder.read_text() == "mine"
    folder.unlink()
    folder.mkdir()
    mine = folder / word_files([WORD])[0]
    save_file({"emb_params": torch.ones(1, 24)}, mine)
    before = mine.read_bytes()
    config = words_config(tmp_path / "run", **apart, prevent_overwrites=True)
    assert "already exists" in refusal(config)
    started = [{"placeholder": WORD, "model_name": str(mine)}]
    config = words_config(tmp_path / "run", **apart, additional_embeddings=started)
    assert "in use" in refusal(config)
    assert mine.read_bytes() == before and not saved.exists()
