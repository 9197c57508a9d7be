"""Consistency of a person's answers: ties, skips, circles, position bias."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from modules.util.files.EventLog import Event


@dataclass(frozen=True)
class AnswerStatistics:
    """Counts over a session. Shares are between 0 and 1, or ``None`` if nothing was counted.

    ``triples`` are sets of three images compared all ways round, ``circles`` those of them where A beats B,
    B beats C and C beats A (Kendall & Babington Smith 1940): a careful person makes few. ``repeated`` are
    pairs asked more than once, ``agreeing`` those always answered alike.
    """

    questions: int
    answered: int
    ties: int
    both_bad: int
    skips: int
    first_place_share: float | None
    repeated: int
    agreeing: int
    triples: int
    circles: int


def answer_statistics(events: Iterable[Event]) -> AnswerStatistics:
    """Statistics of the ``answer`` events of a session."""
    answers = [event for event in events if event.kind == "answer"]
    count = {"ties": 0, "both_bad": 0, "skips": 0}
    decided: dict[tuple[str, str, str], list[str]] = {}
    pair_questions = first_place = 0
    for event in answers:
        data = event.payload
        if data["both_bad"] or data["tie"] or data["best"] is None:
            count["both_bad" if data["both_bad"] else "ties" if data["tie"] else "skips"] += 1
            continue
        if len(data["places"]) == 2:
            pair_questions += 1
            first_place += data["places"][0] == data["best"]
        for loser in data["places"]:
            if loser != data["best"] and (len(data["places"]) == 2 or loser == data["worst"]):
                low, high = sorted((data["best"], loser))
                decided.setdefault((event.group_key, low, high), []).append(data["best"])
    repeated = [winners for winners in decided.values() if len(winners) > 1]
    triples, circles = _circles({key: _most_often(winners) for key, winners in decided.items()})
    return AnswerStatistics(
        questions=len(answers),
        answered=len(answers) - sum(count.values()),
        ties=count["ties"],
        both_bad=count["both_bad"],
        skips=count["skips"],
        first_place_share=first_place / pair_questions if pair_questions else None,
        repeated=len(repeated),
        agreeing=sum(len(set(winners)) == 1 for winners in repeated),
        triples=triples,
        circles=circles,
    )


def valid_answers(events: Iterable[Event]) -> list[Event]:
    """The ``answer`` events, without those about an image that disappeared or was replaced later."""
    found: list[Event] = []
    for event in events:
        if event.kind == "answer":
            found.append(event)
        elif event.kind == "gone":
            key, gone = event.group_key, set(event.payload["files"])
            found = [one for one in found if one.group_key != key or gone.isdisjoint(one.payload["places"])]
    return found


@dataclass(frozen=True)
class ScoreAgreement:
    """The agreement between scores of a reward model and the person; ``share`` is ``None`` if nothing was
    compared.

    ``compared`` counts preferences with different scores for both images.
    """

    compared: int
    agreeing: int
    share: float | None


def score_agreement(events: Iterable[Event], scores: Mapping[str, float]) -> ScoreAgreement:
    """Compare every preference between two images with their scores.

    Args:
        scores: scores by file name in the session, relative to the source folder; higher is better.
    """
    compared = agreeing = 0
    for event in events:
        data = event.payload
        if event.kind != "answer" or data["best"] is None or data["worst"] is None:
            continue
        best, worst = scores.get(data["best"]), scores.get(data["worst"])
        if best is not None and worst is not None and best != worst:
            compared += 1
            agreeing += best > worst
    return ScoreAgreement(compared, agreeing, agreeing / compared if compared else None)


def _most_often(winners: Sequence[str]) -> str:
    """The image that won most often; empty if both won equally often."""
    (first, most), *others = Counter(winners).most_common()
    return "" if any(count == most for _, count in others) else first


def _circles(winner: dict[tuple[str, str, str], str]) -> tuple[int, int]:
    """Number of triples compared all ways round, and how many of them are circular.

    Args:
        winner: by group and two images, the preferred one; empty if neither is.
    """
    beaten: dict[tuple[str, str], set[str]] = {}
    met: dict[tuple[str, str], set[str]] = {}
    for (group, low, high), best in winner.items():
        other = high if best == low else low
        beaten.setdefault((group, best), set()).add(other)
        for a, b in ((low, high), (high, low)):
            met.setdefault((group, a), set()).add(b)
    triples = circles = 0
    for group, low, high in winner:
        for third in met[group, low] & met[group, high]:
            if third > high:
                triples += 1
                wins = [
                    len(beaten.get((group, image), set()) & {low, high, third})
                    for image in (low, high, third)
                ]
                circles += wins == [1, 1, 1]
    return triples, circles
