"""Several rewards at once: calls them one after another, converts their scores to a common form, and
describes them for the log.

The result is one row per reward, (R, N), with its weights. ``advantages`` determines how rows become
advantages (added up, or first standardised within their prompt).
"""

from __future__ import annotations

import hashlib
import logging
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

import torch
from torch import Tensor

from modules.reward.base import Reward, RewardBatch, RewardError, RewardUnavailable, create_reward
from modules.util.errors import ConfigError, DataError
from modules.util.pairs.dpo_pair_files import file_sha256

log = logging.getLogger(__name__)

OnError = Literal["fail", "skip_group"]
SCALE_DECAY = 0.9
TOTAL = "total"
"""Name of the weighted sum of all rewards in the log."""
_KINDS = {"files": "file", "folders": "model folder"}
_READ = (
    *("*.safetensors", "*.bin", "config.json", "preprocessor_config.json"),
    *("tokenizer*.json", "special_tokens_map.json", "vocab.json", "merges.txt"),
)
"""The files of a model's folder that decide what it answers."""


class RewardSettings(Protocol):
    """A reward's entry in a config (``RewardConfig``)."""

    reward: str
    name: str
    weight: float
    clip_low: float | None
    clip_high: float | None
    threshold: float | None
    normalise: bool
    params: dict[str, Any]


@dataclass(frozen=True)
class RewardTerm:
    """One reward and the processing of its scores, in this order.

    Args:
        reward: whose ``name`` it is logged under.
        weight: factor in the sum; a negative one inverts the reward.
        clip_low, clip_high: limits to which values are clipped.
        threshold: values below it become 0.
        normalise: divide by a moving average of the standard deviation within prompts.
    """

    reward: Reward
    weight: float = 1.0
    clip_low: float | None = None
    clip_high: float | None = None
    threshold: float | None = None
    normalise: bool = False

    def shape(self, score_N: Tensor) -> Tensor:
        """Clip, then gate."""
        shaped_N = score_N.clamp(self.clip_low, self.clip_high) if self._clips() else score_N
        if self.threshold is not None:
            shaped_N = torch.where(shaped_N >= self.threshold, shaped_N, 0.0)
        return shaped_N

    def _clips(self) -> bool:
        return self.clip_low is not None or self.clip_high is not None


@dataclass(frozen=True)
class Scores:
    """The answers of the rewards.

    Args:
        raw_RN: float32, rows in the order of the set's names; 0 if an image has no score.
        kept_N: bool; false for every image of a group that a reward failed on.
        dropped: the skipped groups, with the reason.
        unjudged: groups that a reward did not judge (``Reward.unjudged``).
    """

    raw_RN: Tensor
    kept_N: Tensor
    dropped: dict[int, str] = field(default_factory=dict)
    unjudged: frozenset[int] = frozenset()


@dataclass(frozen=True)
class Combined:
    """Rewards ready for advantages.

    Args:
        terms_RN: clipped, gated and scaled, before weights; 0 if not kept.
        total_N: the weighted sum; 0 if not kept.
        kept_N: bool, whole groups only.
        stats: for the log, of the raw scores of kept images: ``<name>/mean``, ``/std``, ``/zero_std_ratio``
            (share of groups whose images all have the same score), ``/scale`` where normalised, and
            ``total/...`` of the sum, ``dropped_groups``. A reward called ``total`` is ``total.reward`` here.
    """

    terms_RN: Tensor
    total_N: Tensor
    kept_N: Tensor
    stats: dict[str, float]


