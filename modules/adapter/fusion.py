"""Adapters of layers that checkpoints fuse into one: splits, joins and reorders their rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

Tensors = dict[str, torch.Tensor]
ROWS = ("lora_B", "hada_w1_a", "hada_w2_a", "dora_scale")
"""Tensors with one row per output of the layer; the others belong to its inputs or are shared."""
SPLITTABLE = ("LORA", "LOHA", "OFT_2")
"""Types that can be split by rows: low-rank factors can, and a rotation affects only the inputs."""


@dataclass(frozen=True)
class LayerAdapter:
    """The adapter of one layer.

    Args:
        tensors: canonical tensor name -> tensor, without alpha.
        alpha: its output is multiplied by alpha / rank.
        rank: rank of the decomposition.
    """

    tensors: Tensors
    alpha: float
    rank: int

    @property
    def scaling(self) -> float:
        return self.alpha / self.rank


def swap_halves(tensors: Mapping[str, torch.Tensor]) -> Tensors:
    """The adapter of the same layer with the two halves of its outputs swapped.

    Magnitudes of inputs are a single row, which has no halves and stays as it is.
    """
    return {
        name: torch.cat(tensor.chunk(2, dim=0)[::-1], dim=0) if name in ROWS else tensor
        for name, tensor in tensors.items()
    }


def split_rows(kind: str, layer: LayerAdapter, sizes: Sequence[int]) -> list[LayerAdapter | None]:
    """Split an adapter of a fused layer into those of its layers; ``None`` for a layer it leaves unchanged.

    This is exact. A block-diagonal LoRA, as made by fusing, is split into its blocks; any other gives every
    layer its whole input side.

    Args:
        layer: its magnitudes, if any, are those of outputs.
        sizes: output rows of each layer; they add up to those of the tensors.
    """
    ranks = block_ranks(layer.tensors["lora_B"], sizes) if kind == "LORA" else []
    # a magnitude is a change of its own, even for a layer without a rank
    if ranks and not (0 in ranks and "dora_scale" in layer.tensors):
        return _blocks(layer, sizes, ranks)
    rows = {name: tensor.split(list(sizes), dim=0) for name, tensor in layer.tensors.items() if name in ROWS}
    return [
        LayerAdapter(
            {
                name: (rows[name][i].clone() if name in rows else tensor)
                for name, tensor in layer.tensors.items()
            },
            layer.alpha,
            layer.rank,
        )
        for i in range(len(sizes))
    ]


def block_ranks(up: torch.Tensor, sizes: Sequence[int]) -> list[int]:
    """Number of columns used by each group of rows alone; empty if they share columns.

    Args:
        up: (rows, rank).
        sizes: rows of each group, one after the other.
    """
    rank, groups = up.shape[1], len(sizes)
    used = torch.stack([(piece != 0).any(dim=0) for piece in up.flatten(1).split(list(sizes), dim=0)])
    if up.dim() != 2 or not bool(used.any()) or int(used.sum(dim=0).max()) > 1:
        return []
    if rank % groups == 0:
        share = rank // groups
        mine = torch.arange(rank)[None] // share == torch.arange(groups)[:, None]
        if not bool((used.cpu() & ~mine).any()):
            return [share] * groups
    owners = [int(column.nonzero()[0]) if bool(column.any()) else -1 for column in used.T]
    last = next(owner for owner in owners if owner >= 0)
    ranks = [0] * groups
    for owner in owners:
        if 0 <= owner < last:
            return []
        last = max(last, owner)
        ranks[last] += 1
    return ranks


def _blocks(layer: LayerAdapter, sizes: Sequence[int], ranks: Sequence[int]) -> list[LayerAdapter | None]:
    pieces: list[LayerAdapter | None] = []
    row = column = 0
    for size, rank in zip(sizes, ranks, strict=True):
        rows, columns = slice(row, row + size), slice(column, column + rank)
        tensors = {
            "lora_A": layer.tensors["lora_A"][columns].clone(),
            "lora_B": layer.tensors["lora_B"][rows, columns].clone(),
        }
        if "dora_scale" in layer.tensors:
            tensors["dora_scale"] = layer.tensors["dora_scale"][rows].clone()
        pieces.append(LayerAdapter(tensors, layer.scaling * rank, rank) if rank else None)
        row, column = row + size, column + rank
    return pieces


def join_rows(pieces: Sequence[LayerAdapter | None], sizes: Sequence[int]) -> LayerAdapter:
    """The LoRA of a fused layer that is equivalent to those of its pieces. It is exact: block-diagonal with
    the sum of their ranks, or with their own rank if all have the same input side.

    Args:
        pieces: at least one of them; the rows of missing ones are zero. Magnitudes are those of outputs.
        sizes: output rows of each piece.
    """
    present = [piece for piece in pieces if piece is not None]
    first = present[0]
    same_scale = all(piece.scaling == first.scaling for piece in present)

    def up(piece: LayerAdapter) -> torch.Tensor:
        tensor = piece.tensors["lora_B"].detach()
        return tensor if same_scale else tensor.float() * piece.scaling

    def down(piece: LayerAdapter) -> torch.Tensor:
        return piece.tensors["lora_A"].detach()

    tensors: Tensors = {}
    if all(piece is not None and torch.equal(down(piece), down(first)) for piece in pieces):
        rank = first.rank
        tensors["lora_A"] = down(first)
        tensors["lora_B"] = torch.cat([up(piece) for piece in present], dim=0)
    else:
        rank = sum(piece.rank for piece in present)
        tensors["lora_A"] = torch.cat([down(piece) for piece in present], dim=0)
        tensors["lora_B"] = up(first).new_zeros(sum(sizes), rank)
        row = column = 0
        for piece, size in zip(pieces, sizes, strict=True):
            if piece is not None:
                tensors["lora_B"][row : row + size, column : column + piece.rank] = up(piece)
                column += piece.rank
            row += size
    if all(piece is not None and "dora_scale" in piece.tensors for piece in pieces):
        tensors["dora_scale"] = torch.cat(
            [piece.tensors["dora_scale"].detach().reshape(-1) for piece in present]
        )
    return LayerAdapter(tensors, first.scaling * rank if same_scale else float(rank), rank)
