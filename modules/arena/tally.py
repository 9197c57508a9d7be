"""The result of the votes, as figures and as a sentence."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass

from modules.arena.davidson import Strengths, all_pairs, fit
from modules.arena.sequential import DECISIVE, evidence, interval
from modules.arena.VoteStore import Vote
from modules.util.display import counted


@dataclass(frozen=True)
class Comparison:
    """The votes on two contestants, from the view of the first."""

    first: str
    second: str
    wins: int
    losses: int
    ties: int

    @property
    def votes(self) -> int:
        return self.wins + self.losses + self.ties

    @property
    def share(self) -> float:
        """Share of the votes for the first; a tie counts as half."""
        return (self.wins + self.ties / 2) / self.votes if self.votes else 0.5

    @property
    def evidence(self) -> float:
        """Evidence against both being equally good."""
        return evidence(self.wins, self.losses)

    def of_better(self) -> Comparison:
        """The same comparison from the view of the one with more votes; unchanged if they are equal."""
        return self if self.wins >= self.losses else self.of_second()

    def of_second(self) -> Comparison:
        """The same comparison from the view of the second."""
        return Comparison(self.second, self.first, self.losses, self.wins, self.ties)

    def to_dict(self) -> dict[str, object]:
        low, high = interval(self.wins, self.losses, self.ties)
        return {**asdict(self), "share": self.share, "interval": [low, high], "evidence": self.evidence}


class Tally:
    """The votes among some contestants.

    Two are compared by the test and interval of ``sequential``. Of several the strengths are fitted, and the
    leader is decided once the test says so against every other one, with a limit that allows for the number
    of pairs.

    Args:
        names: displayed names of the contestants.
        keys: keys of the contestants in the votes, in the same order.
        votes: the votes; those between other contestants are ignored.
    """

    def __init__(self, names: Sequence[str], keys: Sequence[str], votes: Iterable[Vote]) -> None:
        self.names = tuple(names)
        self._counts = {pair: [0, 0, 0] for pair in all_pairs(len(keys))}
        for vote in votes:
            if vote.skipped or vote.left not in keys or vote.right not in keys:
                continue
            pair = tuple(sorted((keys.index(vote.left), keys.index(vote.right))))
            place = 2 if vote.best is None else 0 if vote.best == keys[pair[0]] else 1
            self._counts[pair[0], pair[1]][place] += 1
        counts = {pair: (n[0], n[1], n[2]) for pair, n in self._counts.items()}
        self.strengths: Strengths = fit(len(keys), counts)

    @property
    def limit(self) -> float:
        """The evidence that decides, chosen so that the false alarms of all pairs together stay at 1/20."""
        return DECISIVE * len(self._counts)

    def comparison(self, first: int, second: int) -> Comparison:
        """The votes on two contestants."""
        low, high = sorted((first, second))
        wins, losses, ties = self._counts[low, high]
        made = Comparison(self.names[low], self.names[high], wins, losses, ties)
        return made if first == low else made.of_second()

    @property
    def votes(self) -> int:
        return sum(sum(numbers) for numbers in self._counts.values())

    def is_open(self, pair: tuple[int, int]) -> bool:
        """Return whether the test has not decided this pair yet."""
        return self.comparison(*pair).evidence < self.limit

    @property
    def winner(self) -> int | None:
        """The contestant that is better than every other, as far as the votes decide."""
        for one in range(len(self.names)):
            others = [self.comparison(one, other) for other in range(len(self.names)) if other != one]
            if all(c.wins > c.losses and c.evidence >= self.limit for c in others):
                return one
        return None

    def next_pair(self, askable: list[tuple[int, int]]) -> tuple[int, int]:
        """The pair to ask about next, among these."""
        return askable[0] if len(self.names) == 2 else self.strengths.most_useful(askable)

    # --- for people ---

    def sentence(self) -> str:
        """The result as a sentence."""
        if not self.votes:
            return "There are no votes yet."
        return self._of_two() if len(self.names) == 2 else self._of_several()

    def _of_two(self) -> str:
        better = self.comparison(0, 1).of_better()
        low, high = interval(better.wins, better.losses, better.ties)
        ties = f" and called {counted(better.ties, 'tie')}" if better.ties else ""
        said = (
            f"You preferred {better.first} to {better.second} in {better.wins} of "
            f"{counted(better.votes, 'comparison')}{ties}: {better.share:.0%} "
            f"(95 % interval: {low:.0%} to {high:.0%})."
        )
        if self.winner is None:
            return f"{said} The test has not decided; they may be equal."
        return said

    def _of_several(self) -> str:
        one = self.strengths.leader if self.winner is None else self.winner
        parts = []
        for other in range(len(self.names)):
            if other != one:
                c = self.comparison(one, other)
                parts.append(f"{c.second}: {c.share:.0%} of {c.votes}")
        said = f"{self.names[one]} leads after {counted(self.votes, 'comparison')} ({', '.join(parts)})."
        return said if self.winner is not None else f"{said} The test has not decided; some may be equal."

    def blind_sentence(self) -> str:
        """The current standing without names, for somebody who is still voting."""
        if not self.votes:
            return "There are no votes yet."
        votes, decided = counted(self.votes, "vote"), self.winner is not None
        if len(self.names) > 2:
            return f"After {votes} " + (
                "one leads." if decided else "it is not decided; perhaps some are equal."
            )
        better = self.comparison(0, 1).of_better()
        low, high = interval(better.wins, better.losses, better.ties)
        said = f"After {votes} one of them has {better.share:.0%} (95 % interval: {low:.0%} to {high:.0%}): "
        return said + ("decided." if decided else "not decided; perhaps they are equal.")

    def to_dict(self) -> dict[str, object]:
        """The result as JSON. Figures are for the first contestant."""
        pairs = [self.comparison(*pair).to_dict() for pair in self._counts]
        made: dict[str, object] = {
            "contestants": list(self.names),
            "votes": self.votes,
            "decided": self.winner is not None,
            "winner": None if self.winner is None else self.names[self.winner],
            "sentence": self.sentence(),
            "pairs": pairs,
        }
        if len(self.names) == 2:
            made |= {"win_rate": pairs[0]["share"], "interval": pairs[0]["interval"]}
        else:
            fitted = self.strengths
            made["strengths"] = [
                {"name": name, "strength": float(fitted.mean[i]), "interval": list(fitted.interval(i))}
                for i, name in enumerate(self.names)
            ]
        return made
