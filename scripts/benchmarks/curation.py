"""The pair tool: clicks each way of choosing needs, reading prompts, hashing, and what a pick costs.

Clicks are counted with a simulated person (``modules/curation/simulation.py``) until the exported pair has 85 %
of the largest quality gap in its group; the baseline, 1.0, is Elo with similar-rating pairing as it is offered.
Times are taken side by side in one process on images made for the purpose.
"""

from __future__ import annotations

import argparse
import io
import os
import random
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import median

import numpy as np
from PIL import Image
from PIL.PngImagePlugin import PngInfo

from modules.curation.CurationMode import CurationMode
from modules.curation.group_state import SessionSettings
from modules.curation.ImageGroup import ImageGroup
from modules.curation.intake.duplicates import file_dhash
from modules.curation.intake.scan import FoundImage, scan_images
from modules.curation.session import CurationSession
from modules.curation.simulation import Annotator, clicks_to_reach, closest_rating, stop_by_itself
from modules.curation.standing import Answer, Situation
from modules.curation.store import CurationStore
from modules.util.dpo_curation_util import copy_pair, make_pair
from scripts.benchmarks._measure import Quartiles, Result, Work, interleave, ratios

SHARE = 0.85
GOALS = {32: 0.55}
FILES_PER_SECOND = 20_000
DHASH_RATIO = 0.9
PICK_MS = 2.0
CASES = ("clicks", "scan", "dhash", "choosing", "pick")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--cases", default=",".join(CASES), help=f"comma-separated, of {', '.join(CASES)} (all by default)"
    )
    parser.add_argument("--groups", type=int, default=300, help="simulated groups per figure (300)")
    parser.add_argument("--sizes", default="8,16,32", help="images per simulated group (8,16,32)")
    parser.add_argument("--files", type=int, default=10_000, help="files of the scan (10000)")
    parser.add_argument("--images", type=int, default=12, help="images to hash (12)")
    parser.add_argument("--edge", type=int, default=1024, help="pixels along an edge of these (1024)")
    parser.add_argument(
        "--pairs", type=int, default=10_000, help="pairs in the folder when picks are timed (10000)"
    )
    parser.add_argument("--rounds", type=int, default=7, help="measured rounds (7)")


# --- clicks ---


