"""Tiny models are made once and copied: a copy is equal to its original, and nothing done to it is seen elsewhere."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

from tests.tiny import ROOT_VARIABLE, root, tiny_folder, tiny_model, tiny_setup
from tests.tiny.copies import Original
from tests.tiny.loaded_once import loaded_once


class Tied(nn.Module):
    """Two layers with one weight, a buffer that is a view, a function and a class without a name of their own."""

    def __init__(self) -> None:
        super().__init__()

        class Local(nn.Module):
            pass

        self.one, self.other = nn.Linear(2, 2), nn.Linear(2, 2)
        self.other.weight = self.one.weight
        self.one.bias.requires_grad_(False)
        self.register_buffer("whole", torch.arange(6.0))
        self.register_buffer("view", self.whole[2:4])
        self.local, self.act = Local(), lambda x: x + 1
        self.one.register_forward_hook(lambda *_: None)


def test_a_copy_is_what_deepcopy_makes() -> None:
    shared = object()
    model = Tied()
    model.known = shared
    original = Original(model, shared)
    first, second = original.copy(), original.copy()
    for made in (first, second):
        assert made.known is shared and made.act is model.act
        assert made.other.weight is made.one.weight and type(made.local) is type(model.local)
        assert not made.one.bias.requires_grad and made.one.weight.requires_grad
        assert len(made.one._forward_hooks) == 1
        made.whole[2] = 9.0
        assert made.view[0] == 9.0, "a view stays one"
    first.one.weight.data.zero_()
    first.one._forward_hooks.clear()
    assert bool(second.one.weight.any()) and bool(model.one.weight.any()) and model.whole[2] == 2.0
    assert len(original.copy().one._forward_hooks) == 1


def test_each_tiny_model_is_of_its_own() -> None:
    first, second = tiny_model(), tiny_model()
    first.denoiser.requires_grad_(True)
    for parameter in first.denoiser.parameters():
        parameter.data.zero_()
    first.parts["tokenizer"].add_tokens(["anew"])
    assert not any(parameter.requires_grad for parameter in second.denoiser.parameters())
    assert second.fingerprint("unet") == tiny_model().fingerprint("unet")
    assert len(tiny_model().parts["tokenizer"]) == len(second.parts["tokenizer"])


def test_runs_get_what_is_in_the_folder(tmp_path: Path) -> None:
    setup, folder = tiny_setup(), str(tiny_folder())
    direct = setup.load(folder)
    with loaded_once():
        first, second = setup.load(folder), setup.load(folder)
        first.denoiser.conv_in.weight.data.zero_()  # type: ignore[union-attr, operator]
        for name in direct.modules():
            assert second.fingerprint(name) == direct.fingerprint(name)
        assert setup.load(folder).fingerprint("unet") == direct.fingerprint("unet")
        # a folder of a test's own may change from one run to the next
        other = tmp_path / "model"
        shutil.copytree(folder, other)
        before = setup.load(str(other)).fingerprint("unet")
        (weights,) = (other / "unet").glob("*.safetensors")
        save_file({name: tensor + 1.0 for name, tensor in load_file(weights).items()}, weights)
        assert setup.load(str(other)).fingerprint("unet") != before


def test_processes_share_what_one_of_them_has_written() -> None:
    assert tiny_folder().parent == root() == Path(os.environ[ROOT_VARIABLE])
    written = state(tiny_folder() / "model_index.json")
    # as in a process that has not asked yet
    assert tiny_folder.__wrapped__() == tiny_folder()
    assert state(tiny_folder() / "model_index.json") == written, "it is not written again"


def state(path: Path) -> tuple[int, int, int]:
    """Changes with every writing; reading only changes the time of access."""
    found = path.stat()
    return found.st_ino, found.st_mtime_ns, found.st_size


def test_a_folder_that_is_gone_is_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(ROOT_VARIABLE, str(tmp_path / "gone"))
    made = root.__wrapped__()
    assert made.is_dir() and os.environ[ROOT_VARIABLE] == str(made) != str(tmp_path / "gone")
    monkeypatch.setenv(ROOT_VARIABLE, str(tmp_path))
    assert root.__wrapped__() == tmp_path
