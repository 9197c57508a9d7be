"""Reference scores survive a kill, follow the content of their pair, and are never made up."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from modules.model.batch import Conditioning, ImageBatch, PairBatch
from modules.model.noising.noise import NoiseOptions, draw_noise
from modules.model.noising.schedule import DiscreteSchedule
from modules.objective.draw_pool import POOL_STREAM
from modules.objective.scores import ReferenceOut, ScorePair
from modules.trainer.reference import reference_cache
from modules.trainer.reference.reference_cache import ReferenceCache, at_draws, pooled, reference_key
from modules.util.errors import DataError
from tests.trainer.builders import small_files_only

KEY = reference_key({"model": "tiny", "seed": 1})
DRAWS = 4


def images(names: list[str], seed: int, prompt: str = "a cat") -> ImageBatch:
    count = len(names)
    generator = torch.Generator().manual_seed(seed)
    return ImageBatch(
        latents_BChw=torch.randn(count, 4, 2, 2, generator=generator),
        cond=Conditioning({"hidden_BLE": torch.randn(count, 3, 5, generator=generator).bfloat16()}),
        prompts=[prompt] * count,
        ids=names,
        visits=[0] * count,
        size=(16, 16),
        loss_weight_B=torch.ones(count),
    )


def pairs(*names: str, seed: int = 0) -> PairBatch:
    return PairBatch(
        list(names), images([f"{n}+" for n in names], seed), images([f"{n}-" for n in names], seed + 1)
    )


class Scorer:
    """Stands for the reference model: a number that tells the pair, the side and the draw."""

    def __init__(self, norms: bool = False) -> None:
        self.batches: list[list[tuple[str, int]]] = []
        self.norms = norms

    def __call__(self, pair: PairBatch) -> ReferenceOut:
        assert pair.rejected is not None
        assert pair.chosen.visits == pair.rejected.visits
        self.batches.append(list(zip(pair.pair_ids, pair.chosen.visits, strict=True)))

        def score(side: ImageBatch) -> torch.Tensor:
            return -side.latents_BChw.square().flatten(1).mean(1) - torch.tensor(side.visits)

        scores = score(pair.chosen), score(pair.rejected)
        return ReferenceOut(scores, (2.0 - scores[0], 3.0 - scores[1]) if self.norms else None)

    @property
    def seen(self) -> list[tuple[str, int]]:
        return [item for batch in self.batches for item in batch]


def expected(pair: PairBatch, indices: list[int]) -> ScorePair:
    return Scorer()(at_draws(pair, indices)).scores


def open_cache(folder: Path, **changes: object) -> ReferenceCache:
    return ReferenceCache(**({"folder": folder, "key": KEY, "draws": DRAWS} | changes))


def test_training_meets_each_draw_once_a_round() -> None:
    """And the noise of a pooled visit is the noise its reference score was computed with."""
    pair, met = pairs("a"), []
    schedule = DiscreteSchedule.from_config({})
    options = NoiseOptions(strata=DRAWS)
    for visit in range(DRAWS):
        at_visit = replace(pair, chosen=replace(pair.chosen, visits=[visit]))
        for batch, index in (pooled(at_visit, 3, DRAWS), (at_draws(pair, [visit]), [visit])):
            draw = draw_noise(
                schedule, (4, 2, 2), batch.pair_ids, batch.chosen.visits, options, 3, POOL_STREAM
            )
            met.append((index[0], int(draw.timestep_B), float(draw.noise_BChw.sum())))
    assert sorted(met[0::2]) == met[1::2]
    assert sorted(timestep * DRAWS // 1000 for _, timestep, _ in met[1::2]) == list(range(DRAWS))


def test_filled_once_then_looked_up(tmp_path: Path) -> None:
    first, second, scorer = pairs("a", "b", "c"), pairs("d", seed=7), Scorer()
    told: list[tuple[int, int]] = []
    cache = open_cache(tmp_path)
    assert cache.fill([first, second], scorer, 5, total=4, progress=lambda *at: told.append(at))
    assert told == [(3, 4), (4, 4)]
    assert sorted(scorer.seen) == [(name, draw) for name in "abcd" for draw in range(DRAWS)]
    # draws of one pair only share a batch
    assert {len(batch) for batch in scorer.batches} == {DRAWS}

    again = open_cache(tmp_path)
    silent = Scorer()
    assert again.fill([first, second], silent, 5)
    assert silent.batches == []
    for got, wanted in zip(again.lookup(first, [3, 0, 2]).scores, expected(first, [3, 0, 2]), strict=True):
        assert got.dtype == torch.float32
        assert torch.equal(got, wanted)


def test_norms_are_kept_next_to_the_scores_and_asked_for_by_name(tmp_path: Path) -> None:
    pair, indices = pairs("a", "b"), [3, 1]
    open_cache(tmp_path, norms=True).fill([pair], Scorer(norms=True), 2)
    known = open_cache(tmp_path, norms=True).lookup(pair, indices)
    wanted = Scorer(norms=True)(at_draws(pair, indices))
    assert known.norms is not None and wanted.norms is not None
    for got, one in zip((*known.scores, *known.norms), (*wanted.scores, *wanted.norms), strict=True):
        assert torch.equal(got, one)
    with pytest.raises(DataError, match=r"expected \(pairs, 4, 2\) scores"):
        open_cache(tmp_path)


def test_an_added_pair_costs_its_own_scores(tmp_path: Path) -> None:
    both = pairs("a", "b")
    open_cache(tmp_path).fill([both.select([0])], Scorer(), 8)
    scorer = Scorer()
    open_cache(tmp_path).fill([both], scorer, 8)
    assert scorer.seen == [("b", draw) for draw in range(DRAWS)]


@pytest.mark.parametrize("what", ["chosen", "rejected", "prompt", "cond", "geometry", "mask"])
def test_changed_content_is_scored_anew(tmp_path: Path, what: str) -> None:
    before = pairs("a")
    open_cache(tmp_path).fill([before], Scorer(), 8)
    chosen, rejected = before.chosen, before.rejected
    assert rejected is not None
    if what == "chosen":
        chosen = replace(chosen, latents_BChw=chosen.latents_BChw + 1e-6)
    elif what == "rejected":
        rejected = replace(rejected, latents_BChw=-rejected.latents_BChw)
    elif what == "prompt":
        chosen = replace(chosen, prompts=["a dog"])
    elif what == "geometry":
        chosen = replace(chosen, geometry_B6=torch.tensor([[16.0, 16, 0, 0, 16, 16]]))
    elif what == "mask":
        rejected = replace(rejected, inpaint_BChw=torch.ones(1, 5, 2, 2))
    else:
        chosen = replace(chosen, cond=Conditioning({"hidden_BLE": torch.zeros(1, 3, 5).bfloat16()}))
    changed = PairBatch(["a"], chosen, rejected)
    cache = open_cache(tmp_path)
    with pytest.raises(RuntimeError, match="no reference score of pair 'a'"):
        cache.lookup(changed, [0])
    scorer = Scorer()
    cache.fill([changed], scorer, 8)
    assert len(scorer.seen) == DRAWS
    assert torch.equal(cache.lookup(changed, [1]).scores[1], expected(changed, [1])[1])


def test_padding_that_the_company_asks_for_changes_nothing(tmp_path: Path) -> None:
    def with_lengths(*lengths: int) -> PairBatch:
        rows = [{"hidden_BLE": torch.ones(n, 5), "mask_BL": torch.ones(n, dtype=torch.bool)} for n in lengths]
        both = pairs("a", "b")
        sides = [replace(side, cond=Conditioning.stack(rows)) for side in (both.chosen, both.rejected)]
        return PairBatch(both.pair_ids, *sides)

    open_cache(tmp_path).fill([with_lengths(2, 2)], Scorer(), 8)
    cache = open_cache(tmp_path)
    alone = with_lengths(2, 7).select([0])
    assert torch.equal(cache.lookup(alone, [1]).scores[0], expected(alone, [1])[0])
    with pytest.raises(RuntimeError, match="no reference score of pair 'b'"):
        cache.lookup(with_lengths(2, 7), [1, 1])


def test_an_error_keeps_what_was_done(tmp_path: Path) -> None:
    both = pairs("a", "b")

    class Dies(Scorer):
        def __call__(self, pair: PairBatch) -> ReferenceOut:
            if len(self.batches) == 2:
                raise MemoryError
            return super().__call__(pair)

    dies = Dies()
    with pytest.raises(MemoryError):
        open_cache(tmp_path).fill([both], dies, 3)
    rest = Scorer()
    assert open_cache(tmp_path).fill([both], rest, 3)
    assert [name for name, _ in dies.seen] == ["a"] * DRAWS
    assert sorted(dies.seen + rest.seen) == [(name, draw) for name in "ab" for draw in range(DRAWS)]


def test_saved_on_the_way(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A killed process has no chance to save at the end."""
    monkeypatch.setattr(reference_cache, "SAVE_EVERY_SECONDS", -1.0)
    pair = pairs("a")
    left: list[int] = []

    class Looks(Scorer):
        def __call__(self, pair: PairBatch) -> ReferenceOut:
            left.append(len(open_cache(tmp_path).missing(pairs("a"))))
            return super().__call__(pair)

    open_cache(tmp_path).fill([pair], Looks(), 1)
    assert left == [4, 3, 2, 1]


