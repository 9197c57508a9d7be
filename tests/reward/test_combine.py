from __future__ import annotations

import json
import math
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from modules.reward.base import Reward, RewardError, RewardUnavailable
from modules.reward.combine import RewardSet, RewardTerm
from modules.util.config.section.RewardConfig import RewardConfig
from modules.util.errors import ConfigError, DataError
from tests.reward.builders import batch_of, noise_images

GROUPS = [5, 5, 8, 8]


class Table(Reward):
    """Scores out of the metadata; an exception there is raised."""

    def __init__(self, name="table", column="value"):
        super().__init__()
        self.name, self.column, self.calls = name, column, 0

    def _score(self, batch):
        self.calls += 1
        for data in batch.metadata:
            if isinstance(data[self.column], Exception):
                raise data[self.column]
        return torch.tensor([float(data[self.column]) for data in batch.metadata])


def batch_with(values, groups=None, **columns):
    metadata = [{"value": value} for value in values]
    for name, others in columns.items():
        for data, other in zip(metadata, others, strict=True):
            data[name] = other
    return batch_of(noise_images(len(values), 4), groups or GROUPS, metadata=metadata)


def combined(rewards, batch):
    scores = rewards.score(batch)
    return rewards.combine(scores.raw_RN, scores.kept_N, batch.groups)


def test_several_rewards_are_weighted_and_described():
    rewards = RewardSet([RewardTerm(Table("a"), 2.0), RewardTerm(Table("b", "other"), -0.5)])
    out = combined(rewards, batch_with([1, 2, 3, 3], other=[4, 0, 0, 8]))
    assert out.terms_RN.tolist() == [[1, 2, 3, 3], [4, 0, 0, 8]]
    assert out.total_N.tolist() == [0, 4, 6, 2]
    assert out.stats["a/mean"] == 2.25 and out.stats["a/zero_std_ratio"] == 0.5
    assert out.stats["a/std"] == pytest.approx(math.sqrt((1.25**2 + 0.25**2 + 2 * 0.75**2) / 4))
    assert out.stats["b/zero_std_ratio"] == 0 and out.stats["total/mean"] == 3
    assert out.stats["dropped_groups"] == 0 and "a/scale" not in out.stats
    assert rewards.names == ["a", "b"] and rewards.weights == [2.0, -0.5]


def test_a_reward_called_total_does_not_hide_the_total():
    rewards = RewardSet([RewardTerm(Table("total"), 2.0, normalise=True), RewardTerm(Table("b", "other"))])
    out = combined(rewards, batch_with([1, 2, 3, 4], other=[4, 0, 0, 8]))
    assert out.stats["total/mean"] == pytest.approx(float(out.total_N.mean())) != 2.5
    assert out.stats["total.reward/mean"] == 2.5
    assert "total.reward/scale" in out.stats and "total/scale" not in out.stats


def test_clipping_comes_before_the_gate_and_numbers_are_described_raw():
    term = RewardTerm(Table(), clip_low=-1.0, clip_high=2.0, threshold=0.5)
    out = combined(RewardSet([term]), batch_with([-5, 0.4, 0.5, 9]))
    assert out.terms_RN[0].tolist() == [0, 0, 0.5, 2]
    assert out.stats["table/mean"] == pytest.approx(4.9 / 4)
    only_low = combined(RewardSet([RewardTerm(Table(), clip_low=0.0)]), batch_with([-5, 1, 2, 3]))
    assert only_low.terms_RN[0].tolist() == [0, 1, 2, 3]


def test_normalised_rewards_are_divided_by_their_deviation_within_prompts():
    rewards = RewardSet([RewardTerm(Table(), normalise=True)], scale_decay=0.5)
    first = combined(rewards, batch_with([0, 2, 100, 102]))
    assert first.stats["table/scale"] == pytest.approx(1)
    second = combined(rewards, batch_with([0, 10, 0, 10]))
    expected = (0.25 * 1 + 0.5 * 5) / 0.75
    assert second.stats["table/scale"] == pytest.approx(expected)
    assert second.terms_RN[0].tolist() == pytest.approx([0, 10 / expected, 0, 10 / expected])
    flat = combined(rewards, batch_with([7, 7, 1, 1]))
    assert flat.stats["table/scale"] == pytest.approx(expected), "equal rewards say nothing about the scale"


def test_a_first_rollout_of_equal_rewards_is_not_divided_by_zero():
    out = combined(RewardSet([RewardTerm(Table(), normalise=True)]), batch_with([7, 7, 1, 1]))
    assert out.terms_RN[0].tolist() == [7, 7, 1, 1] and out.stats["table/scale"] == 1


