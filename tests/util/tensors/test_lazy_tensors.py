"""Tensors read and written one at a time: the bytes are those of the library."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file

from modules.util.tensors.lazy_tensors import TYPES, LazyTensor, file_tensors, lazily, write_lazily
from tests.trainer.builders import small_files_only


def every_type() -> dict[str, torch.Tensor]:
    source = torch.Generator().manual_seed(0)
    made = {
        f"{kind.lower()}.{size}": (torch.randn(size, 3, generator=source) * 5).to(getattr(torch, kind))
        for kind in TYPES.values()
        for size in (2, 7)
    }
    return made | {"scalar": torch.tensor(2.5), "none": torch.zeros(0), "no.rows": torch.zeros(0, 3)}


def raw(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.reshape(-1).view(torch.uint8)


def test_the_file_is_the_librarys(tmp_path: Path) -> None:
    ours, theirs = tmp_path / "ours.safetensors", tmp_path / "theirs.safetensors"
    tensors = every_type()
    write_lazily({name: lazily(tensor) for name, tensor in tensors.items()}, ours, {"format": "pt"})
    save_file(tensors, theirs, {"format": "pt"})
    assert ours.read_bytes() == theirs.read_bytes()
    write_lazily({name: lazily(tensor) for name, tensor in tensors.items()}, ours)
    save_file(tensors, theirs)
    assert ours.read_bytes() == theirs.read_bytes()


def test_what_is_read_is_what_was_written(tmp_path: Path) -> None:
    path, tensors = tmp_path / "a.safetensors", every_type()
    save_file(tensors, path, {"title": "Zürich"})
    read = file_tensors(path)
    assert read.keys() == tensors.keys()
    for name, tensor in tensors.items():
        entry = read[name]
        assert (entry.shape, entry.dtype) == (tuple(tensor.shape), tensor.dtype)
        assert torch.equal(raw(entry.read()), raw(tensor)), name
        assert entry.nbytes == tensor.numel() * tensor.element_size()
    for name in ("float8_e4m3fn.7", "int64.7"):
        assert torch.equal(read[name].rows(2, 3).float(), tensors[name][2:5].float())
    write_lazily(read, tmp_path / "b.safetensors", {"title": "Zürich"})
    assert (tmp_path / "b.safetensors").read_bytes() == path.read_bytes()
    with safe_open(str(tmp_path / "b.safetensors"), framework="pt") as file:
        assert file.metadata() == {"title": "Zürich"}


def test_changes_wait_until_the_tensor_is_read() -> None:
    count = 0

    def read() -> torch.Tensor:
        nonlocal count
        count += 1
        return torch.arange(6.0).view(2, 3)

    entry = LazyTensor((2, 3), torch.float32, read).then(lambda t: t.T.contiguous()).to(torch.float16)
    assert (entry.shape, entry.dtype, count) == ((3, 2), torch.float16, 0)
    assert entry.read().tolist() == [[0, 3], [1, 4], [2, 5]] and count == 1
    assert entry.rows(1, 2).tolist() == [[1, 4], [2, 5]]
    assert lazily(torch.tensor([1])).to(torch.float16).dtype == torch.int64


def test_faults(tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    wrong = {"a": LazyTensor((2,), torch.float32, lambda: torch.zeros(3))}
    with pytest.raises(RuntimeError, match="a is"):
        write_lazily(wrong, path)
    large = {"a": lazily(torch.zeros(4096))}
    with small_files_only(1000), pytest.raises(OSError, match="large") as caught:
        write_lazily(large, path)
    assert caught.value.errno == errno.EFBIG
    write_lazily(large, path)
    entry = file_tensors(path)["a"]
    path.write_bytes(path.read_bytes()[:5000])
    with pytest.raises(OSError, match="shorter"):
        entry.read()
    path.write_bytes(b"\xff" * 100)
    with pytest.raises(ValueError, match="no header"):
        file_tensors(path)