def test_stop(tmp_path: Path) -> None:
    scorer = Scorer()
    cache = open_cache(tmp_path)
    assert not cache.fill([pairs("a")], scorer, 1, should_stop=lambda: len(scorer.batches) == 2)
    assert len(open_cache(tmp_path).missing(pairs("a"))) == 2


def test_processes_share_what_they_wrote(tmp_path: Path) -> None:
    both = pairs("a", "b")
    caches = [open_cache(tmp_path, writer=rank) for rank in range(2)]
    for rank, cache in enumerate(caches):
        cache.fill([both.select([rank])], Scorer(), 8)
    for cache in caches:
        cache.reload()
        assert cache.missing(both) == []
        assert torch.equal(cache.lookup(both, [0, 3]).scores[0], expected(both, [0, 3])[0])
    assert len(list(tmp_path.glob("*.safetensors"))) == 2


def test_other_keys_are_other_caches(tmp_path: Path) -> None:
    open_cache(tmp_path).fill([pairs("a")], Scorer(), 8)
    other = open_cache(tmp_path, key=reference_key({"model": "tiny", "seed": 2}))
    assert len(other.missing(pairs("a"))) == DRAWS
    assert reference_key({"a": 1, "b": 2}) == reference_key({"b": 2, "a": 1})


def test_nothing_to_save_writes_nothing(tmp_path: Path) -> None:
    open_cache(tmp_path / "none").save()
    assert not (tmp_path / "none").exists()