def test_moving_averages_continue_after_a_restart():
    def fresh(names=("a", "b")):
        return RewardSet([RewardTerm(Table(name), normalise=True) for name in names])

    one = fresh()
    combined(one, batch_with([0, 1, 0, 3]))
    state = json.loads(json.dumps(one.state_dict()))
    two = fresh()
    two.load_state_dict(state)
    more = batch_with([0, 5, 2, 3])
    assert combined(one, more).stats == combined(two, more).stats
    other = fresh(("a", "c"))
    other.load_state_dict(state)
    assert set(other.state_dict()["sum"]) == {"a"}
    damaged = (
        {},
        {"sum": {"a": 1}, "mass": {}},
        {"sum": {"a": "x"}, "mass": {"a": 1}},
        {"sum": {"a": -1}, "mass": {"a": 1}},
    )
    for state in damaged:
        with pytest.raises(DataError):
            fresh().load_state_dict(state)


@pytest.mark.parametrize("value", [RewardError("odd"), math.nan, math.inf])
def test_a_failing_group_is_left_out_whole(value):
    values = [1, value, 3, 4]
    why = "odd" if isinstance(value, RewardError) else "NaN or infinite for image 1"
    with pytest.raises(RewardError, match=why):
        RewardSet([RewardTerm(Table())]).score(batch_with(values))
    rewards = RewardSet([RewardTerm(Table("fine", "other")), RewardTerm(Table())], on_error="skip_group")
    batch = batch_with(values, other=[1, 1, 1, 2])
    scores = rewards.score(batch)
    assert scores.kept_N.tolist() == [False, False, True, True]
    assert list(scores.dropped) == [5] and why in scores.dropped[5]
    assert scores.raw_RN.tolist() == [[0, 0, 1, 2], [0, 0, 3, 4]]
    out = rewards.combine(scores.raw_RN, scores.kept_N, batch.groups)
    assert out.stats["dropped_groups"] == 1 and out.stats["table/mean"] == 3.5
    assert out.total_N.tolist() == [0, 0, 4, 6]


def test_an_image_lost_elsewhere_takes_its_whole_group_out():
    rewards = RewardSet([RewardTerm(Table())])
    raw = torch.tensor([[1.0, 2, 3, 4, 5]])
    kept = torch.tensor([True, True, True, False, True])
    out = rewards.combine(raw, kept, torch.tensor([1, 2, 1, 1, 2]))
    assert out.kept_N.tolist() == [False, True, False, False, True]
    assert out.stats["dropped_groups"] == 1 and out.stats["table/mean"] == 3.5


NOT_OF_IMAGES = [
    RewardUnavailable("away"),
    ConfigError("wrong"),
    DataError("weights are damaged"),
    torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB"),
    RuntimeError("CUDA error: device-side assert triggered"),
    OSError("no such device"),
    ValueError("odd"),
    TypeError("bug"),
    MemoryError(),
]


@pytest.mark.parametrize("error", NOT_OF_IMAGES, ids=lambda one: type(one).__name__)
def test_what_is_not_the_fault_of_images_ends_the_run(error):
    table = Table()
    with pytest.raises(type(error)):
        RewardSet([RewardTerm(table)], "skip_group").score(batch_with([1, error, 3, 4]))
    assert table.calls == 1, "not asked again for every group"


def test_memory_that_is_exhausted_while_groups_are_asked_one_by_one_ends_the_run():
    class Later(Table):
        def _score(self, batch):
            if self.calls == 2:
                raise torch.OutOfMemoryError("out of memory")
            return super()._score(batch)

    with pytest.raises(torch.OutOfMemoryError):
        RewardSet([RewardTerm(Later())], "skip_group").score(batch_with([1, RewardError("odd"), 3, 4]))


def test_nothing_left_in_any_process_is_an_error(caplog):
    batch = batch_with([RewardError("all odd")] * 4)
    rewards = RewardSet([RewardTerm(Table())], "skip_group")
    scores = rewards.score(batch)
    assert not scores.kept_N.any() and caplog.text.count("all odd") == 2
    with pytest.raises(RewardError, match="no image could be scored"):
        rewards.combine(scores.raw_RN, scores.kept_N, batch.groups)
    with pytest.raises(
        RewardError, match="all 2 groups of the epoch are skipped; of group 5: table: all odd"
    ):
        rewards.combine(scores.raw_RN, scores.kept_N, batch.groups, scores.dropped)
    fine = rewards.score(batch_with([1, 2, 3, 4], [1, 1, 2, 2]))
    together = rewards.combine(
        torch.cat([scores.raw_RN, fine.raw_RN], 1),
        torch.cat([scores.kept_N, fine.kept_N]),
        torch.tensor([5, 5, 8, 8, 1, 1, 2, 2]),
    )
    assert together.stats["dropped_groups"] == 2 and together.stats["table/mean"] == 2.5
    rewards = RewardSet([RewardTerm(Table())])
    with pytest.raises(RewardError, match="no image"):
        rewards.combine(torch.zeros(1, 2), torch.zeros(2, dtype=torch.bool), torch.tensor([1, 1]))
    with pytest.raises(RewardError, match="finite"):
        rewards.combine(torch.full((1, 2), math.nan), torch.ones(2, dtype=torch.bool), torch.tensor([1, 1]))
    with pytest.raises(ValueError, match="groups"):
        rewards.combine(torch.zeros(2, 2), torch.ones(2, dtype=torch.bool), torch.tensor([1, 1]))