class RewardSet:
    """The rewards of a run. Contradictory settings are found earlier (``config/rules``), not here.

    Args:
        terms: at least one; names differ, weights are finite and not all 0.
        on_error: ``fail`` propagates every error; ``skip_group`` skips a group whose images a reward refuses
            with a ``RewardError``. Every other error, and ``RewardUnavailable``, propagates in either case.
        scale_decay: decay of the moving averages that ``normalise`` divides by, in [0, 1).
    """

    def __init__(
        self, terms: Sequence[RewardTerm], on_error: OnError = "fail", scale_decay: float = SCALE_DECAY
    ) -> None:
        self.terms = list(terms)
        self.names = [term.reward.name for term in terms]
        self.weights = [float(term.weight) for term in terms]
        self.on_error = on_error
        self._scale = _MovingScale(scale_decay)
        self._digests: dict[str, dict[str, str]] = {}

    @classmethod
    def from_settings(cls, entries: Sequence[RewardSettings], on_error: OnError = "fail") -> RewardSet:
        """Build the rewards of a config. Parameters are checked; nothing is loaded."""
        return cls(
            [
                RewardTerm(
                    create_reward(one.reward, one.params, one.name or one.reward),
                    one.weight,
                    one.clip_low,
                    one.clip_high,
                    one.threshold,
                    one.normalise,
                )
                for one in entries
            ],
            on_error,
        )

    @property
    def needs_groups(self) -> bool:
        """True if a reward compares the images of a prompt, and so must see all of them at once."""
        return any(term.reward.kind != "pointwise" for term in self.terms)

    def load(self, device: torch.device | str = "cpu") -> None:
        for term in self.terms:
            if term.reward.name not in self._digests:
                # now, because the file may be replaced during the run
                self._digests[term.reward.name] = _digests_of(term.reward)
            term.reward.load(device)

    def unload(self) -> None:
        for term in self.terms:
            term.reward.unload()

    def to(self, device: torch.device | str) -> None:
        for term in self.terms:
            term.reward.to(device)

    def score(self, batch: RewardBatch) -> Scores:
        """Score with every reward.

        Raises:
            RewardError: a reward failed (``fail``). With ``skip_group``, the reasons are logged, and
                ``combine`` refuses a rollout without any score, because another process may have some.
        """
        raw_RN = torch.zeros(len(self.terms), len(batch))
        dropped: dict[int, str] = {}
        unjudged: set[int] = set()
        for row, term in enumerate(self.terms):
            if self.on_error == "fail":
                raw_RN[row] = _scored(term.reward, batch, unjudged)
            else:
                raw_RN[row] = self._score_what_can_be(term.reward, batch, dropped, unjudged)
        kept_N = torch.tensor([group not in dropped for group in batch.groups.tolist()], dtype=torch.bool)
        for group, reason in dropped.items():
            log.warning("group %d is skipped: %s", group, reason)
        return Scores(raw_RN * kept_N, kept_N, dropped, frozenset(unjudged))

    def _score_what_can_be(
        self, reward: Reward, batch: RewardBatch, dropped: dict[int, str], unjudged: set[int]
    ) -> Tensor:
        # only what a reward reports about images; exhausted memory, a broken device or a bug must end the
        # run
        try:
            return _scored(reward, batch, unjudged)
        except RewardUnavailable:
            raise
        except RewardError as error:
            log.info("reward %s failed on a batch (%s); scoring group by group", reward.name, error)
        score_N = torch.zeros(len(batch))
        for group in batch.group_ids():
            index = batch.members(group)
            try:
                score_N[index] = _scored(reward, batch.select(index), unjudged)
            except RewardUnavailable:
                raise
            except RewardError as error:
                dropped.setdefault(group, f"{reward.name}: {error}")
        return score_N

    def combine(
        self,
        raw_RN: Tensor,
        kept_N: Tensor,
        group_N: Tensor,
        dropped: Mapping[int, str] | None = None,
    ) -> Combined:
        """Shape, scale and add up the scores of one rollout, gathered from all processes.

        With equal arguments every process gets equal results and keeps equal moving averages.

        Args:
            raw_RN: as in ``Scores``.
            kept_N: an image that is not kept removes its whole group.
            group_N: int64.
            dropped: why groups were skipped, for the message if all were.

        Raises:
            RewardError: a kept score is not finite, or nothing is kept.
        """
        if raw_RN.shape != (len(self.terms), len(group_N)) or kept_N.shape != group_N.shape:
            raise ValueError(
                f"{tuple(raw_RN.shape)} scores, {tuple(kept_N.shape)} marks, {tuple(group_N.shape)} groups"
            )
        gone = set(group_N[~kept_N].tolist())
        kept_N = torch.tensor([group not in gone for group in group_N.tolist()], dtype=torch.bool)
        if not kept_N.any():
            raise _nothing_left(gone, dropped or {})
        if not torch.isfinite(raw_RN[:, kept_N]).all():
            raise RewardError("a score is not finite")
        at_N = torch.unique(group_N[kept_N], return_inverse=True)[1]
        terms_RN = torch.zeros_like(raw_RN)
        stats: dict[str, float] = {"dropped_groups": float(len(gone))}
        for row, term in enumerate(self.terms):
            raw_K = raw_RN[row, kept_N]
            label = _label(self.names[row])
            stats |= _describe(label, raw_K, at_N)
            shaped_K = term.shape(raw_K)
            if term.normalise:
                scale = self._scale.update(self.names[row], _spread(shaped_K, at_N))
                stats[f"{label}/scale"] = scale
                shaped_K = shaped_K / scale
            terms_RN[row, kept_N] = shaped_K
        total_N = (torch.tensor(self.weights)[:, None] * terms_RN).sum(dim=0)
        stats |= _describe(TOTAL, total_N[kept_N], at_N)
        return Combined(terms_RN, total_N, kept_N, stats)

    def state_dict(self) -> dict[str, Any]:
        """The moving averages as plain numbers, and digests of the files and folders that rewards use."""
        return {**self._scale.state_dict(), **self._read()}

    def _read(self) -> dict[str, dict[str, str]]:
        """Name of a reward -> SHA-256 of its file and of its folders, as they were loaded, for those that have any."""
        found: dict[str, dict[str, str]] = {kind: {} for kind in _KINDS}
        for term in self.terms:
            name = term.reward.name
            known = self._digests.get(name)
            for kind, digest in (_digests_of(term.reward) if known is None else known).items():
                found[kind][name] = digest
        return found

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore saved moving averages. Names that no longer exist are dropped.

        Raises:
            DataError: the state is not one that ``state_dict`` returns.
            ConfigError: a reward uses another file or folder than it did then.
        """
        now = self._read()
        for kind, what in _KINDS.items():
            then = state.get(kind, {})
            if not isinstance(then, Mapping):
                raise DataError("the saved digests of rewards are damaged")
            changed = [name for name, digest in now[kind].items() if then.get(name, digest) != digest]
            if changed:
                raise ConfigError(
                    f"the {what} of reward {changed[0]!r} has changed since the backup was made",
                    "rlhf_reward",
                    f"restore the previous {what}, or start a new run",
                )
        self._scale.load_state_dict(state, self.names)


def _scored(reward: Reward, batch: RewardBatch, unjudged: set[int]) -> Tensor:
    """Score a batch, and add the groups that the reward did not judge."""
    score_N = reward.score(batch)
    unjudged |= reward.unjudged()
    return score_N


def _digests_of(reward: Reward) -> dict[str, str]:
    """SHA-256 of a reward's file and of its folders, by kind, for what there is."""
    file = reward.weights_file()
    made = {} if file is None or not file.is_file() else {"files": file_sha256(file)}
    read = [
        path for folder in reward.model_folders() for kind in _READ for path in sorted(folder.glob(kind))
        if path.is_file()
    ]  # fmt: skip
    if read:
        # not the folder's own name: it may be moved
        told = "".join(f"{path.name} {file_sha256(path)}\n" for path in read)
        made["folders"] = hashlib.sha256(told.encode("utf-8", "surrogateescape")).hexdigest()
    return made


