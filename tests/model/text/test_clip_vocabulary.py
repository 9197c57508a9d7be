"""CLIP's tokenizer comes with the program: single files need no network."""

from __future__ import annotations

import shutil
import socket
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from modules.model.text.clip_vocabulary import START, make_clip_tokenizer, read_merges, vocabulary
from modules.spec.parts import CLIP_END
from modules.weights.one_file import save_file as save_single_file
from modules.weights.part_sources import Sources, find_tokenizer
from tests.tiny import tiny_folder, tiny_model, tiny_setup
from tests.usual import usual

TOKENS = 49408
PADDING = {
    "STABLE_DIFFUSION_15": {"tokenizer": CLIP_END},
    "STABLE_DIFFUSION_15_INPAINTING": {"tokenizer": CLIP_END},
    "STABLE_DIFFUSION_20": {"tokenizer": "!"},
    "STABLE_DIFFUSION_21_BASE": {"tokenizer": "!"},
    "STABLE_DIFFUSION_XL_10_BASE": {"tokenizer": CLIP_END, "tokenizer_2": "!"},
    "STABLE_DIFFUSION_3": {"tokenizer": CLIP_END, "tokenizer_2": "!", "tokenizer_3": ""},
    "FLUX_DEV_1": {"tokenizer": CLIP_END, "tokenizer_2": ""},
}


@pytest.fixture
def no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise AssertionError("asked the network")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)


def test_the_vocabulary_is_the_published_one() -> None:
    merges = read_merges()
    pieces = vocabulary(merges)
    assert len(merges) == 49152 - 256 - 2 and merges[0] == ("i", "n") and merges[-1] == ("jeky", "ll</w>")
    assert len(pieces) == TOKENS and sorted(pieces.values()) == list(range(TOKENS))
    assert (pieces["!"], pieces["!</w>"], pieces[START], pieces[CLIP_END]) == (0, 256, 49406, 49407)


def test_prompts_become_the_published_tokens() -> None:
    tokenizer = make_clip_tokenizer(CLIP_END)
    read = tokenizer(["a photo of a cat", "A  Photo\nof a CAT"], padding="max_length").input_ids
    assert read[0] == read[1] == [49406, 320, 1125, 539, 320, 2368] + [49407] * 71
    assert tokenizer("! !! !!!").input_ids == [49406, 256, 748, 995, 49407]
    assert len(tokenizer("cat " * 200, truncation=True).input_ids) == 77
    assert tokenizer.decode(tokenizer("naïve 猫", add_special_tokens=False).input_ids) == "naïve 猫"


def test_openclip_pads_with_its_first_token(tmp_path: Path) -> None:
    tokenizer = make_clip_tokenizer("!")
    assert tokenizer("a cat", padding="max_length").input_ids == [49406, 320, 2368, 49407] + [0] * 73
    # as the published folders read it: the letter that pads stands for itself wherever it is
    assert tokenizer("! !! !!!").input_ids == [49406, *[0] * 6, 49407]
    tokenizer.save_pretrained(str(tmp_path))
    again = type(tokenizer).from_pretrained(str(tmp_path))
    for text in ("a cat!", "", "it's 42°"):
        assert again(text, padding="max_length").input_ids == tokenizer(text, padding="max_length").input_ids


@pytest.mark.parametrize("key", PADDING)
def test_padding_of_the_families(key: str) -> None:
    assert {part.name: part.pad_token for part in tiny_setup(key).spec.of_kind("tokenizer")} == PADDING[key]


def with_all_words(path: Path) -> Path:
    """The file with embeddings for the whole vocabulary and the 77 places of published encoders."""
    state = load_file(path)
    for name, tensor in state.items():
        rows = TOKENS if "token_embedding" in name else 77 if "position" in name else 0
        if rows:
            state[name] = torch.cat((tensor, torch.randn(rows - tensor.shape[0], tensor.shape[1]) * 0.02))
    save_file(state, path)
    return path


@pytest.mark.parametrize("key", usual(["STABLE_DIFFUSION_15", "STABLE_DIFFUSION_XL_10_BASE"], "STABLE_DIFFUSION_15"))
@pytest.mark.usefixtures("no_network")
def test_a_single_file_is_enough(key: str, tmp_path: Path) -> None:
    from tests.tiny.stable_diffusion import write_standard_pipeline
    from tests.tiny.stable_diffusion_xl import write_standard

    folder = tmp_path / "folder"
    (write_standard if "XL" in key else write_standard_pipeline)(folder)
    setup = tiny_setup(key)
    path = with_all_words(save_single_file(setup.load(str(folder)), tmp_path / "model.safetensors"))
    model = setup.load(str(path))
    assert model.parts["tokenizer"]("a cat").input_ids == [49406, 320, 2368, 49407]
    cat, dog = (setup.encode_text(model, [text])["hidden_BLE"] for text in ("a cat", "a dog"))
    assert cat.shape[1] == 77 and not torch.equal(cat, dog) and cat.isfinite().all()


@pytest.mark.usefixtures("no_network")
def test_whole_files_of_other_families(tmp_path: Path) -> None:
    spec = tiny_setup("STABLE_DIFFUSION_3").spec
    sources = Sources(tmp_path / "model.safetensors", {})
    sources.base.touch()
    ends = {}
    for part in spec.of_kind("tokenizer"):
        tokenizer = find_tokenizer(part, sources)
        ends[part.name] = tokenizer and tokenizer("a cat", padding="max_length").input_ids[-1]
    assert ends == {"tokenizer": 49407, "tokenizer_2": 0, "tokenizer_3": None}


@pytest.mark.parametrize("place", ["next to it", "folder"])
def test_tokenizers_in_folders_come_first(place: str, tmp_path: Path) -> None:
    key = "STABLE_DIFFUSION_3"
    (tmp_path / "model.safetensors").touch()
    folder = tiny_folder(key)
    if place == "next to it":
        shutil.copytree(folder / "tokenizer_2", tmp_path / "tokenizer_2")
    sources = Sources(tmp_path / "model.safetensors", {"vae": folder} if place == "folder" else {})
    words = len(tiny_model(key).parts["tokenizer_2"])
    assert len(find_tokenizer(tiny_setup(key).spec.part("tokenizer_2"), sources)) == words < TOKENS
