"""The Model page: the rows of a family, and no others."""

from __future__ import annotations

import pytest

from modules.ui.pages.FormPage import FormPage
from modules.util.enum.ModelType import ModelType
from tests.ui.main.drivers import Hands
from tests.usual import usual

pytestmark = pytest.mark.gui

TITLES = {
    "unet": "UNet",
    "transformer": "Transformer",
    "text_encoder": "Text encoder",
    "text_encoder_2": "Text encoder 2",
    "text_encoder_3": "Text encoder 3",
    "text_encoder_4": "Text encoder 4",
    "vae": "VAE",
}


def _pick_family(hands: Hands, family: ModelType) -> None:
    """By keys, in the list of families."""
    combo = hands.row("model_type").input.focus_widget
    hands.focus(combo)
    hands.keys("<Down>")
    popdown = combo.tk.call("ttk::combobox::PopdownWindow", str(combo))
    hands.wait(lambda: combo.tk.call("winfo", "viewable", popdown), "the list does not open")
    index = combo.cget("values").index(family.label)  # type: ignore[attr-defined]
    listbox = f"{popdown}.f.l"
    now = int(combo.tk.call(listbox, "index", "active"))
    for _ in range(abs(index - now)):
        combo.tk.call("event", "generate", listbox, "<Down>" if index > now else "<Up>")
    combo.tk.call("event", "generate", listbox, "<Return>")
    hands.rest()
    assert hands.window.state_.config.model_type is family


@pytest.mark.parametrize(
    "name",
    usual(
        [
            "STABLE_DIFFUSION_15",
            "STABLE_DIFFUSION_XL_10_BASE",
            "FLUX_DEV_1",
            "STABLE_DIFFUSION_3",
            "HI_DREAM_FULL",
        ],
        "STABLE_DIFFUSION_15",
        "FLUX_DEV_1",
        "HI_DREAM_FULL",
    ),
)
def test_a_family_shows_exactly_its_parts(hands: Hands, name: str) -> None:
    family = ModelType(name)
    start = "SANA" if family is ModelType.STABLE_DIFFUSION_15 else "STABLE_DIFFUSION_15"
    hands.window.state_.set_value("model_type", ModelType(start))
    _pick_family(hands, family)
    hands.window.show_page("data")
    hands.rest()
    usual = hands.window.current_page().usual.cget("text")  # type: ignore[attr-defined]
    assert usual == f"{family.label} is usually trained at {family.spec.default_resolution} pixels."
    hands.window.show_page("model")
    hands.rest(0.1)
    page = hands.window.current_page()
    assert isinstance(page, FormPage)
    for part, title in TITLES.items():
        own = part in family.parts
        rows = [row for path, row in page.form.rows.items() if path.startswith(f"{part}.")]
        assert any(row.shown for row in rows) is own, part
        assert bool(page.form.cards[title].winfo_manager()) is own, part
    assert page.form.rows["transformer.guidance_scale"].shown is family.spec.embeds_guidance
    assert bool(page.form.cards["Prediction"].winfo_manager()) is not family.spec.flow_matching
