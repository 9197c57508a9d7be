from __future__ import annotations

import pickle
import subprocess
import sys
import textwrap
import threading
from pathlib import Path
from typing import Any

import pytest
from torch.utils.data import BatchSampler, DataLoader, SequentialSampler

from modules.pipeline.Node import SOURCE, Node
from modules.pipeline.Pipeline import Pipeline, PipelineError
from modules.pipeline.PipelineDataset import PipelineDataset


class Numbers(Node):
    def __init__(self, count: int = 5) -> None:
        super().__init__()
        self.count, self.starts, self.calls = count, 0, 0

    def start(self, variation: int) -> None:
        self.starts += 1

    def length(self) -> int:
        return self.count

    def get_inputs(self) -> list[str]:
        return []

    def get_outputs(self) -> list[str]:
        return ["number", "parts"]

    def get_meta(self, variation: int, name: str) -> Any:
        return f"{name} of {variation}"

    def get_item(self, variation: int, index: int, requested_name: str | None = None) -> dict[str, Any]:
        self.calls += 1
        return {"number": 100 * variation + index, "parts": {"low": index, "high": variation}}


class AddOne(Node):
    def __init__(self, name_in: str = "number", name_out: str = "more") -> None:
        super().__init__()
        self.name_in, self.name_out = name_in, name_out

    def get_inputs(self) -> list[str]:
        return [self.name_in]

    def get_outputs(self) -> list[str]:
        return [self.name_out]

    def get_item(self, variation: int, index: int, requested_name: str | None = None) -> dict[str, Any]:
        return {self.name_out: self._get_previous_item(variation, self.name_in, index) + 1}


class Neighbours(AddOne):
    """Asks for another item than its own, as modules that mix items do."""

    def get_item(self, variation: int, index: int, requested_name: str | None = None) -> dict[str, Any]:
        other = (index + 1) % self.length()
        pair = [self._get_previous_item(variation, self.name_in, i) for i in (index, other, index)]
        return {self.name_out: pair}


class Draws(AddOne):
    def get_item(self, variation: int, index: int, requested_name: str | None = None) -> dict[str, Any]:
        return {self.name_out: self._get_rand(variation, index).random()}


class Meta(AddOne):
    def get_item(self, variation: int, index: int, requested_name: str | None = None) -> dict[str, Any]:
        return {self.name_out: self._get_previous_meta(variation, self.name_in)}


class PassOn(AddOne):
    """Has an answer for even items only."""

    def get_item(self, variation: int, index: int, requested_name: str | None = None) -> dict[str, Any]:
        return {self.name_out: None if index % 2 else -1}


def started(modules: list[Any], outputs: list[str], seed: int = 0) -> Pipeline:
    pipeline = Pipeline(modules, outputs, seed)
    pipeline.start()
    return pipeline


def test_items_pass_through_the_modules_on_demand() -> None:
    first = Numbers()
    pipeline = started([first, [AddOne(), None, [AddOne("more", "most")]]], ["most", "number"])
    assert pipeline.length() == 5
    assert pipeline.get_item(2, 3) == {"most": 205, "number": 203}
    assert first.calls == 1
    assert pipeline.get("more", 1, 1) == 102
    assert pipeline.get("parts.high", 4, 1) == 4
    assert pipeline.get("parts.missing", 4, 1) is None


def test_a_module_may_ask_for_other_items() -> None:
    pipeline = started([Numbers(), Neighbours()], ["more", "number"])
    assert [pipeline.get_item(0, i)["more"] for i in range(5)] == [
        [0, 1, 0], [1, 2, 1], [2, 3, 2], [3, 4, 3], [4, 0, 4]
    ]  # fmt: skip


def test_none_is_passed_on_to_an_earlier_module() -> None:
    pipeline = started([Numbers(), PassOn("number", "number")], ["number"])
    assert [pipeline.get_item(0, i)["number"] for i in range(4)] == [-1, 1, -1, 3]


def test_modules_start_once_and_know_meta() -> None:
    first = Numbers()
    pipeline = started([first, Meta()], ["more"])
    pipeline.start(1)
    assert first.starts == 1
    assert pipeline.get_item(3, 0) == {"more": "number of 3"}