def test_rewards_are_built_from_a_config():
    def entry(**more):
        usual = {"reward": "brightness", "name": "", "weight": 1.0, "clip_low": None, "clip_high": None,
                 "threshold": None, "normalise": False, "params": {}}  # fmt: skip
        return SimpleNamespace(**(usual | more))

    rewards = RewardSet.from_settings(
        [entry(weight=2.0, clip_low=0.1), entry(name="dim", params={"target": 0.2}, normalise=True)]
    )
    assert rewards.names == ["brightness", "dim"] and rewards.weights == [2.0, 1.0]
    rewards.load(), rewards.to("cpu")
    out = combined(rewards, batch_of(noise_images(4), GROUPS))
    assert out.stats["dim/mean"] == pytest.approx(-0.3, abs=0.05)
    rewards.unload()
    assert not rewards.needs_groups
    with pytest.raises(ConfigError, match=r"dim\.targe"):
        RewardSet.from_settings([entry(name="dim", params={"targe": 0.2})])


@settings(max_examples=50, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 3), st.integers(-100, 100)), min_size=1, max_size=20),
    st.floats(0.1, 10),
)
def test_the_unit_of_a_reward_changes_nothing_after_normalising(pairs, factor):
    group_N = torch.tensor([group for group, _ in pairs])
    raw = torch.tensor([[float(value) for _, value in pairs]])
    kept = torch.ones(len(pairs), dtype=torch.bool)
    one, other = (
        RewardSet([RewardTerm(Table(), normalise=True)]).combine(raw * unit, kept, group_N)
        for unit in (1.0, factor)
    )
    flat = len(set(pairs)) == len(set(group_N.tolist()))
    expected = one.terms_RN * factor if flat else one.terms_RN
    assert torch.allclose(other.terms_RN, expected, rtol=1e-4, atol=1e-4)


def test_a_reward_does_not_resume_with_another_file(tmp_path):
    class Weighed(Table):
        def weights_file(self):
            return tmp_path / "head.safetensors"

    def fresh():
        return RewardSet([RewardTerm(Weighed("taste")), RewardTerm(Table("other"))])

    (tmp_path / "head.safetensors").write_bytes(b"first")
    saved = json.loads(json.dumps(fresh().state_dict()))
    fresh().load_state_dict(saved)
    (tmp_path / "head.safetensors").write_bytes(b"other")
    with pytest.raises(ConfigError, match="file of reward 'taste' has changed"):
        fresh().load_state_dict(saved)
    # a run that goes on while its file is replaced still has the first one
    (tmp_path / "head.safetensors").write_bytes(b"first")
    going_on = fresh()
    going_on.load()
    (tmp_path / "head.safetensors").write_bytes(b"other")
    assert going_on.state_dict()["files"] == saved["files"]
    # a backup of an earlier version says nothing of files
    fresh().load_state_dict({name: saved[name] for name in ("sum", "mass")})
    with pytest.raises(DataError, match="damaged"):
        fresh().load_state_dict({**saved, "files": 3})


@pytest.mark.parametrize("key", ["clip_score", "clip_source", "pickscore", "aesthetic"])
def test_a_reward_does_not_resume_with_another_model_in_its_folder(tmp_path, key):
    folder = tmp_path / "clip"
    folder.mkdir()
    (folder / "model.safetensors").write_bytes(b"first")
    (folder / "preprocessor_config.json").write_text("{}")

    def fresh():
        return RewardSet.from_settings([RewardConfig(reward=key, params={"source": str(folder)})])

    saved = json.loads(json.dumps(fresh().state_dict()))
    (folder / "README.md").write_text("notes")
    fresh().load_state_dict(saved)
    for name in ("model.safetensors", "preprocessor_config.json"):
        before = (folder / name).read_bytes()
        (folder / name).write_bytes(b"other")
        with pytest.raises(ConfigError, match=f"the model folder of reward '{key}' has changed"):
            fresh().load_state_dict(saved)
        (folder / name).write_bytes(before)
    fresh().load_state_dict(saved)
    # a backup of an earlier version says nothing of folders
    (folder / "model.safetensors").write_bytes(b"other")
    fresh().load_state_dict({name: saved[name] for name in ("sum", "mass", "files")})
