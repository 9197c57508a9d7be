"""The simulated person as the reward of an online run: looks at images while it trains, and votes."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from modules.runner.votes.VoteBook import Question, Vote, VoteBook
from modules.util.errors import ConfigError, UserError
from modules.util.jsonio import write_json, write_text
from modules.util.rng import digest64, python_random
from scripts.demo.best_of_n import MOST, best_of_n
from scripts.demo.judge import read_image
from scripts.demo.judging import Judged, contact_sheet, judge, win_rate
from scripts.demo.pairs import load_pixels, prompt_split
from scripts.demo.plan import LIVE, Journey, Report
from scripts.demo.sampling import load_model, sample_pixels
from scripts.demo.taste import Taste, get_taste
from scripts.demo.training import Trained, as_settings, train
from scripts.demo.world import Wish

TRAINED_AS = "NFT"
USUAL_VOTES = 80
IMAGES, PROMPTS_PER_EPOCH = 8, 4
LIKED, DISLIKED = 2, 2
VOTES_PER_ROUND = LIKED + DISLIKED
SOON = 10
"""Number of rounds after which an additional, early measurement is made."""
POLL_SECONDS = 0.05


@dataclass(frozen=True)
class Live:
    """A live run of the demo. A round is a look at the 8 images of a prompt, with 2 likes and 2 dislikes.

    The person sees all prompts of the first epoch, and one of four afterwards; a taste head votes on the others.

    Args:
        journey: folder, seed, taste, slips and model.
        votes: marks that the person gives.
        prompts: that are judged, of those nobody saw.
        judged: images of each of them by the adapter.
        base: the same by the base model.
    """

    journey: Journey
    votes: int = USUAL_VOTES
    prompts: int = 25
    judged: int = 4
    base: int = MOST

    @property
    def rounds(self) -> int:
        """Number of times the person is asked."""
        return self.votes // VOTES_PER_ROUND

    @property
    def epochs(self) -> int:
        """Number of epochs that these rounds take."""
        return self.rounds - PROMPTS_PER_EPOCH + 1

    def check(self) -> None:
        """Check everything that can be checked before work begins."""
        self.journey.check()
        least = VOTES_PER_ROUND * PROMPTS_PER_EPOCH
        if self.votes < least or self.votes % VOTES_PER_ROUND:
            raise ConfigError(
                f"{self.votes} is not a multiple of {VOTES_PER_ROUND}, or below {least}", "--votes",
                f"a round takes {VOTES_PER_ROUND}, and the first epoch has {PROMPTS_PER_EPOCH} rounds",
            )  # fmt: skip

    def settings(self) -> dict[str, Any]:
        """Settings of the run, on top of the preset of NFT."""
        soon = SOON - PROMPTS_PER_EPOCH + 1
        saved = {"save_every": soon, "save_every_unit": "EPOCH"} if self.epochs > soon else {}
        return {
            "rlhf_prompts_file": str(self.journey.out / "prompts.txt"),
            "rlhf_reward": "person",
            "rlhf_person_share": 1 / PROMPTS_PER_EPOCH,
            "rlhf_prompts_per_epoch": PROMPTS_PER_EPOCH,
            "rlhf_group_size": IMAGES,
            "epochs": self.epochs,
            **saved,
        }


class Voter:
    """Votes on the open questions of a run, in a thread.

    Args:
        slips: share of the marks that are put on a random image instead.
    """

    def __init__(self, run: Path, taste: Taste, seed: int, slips: float) -> None:
        self.votes = self.rounds = 0
        self.error: Exception | None = None
        self._book, self._taste, self._seed, self._slips = VoteBook(run), taste, seed, slips
        self._end = threading.Event()

    @contextmanager
    def voting(self) -> Iterator[None]:
        """Vote while the block runs."""
        thread = threading.Thread(target=self._work, name="simulated person")
        thread.start()
        try:
            yield
        finally:
            self._end.set()
            thread.join()
        if self.error is not None:
            raise self.error

    def _work(self) -> None:
        try:
            while not self._end.wait(POLL_SECONDS):
                self._book.refresh()
                for one in self._book.open_questions():
                    self._book.give(one.key, self._vote(one))
                    self.rounds += 1
        except (UserError, OSError) as error:
            self.error = error

    def _vote(self, question: Question) -> Vote:
        """Like the best images and dislike the worst ones, with slips."""
        wish = Wish.parse(question.prompt)
        scores = [
            self._taste.score(read_image(load_pixels(self._book.image(question, number))), wish)
            for number in range(question.images)
        ]
        order = sorted(range(question.images), key=lambda number: (-scores[number], number))
        marks = [*order[:LIKED], *order[len(order) - DISLIKED :]]
        for place in range(len(marks)):
            chance = python_random("demo-live", self._seed, question.place, place)
            if chance.random() < self._slips:
                marks[place] = chance.choice([one for one in order if one not in marks])
        self.votes += len(marks)
        return Vote(tuple(sorted(marks[:LIKED])), tuple(sorted(marks[LIKED:])), None, True)


def run_live(live: Live, report: Report) -> dict[str, Any]:
    """Run the journey; return the contents of ``report.json``."""
    live.check()
    begin = time.monotonic()
    journey, taste = live.journey, get_taste(live.journey.taste)
    journey.out.mkdir(parents=True, exist_ok=True)
    in_training, new = prompt_split(journey.seed)
    write_text(journey.out / "prompts.txt", "".join(f"{wish.caption()}\n" for wish in in_training))
    as_nft = replace(journey, mode=TRAINED_AS)
    voter = Voter(journey.out / f"run-{LIVE.lower()}", taste, journey.seed, journey.error_rate)
    with voter.voting():
        run = train(as_nft, LIVE.lower(), as_settings(live.settings()), report)
    measured = _Measure(live, new[: live.prompts], taste, report)
    after = measured.adapter(run.adapter, "the adapter")
    early = sorted((journey.out / f"run-{LIVE.lower()}" / "save").glob("*.safetensors"))
    soon = measured.adapter(early[0], f"the adapter after {SOON} rounds") if early else None
    contact_sheet(journey.out / "before_after.png", measured.pixels, measured.last, taste)
    made = {**_facts(live, run, voter), **measured.facts(after)}
    made["win_rate_soon"] = None if soon is None else win_rate(soon.scores, measured.base.scores)
    made["total_seconds"] = round(time.monotonic() - begin, 1)
    write_json(journey.out / "report.json", made)
    return made


def _facts(live: Live, run: Trained, voter: Voter) -> dict[str, Any]:
    journey, taste = live.journey, get_taste(live.journey.taste)
    return {
        "mode": LIVE,
        "seed": journey.seed,
        "taste": taste.likes,
        "attribute": taste.attribute,
        "error_rate": journey.error_rate,
        "reward": "person",
        "votes": voter.votes,
        "rounds": voter.rounds,
        "images_looked_at": voter.rounds * IMAGES,
        "images": run.images,
        "reward_curve": [round(one, 4) for one in run.rewards],
        "steps": run.steps,
        "train_seconds": round(run.seconds, 1),
        "train_cpu_seconds": round(run.cpu_seconds, 1),
        "adapter": str(run.adapter),
    }


class _Measure:
    """Judges adapters on held-out prompts with the same seeds for all, seed by seed."""

    def __init__(self, live: Live, wishes: Sequence[Wish], taste: Taste, report: Report) -> None:
        self._live, self._taste, self._report = live, taste, report
        self._wishes = [wish for _ in range(live.base) for wish in wishes]
        self._seeds = [
            digest64("demo-live-judged", live.journey.seed, number) % 2**32
            for number in range(len(self._wishes))
        ]
        pixels = self._make(None, len(self._wishes), "judging the base model")
        liking = [taste.value(read_image(one)) for one in pixels]
        self.curve = [liking[place :: len(wishes)] for place in range(len(wishes))]
        self.pixels = pixels[: live.judged * len(wishes)]
        self.base = self._judged(self.pixels)
        self.last = self.pixels

    def _make(self, adapter: Path | None, count: int, what: str) -> list[Any]:
        model = load_model(self._live.journey.model, adapter)
        prompts = [wish.caption() for wish in self._wishes[:count]]
        return sample_pixels(model, prompts, self._seeds[:count], self._report, what)

    def _judged(self, pixels: list[Any]) -> Judged:
        return judge(pixels, self._wishes[: len(pixels)], self._taste)

    def adapter(self, file: Path, name: str) -> Judged:
        """Judge an adapter's images."""
        made = self._make(file, len(self.pixels), f"judging {name}")
        self.last = made if self.last is self.pixels else self.last
        return self._judged(made)

    def facts(self, after: Judged) -> dict[str, Any]:
        """The figures of the report."""
        return {
            "judged": len(self.pixels),
            "win_rate": win_rate(after.scores, self.base.scores),
            "best_of_n": best_of_n(self.curve, after.attribute),
            "reward_before": self.base.reward,
            "reward_after": after.reward,
            "fidelity_base": self.base.fidelity,
            "fidelity_adapter": after.fidelity,
            "attribute_base": self.base.attribute,
            "attribute_adapter": after.attribute,
        }
