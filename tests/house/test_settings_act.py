"""Every setting changes an outcome: two configs that differ in it alone give different weights, files, curves, samples,
memory or data. A new setting needs a case in ``tests/house/acts``; ``tests/contracts/test_settings_act.py`` runs them.
"""

from __future__ import annotations

from collections.abc import Iterator

from modules.util.config.ConceptConfig import ConceptConfig
from modules.util.config.embedding.EmbeddingConfig import EmbeddingConfig
from modules.util.config.SampleConfig import SampleConfig
from modules.util.config.section.RewardConfig import AcceleratorConfig, RewardConfig
from modules.util.config.settings import iter_settings
from modules.util.config.TrainConfig import TrainConfig
from tests.house.acts import outcomes as see
from tests.house.acts.case import Case
from tests.house.acts.registry import cases

LISTS = {
    "concepts": ConceptConfig,
    "samples": SampleConfig,
    "additional_embeddings": EmbeddingConfig,
    "rlhf_rewards": RewardConfig,
    "acceleration.shared": AcceleratorConfig,
    "acceleration.rollout": AcceleratorConfig,
}
"""Lists of objects that have settings of their own."""

WITHOUT = {
    "rlhf_dpo_ref_mode": "shown in files; it is worked out of lora_model_name, and what a config says is replaced",
}
"""Settings that need not change anything, and why."""


def wanted() -> Iterator[str]:
    """Every setting; those of lists with the name of the list before them."""
    for one in iter_settings(TrainConfig):
        yield one.path
    for prefix, kind in LISTS.items():
        for one in iter_settings(kind):
            yield f"{prefix}.{one.path}"


COSTS = (see.predicted, see.recomputed, see.moved, see.kernels, see.gpu_memory)
"""What a run asks of the machine: another outcome is another time of a step."""


def undeclared(costs: dict[str, str], known: tuple[Case, ...]) -> list[str]:
    """Settings that change what a run asks of the machine, and do not say so."""
    return [
        f'{path}: say cost="value" (or "switch") in its setting(...), so that runs are compared with runs that take '
        f"as long ({case.see.name})"
        for case in known
        if case.see in COSTS and (path := without_places(case.path)).partition(".params")[0] not in costs
    ]


def test_settings_that_change_the_cost_of_a_step_say_so() -> None:
    costs = {one.path: one.cost for one in iter_settings(TrainConfig) if one.cost}
    assert undeclared(costs, cases()) == []
    del costs["rlhf_dpo_execution_mode"]
    assert [text.partition(":")[0] for text in undeclared(costs, cases())] == ["rlhf_dpo_execution_mode"]


def without_places(path: str) -> str:
    """``concepts.text.tag_delimiter`` for ``concepts.0.text.tag_delimiter``."""
    return ".".join(part for part in path.split(".") if not part.isdigit())


def missing(settings: Iterator[str], known: tuple[Case, ...]) -> list[str]:
    """Settings without a case, each with what to write."""
    there = {without_places(case.path) for case in known} | WITHOUT.keys()
    return [
        f"{path}: add Case({path!r}, <base>, <another value>, see.<what differs>) to a list in tests/house/acts; the "
        f"base has to be a config in which it acts"
        for path in settings
        if path not in there
    ]


def test_every_setting_has_a_case() -> None:
    assert missing(wanted(), cases()) == []


def test_a_setting_without_a_case_is_found() -> None:
    (line,) = missing(iter(("seed", "no_such_setting")), cases())
    assert line.startswith("no_such_setting: add Case(")


def test_cases_and_exceptions_are_about_settings_each_once() -> None:
    known = set(wanted())
    paths = [without_places(case.path) for case in cases()]
    assert [path for path in (*paths, *WITHOUT) if path not in known] == []
    assert len(set(paths)) == len(paths)
    assert not WITHOUT.keys() & set(paths)