def clicks(options: argparse.Namespace) -> list[Result]:
    """Clicks per method and group size, and the number at which methods that stop by themselves do so."""
    results = []
    seeds = range(options.groups)
    elo, smart, four = CurationMode("ELO"), CurationMode("SMART"), CurationMode("FOUR_UP")
    for size in (int(text) for text in options.sizes.split(",")):
        limits = {"elo_similar_rating": 5, "elo_closest_rating": 6, "smart": 3, "four_up": 3}
        limits = {name: factor * size for name, factor in limits.items()}
        needed = {
            name: clicks_to_reach(
                SHARE, mode, size, limits[name], seeds, choose=closest_rating if "closest" in name else None
            )
            for name, mode in zip(limits, (elo, elo, smart, four), strict=True)
        }
        baseline = needed["elo_similar_rating"] or limits["elo_similar_rating"]
        for name, count in needed.items():
            extra: dict[str, object] = {"clicks": count, "searched_to": limits[name], "images": size}
            if name in ("smart", "four_up"):
                stopped = stop_by_itself(smart if name == "smart" else four, size, seeds)
                extra |= {f"stops_at_{key}": value for key, value in vars(stopped).items()}
            results.append(
                Result(
                    f"group of {size}",
                    f"clicks: {name}",
                    (count or limits[name]) / baseline,
                    GOALS.get(size) if name == "smart" else None,
                    extra=extra,
                )
            )
        results += several_pairs(size, options.groups // 2)
    return results


def several_pairs(size: int, groups: int) -> list[Result]:
    """The same with four pairs per group, to 80 % of the ideal pairs."""
    limit = 5 * size
    counts = {
        mode: clicks_to_reach(0.8, mode, size, limit, range(groups), pairs=4)
        for mode in (CurationMode("ELO"), CurationMode("SMART"))
    }
    baseline = counts[CurationMode("ELO")] or limit
    return [
        Result(
            f"group of {size}",
            f"clicks, 4 pairs: {mode.value.lower()}",
            (count or limit) / baseline,
            extra={"clicks": count, "searched_to": limit, "images": size, "pairs": 4},
        )
        for mode, count in counts.items()
    ]


# --- files ---


def generated_file(seed: int) -> bytes:
    """A small PNG file as A1111 writes it; the pixels are irrelevant."""
    info = PngInfo()
    words = random.Random(seed).choices(["fox", "harbour", "portrait", "storm", "tower", "meadow"], k=40)
    settings = f"Steps: 28, Sampler: Euler a, CFG scale: 7, Seed: {seed}"
    info.add_text("parameters", f"{' '.join(words)}\nNegative prompt: blurry, lowres\n{settings}")
    stream = io.BytesIO()
    Image.effect_noise((96, 96), 60).save(stream, "PNG", pnginfo=info)
    return stream.getvalue()


def scan(options: argparse.Namespace) -> list[Result]:
    """Files per second of the scan, prompts parsed, from a warm cache on one core; compared with opening and reading
    alone."""
    with tempfile.TemporaryDirectory() as name:
        root = Path(name)
        originals = [generated_file(seed) for seed in range(50)]
        for i in range(options.files):
            folder = root / f"{i // 1000:03}"
            folder.mkdir(exist_ok=True)
            (folder / f"{i:06}.png").write_bytes(originals[i % len(originals)])
        files = [str(path) for path in root.rglob("*.png")]

        def through_scan() -> None:
            found = sum(isinstance(entry, FoundImage) for entry in scan_images(root))
            if found != options.files:
                raise RuntimeError(f"{found} of {options.files} prompts found")

        def read_heads() -> None:
            for path in files:
                descriptor = os.open(path, os.O_RDONLY)
                os.read(descriptor, 32 * 1024)
                os.close(descriptor)

        def pillow_exif() -> None:
            for path in files[: len(files) // 20]:
                with Image.open(path) as image:
                    image.getexif()

        work: dict[str, Work] = {"scan": through_scan, "read_heads": read_heads, "pillow": pillow_exif}
        seconds = interleave(work, options.rounds)
    middle = {name: Quartiles.of(values).middle for name, values in seconds.items()}
    rate = options.files / middle["scan"]
    return [
        Result(
            "10k PNG files" if options.files == 10_000 else f"{options.files} PNG files",
            "scan, as 20,000 files/s over its rate",
            FILES_PER_SECOND / rate,
            1.0,
            extra={
                "files_per_second": rate,
                "files_per_second_read_only": options.files / middle["read_heads"],
                "files_per_second_pillow_getexif": options.files // 20 / middle["pillow"],
            },
        )
    ]


def decode_file(path: Path) -> None:
    """Decode and let go at once, as hashing does: an image that is kept until the next one is there spares the
    allocator work, up to half of a WebP decode."""
    with Image.open(path) as image:
        image.load()


def dhash(options: argparse.Namespace) -> list[Result]:
    """Hashing against Pillow's decode of the same files."""
    results = []
    rng = np.random.default_rng(0)
    with tempfile.TemporaryDirectory() as name:
        for kind in ("png", "jpeg", "webp"):
            files = []
            for i in range(options.images):
                coarse = Image.fromarray(rng.integers(0, 256, (64, 64, 3), dtype=np.uint8))
                path = Path(name) / f"{i}.{kind}"
                coarse.resize((options.edge, options.edge), Image.Resampling.BICUBIC).save(path)
                files.append(path)

            def decode(files: list[Path] = files) -> None:
                for path in files:
                    decode_file(path)

            def hashed(files: list[Path] = files) -> None:
                for path in files:
                    file_dhash(path)

            seconds = interleave({"decode": decode, "hash": hashed}, options.rounds)
            cost = ratios(seconds, "decode")["hash"]
            results.append(
                Result(
                    f"{kind}, {options.edge} x {options.edge}",
                    "hash over decode",
                    cost.middle,
                    1.0 / DHASH_RATIO,
                    extra={
                        "quartiles": [cost.low, cost.high],
                        "dhash_ratio": 1.0 / cost.middle,
                        "images_per_second": len(files) / Quartiles.of(seconds["hash"]).middle,
                    },
                )
            )
    return results


# --- answers ---


def next_pair(size: int, answers: list[Answer], seed: int) -> tuple[int, ...]:
    """SMART's next question after these answers."""
    way = CurationMode("SMART").way
    situation = Situation(way.standing(size, answers), tuple(range(size)), answers)
    asked: tuple[int, ...] = way.question(situation, random.Random(seed))
    return asked


def choosing(options: argparse.Namespace) -> list[Result]:
    """Time from an answer to the next pair, in a group with as many answers as images."""
    results = []
    for size in (int(text) for text in options.sizes.split(",")):
        answers: list[Answer] = []
        person = Annotator()
        rng = np.random.default_rng(1)
        quality = rng.normal(size=size) * person.spread
        for step in range(size):
            places = next_pair(size, answers, step)
            answers.append(person.answer(quality, places, rng.random(6).tolist()))

        def step_on(answers: list[Answer] = answers, size: int = size) -> None:
            next_pair(size, answers, 0)

        timings = [timed(step_on) for _ in range(30 * options.rounds)]
        results.append(
            Result(
                f"group of {size}",
                "answer to next pair, as share of 2 ms",
                1000 * median(timings) / 2.0,
                extra={"next_pair_ms": 1000 * median(timings)},
            )
        )
    return results


def timed(work: Work, clock: Callable[[], float] = time.process_time) -> float:
    start = clock()
    work()
    return clock() - start


def fill(store: CurationStore, count: int) -> None:
    """Add pairs without files to the store, as if picked long ago."""
    with store._transaction():
        for i in range(count):
            name = f"pair_{i:04d}"
            store._insert_pair(
                "old", make_pair(name, Path(f"c{i}.png"), Path(f"r{i}.png"), f"prompt {i}", "1:1")
            )
            store._insert_event("old", "pick", {"used": [], "pair_ids": [name]})


def picks_in(root: Path, pairs: int, rounds: int, clock: Callable[[], float]) -> dict[str, float]:
    """Median milliseconds in ``root``: picks with ``pairs`` and with none in the folder, copying, one commit.

    They are measured in turn, so that a busy disk affects all equally.
    """
    files = tuple(f"{i}.png" for i in range(4 * rounds + 4))
    for i, file in enumerate(files):
        Image.new("RGB", (16, 16), (i % 256, i // 256, 0)).save(root / file)
    group = ImageGroup("key", "a prompt", "1:1", root, files)
    settings = SessionSettings(CurationMode("ELO"), pairs_per_group=len(files))
    seconds: dict[str, list[float]] = {"full": [], "empty": [], "copying": [], "commit": [], "answer": []}
    with CurationStore(root / "full") as full, CurationStore(root / "empty") as empty:
        fill(full, pairs)
        sessions = {"full": CurationSession(full, settings), "empty": CurationSession(empty, settings)}
        for session in sessions.values():
            session.open(group)
        for i in range(rounds):
            for session in sessions.values():  # a pick needs a preference
                session.answer(best=session.state().question[0])
            pair = make_pair(f"pair_{i}", root / files[0], root / files[1], "a prompt", "1:1")
            work: dict[str, Work] = {name: session.pick_now for name, session in sessions.items()}
            work["copying"] = partial(copy_pair, root / "copies", pair)
            work["commit"] = lambda: empty.set_meta("benchmark", "1")
            work["answer"] = sessions["full"].skip
            for name in random.Random(i).sample(sorted(work), len(work)):
                seconds[name].append(timed(work[name], clock))
    return {name: 1000 * median(values) for name, values in seconds.items()}


def pick(options: argparse.Namespace) -> list[Result]:
    """A pick with many pairs in the folder, apart from copying its two images: on the disk in wall time, and
    in memory (where there is such a folder) in processor time, which is the program's own share."""
    results = []
    memory = Path("/dev/shm")
    for place, folder in (("disk", None), ("memory", str(memory) if memory.is_dir() else "")):
        if folder == "":
            continue
        with tempfile.TemporaryDirectory(dir=folder) as name:
            clock = time.perf_counter if place == "disk" else time.process_time
            ms = picks_in(Path(name), options.pairs, 3 * options.rounds, clock)
        net = ms["full"] - ms["copying"]
        results += [
            Result(
                f"{options.pairs} pairs, {place}",
                "pick apart from copying, over 2 ms",
                net / PICK_MS,
                1.0 if place == "memory" else None,
                extra={
                    "pick_ms_at_10k": net,
                    "pairs": options.pairs,
                    **{f"{k}_ms": v for k, v in ms.items()},
                },
            ),
            Result(
                f"{options.pairs} pairs, {place}",
                "pick over the same in an empty folder",
                ms["full"] / ms["empty"],
            ),
        ]
    return results


def run(options: argparse.Namespace) -> list[Result]:
    """Measure the requested cases."""
    known = {"clicks": clicks, "scan": scan, "dhash": dhash, "choosing": choosing, "pick": pick}
    names = [name.strip() for name in options.cases.split(",") if name.strip()]
    unknown = sorted(set(names) - known.keys())
    if unknown or not names:
        raise SystemExit(f"--cases: unknown {', '.join(unknown)}; known: {', '.join(CASES)}")
    return [result for name in names for result in known[name](options)]
