"""Parts of the benchmark ``taste``, in a separate process: images of the base model, or rows."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
if str(ROOT) not in sys.path:
    sys.path.insert(0, str(ROOT))

import numpy as np  # noqa: E402
import torch  # noqa: E402

from modules.adapter.formats import KOHYA  # noqa: E402
from modules.modelSetup.combining import add_adapters, write_adapter  # noqa: E402
from modules.modelSetup.registry import create_model_setup  # noqa: E402
from modules.reward.asking import least_sure, worth_asking  # noqa: E402
from modules.reward.frozen_features import FeatureOptions, FrozenFeatures  # noqa: E402
from modules.reward.head_training import (  # noqa: E402
    Comparisons,
    HeadOptions,
    train_head,
    train_taste,
)
from modules.reward.preference_head import UsualFit, load_head, save_head  # noqa: E402
from modules.reward.taste_head import Answers, TasteHead, fit_taste, information  # noqa: E402
from modules.util.errors import UserError  # noqa: E402
from modules.util.jsonio import write_json, write_text  # noqa: E402
from modules.util.rng import digest64, python_random  # noqa: E402
from scripts.benchmarks._taste_images import Images, wishes_of  # noqa: E402
from scripts.benchmarks._taste_picking import with_the_grid, with_the_pair_tool  # noqa: E402
from scripts.benchmarks._taste_rounds import as_row, play  # noqa: E402
from scripts.benchmarks._taste_spec import (  # noqa: E402
    FINISHED,
    IMAGES_PER_PROMPT,
    JUDGED_PER_PROMPT,
    MOST_N,
    PART,
    PROMPT_CLICKS,
    Cell,
    Method,
    load_tastes,
    part_file,
    parts_of,
    row_file,
)
from scripts.demo.best_of_n import best_of_n  # noqa: E402
from scripts.demo.few_picks import learning_settings  # noqa: E402
from scripts.demo.judge import fidelity  # noqa: E402
from scripts.demo.judging import win_rate  # noqa: E402
from scripts.demo.pairs import finalise, prompt_split  # noqa: E402
from scripts.demo.plan import FULL, Journey  # noqa: E402
from scripts.demo.sampling import DEMO_MODEL, FAMILY, load_model, sample_pixels  # noqa: E402
from scripts.demo.taste import Person, Taste  # noqa: E402
from scripts.demo.training import Trained, as_settings, train, twin_settings  # noqa: E402
from scripts.train_reward import save_array  # noqa: E402

SLIPS = 0.1
INDIFFERENCE = 0.03
AT_ONCE = 5
TEST_PAIRS = 400


def seeds_of(kind: str, seed: int, count: int) -> list[int]:
    return [digest64("taste-bank", seed, kind, place) % 2**32 for place in range(count)]


def make_part(work: Path, seed: int, kind: str, part: int) -> None:
    """Make one part of the images of a seed, unless it exists."""
    file = part_file(work, seed, kind, part)
    if file.is_file():
        return
    wishes = wishes_of(kind, seed)
    index = range(part * PART, min((part + 1) * PART, len(wishes)))
    seeds = seeds_of(kind, seed, len(wishes))
    pixels = sample_pixels(load_model(), [wishes[i].caption() for i in index], [seeds[i] for i in index])
    save_array(file, np.stack(pixels))


def read_images(work: Path, seed: int, kind: str, answers: int) -> Images:
    parts = [np.load(part_file(work, seed, kind, n)) for n in range(parts_of(kind, answers))]
    pixels = list(np.concatenate(parts))
    return Images(wishes_of(kind, seed)[: len(pixels)], pixels)


# -- features and answers --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Seen:
    """Images as a head sees them."""

    images: Images
    features_ND: torch.Tensor
    parts: dict[str, int]


def look(work: Path, seed: int, kind: str, answers: int, extract: FrozenFeatures) -> Seen:
    """Features of all images of a kind, cached for the other rows."""
    images = read_images(work, seed, kind, answers)
    probe = digest64("taste-features", extract.probe().numpy().tobytes().hex(), len(images.pixels))
    file = work / f"seed-{seed}" / f"{kind}-{extract.options.kind}-{probe:016x}.npy"
    if file.is_file():
        features = torch.from_numpy(np.load(file))
    else:
        features = extract(images.rgb(), images.prompts)
        save_array(file, features.numpy())
    return Seen(images, features, extract.parts)


@dataclass
class Asked:
    """A simulated person who is asked about images by index, and counts the answers.

    Args:
        person: the one who answers.
        scores: how much each image is liked.
        given: the images of every comparison, and 1 where the first is better, 0.5 for a tie.
        marks: likes and dislikes, where these are the answers.
        weights: of the comparisons, where they do not all count as one answer.
    """

    person: Person
    scores: list[float]
    given: list[tuple[int, int, float]]
    marks: int = 0
    weights: list[float] | None = None

    def ask(self, first: int, second: int) -> int | None:
        """Return 0 or 1 for the preferred image, ``None`` for a tie."""
        number = len(self.given)
        said = self.person.prefer(self.scores[first], self.scores[second], first, second, number)
        self.given.append((first, second, 0.5 if said is None else 1.0 - said))
        return said

    def judge(self, page: Sequence[int]) -> list[bool | None]:
        """Of the images of a page, by their places: the best quarter is liked and the worst disliked, with the slips
        of a comparison with the page's median, unless that is a tie."""
        scores = [self.scores[place] for place in page]
        low, middle, high = np.quantile(scores, (0.25, 0.5, 0.75))
        said: list[bool | None] = []
        for place, score in zip(page, scores, strict=True):
            better = None if low < score < high else self.person.prefer(score, middle, "grid", place)
            said.append(None if better is None else better == 0)
        return said

    def look_through(self, images: Images, folder: Path, cell: Cell) -> None:
        """Give likes and dislikes on pages of many prompts, and keep the comparisons that follow from them."""
        found = with_the_grid(images, self.judge, folder, cell.seed, cell.answers)
        self.marks, self.weights = found.count, found.weights
        self.given = [(*one, 1.0) for one in found.comparisons]


