"""The simulated person as the reward of an online run: looks at images while it trains, and votes."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from modules.runner.votes.VoteBook import Question, Vote, VoteBook
from modules.util.errors import ConfigError, UserError
from modules.util.jsonio import write_json, write_text
from modules.util.rng import digest64, python_random
from scripts.demo.best_of_n import MOST
from scripts.demo.judge import read_image
from scripts.demo.judging import Judge, compared, contact_sheet, win_rate
from scripts.demo.pairs import load_pixels, prompt_split
from scripts.demo.plan import LIVE, Journey
from scripts.demo.sampling import Report
from scripts.demo.taste import Taste, get_taste
from scripts.demo.training import as_settings, train
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
    wishes = live.base * new[: live.prompts]
    seeds = [digest64("demo-live-judged", journey.seed, number) % 2**32 for number in range(len(wishes))]
    judge = Judge(journey, wishes, seeds, len(new[: live.prompts]), live.judged, report)
    base, after = judge.base, judge.adapter(run.adapter, "the adapter")
    early = sorted((journey.out / f"run-{LIVE.lower()}" / "save").glob("*.safetensors"))
    soon = judge.adapter(early[0], f"the adapter after {SOON} rounds") if early else None
    contact_sheet(journey.out / "before_after.png", base.pixels, after.pixels, taste)
    made = {
        **journey.facts(),
        **run.facts(),
        **compared(base, after),
        "mode": LIVE,
        "reward": "person",
        "votes": voter.votes,
        "rounds": voter.rounds,
        "images_looked_at": voter.rounds * IMAGES,
        "images": run.images,
        "reward_curve": [round(one, 4) for one in run.rewards],
        "judged": len(base.pixels),
        "best_of_n": judge.best_of_n(after),
        "win_rate_soon": None if soon is None else win_rate(soon.scores, base.scores),
    }
    made["total_seconds"] = round(time.monotonic() - begin, 1)
    write_json(journey.out / "report.json", made)
    return made
