"""Results of automatic judges on two contestants, as figures and as sentences that point out losses."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from modules.util.display import counted
from modules.util.statistics.clustered import mean_interval, share_interval

LEAST_VARIETY = 0.8
"""Variety is lost below this share of the other contestant's distance between two seeds of a prompt."""
NAMES = {"taste": "your learned taste", "pickscore": "PickScore", "clip": "CLIP"}
MEASURES = {"clip": "CLIP features", "vae": "the VAE's latents"}


@dataclass(frozen=True)
class Judged:
    """Results of the judges on images of two contestants, made from the same prompts and seeds.

    Args:
        first, second: names of the contestants.
        themes: the prompt (of edits, with what is edited) of each image of a contestant. The intervals are about
            others like these.
        scores: by judge, for each contestant one number for each image, in the order of ``themes``.
        spread: for each contestant, by prompt, the distance of two of its images.
        measure: the distance measure, a key of ``MEASURES``; empty if there is none.
        missing: judges that are unavailable, with the reason.
        about_taste: how well the learned taste is known, as text; empty if unknown.
    """

    first: str
    second: str
    themes: Sequence[str]
    scores: Mapping[str, tuple[Sequence[float], Sequence[float]]]
    spread: tuple[Mapping[str, float], Mapping[str, float]]
    measure: str
    missing: Mapping[str, str]
    about_taste: str = ""

    def to_dict(self) -> dict[str, Any]:
        """Figures and sentences. ``automatic`` is always true, so that nobody mistakes them for votes."""
        win_rates = [self._win_rate(name) for name in ("taste", "pickscore") if name in self.scores]
        fidelity, diversity = self._fidelity(), self._diversity()
        sentences = [one["sentence"] for one in win_rates]
        sentences += [one["sentence"] for one in (fidelity, diversity)]
        return {
            "automatic": True,
            "first": self.first,
            "second": self.second,
            "win_rates": win_rates,
            "fidelity": fidelity,
            "diversity": diversity,
            "losses": [one["sentence"] for one in (fidelity, diversity) if one["loss"]],
            "missing": dict(self.missing),
            "sentences": sentences,
        }

    def _win_rate(self, judge: str) -> dict[str, Any]:
        first, second = (np.asarray(one, dtype=np.float64) for one in self.scores[judge])
        won = (first > second) + (first == second) / 2
        low, high = share_interval(won.tolist(), self.themes) or (0.0, 1.0)
        share = float(won.mean())
        about = f" ({self.about_taste})" if judge == "taste" and self.about_taste else ""
        said = (
            f"According to {NAMES[judge]}{about}, {self.first} is better than {self.second} in {share:.0%} of "
            f"{counted(len(first), 'image')} (95 % interval: {low:.0%} to {high:.0%})."
        )
        return {
            "judge": judge,
            "share": share,
            "interval": [low, high],
            "images": len(first),
            "sentence": said,
        }

    def _fidelity(self) -> dict[str, Any]:
        """The change of the CLIP score, image by image. It is a loss if its whole interval is below 0."""
        if "clip" not in self.scores:
            reason = self.missing.get("clip", "CLIP was not used")
            said = f"How well images follow their prompts was not measured: {reason}."
            return {"change": None, "interval": None, "loss": False, "sentence": said}
        first, second = (np.asarray(one, dtype=np.float64) for one in self.scores["clip"])
        change = first - second
        mean = float(change.mean())
        bounds = mean_interval(change.tolist(), self.themes)
        figures = f"CLIP score {first.mean():.1f} instead of {second.mean():.1f}"
        if bounds is None:
            said = f"One prompt is too few to say how well images of {self.first} follow prompts: {figures}."
            return {"change": mean, "interval": None, "loss": False, "sentence": said}
        low, high = bounds
        loss = high < 0.0
        between = f"a change of {low:+.1f} to {high:+.1f} (95 % interval)"
        said = (
            f"Loss: images of {self.first} follow their prompts less well than those of {self.second}: "
            f"{figures}, {between}."
            if loss
            else f"Images of {self.first} follow their prompts no less well than those of {self.second}, "
            f"as far as {counted(len(change), 'image')} of {counted(len(set(self.themes)), 'prompt')} can show: "
            f"{figures}, {between}."
        )
        return {"change": mean, "interval": [low, high], "loss": loss, "sentence": said}

    def _diversity(self) -> dict[str, Any]:
        """The distance of two seeds of a prompt, relative to that of the other contestant."""
        first, second = self.spread
        prompts = sorted(first.keys() & second.keys())
        before = float(np.mean([second[one] for one in prompts])) if prompts else 0.0
        if before <= 0.0:
            reason = self.missing.get("diversity", "no prompt has images of two seeds that differ")
            said = f"The variety of images of one prompt was not measured: {reason}."
            return {"ratio": None, "prompts": len(prompts), "loss": False, "sentence": said}
        ratio = float(np.mean([first[one] for one in prompts])) / before
        loss = ratio < LEAST_VARIETY
        said = (
            f"{'Loss: less variety. ' if loss else ''}Images of one prompt differ {ratio:.0%} as much as "
            f"those of {self.second}, measured by {MEASURES[self.measure]} over {counted(len(prompts), 'prompt')}."
        )
        return {
            "ratio": ratio,
            "prompts": len(prompts),
            "measure": self.measure,
            "loss": loss,
            "sentence": said,
        }
