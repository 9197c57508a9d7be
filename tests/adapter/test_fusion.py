"""Splitting and joining the rows of fused layers, against the products of the factors."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from modules.adapter.fusion import LayerAdapter, block_ranks, join_rows, split_rows, swap_halves

WIDTH = 5


def made(rows: int, rank: int, alpha: float, seed: int) -> LayerAdapter:
    source = torch.Generator().manual_seed(seed)
    down = torch.randn(rank, WIDTH, generator=source, dtype=torch.float64)
    up = torch.randn(rows, rank, generator=source, dtype=torch.float64)
    return LayerAdapter({"lora_A": down, "lora_B": up}, alpha, rank)


def change(layer: LayerAdapter | None, rows: int) -> torch.Tensor:
    if layer is None:
        return torch.zeros(rows, WIDTH, dtype=torch.float64)
    return layer.scaling * (layer.tensors["lora_B"].double() @ layer.tensors["lora_A"].double())


layers = st.tuples(st.integers(1, 6), st.integers(0, 4), st.sampled_from([0.5, 1.0, 3.0]))


@settings(max_examples=80, deadline=None)
@given(st.lists(layers, min_size=1, max_size=4).filter(lambda some: any(rank for _, rank, _ in some)))
def test_joined_and_split_again(shape: list[tuple[int, int, float]]) -> None:
    sizes = [rows for rows, _, _ in shape]
    pieces = [made(rows, rank, a, i) if rank else None for i, (rows, rank, a) in enumerate(shape)]
    joined = join_rows(pieces, sizes)
    expected = torch.cat([change(p, rows) for p, rows in zip(pieces, sizes, strict=True)])
    # folding an alpha in is done in float32
    assert torch.allclose(change(joined, sum(sizes)), expected, atol=1e-5)
    again = split_rows("LORA", joined, sizes)
    found = torch.cat([change(p, rows) for p, rows in zip(again, sizes, strict=True)])
    assert torch.allclose(found, expected, atol=1e-5)
    assert [p.rank if p else 0 for p in again] == [p.rank if p else 0 for p in pieces]


def test_a_dense_fused_adapter_is_split_exactly_and_joined_again() -> None:
    sizes = [4, 4, 6]
    fused = made(14, 3, 1.5, 0)
    pieces = split_rows("LORA", fused, sizes)
    assert [piece.rank for piece in pieces if piece] == [3, 3, 3]
    found = torch.cat([change(p, rows) for p, rows in zip(pieces, sizes, strict=True)])
    assert torch.equal(found, change(fused, 14))
    again = join_rows(pieces, sizes)
    assert again.rank == 3 and again.alpha == 1.5
    assert all(torch.equal(again.tensors[name], tensor) for name, tensor in fused.tensors.items())


def test_an_adapter_that_does_nothing_yet_reaches_every_layer() -> None:
    fresh = LayerAdapter({"lora_A": torch.ones(6, WIDTH), "lora_B": torch.zeros(9, 6)}, 6.0, 6)
    assert [piece.rank for piece in split_rows("LORA", fresh, [3, 3, 3]) if piece] == [6, 6, 6]


@pytest.mark.parametrize(
    ("columns", "expected"),
    [
        ([0, 0, 1, 1, 2, 2], [2, 2, 2]),
        ([0, 1, 1, 2], [1, 2, 1]),
        ([0, 0, 2, 2], [2, 0, 2]),
        ([1, 0, 2], []),
        ([-1, 0, 2, -1], [2, 0, 2]),
    ],
)
def test_blocks_are_found(columns: list[int], expected: list[int]) -> None:
    up = torch.zeros(6, len(columns))
    for column, owner in enumerate(columns):
        if owner >= 0:
            up[2 * owner : 2 * owner + 2, column] = 1.0
    assert block_ranks(up, [2, 2, 2]) == expected


def test_magnitudes_go_with_their_rows() -> None:
    pieces = [
        LayerAdapter({**made(2, 1, 1.0, i).tensors, "dora_scale": torch.tensor([i + 0.1, i + 0.2])}, 1.0, 1)
        for i in range(2)
    ]
    joined = join_rows(pieces, [2, 2])
    assert torch.allclose(joined.tensors["dora_scale"], torch.tensor([0.1, 0.2, 1.1, 1.2]))
    again = split_rows("LORA", joined, [2, 2])
    assert torch.equal(again[1].tensors["dora_scale"], pieces[1].tensors["dora_scale"])  # type: ignore[union-attr]


def test_hadamard_products_are_split_by_rows() -> None:
    names = {"hada_w1_a": (6, 2), "hada_w1_b": (2, WIDTH), "hada_w2_a": (6, 2), "hada_w2_b": (2, WIDTH)}
    source = torch.Generator().manual_seed(0)
    tensors = {name: torch.randn(shape, generator=source) for name, shape in names.items()}

    def product(t: dict[str, torch.Tensor]) -> torch.Tensor:
        return (t["hada_w1_a"] @ t["hada_w1_b"]) * (t["hada_w2_a"] @ t["hada_w2_b"])

    pieces = split_rows("LOHA", LayerAdapter(tensors, 1.0, 2), [2, 4])
    found = torch.cat([product(piece.tensors) for piece in pieces if piece])
    assert torch.allclose(found, product(tensors))
    swapped = product(swap_halves(tensors))
    assert torch.allclose(swapped, torch.cat(product(tensors).chunk(2)[::-1]))