def in_turn(images: Images, person: Asked, cell: Cell) -> None:
    """Ask about one random pair of each prompt in turn."""
    prompts = list(images.by_prompt().values())
    rng = python_random("taste-random", cell.seed, cell.taste)
    rng.shuffle(prompts)
    while len(person.given) < cell.answers:
        first, second = rng.sample(prompts[len(person.given) % len(prompts)], 2)
        person.ask(first, second)


def by_information(seen: Seen, person: Asked, cell: Cell) -> None:
    """Ask about the pairs, over all prompts, whose answers say most about the taste; ``AT_ONCE`` prompts
    between two fits.
    """
    groups = seen.images.by_prompt()
    pairs = [(a, b) for group in groups.values() for n, a in enumerate(group) for b in group[n + 1 :]]
    left = torch.tensor(pairs)
    while len(person.given) < cell.answers:
        if any(outcome != 0.5 for *_, outcome in person.given):
            mean_Q, variance_Q = fit(seen, person.given).differ(seen.features_ND, left)
            worth_Q = information(mean_Q, variance_Q)
        else:
            scaled_ND = seen.features_ND / seen.features_ND.std(dim=0).clamp(min=1e-6)
            worth_Q = (scaled_ND[left[:, 0]] - scaled_ND[left[:, 1]]).square().sum(dim=1)
        asked: set[str] = set()
        used = []
        for place in worth_Q.argsort(descending=True, stable=True).tolist():
            first, second = left[place].tolist()
            prompt = seen.images.prompts[first]
            if prompt not in asked:
                asked.add(prompt)
                used.append(place)
                person.ask(first, second)
            if len(asked) == AT_ONCE or len(person.given) == cell.answers:
                break
        keep = torch.ones(len(left), dtype=torch.bool)
        keep[used] = False
        left = left[keep]