def test_random_streams_belong_to_seed_module_variation_and_item() -> None:
    def draw(seed: int, variation: int, index: int) -> dict[str, float]:
        modules = [Numbers(), Draws("number", "a"), Draws("number", "b")]
        return started(modules, ["a", "b"], seed).get_item(variation, index)

    assert draw(1, 0, 0) == draw(1, 0, 0)
    values = [v for key in ((1, 0, 0), (2, 0, 0), (1, 1, 0), (1, 0, 1)) for v in draw(*key).values()]
    assert len(set(values)) == 8


def test_a_missing_input_is_an_error_naming_the_module() -> None:
    with pytest.raises(
        PipelineError, match=r"AddOne \(module 1\) needs 'nothing', .* known here: number, parts"
    ):
        Pipeline([Numbers(), AddOne("nothing")], ["more"])
    with pytest.raises(PipelineError, match=r"Output \(module 1\) needs 'more'"):
        Pipeline([Numbers()], ["more"])
    with pytest.raises(PipelineError, match="known here: nothing"):
        Pipeline([AddOne(), Numbers()], ["more"])
    with pytest.raises(PipelineError, match="no module gives 'least'"):
        started([Numbers()], ["number"]).get("least", 0, 0)


def test_it_is_an_ordinary_dataset() -> None:
    dataset = PipelineDataset(Pipeline([Numbers(), AddOne()], ["more"]))
    assert len(dataset) == 5 and dataset[1] == {"more": 2} and dataset[1, 2] == {"more": 202}
    assert dataset[-1] == {"more": 5}
    with pytest.raises(IndexError, match="item 5 of 5"):
        dataset[5]
    loaded = DataLoader(dataset, batch_sampler=BatchSampler(SequentialSampler(dataset), 2, drop_last=False))
    assert [batch["more"].tolist() for batch in loaded] == [[1, 2], [3, 4], [5]]
    assert pickle.loads(pickle.dumps(dataset))[4] == {"more": 5}


@pytest.mark.skipif(SOURCE == "mgds", reason="mgds remembers items per module, not per thread")
def test_threads_do_not_mix_items_up() -> None:
    pipeline = started([Numbers(50), AddOne(), Neighbours("more", "pair")], ["pair"])
    wrong: list[int] = []

    def work() -> None:
        for _ in range(20):
            wrong.extend(
                i
                for i in range(50)
                if pipeline.get_item(1, i)["pair"] != [101 + i, 101 + (i + 1) % 50, 101 + i]
            )

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


MGDS = {
    "mgds/__init__.py": "",
    "mgds/PipelineModule.py": """
        class PipelineModule:
            def __init__(self):
                super().__init__()
            def init(self, pipeline, base_seed, module_index, state):
                self.pipeline, self.at, self.state = pipeline, module_index, state
            def _get_previous_item(self, variation, name, index):
                for module in reversed(self.pipeline.modules[:self.at]):
                    if name in module.get_outputs():
                        return module.get_item(variation, index, name)[name]
            def _get_previous_length(self, name):
                for module in reversed(self.pipeline.modules[:self.at]):
                    if name in module.get_outputs():
                        return module.length()
        """,
    "mgds/pipelineModuleTypes/__init__.py": "",
    "mgds/pipelineModuleTypes/RandomAccessPipelineModule.py": """
        class RandomAccessPipelineModule:
            def __init__(self):
                super().__init__()
                self.started = False
            def start(self, variation):
                pass
        """,
}


@pytest.mark.slow
@pytest.mark.child
def test_with_mgds_importable_the_modules_are_mgds_modules(tmp_path: Path) -> None:
    for name, text in MGDS.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(textwrap.dedent(text), encoding="utf-8")
    script = """
        import sys
        sys.path.insert(0, sys.argv[1])
        import mgds.PipelineModule
        from modules.pipeline.Node import SOURCE, THREAD_SAFE, Node
        from tests.pipeline.test_Pipeline import AddOne, Numbers, started
        assert SOURCE == "mgds" and not THREAD_SAFE
        assert issubclass(Node, mgds.PipelineModule.PipelineModule)
        assert started([Numbers(), AddOne()], ["more"]).get_item(1, 2) == {"more": 103}
        """
    root = Path(__file__).resolve().parents[2]
    command = [sys.executable, "-c", textwrap.dedent(script), str(tmp_path)]
    subprocess.run(command, check=True, cwd=root)


@pytest.mark.mgds
def test_with_the_real_mgds() -> None:
    from mgds.PipelineModule import PipelineModule

    assert SOURCE == "mgds" and issubclass(Node, PipelineModule)
    assert started([Numbers(), AddOne()], ["more", "number"]).get_item(1, 2) == {"more": 103, "number": 102}
