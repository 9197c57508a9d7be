"""Files of tensors: they come back as they were, and a full disk is an ``OSError``."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file

from modules.util.owned_files import Owned
from modules.util.tensors.tensor_files import write_safetensors, write_torch
from tests.trainer.builders import small_files_only


@pytest.mark.skipif(os.name == "nt", reason="the system has no such rights")
def test_saved_tensors_may_be_read_by_whom_the_system_allows(tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        for name, private, rights in (("new", False, 0o640), ("secret", True, 0o600)):
            with Owned(tmp_path).write(name, private=private) as path:
                write_safetensors({"a": torch.zeros(2)}, path)
            assert stat.S_IMODE((tmp_path / name).stat().st_mode) == rights
        (tmp_path / "new").chmod(0o664)
        with Owned(tmp_path).write("new") as path:
            write_safetensors({"a": torch.zeros(2)}, path)
        assert stat.S_IMODE((tmp_path / "new").stat().st_mode) == 0o664
    finally:
        os.umask(before)


@pytest.mark.skipif(os.name == "nt", reason="the system has no such rights")
def test_a_link_in_place_of_a_file_in_work_opens_no_other_file(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("mine")
    secret.chmod(0o600)
    with pytest.raises(OSError), Owned(tmp_path / "shared").write("new") as path:
        path.unlink()
        path.symlink_to(secret)
    assert stat.S_IMODE(secret.stat().st_mode) == 0o600 and secret.read_text() == "mine"


def test_safetensors_come_back_with_their_metadata(tmp_path: Path) -> None:
    path = tmp_path / "t.safetensors"
    parameter = torch.nn.Parameter(torch.arange(6.0).view(2, 3))
    write_safetensors({"turned": parameter.T, "whole": torch.tensor([1, 2])}, path, {"title": "x"})
    back = load_file(path)
    assert torch.equal(back["turned"], parameter.detach().T)
    assert torch.equal(back["whole"], torch.tensor([1, 2]))
    with safe_open(path, framework="pt") as file:
        assert file.metadata() == {"title": "x"}


def test_torch_files_come_back_without_running_code(tmp_path: Path) -> None:
    path = tmp_path / "t.pt"
    write_torch({"state": {0: {"step": torch.tensor(3.0)}}, "names": ["a"]}, path)
    back = torch.load(path, weights_only=True)
    assert back["names"] == ["a"]
    assert torch.equal(back["state"][0]["step"], torch.tensor(3.0))


def test_a_full_disk_is_an_os_error(tmp_path: Path) -> None:
    data = {"a": torch.zeros(4096)}
    with small_files_only(1000), pytest.raises(OSError, match="cannot be written"):
        write_safetensors(data, tmp_path / "t.safetensors")
    with small_files_only(1000), pytest.raises(OSError, match="large") as caught:
        write_torch(data, tmp_path / "t.pt")
    assert caught.value.errno == errno.EFBIG


def test_other_faults_keep_their_kind(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        write_torch({}, tmp_path / "nowhere" / "t.pt")
    with pytest.raises((AttributeError, TypeError, RuntimeError)):
        write_torch({"a": (n for n in range(3))}, tmp_path / "t.pt")
