"""The catalog of names for forms comes from the registries, and is enough to help with any of them."""

from __future__ import annotations

import inspect
import json
import subprocess
import sys

import pytest

from modules.accelerator.base import ACCELERATORS
from modules.accelerator.base import register as accelerator
from modules.reward.base import REWARDS
from modules.util.catalog import CATALOG, Entry, accelerators, rewards, unknown_name
from scripts.generate_docs import catalog
from tests.source_tree import ROOT


def test_the_catalog_is_current() -> None:
    assert CATALOG.read_text(encoding="utf-8") == catalog(), "run scripts/generate_docs.py"


def test_rewards_and_their_parameters() -> None:
    assert sorted(rewards()) == REWARDS.keys()
    for name, entry in rewards().items():
        taken = dict(inspect.signature(REWARDS.get(name)).parameters)
        assert set(entry.params) == set(taken), name
        required = {key for key, one in taken.items() if one.default is inspect.Parameter.empty}
        assert set(entry.required) == required, name
        assert entry.params[: len(required)] == entry.required, name


def test_what_needs_nothing_is_offered_first() -> None:
    needs = [bool(entry.needs) for entry in rewards().values()]
    assert needs == sorted(needs) and any(needs) and not all(needs)


def test_accelerators_and_their_slots() -> None:
    assert sorted(accelerators()) == ACCELERATORS.keys()
    slots = {name: entry.slot for name, entry in accelerators().items()}
    assert slots == {"attention_backend": "shared", "diffusers_cache": "rollout", "torch_compile": "shared"}
    assert accelerators()["attention_backend"].required == ("backend",)
    assert "mode" in accelerators()["torch_compile"].params


def test_everything_is_described() -> None:
    for name, entry in {**rewards(), **accelerators()}.items():
        assert entry.about, f"{name}: the first line of its docstring describes it in the window"
        assert len(entry.help()) > len(entry.about) and "``" not in entry.help()


def test_a_new_name_reaches_the_catalog(monkeypatch: pytest.MonkeyPatch) -> None:
    kind = ACCELERATORS.get("torch_compile")
    fresh = type("Fresh", (kind,), {"name": "fresh", "__doc__": "Something new.", "stage": "rollout"})
    monkeypatch.setattr(ACCELERATORS, "_items", dict(ACCELERATORS._items))
    accelerator(fresh)
    written = {entry["name"]: entry for entry in json.loads(catalog())["accelerators"]}
    assert written["fresh"]["about"] == "Something new" and written["fresh"]["slot"] == "rollout"
    assert written["fresh"]["params"] == list(accelerators()["torch_compile"].params)


def test_help_says_what_is_needed() -> None:
    entry = Entry("x", "Marks images", ("url", "size"), ("url",), needs="a server")
    assert entry.help() == "Marks images. Needs a server. Parameters: url (required), size."
    assert Entry("y", "Counts").help() == "Counts. It has no parameters."


@pytest.mark.child
def test_the_list_needs_no_torch() -> None:
    code = "import sys, modules.util.catalog as c; c.rewards(); sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=False).returncode == 0


def test_an_unknown_name_gets_the_nearest() -> None:
    assert unknown_name("brightness", rewards()) == ""
    assert "did you mean 'brightness'" in unknown_name("brightnes", rewards())
    assert "did you mean" not in unknown_name("zzz", rewards())
