"""Averages over the pairs of an optimizer step or of a validation run, weighted by pairs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch

from modules.objective.scores import PairOut

QUARTILES = 4
TIMESTEPS = 1000.0

_SUMS = (
    "pairs",
    "chosen",
    "rejected",
    "whole",
    "loss",
    "raw_loss",
    "supervised",
    "chosen_reward",
    "rejected_reward",
    "margin",
    "accuracy",
    "safeguarded",
    "safeguard",
)
_COUNTS = ("pairs", "chosen", "rejected", "whole")
_COUNTED_BY = {
    "chosen_reward": "chosen",
    "rejected_reward": "rejected",
    "margin": "whole",
    "accuracy": "whole",
}
_WIDTH = len(_SUMS) + 2 * QUARTILES


class PairMetrics:
    """Collects micro-batches and averages over all their pairs.

    Nothing is copied off the device before ``sums`` is called, so that collecting never waits.
    """

    def __init__(self) -> None:
        self._outs: list[tuple[PairOut, torch.Tensor | None]] = []

    def add(self, out: PairOut, timestep_B: torch.Tensor | None = None) -> None:
        """Add a micro-batch.

        Args:
            timestep_B: timesteps of its pairs in [0, 1000), (B,), if margins by timestep are wanted.

        Raises:
            ValueError: the numbers of timesteps and of pairs differ.
        """
        if timestep_B is not None and timestep_B.shape != out.margin_B.shape:
            raise ValueError(f"{tuple(timestep_B.shape)} timesteps for {out.pairs} pairs")
        self._outs.append((out, timestep_B))

    def clear(self) -> None:
        """Forget all micro-batches."""
        self._outs.clear()

    def on_device(self) -> tuple[list[torch.Tensor], Callable[[Sequence[torch.Tensor]], torch.Tensor]]:
        """The numbers of all pairs where they are, and what computes ``sums`` from copies of them on the CPU."""
        timed = [timestep_B for _, timestep_B in self._outs if timestep_B is not None]
        sizes = [len(out.margin_B) for out, _ in self._outs]
        lengths = [None if timestep_B is None else len(timestep_B) for _, timestep_B in self._outs]
        # all micro-batches at once: each copy would wait for the device
        found = [torch.cat([_columns(out) for out, _ in self._outs], 1)] if self._outs else []
        found += [torch.cat(timed)] if timed else []
        return found, lambda copies: _sums_of(copies, sizes, lengths)

    @staticmethod
    def losses_of(found: Sequence[torch.Tensor]) -> torch.Tensor:
        """The losses among the numbers of ``on_device``, one per pair."""
        return found[0][_SUMS.index("loss")]

    def sums(self) -> torch.Tensor:
        """Sums over the pairs, float64 on the CPU. Those of several processes may be added."""
        found, summed = self.on_device()
        return summed([tensor.cpu() for tensor in found])


def _sums_of(
    copies: Sequence[torch.Tensor], sizes: Sequence[int], lengths: Sequence[int | None]
) -> torch.Tensor:
    total = torch.zeros(_WIDTH, dtype=torch.float64)
    if not copies:
        return total
    timed = [length for length in lengths if length is not None]
    timesteps = iter(copies[1].split(timed) if timed else ())
    for columns, length in zip(copies[0].double().split(list(sizes), 1), lengths, strict=True):
        # contiguous, because the order in which numbers are added decides the last digits
        total[: len(_SUMS)] += columns.contiguous().sum(1)
        if length is not None:
            whole = columns[_SUMS.index("whole")] > 0
            total[len(_SUMS) :] += _by_quartile(
                columns[_SUMS.index("margin")][whole], next(timesteps)[whole]
            )
    return total


def _columns(out: PairOut) -> torch.Tensor:
    """Return the values that are summed over pairs, (len(_SUMS), B)."""
    supervised_B = torch.zeros_like(out.margin_B) if out.supervised_B is None else out.supervised_B
    chosen_B, rejected_B = _there(out)
    whole_B = chosen_B * rejected_B
    columns = (
        torch.ones_like(out.margin_B),
        chosen_B,
        rejected_B,
        whole_B,
        out.loss.expand_as(out.margin_B),
        out.raw_loss_B,
        supervised_B.to(out.margin_B.dtype),
        out.chosen_reward_B * chosen_B,
        out.rejected_reward_B * rejected_B,
        out.margin_B * whole_B,
        out.accuracy_B * whole_B,
        *_safeguard(out),
    )
    return torch.stack(columns)


def _there(out: PairOut) -> tuple[torch.Tensor, torch.Tensor]:
    """1 where a pair has a chosen image, and where it has a rejected one, each (B,)."""
    if out.sides_B2 is None:
        return torch.ones_like(out.margin_B), torch.ones_like(out.margin_B)
    there_B2 = out.sides_B2.to(out.margin_B)
    return there_B2[:, 0], there_B2[:, 1]


def _safeguard(out: PairOut) -> tuple[torch.Tensor, torch.Tensor]:
    """Return whether a pair was under the safeguard, and the share it let through."""
    if out.safeguard_B is None:
        return torch.zeros_like(out.margin_B), torch.zeros_like(out.margin_B)
    return torch.ones_like(out.margin_B), out.safeguard_B.to(out.margin_B)


def _by_quartile(margin_B: torch.Tensor, timestep_B: torch.Tensor) -> torch.Tensor:
    """Counts of pairs in each quarter of the timesteps, then the sums of their margins: (8,)."""
    quarter_B = (timestep_B.double() * (QUARTILES / TIMESTEPS)).long().clamp(0, QUARTILES - 1)
    counts = torch.zeros(QUARTILES, dtype=torch.float64).index_add_(0, quarter_B, torch.ones_like(margin_B))
    margins = torch.zeros(QUARTILES, dtype=torch.float64).index_add_(0, quarter_B, margin_B)
    return torch.cat((counts, margins))


def averages_of(sums: torch.Tensor) -> dict[str, float]:
    """Averages from the sums of one process, or from the total of several.

    Returns:
        ``pairs`` (their number, including single images), ``loss`` (total), ``raw_loss``, ``supervised``,
        ``chosen_reward`` and ``rejected_reward`` over the images of that kind, ``margin`` and ``accuracy`` over
        the pairs with both sides, and ``margin_by_t/q1`` to ``q4`` for the quarters of the timesteps that any
        pair fell into; ``safeguard`` (share of the rejected side's gradient that was let through) if the
        safeguard is on. Averages without an image or pair are left out; without whole pairs, ``margin`` is the
        difference of the two rewards. Without pairs, only ``pairs`` = 0.
    """
    values = [float(value) for value in sums]
    pairs = values[0]
    if pairs == 0:
        return {"pairs": 0.0}
    sums_of = dict(zip(_SUMS, values, strict=False))
    averages = {name: sums_of[name] / pairs for name in _SUMS if name not in (*_COUNTS, *_COUNTED_BY)}
    for name, images in _COUNTED_BY.items():
        if sums_of[images]:
            averages[name] = sums_of[name] / sums_of[images]
    if "chosen_reward" in averages and "rejected_reward" in averages:
        averages.setdefault("margin", averages["chosen_reward"] - averages["rejected_reward"])
    averages["pairs"] = pairs
    if not averages.pop("safeguarded"):
        del averages["safeguard"]
    for quarter in range(QUARTILES):
        count = values[len(_SUMS) + quarter]
        if count:
            averages[f"margin_by_t/q{quarter + 1}"] = values[len(_SUMS) + QUARTILES + quarter] / count
    return averages


def training_tags(averages: Mapping[str, float]) -> dict[str, float]:
    """Logged names of the averages of an optimizer step."""
    names = {
        "loss/dpo": "loss",
        "dpo/raw_loss": "raw_loss",
        "dpo/chosen_reward": "chosen_reward",
        "dpo/rejected_reward": "rejected_reward",
        "dpo/accuracy": "accuracy",
        "dpo/reward_margin": "margin",
        "dpo/safeguard": "safeguard",
    }
    tags = {tag: averages[name] for tag, name in names.items() if name in averages}
    return tags | {
        f"dpo/{name}": value for name, value in averages.items() if name.startswith("margin_by_t/")
    }


def validation_tags(averages: Mapping[str, float]) -> dict[str, float]:
    """Logged names of the averages of a validation run, whose loss is the raw one."""
    names = {"val_loss": "raw_loss"} | {
        f"val_{name}": name for name in ("accuracy", "chosen_reward", "rejected_reward")
    }
    return {f"dpo/{tag}": averages[name] for tag, name in names.items() if name in averages}
