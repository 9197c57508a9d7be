"""The result of the answers about one group of images, as plain data. Nothing is drawn, read or stored here.

Images are indices 0..N-1 of the group.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field

from modules.curation.ranking import Comparison, Floats, Posterior, images_of

Distance = Callable[[int, int], float]
"""Visual distance of two images of the group."""


@dataclass(frozen=True)
class Answer:
    """One answer of the person.

    Args:
        places: the images shown, left to right, top to bottom.
        best: the preferred image; ``None`` for a tie, both bad, or a skip.
        worst: the rejected image; with two images, the other one.
        tie: judged equal. Both-bad counts as equal in the ranking, but is recorded separately for later
            exports.
        both_bad: judged equal and poor.
    """

    places: tuple[int, ...]
    best: int | None = None
    worst: int | None = None
    tie: bool = False
    both_bad: bool = False

    def __post_init__(self) -> None:
        for image in (self.best, self.worst):
            if image is not None and image not in self.places:
                raise ValueError(f"image {image} was not shown in {self.places}")
        if self.best is not None and self.best == self.worst:
            raise ValueError("best and worst must differ")

    @property
    def skipped(self) -> bool:
        """True if the question was skipped, which gives no information."""
        return self.best is None and self.worst is None and not self.tie and not self.both_bad

    def comparisons(self) -> list[Comparison]:
        """The pairwise comparisons this answer contains, each unordered pair at most once."""
        if self.tie or self.both_bad:
            shown = self.places
            return [Comparison(a, b, 0.5) for i, a in enumerate(shown) for b in shown[i + 1 :]]
        made = []
        if self.best is not None:
            made += [Comparison(self.best, other, 1.0) for other in self.places if other != self.best]
        if self.worst is not None:
            made += [
                Comparison(other, self.worst, 1.0)
                for other in self.places
                if other not in (self.best, self.worst)
            ]
        return made


def all_comparisons(answers: Sequence[Answer]) -> list[Comparison]:
    """Every comparison of every answer, in order."""
    return [c for answer in answers for c in answer.comparisons()]


def compared_images(answers: Sequence[Answer]) -> set[int]:
    """The images of which an answer says anything."""
    return images_of(all_comparisons(answers))


@dataclass(frozen=True)
class Standing:
    """The ranking of one group after some answers.

    ``ratings`` (N,) are on the Elo scale in every mode (a logit is 400/ln 10 points), for display and
    sorting. ``posterior`` is the Bradley-Terry fit, which also gives the certainty of an order. ``shown`` is
    how often each image was in a question.
    """

    ratings: Floats
    posterior: Posterior
    shown: tuple[int, ...]

    def order(self, alive: Collection[int]) -> list[int]:
        """The images of ``alive`` from best to worst."""
        return sorted(alive, key=lambda i: (-self.ratings[i], i))

    def certainty(self, alive: Collection[int]) -> float:
        """Posterior probability that the best of ``alive`` really is better than the worst of them."""
        order = self.order(alive)
        return self.posterior.probability_ordered(order[0], order[-1]) if len(order) > 1 else 0.0

    def expected_share(self, alive: Collection[int]) -> float:
        """Expected quality gap between the best and the worst of ``alive`` by the current ranking, as a share
        of the largest gap between any two of them.
        """
        order = self.order(alive)
        gap = float(self.posterior.mean[order[0]] - self.posterior.mean[order[-1]])
        return gap / self.posterior.expected_spread(order)


@dataclass(frozen=True)
class Situation:
    """The input of a way of choosing.

    Args:
        standing: the ranking after ``answers``.
        alive: images that are in no pair yet.
        answers: answers to questions that compare images.
        verdicts: images judged good or liked (``True``), bad or disliked (``False``), or only seen
            (``None``).
        wanted: number of further pairs wanted from the group, at least 1.
        closed: whether the person has finished marking.
    """

    standing: Standing
    alive: tuple[int, ...]
    answers: Sequence[Answer] = ()
    verdicts: Mapping[int, bool | None] = field(default_factory=dict)
    wanted: int = 1
    closed: bool = False

    @property
    def good(self) -> list[int]:
        """Images judged good or liked."""
        return [i for i in self.alive if self.verdicts.get(i) is True]

    @property
    def bad(self) -> list[int]:
        """Images judged bad or disliked."""
        return [i for i in self.alive if self.verdicts.get(i) is False]

    @property
    def neither(self) -> list[int]:
        """Images that were seen but are neither good nor bad."""
        return [i for i in self.alive if self.verdicts.get(i, False) is None]

    @property
    def unjudged(self) -> list[int]:
        """Images without a verdict."""
        return [i for i in self.alive if i not in self.verdicts]


def ranked_pairs(order: Sequence[int], count: int) -> list[tuple[int, int]]:
    """``count`` pairs (chosen, rejected) from a ranking: best with worst, second best with second worst,
    ..."""
    return [(order[i], order[-1 - i]) for i in range(min(count, len(order) // 2))]


def pools_to_pairs(
    good: Sequence[int], bad: Sequence[int], distance: Distance, count: int | None = None
) -> list[tuple[int, int]]:
    """Pair good images with bad ones, most similar first, so that pairs differ in quality and little else.

    Args:
        distance: visual distance of two images (Hamming distance of their hashes).
        count: maximum number of pairs; ``None`` for no limit.
    """
    edges = sorted((distance(g, b), g, b) for g in good for b in bad)
    used: set[int] = set()
    pairs: list[tuple[int, int]] = []
    for _, g, b in edges:
        if count is not None and len(pairs) >= count:
            break
        if g not in used and b not in used:
            used |= {g, b}
            pairs.append((g, b))
    return pairs


def likes_to_pairs(
    liked: Sequence[int], disliked: Sequence[int], seen: Sequence[int], distance: Distance
) -> list[tuple[int, int]]:
    """Pair every liked image with a disliked one, or else one that was only seen, most similar first.

    If there are fewer worse images than liked ones, they are reused evenly.

    Args:
        distance: visual distance of two images.
    """
    pairs = pools_to_pairs(liked, disliked, distance)
    taken = {chosen for chosen, _ in pairs}
    pairs += pools_to_pairs([i for i in liked if i not in taken], seen, distance)
    taken = {chosen for chosen, _ in pairs}
    worse = [*disliked, *seen]
    uses = dict.fromkeys(worse, 1)
    for image in (i for i in liked if i not in taken) if worse else ():
        other = min(worse, key=lambda i: (uses[i], distance(image, i), i))
        uses[other] += 1
        pairs.append((image, other))
    return pairs
