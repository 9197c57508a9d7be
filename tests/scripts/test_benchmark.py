"""The parts of the benchmark that are not a measurement."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scripts import benchmark
from scripts.benchmarks._measure import Quartiles, Result, interleave, ratios, table

ROOT = Path(__file__).resolve().parents[2]


@given(st.lists(st.floats(0.0, 10.0), min_size=1, max_size=30))
def test_quartiles_are_ordered_and_inside(values: list[float]) -> None:
    quartiles = Quartiles.of(values)
    assert min(values) <= quartiles.low <= quartiles.middle <= quartiles.high <= max(values)


def test_quartiles() -> None:
    assert Quartiles.of([4.0, 0.0, 3.0, 1.0, 2.0]) == Quartiles(1.0, 2.0, 3.0)
    assert Quartiles.of([1.0, 2.0]) == Quartiles(1.25, 1.5, 1.75)


def test_interleaved() -> None:
    order: list[str] = []
    now = [0.0]

    def work(name: str, seconds: float) -> None:
        order.append(name)
        now[0] += seconds

    cases = {"a": lambda: work("a", 1.0), "b": lambda: work("b", 1.5)}
    seconds = interleave(cases, 8, warmup=1, clock=lambda: now[0])
    rounds = [tuple(order[start : start + 2]) for start in range(0, len(order), 2)]
    assert len(rounds) == 9
    assert set(rounds) == {("a", "b"), ("b", "a")}
    assert seconds == {"a": [1.0] * 8, "b": [1.5] * 8}
    assert ratios(seconds, "a")["b"].middle == 1.5


def test_limits() -> None:
    assert Result("m", "c", 1.0).within
    assert Result("m", "c", 1.1, limit=1.1).within
    assert not Result("m", "c", 1.11, limit=1.1).within
    assert not Result("m", "c", 1.0, limit=1.1, memory_ratio=0.56, memory_limit=0.55).within


def test_table_shows_limits_and_verdicts() -> None:
    text = table(
        [
            Result("unet", "base", 1.0, extra={"quartiles": [0.98, 1.02]}),
            Result("unet", "fast", 1.2, limit=1.5, memory_ratio=0.5, memory_limit=0.55),
            Result("unet", "slow", 1.6, limit=1.5),
        ]
    )
    lines = text.splitlines()
    assert "0.980-1.020" in lines[2]
    assert lines[3].endswith("ok")
    assert "<= 1.500" in lines[3]
    assert "<= 0.550" in lines[3]
    assert lines[4].endswith("OVER")


FAKE = '''"""A made-up benchmark.

More about it.
"""
from scripts.benchmarks._measure import Result


def add_arguments(parser):
    parser.add_argument("--slow", action="store_true", help="exceed the limit")


def run(options):
    return [Result("m", "c", 2.0 if options.slow else 1.0, limit=1.5)]
'''


class TestDispatcher:
    @pytest.fixture
    def fake(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        import scripts.benchmarks

        folder = tmp_path / "scripts" / "benchmarks"
        folder.mkdir(parents=True)
        (folder / "made_up.py").write_text(FAKE)
        (folder / "_shared.py").write_text("raise RuntimeError('must not be imported')")
        monkeypatch.setattr(benchmark, "ROOT", tmp_path)
        monkeypatch.setattr(scripts.benchmarks, "__path__", [*scripts.benchmarks.__path__, str(folder)])
        monkeypatch.delitem(sys.modules, "scripts.benchmarks.made_up", raising=False)

    @pytest.mark.usefixtures("fake")
    def test_a_file_is_a_subcommand(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        assert benchmark.discover() == {"made_up": "A made-up benchmark."}
        assert benchmark.main(["made_up", "--json", str(tmp_path / "out.json")]) == 0
        assert "<= 1.500" in capsys.readouterr().out
        (row,) = json.loads((tmp_path / "out.json").read_text())
        assert (row["model"], row["case"], row["ratio"], row["limit"]) == ("m", "c", 1.0, 1.5)
        assert row["memory_ratio"] is None
        assert row["within"] is True
        assert row["machine"]["versions"]["torch"]

    @pytest.mark.usefixtures("fake")
    def test_check(self) -> None:
        assert benchmark.main(["made_up", "--slow"]) == 0
        assert benchmark.main(["made_up", "--slow", "--check"]) == 1
        assert benchmark.main(["made_up", "--check"]) == 0

    @pytest.mark.usefixtures("fake")
    def test_help_names_the_options_of_one(self, capsys: pytest.CaptureFixture[str]) -> None:
        assert benchmark.main(["made_up", "--help"]) == 0
        assert "--slow" in capsys.readouterr().out
        assert benchmark.main([]) == 2
        assert "A made-up benchmark." in capsys.readouterr().out

    @pytest.mark.usefixtures("fake")
    def test_unknown(self, capsys: pytest.CaptureFixture[str]) -> None:
        with pytest.raises(SystemExit):
            benchmark.main(["nothing"])
        assert "invalid choice: 'nothing'" in capsys.readouterr().err

    def test_help_is_light_and_lists_what_there_is(self) -> None:
        code = (
            "import sys; from scripts import benchmark; benchmark.main(['--help']); "
            "sys.exit('torch' in sys.modules)"
        )
        done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        for name in benchmark.discover():
            assert name in done.stdout
