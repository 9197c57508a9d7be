"""What edits do to captions: to what they are about, and to nothing else."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from modules.pipeline.nodes.prompts import read_lines
from modules.tools.dataset.tags import (
    adding,
    count_tags,
    deleting,
    has_tag,
    replacing_tag,
    replacing_text,
    tags_of,
)
from modules.util.errors import ConfigError

TAGS = st.sampled_from(["cat", "a cat", "cat ear", "1girl", "hair_(long)", "é", "x"])
CAPTIONS = st.lists(
    st.tuples(st.lists(TAGS), st.sampled_from([", ", ",", " ,  "])).map(lambda one: one[1].join(one[0])),
    max_size=4,
).flatmap(lambda lines: st.sampled_from(["\n", "\r\n", "\n\n"]).map(lambda end: end.join(lines)))


@pytest.mark.parametrize(
    ("edit", "before", "after"),
    [
        (replacing_text("fox", "dog"), "a fox, foxes\n", "a dog, doges\n"),
        (replacing_text(" red", ""), "a red fox, red", "a fox,"),
        (replacing_tag("fox", "dog"), "fox ,a fox, fox, snow\r\nfoxes", "dog ,a fox, snow\r\nfoxes"),
        (replacing_tag("fox", "snow"), "fox, snow", "snow"),
        (replacing_tag("fox", ""), "snow, fox\nfox", "snow\n"),
        (adding("me", at_end=False), "fox,  snow\n\nice\n", "me, fox,  snow\n\nme, ice\n"),
        (adding("me, you", at_end=True), "fox, you,\nme", "fox, you, me\nme, you"),
        (adding("me", at_end=True), "", "me"),
        (adding("me", at_end=True), " \n", "me"),
        (adding("me", at_end=False), "me", "me"),
        (deleting("fox"), "fox, a fox,fox,  snow, fox", "a fox,  snow"),
        (deleting("fox"), "fox\na fox", "a fox"),
        (deleting("fox"), "fox", ""),
        (deleting("fox"), "Fox , foxes", "Fox , foxes"),
    ],
)
def test_what_an_edit_does(edit, before, after):
    assert edit(before) == after


@pytest.mark.parametrize(
    "make",
    [
        lambda: replacing_text("", "x"), lambda: replacing_text("a\nb", "x"), lambda: replacing_text("a", "b\u2028"),
        lambda: replacing_tag("a, b", "x"), lambda: replacing_tag("a", "x, y"), lambda: adding(" , ", True),
        lambda: adding("", True), lambda: deleting("a,b"), lambda: deleting(" "), lambda: deleting("\udc80"),
    ],
)  # fmt: skip
def test_what_is_no_tag_is_refused(make):
    with pytest.raises(ConfigError):
        make()


@settings(max_examples=60)
@given(CAPTIONS, TAGS, TAGS, st.booleans())
def test_an_edit_changes_what_it_is_about_alone(caption, tag, other, at_end):
    others = [one for one in tags_of(caption) if one != tag]
    gone = deleting(tag)(caption)
    assert tags_of(gone) == others
    assert not has_tag(gone, tag)
    added = adding(tag, at_end)(caption)
    assert [one for one in tags_of(added) if one != tag] == others
    lines = [line for line in added.splitlines() if line.strip()]
    assert lines
    assert all(has_tag(line, tag) for line in lines)
    renamed = replacing_tag(tag, other)(caption)
    wanted = (set(others) | {other}) if tag in tags_of(caption) else set(others)
    assert set(tags_of(renamed)) == wanted
    for edit in (deleting(tag), adding(tag, at_end), replacing_tag(tag, other)):
        assert edit(edit(caption)) == edit(caption), "once is enough"
    if tag not in tags_of(caption):
        assert gone == caption
        assert renamed == caption
        if others:
            assert tags_of(deleting(tag)(added)) == others


@settings(max_examples=50)
@given(st.text(max_size=40))
def test_any_text_survives_an_edit_that_is_not_about_it(text):
    assert deleting("no such tag")(text) == text
    assert replacing_tag("no such tag", "x")(text) == text
    assert replacing_text("no such text", "x")(text) == text


def test_lines_are_alternatives_as_in_training(tmp_path):
    (tmp_path / "a.txt").write_text("fox, snow\n\nfox, ice\n")
    (tmp_path / "a.txt").write_text(adding("me", at_end=False)((tmp_path / "a.txt").read_text()))
    assert read_lines(tmp_path / "a.txt") == ("me, fox, snow", "me, fox, ice")


def test_a_caption_counts_once_for_each_tag():
    assert count_tags(["fox, snow\nfox", "ice,fox", ""]) == [("fox", 2), ("ice", 1), ("snow", 1)]