def _nothing_left(gone: set[int], dropped: Mapping[int, str]) -> RewardError:
    first = min(dropped, default=None)
    why = "" if first is None else f"; of group {first}: {dropped[first]}"
    return RewardError(
        f"no image could be scored: all {len(gone)} groups of the epoch are skipped{why}",
        hint="the log says why for every group; fix the reward or its settings, or choose another one",
    )


class _MovingScale:
    """Averages of standard deviations, corrected for the starting value (as in Adam)."""

    def __init__(self, decay: float) -> None:
        self.decay = decay
        self._sum: dict[str, float] = {}
        self._mass: dict[str, float] = {}

    def update(self, name: str, spread: float) -> float:
        """Add a standard deviation and return the average; 0 carries no information and is ignored. The
        result is initially 1.
        """
        if spread > 0:
            self._sum[name] = self.decay * self._sum.get(name, 0.0) + (1 - self.decay) * spread
            self._mass[name] = self.decay * self._mass.get(name, 0.0) + (1 - self.decay)
        return self._sum[name] / self._mass[name] if name in self._sum else 1.0

    def state_dict(self) -> dict[str, dict[str, float]]:
        return {"sum": dict(self._sum), "mass": dict(self._mass)}

    def load_state_dict(self, state: Mapping[str, Any], names: Sequence[str]) -> None:
        sums, masses = state.get("sum"), state.get("mass")
        if not isinstance(sums, Mapping) or not isinstance(masses, Mapping) or set(sums) != set(masses):
            raise DataError("the saved scales of rewards are damaged")
        values = [*sums.values(), *masses.values()]
        if not all(isinstance(v, (int, float)) and math.isfinite(v) and v > 0 for v in values):
            raise DataError("the saved scales of rewards are not positive numbers")
        self._sum = {name: float(sums[name]) for name in names if name in sums}
        self._mass = {name: float(masses[name]) for name in names if name in masses}


def _spread(score_K: Tensor, at_K: Tensor) -> float:
    """Root mean square distance to the mean of the image's own group."""
    score_K = score_K.double()
    count_G = torch.bincount(at_K).double()
    mean_G = torch.bincount(at_K, weights=score_K) / count_G
    return float((score_K - mean_G[at_K]).square().mean().sqrt())


def _label(name: str) -> str:
    """The name of a reward in the log, where one called like the sum of all is told apart from it."""
    return f"{name}.reward" if name == TOTAL else name


def _describe(name: str, score_K: Tensor, at_K: Tensor) -> dict[str, float]:
    score_K = score_K.double()
    groups = int(at_K.max()) + 1
    low_G = torch.full((groups,), math.inf, dtype=torch.float64).scatter_reduce(0, at_K, score_K, "amin")
    high_G = torch.full((groups,), -math.inf, dtype=torch.float64).scatter_reduce(0, at_K, score_K, "amax")
    return {
        f"{name}/mean": float(score_K.mean()),
        f"{name}/std": float(score_K.std(correction=0)),
        f"{name}/zero_std_ratio": float((low_G == high_G).double().mean()),
    }
