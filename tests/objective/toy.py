"""A small network with switchable adapters, enough to run every schedule of a preference step in float64."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from modules.objective.scores import ScoreOut, Side


class AdaptedLinear(nn.Module):
    """A frozen linear layer plus a low-rank trained one that can be switched off."""

    def __init__(self, width_in: int, width_out: int, rank: int, generator: torch.Generator) -> None:
        super().__init__()

        def normal(*shape: int) -> torch.Tensor:
            return torch.randn(*shape, generator=generator, dtype=torch.float64) / shape[-1] ** 0.5

        self.base = nn.Parameter(normal(width_out, width_in), requires_grad=False)
        self.down = nn.Parameter(normal(rank, width_in))
        self.up = nn.Parameter(0.3 * normal(width_out, rank))
        self.enabled = True

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out = x @ self.base.T
        return out + (x @ self.down.T) @ self.up.T if self.enabled else out


class Block(nn.Module):
    def __init__(self, width: int, generator: torch.Generator) -> None:
        super().__init__()
        self.inner = AdaptedLinear(width, 2 * width, 2, generator)
        self.outer = AdaptedLinear(2 * width, width, 2, generator)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.outer(torch.nn.functional.gelu(self.inner(x)))


class ToyNet(nn.Module):
    def __init__(self, width: int = 6, blocks: int = 3, seed: int = 0, checkpointing: bool = False) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(seed)
        self.blocks = nn.ModuleList([Block(width, generator) for _ in range(blocks)])
        self.checkpointing = checkpointing
        self.calls: list[tuple[int, bool]] = []

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls.append((x.shape[0], torch.is_grad_enabled()))
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False) if self.checkpointing else block(x)
        return x

    def layers(self) -> list[AdaptedLinear]:
        return [layer for layer in self.modules() if isinstance(layer, AdaptedLinear)]

    def trained(self) -> list[nn.Parameter]:
        return [parameter for layer in self.layers() for parameter in (layer.down, layer.up)]

    def base(self) -> list[nn.Parameter]:
        return [layer.base for layer in self.layers()]


@dataclass
class ToyReference:
    """Both kinds of reference: adapters off, or a snapshot of them swapped in."""

    net: ToyNet
    existing: bool
    entered: int = 0
    open: bool = False
    snapshot: list[torch.Tensor] = field(default_factory=list)

    def __post_init__(self) -> None:
        generator = torch.Generator().manual_seed(99)
        self.snapshot = [
            parameter.detach()
            + 0.1 * torch.randn(parameter.shape, generator=generator, dtype=parameter.dtype)
            for parameter in self.net.trained()
        ]

    @contextmanager
    def __call__(self) -> Iterator[None]:
        self.entered += 1
        self.open = True
        live = [parameter.data for parameter in self.net.trained()]
        try:
            if self.existing:
                for parameter, frozen in zip(self.net.trained(), self.snapshot, strict=True):
                    parameter.data = frozen
            else:
                for layer in self.net.layers():
                    layer.enabled = False
            yield
        finally:
            for parameter, data in zip(self.net.trained(), live, strict=True):
                parameter.data = data
            for layer in self.net.layers():
                layer.enabled = True
            self.open = False


@dataclass
class ToyScorer:
    """Scores pairs of vectors by how well the net maps inputs to targets."""

    net: ToyNet
    chosen: tuple[torch.Tensor, torch.Tensor]
    rejected: tuple[torch.Tensor, torch.Tensor]
    reference: ToyReference | None = None
    fail_at: int = -1
    calls: list[tuple[Side, bool]] = field(default_factory=list)
    errors: bool = False
    norms: bool = False

    def __len__(self) -> int:
        return self.chosen[0].shape[0]

    def select(self, start: int, stop: int) -> ToyScorer:
        def part(side: tuple[torch.Tensor, torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
            return side[0][start:stop], side[1][start:stop]

        return replace(self, chosen=part(self.chosen), rejected=part(self.rejected))

    def __call__(self, side: Side, with_supervised: bool = False) -> ScoreOut:
        self.calls.append((side, torch.is_grad_enabled()))
        if len(self.calls) == self.fail_at:
            raise MemoryError("out of memory (asked for by the test)")
        if torch.is_grad_enabled() and self.reference is not None:
            assert not self.reference.open, "a differentiated pass ran inside the reference context"
        sides = {"chosen": [self.chosen], "rejected": [self.rejected], "both": [self.chosen, self.rejected]}[
            side
        ]
        inputs, targets = (torch.cat(parts) for parts in zip(*sides, strict=True))
        predicted = self.net(inputs)
        score = -(predicted - targets).square().flatten(1).mean(1)
        supervised = None
        if with_supervised:
            assert side != "rejected"
            first = slice(0, len(self))
            supervised = (predicted[first] - targets[first]).abs().flatten(1).mean(1)
        error = (predicted - targets).detach().flatten(1) if self.errors else None
        norm = predicted.flatten(1).norm(dim=1) if self.norms else None
        return ScoreOut(score, supervised, error, norm)


def toy_pairs(net: ToyNet, count: int, seed: int = 1, tokens: int = 2, width: int = 6) -> ToyScorer:
    generator = torch.Generator().manual_seed(seed)

    def draw() -> torch.Tensor:
        return torch.randn(count, tokens, width, generator=generator, dtype=torch.float64)

    return ToyScorer(net, (draw(), draw()), (draw(), draw()))