def with_surplus(seen: Seen, person: Asked, cell: Cell, folder: Path) -> None:
    """Answer as in the pair tool; from the second half on, about the images of each prompt that a head is
    least sure about.
    """
    groups = list(seen.images.by_prompt().values())
    asked = max(1, cell.answers // 2 // PROMPT_CLICKS)
    half = min(cell.answers, asked * PROMPT_CLICKS)
    shown = [place for group in groups[:asked] for place in group[:IMAGES_PER_PROMPT]]
    _ask_about(seen.images, shown, person, folder / "first", cell.seed, half)
    head, unsure = fit(seen, person.given), []
    for group in groups[asked:]:
        features_ND = seen.features_ND[group]
        worth_NN = worth_asking(head, head(features_ND), features_ND)
        unsure += [group[one] for one in least_sure(worth_NN, IMAGES_PER_PROMPT)]
    _ask_about(seen.images, unsure, person, folder / "second", cell.seed, cell.answers - half)


def _ask_about(
    images: Images, places: Sequence[int], person: Asked, folder: Path, seed: int, answers: int
) -> None:
    def ask(first: int, second: int) -> int | None:
        return person.ask(places[first], places[second])

    with_the_pair_tool(images.only(places), ask, folder, seed, answers)


def fit(seen: Seen, given: Sequence[tuple[int, int, float]]) -> TasteHead:
    first, second, outcome = zip(*given, strict=True)
    answers = Answers(torch.tensor(first), torch.tensor(second), torch.tensor(outcome, dtype=torch.float64))
    return fit_taste(seen.features_ND, seen.parts, answers, seen.images.prompts)


# -- one row ---------------------------------------------------------------------------------------------------


def run_cell(work: Path, cell: Cell, taste: Taste, folder: Path) -> dict[str, Any]:
    """Run one row of the table."""
    method, kind = cell.method_spec, cell.images[0]
    pool = read_images(work, cell.seed, kind, cell.asked)
    person = Asked(Person(taste, cell.seed, SLIPS, INDIFFERENCE), pool.scores(taste), [])
    extract = FrozenFeatures(
        FeatureOptions(method.features or "denoiser", str(DEMO_MODEL), grid=4), batch_size=25
    )
    row = empty_row(cell) | {"images_made": len(pool.pixels)}
    if method.order == "pair-tool":
        _ask_about(pool, range(len(pool.pixels)), person, folder, cell.seed, cell.answers)
    elif method.order == "random":
        in_turn(pool, person, cell)
    elif method.order == "grid":
        person.look_through(pool, folder, cell)
    if method.features:
        extract.load()
        seen = look(work, cell.seed, kind, cell.asked, extract)
        if method.order == "information":
            by_information(seen, person, cell)
        elif method.order == "surplus":
            with_surplus(seen, person, cell, folder)
        row["head_accuracy"] = _learn(work, cell, taste, seen, person, extract, folder)
    if (count := person.marks or len(person.given)) != cell.answers:
        raise RuntimeError(f"{count} answers were given instead of {cell.answers}")
    if method.training is None:
        return row
    run = train_on_answers(cell, method, folder)
    return row | _judge(work, cell, taste, run.adapter) | {
        "images_made": len(pool.pixels) + run.images,
        "train_cpu_seconds": round(run.cpu_seconds, 1),
    }  # fmt: skip


def empty_row(cell: Cell) -> dict[str, Any]:
    """A row whose figures are not known yet."""
    return {
        "taste": cell.taste, "method": cell.method, "answers": cell.answers, "seed": cell.seed, "win_rate": None,
        "best_of_n": None, "fidelity_loss": None, "diversity_ratio": None, "head_accuracy": None,
        "images_made": None, "train_cpu_seconds": None,
    }  # fmt: skip


def run_rounds(
    work: Path, cells: Sequence[Cell], taste: Taste, folder: Path
) -> Iterator[tuple[Cell, dict[str, Any]]]:
    """Measure a project after each of its rounds whose number of answers is asked for."""
    person = Person(taste, cells[0].seed, SLIPS, INDIFFERENCE)
    for reached in play(cells, person, folder):
        cell, saved = reached.cell, load_head(reached.taste)
        extract = FrozenFeatures(saved.features, batch_size=25)
        extract.load()
        new = look(work, cell.seed, "curve", cell.answers, extract)
        said = saved.head(new.features_ND).tolist()
        yield (
            cell,
            empty_row(cell)
            | _judge(work, cell, taste, reached.adapter)
            | as_row(reached)
            | {"head_accuracy": pair_accuracy(said, new.images, taste, cell.seed)},
        )


def _learn(
    work: Path, cell: Cell, taste: Taste, seen: Seen, person: Asked, extract: FrozenFeatures, folder: Path
) -> float:
    """Fit the head, write it, and measure it on clean pairs of held-out prompts."""
    prompts = seen.images.prompts
    said = [(a, b, o) if o >= 0.5 else (b, a, 1 - o) for a, b, o in person.given]
    of_taste = cell.method_spec.features != "vae"
    if not of_taste:
        said = [one for one in said if one[2] != 0.5]
    better, worse, outcome = zip(*said, strict=True)
    data = Comparisons(
        seen.features_ND,
        torch.tensor(better),
        torch.tensor(worse),
        [prompts[one] for one in better],
        torch.zeros(len(said), dtype=torch.bool),
        torch.tensor(outcome) == 0.5,
        None if person.weights is None else torch.tensor(person.weights, dtype=torch.float64),
    )
    if of_taste:
        head, report = train_taste(data, seen.parts, HeadOptions(holdout=0.0), prompts)
    else:
        head, report = train_head(data, HeadOptions(holdout=0.0))  # type: ignore[assignment]
    folder.mkdir(parents=True, exist_ok=True)
    fit = _usual_fit(seen, person, extract) if cell.method_spec.guard else None
    save_head(folder / "taste.safetensors", head, extract.options, extract.probe(), report, fit)
    new = look(work, cell.seed, "curve", cell.answers, extract)
    return pair_accuracy(head(new.features_ND).tolist(), new.images, taste, cell.seed)


def _usual_fit(seen: Seen, person: Asked, extract: FrozenFeatures) -> UsualFit | None:
    """Return the usual fit of judged images to their prompts."""
    shown = seen.images.only(
        sorted({place for first, second, _ in person.given for place in (first, second)})
    )
    return UsualFit.of(extract.prompt_fit(shown.rgb(), shown.prompts))


def pair_accuracy(said: Sequence[float], images: Images, taste: Taste, seed: int) -> float:
    """Share of ``TEST_PAIRS`` random pairs of a prompt that are ordered correctly; the person's ties are left out."""
    truth, prompts = images.scores(taste), list(images.by_prompt().values())
    rng = python_random("taste-test", seed)
    right: list[float] = []
    for _ in range(100 * TEST_PAIRS):
        first, second = rng.sample(rng.choice(prompts), 2)
        if abs(truth[first] - truth[second]) >= INDIFFERENCE:
            gap = (said[first] - said[second]) * (truth[first] - truth[second])
            right.append(1.0 if gap > 0 else 0.5 if gap == 0 else 0.0)
        if len(right) == TEST_PAIRS:
            break
    if not right:
        raise UserError(
            f"{taste.name} finds all images of every prompt equal", hint="it cannot be measured here"
        )
    return float(np.mean(right))


def train_on_answers(cell: Cell, method: Method, folder: Path) -> Trained:
    """Train the adapter of a row on the answers in its folder."""
    journey = Journey(folder, cell.seed, "DPO" if method.training == "DPO" else "NFT", FULL)
    if method.training != "DPO":
        pool = prompt_split(cell.seed)[0]
        write_text(folder / "prompts.txt", "".join(f"{wish.caption()}\n" for wish in pool))
        settings = learning_settings(
            folder / "taste.safetensors", folder / "prompts.txt", method.caution, method.guard
        )
        if method.epochs is not None:
            settings["epochs"] = method.epochs
        if method.training == "AWM":
            settings["rlhf_mode"] = "AWM"
        return train(journey, "nft", as_settings(settings), print)
    finalise(folder / "pairs", 0.0)
    if method.composed is not None:
        return compose(journey, method.composed)
    settings = twin_settings("supervised" if method.supervised else "dpo", folder / "pairs", folder)
    if method.confidence != "OFF":
        settings["rlhf_dpo_confidence"] = method.confidence
    if method.objective != "SIGMOID":
        settings["rlhf_dpo_objective"] = method.objective
    return train(journey, cell.method, as_settings(settings), print)


def compose(journey: Journey, strength: float) -> Trained:
    """Train an adapter on the chosen images and one on the rejected ones, and write the difference times
    ``strength`` to one file.
    """
    out = journey.out
    good, bad = (
        train(journey, name, as_settings(twin_settings(name, out / "pairs", out)), print)
        for name in ("supervised", "disliked")
    )
    files = [(good.adapter, strength), (bad.adapter, -strength)]
    adapter = out / "adapter-composed.safetensors"
    write_adapter(add_adapters(files, FAMILY, journey.model, None), adapter, KOHYA, None, print)
    return replace(
        good,
        name="composed",
        adapter=adapter,
        steps=good.steps + bad.steps,
        seconds=good.seconds + bad.seconds,
        cpu_seconds=good.cpu_seconds + bad.cpu_seconds,
    )


def _judge(work: Path, cell: Cell, taste: Taste, adapter: Path) -> dict[str, Any]:
    """Measure the adapter on held-out prompts, with the seeds of the base model's images."""
    base = read_images(work, cell.seed, "curve", cell.answers)
    prompts = list(base.by_prompt().values())
    judged = [place for group in prompts for place in group[:JUDGED_PER_PROMPT]]
    seeds = seeds_of("curve", cell.seed, len(base.pixels))
    wishes = [base.wishes[i] for i in judged]
    model = load_model(adapter=adapter)
    pixels = sample_pixels(model, [wish.caption() for wish in wishes], [seeds[i] for i in judged])
    before = Images(wishes, [base.pixels[i] for i in judged])
    after = Images(wishes, pixels)
    liking, ours = base.scores(taste), after.scores(taste)
    reached, encoder = float(np.mean(ours)), (create_model_setup(FAMILY), load_model())
    return {
        "win_rate": win_rate(ours, [liking[i] for i in judged]),
        "best_of_n": best_of_n([[liking[i] for i in group] for group in prompts], reached, MOST_N),
        "fidelity_loss": _faithful(before) - _faithful(after),
        "diversity_ratio": after.diversity(*encoder) / before.diversity(*encoder),
        "liking_before": float(np.mean([liking[i] for i in judged])),
        "liking_after": reached,
        "judged": len(judged),
    }


def _faithful(images: Images) -> float:
    return fidelity(images.readings(), images.wishes)["all"]


def do(told: Mapping[str, Any]) -> None:
    """Do one part of the measurement, unless its result exists."""
    work = Path(told["work"])
    if told["what"] == "images":
        make_part(work, told["seed"], told["kind"], told["part"])
        return
    cells = [Cell(**one) for one in told["cells"]]
    place = work / "cells"
    place.mkdir(parents=True, exist_ok=True)
    taste = load_tastes(told["taste_file"])[cells[0].taste]
    with TemporaryDirectory(dir=place, prefix=f"{cells[0].key}-") as folder:
        rows: Iterator[tuple[Cell, dict[str, Any]]]
        if cells[0].method_spec.rounds is None:
            rows = ((cell, run_cell(work, cell, taste, Path(folder))) for cell in cells)
        else:
            rows = run_rounds(work, cells, taste, Path(folder))
        for cell, row in rows:
            write_json(row_file(work, cell, told["taste_file"]), row)


def main() -> int:
    torch.set_num_threads(1)
    try:
        for place, told in enumerate(json.load(sys.stdin)):
            do(told)
            print(f"{FINISHED}{place}", flush=True)
    except UserError as error:
        print(error, file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
