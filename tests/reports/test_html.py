"""The report for a browser: offline, and no kernel name gets out of its cell."""

import json
import re
from html.parser import HTMLParser

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tracekit.reports import Screen, renderers
from tracekit.reports.html import embedded


class Page(HTMLParser):
    """What a browser makes of a page: elements with attributes, texts, and the figure's data."""

    def __init__(self, text):
        super().__init__()
        self.elements, self.texts, self.comments, self.figure = [], [], [], ""
        self._open = None
        self.feed(text)
        self.close()

    def handle_starttag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))
        self._open = (tag, dict(attrs))

    def handle_data(self, data):
        tag, attributes = self._open or ("", {})
        if tag == "script":
            self.figure += data if attributes.get("id") == "figure-data" else ""
        else:
            self.texts.append(data)

    def handle_endtag(self, tag):
        self._open = None

    def handle_comment(self, data):
        self.comments.append(data)


@pytest.fixture
def page(report):
    """The hostile report as a browser sees it."""
    return Page(renderers()["html"].render(report, Screen()))


def test_a_hostile_name_adds_no_element(page, calm):
    from dataclasses import replace

    plain = Page(renderers()["html"].render(replace(calm, sections=[]), Screen()))
    scripts = [attributes for tag, attributes in page.elements if tag == "script"]
    assert scripts == [attributes for tag, attributes in plain.elements if tag == "script"]
    assert len(scripts) == 3
    assert page.comments == []


def test_a_name_is_shown_in_full_as_it_is(page, hostile, templated):
    assert hostile in page.texts
    assert templated in page.texts


def test_a_hostile_device_name_stays_data(report, hostile):
    from dataclasses import replace

    devices = [replace(device, name=hostile) for device in report.devices]
    page = Page(renderers()["html"].render(replace(report, devices=devices), Screen()))
    assert len([tag for tag, _ in page.elements if tag == "script"]) == 3
    (label, _) = json.loads(page.figure)[0]["y"]
    assert "<" not in label


def test_nothing_is_loaded_from_anywhere(page):
    for tag, attributes in page.elements:
        assert tag not in {"iframe", "img", "object", "embed"}
        for name in ("src", "href", "srcset", "action"):
            assert attributes.get(name, "data:,").startswith(("data:", "#")), (tag, attributes)


def test_nothing_is_loaded_by_the_style_sheet(report):
    text = renderers()["html"].render(report, Screen())
    style = text[text.index("<style>") : text.index("</style>")]
    assert not re.search(r"@import|url\(", style)


def test_the_figure_adds_up_to_a_hundred_percent_per_device(page):
    parts = json.loads(page.figure)
    sums = [sum(part["x"][i] for part in parts) for i in range(2)]
    assert sums == pytest.approx([100, 100])


def test_a_bar_is_as_long_as_its_value(page):
    bars = [a["style"] for tag, a in page.elements if tag == "i" and a.get("class") == "bar"]
    # 400 µs of the largest 999.6 µs, then 0.4 of the whole.
    assert bars[:4] == ["width: 40.02%", "width: 40.0%", "width: 100.0%", "width: 100.0%"]


@given(st.recursive(st.text() | st.integers() | st.none(), st.lists, max_leaves=8))
def test_embedded_data_survives_and_cannot_end_its_element(value):
    text = embedded(value)
    assert json.loads(text) == value
    assert not re.search("[<>&\u2028\u2029]", text)