class TestFaults:
    def test_damaged_file(self, tmp_path: Path) -> None:
        (tmp_path / f"{KEY}-0.safetensors").write_bytes(b"\x08\x00garbage")
        with pytest.raises(DataError, match=r"cannot be read[\s\S]*delete the file"):
            open_cache(tmp_path)

    def test_other_number_of_draws_under_one_key(self, tmp_path: Path) -> None:
        open_cache(tmp_path).fill([pairs("a")], Scorer(), 8)
        with pytest.raises(DataError, match="expected"):
            open_cache(tmp_path, draws=5)

    def test_scores_that_are_not_finite(self, tmp_path: Path) -> None:
        cache = open_cache(tmp_path)
        nan = torch.tensor([float("nan")])
        with pytest.raises(RuntimeError, match="pair 'a' as nan"):
            cache.fill([pairs("a")], lambda pair: ReferenceOut((nan, nan), None), 1)
        assert len(cache.missing(pairs("a"))) == DRAWS

    def test_bad_arguments(self, tmp_path: Path) -> None:
        with pytest.raises(ValueError, match="at least one draw"):
            open_cache(tmp_path, draws=0)
        with pytest.raises(ValueError, match="not a key"):
            open_cache(tmp_path, key="../x")

    def test_no_rejected_image(self, tmp_path: Path) -> None:
        with pytest.raises(RuntimeError, match="no rejected image"):
            open_cache(tmp_path).missing(replace(pairs("a"), rejected=None))


def test_a_full_disk_is_told_and_keeps_what_was_written(tmp_path: Path) -> None:
    cache = ReferenceCache(tmp_path, KEY, DRAWS)
    cache.fill([pairs("a")], Scorer(), 2, total=1)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    with small_files_only(100), pytest.raises(DataError, match="cannot be written") as caught:
        cache.fill([pairs("b", "c")], Scorer(), 2, total=2)
    assert caught.value.field == "cache_dir"
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before
