"""The page in a headless Chromium: no error, no request, the filter filters, it fits a phone, both themes."""

from __future__ import annotations

import pytest

from portable.conformance.report import html

from . import browser, pages

PROGRAM = browser.find()
pytestmark = [
    pytest.mark.slow,  # Chromium takes 3 s of CPU, which the last test of its tab pays
    pytest.mark.skipif(PROGRAM is None, reason="no Chromium: apt install chromium"),
]

VISIBLE = "[...document.querySelectorAll('.rows tbody tr, .failure')].filter((row) => row.checkVisibility())"
TALL = "[...document.querySelectorAll('.scroll')].some((box) => box.scrollHeight > box.clientHeight)"
WIDTHS = "[document.documentElement.scrollWidth, innerWidth]"


@pytest.fixture(scope="module")
def tab(tmp_path_factory):
    assert PROGRAM is not None
    found = browser.Browser(PROGRAM, tmp_path_factory.mktemp("profile"))
    yield found
    found.close()


@pytest.fixture(scope="module")
def addresses(tmp_path_factory):
    folder = tmp_path_factory.mktemp("pages")
    one, other = pages.sample_record(), pages.failing(device="AMD MI300X")
    html.write(folder / "conforming.html", one)
    html.write(folder / "failing.html", pages.failing())
    html.write(folder / "hostile.html", pages.hostile())
    html.write(folder / "large.html", pages.large(8000))
    html.write(folder / "compared.html", one, other, pages.comparison(("x differs",)))
    return {path.stem: path.as_uri() for path in folder.iterdir()}


@pytest.fixture(autouse=True)
def quiet(tab):
    tab.size(1280)
    tab.scheme("light")
    yield
    assert tab.console == []


@pytest.mark.parametrize("name", ("conforming", "failing", "hostile", "compared", "large"))
@pytest.mark.parametrize("width", (1280, 380))
def test_it_loads_and_fits(tab, addresses, name, width):
    tab.size(width)
    tab.open(addresses[name])
    content, window = tab.run(WIDTHS)
    assert content <= window == width
    assert tab.run("document.getElementById('search').checkVisibility()")
    tab.run("document.querySelectorAll('details').forEach((each) => { each.open = true; })")
    content, _ = tab.run(WIDTHS)
    assert content <= width
    assert tab.run("document.title").startswith("Conformance: ")
    assert not tab.run(TALL)


def test_a_phone_shows_every_verdict_without_scrolling_sideways(tab, addresses):
    tab.size(390, 844)
    tab.open(addresses["failing"])
    tab.run("document.getElementById('list').open = true; new Promise((done) => setTimeout(done, 50))")
    assert tab.run("document.scrollingElement.scrollWidth") <= 390
    second_cells = tab.run("""
        [...document.querySelectorAll('#ops tr, #throughput tr, #list tr')].map((row) => row.cells[1])
            .map((cell) => [cell.textContent, cell.getBoundingClientRect().right])""")
    assert {"verdict", "state", "✗ 1 Fail.value", "Fail.value"} <= {text for text, _ in second_cells}
    assert max(right for _, right in second_cells) <= 390


def test_the_filter_of_the_address_filters(tab, addresses):
    unfold = "document.querySelectorAll('section details').forEach((each) => { each.open = true; })"
    tab.open(addresses["failing"])
    tab.run(unfold)
    everything = tab.run(f"{VISIBLE}.length")
    tab.open(addresses["failing"] + "#filter=softmax%20TRITON")
    tab.run(unfold)
    rows = tab.run(f"{VISIBLE}.map((row) => row.textContent)")
    assert 0 < len(rows) < everything
    assert all("softmax" in row and "triton" in row for row in rows)
    assert tab.run("document.getElementById('count').textContent") == f"{len(rows)} of {everything} rows"


def test_typing_filters_and_is_kept_in_the_address(tab, addresses):
    tab.open(addresses["failing"])
    tab.run("""(() => { const box = document.getElementById('filter'); box.value = 'no such row';
        box.dispatchEvent(new Event('input')); return new Promise((done) => setTimeout(done, 200)); })()""")
    assert tab.run(f"{VISIBLE}.length") == 0
    assert tab.run("location.hash") == "#filter=no%20such%20row"
    assert tab.run("document.querySelectorAll('.rows.empty').length") == tab.run(
        "document.querySelectorAll('.rows').length"
    )


def test_the_list_grows_by_pages_and_obeys_the_filter(tab, addresses):
    tab.open(addresses["large"])
    count = "document.querySelectorAll('#list tbody tr').length"
    wait = "new Promise((done) => setTimeout(done, 50))"
    assert tab.run(count) == 0
    tab.run(f"document.getElementById('list').open = true; {wait}")
    assert tab.run(count) == 200
    tab.run("document.getElementById('more').click()")
    assert tab.run(count) == 400
    tab.run(f"location.hash = '#filter=N=77,'; {wait}")
    assert tab.run(count) == 4
    assert tab.run("document.getElementById('more').hidden")
    tab.run(f"location.hash = '#filter=matmul triton'; {wait}")
    assert tab.run(f"{VISIBLE}.length") == 2
    assert not tab.run(TALL)


def test_hostile_text_runs_nothing(tab, addresses):
    tab.open(addresses["hostile"])
    tab.run("document.getElementById('list').open = true; new Promise((done) => setTimeout(done, 50))")
    assert tab.run("document.querySelectorAll('img').length") == 0
    assert tab.run("document.querySelectorAll('script').length") == 2
    assert "alert(1)" in tab.run("document.querySelector('.failure').textContent")
    assert "alert(1)" in tab.run("document.querySelector('#list tbody').textContent")


def test_both_themes(tab, addresses):
    tab.open(addresses["conforming"])
    ground = "getComputedStyle(document.body).backgroundColor"
    light = tab.run(ground)
    tab.scheme("dark")
    dark = tab.run(ground)
    assert dark != light
    tab.run("new Promise(requestAnimationFrame).then(() => new Promise((done) => setTimeout(done, 50)))")
    assert tab.run("document.getElementById('theme').textContent") == "Light theme"
    tab.run("document.getElementById('theme').click()")
    assert tab.run(ground) == light
    tab.run("document.getElementById('theme').click()")
    assert tab.run(ground) == dark
    assert tab.run("getComputedStyle(document.querySelector('svg .roof')).stroke") != "none"
    tab.run("localStorage.clear()")


def test_the_command_has_a_copy_button(tab, addresses):
    tab.open(addresses["failing"])
    assert tab.run("document.querySelectorAll('.again button').length") == 1
    tab.run("document.querySelector('.again button').click(); new Promise((done) => setTimeout(done, 200))")
    assert tab.run("document.querySelector('.again button').textContent") == "Copied"


def test_it_is_read_without_javascript(tab, addresses):
    tab.ask("Emulation.setScriptExecutionDisabled", value=True)
    try:
        tab.open(addresses["failing"])
        assert not tab.run("document.getElementById('search').checkVisibility()")
        assert not tab.run("document.getElementById('theme').checkVisibility()")
        assert "which is off" in tab.run("document.querySelector('noscript').textContent")
        assert tab.run(f"{VISIBLE}.length") > 10
    finally:
        tab.ask("Emulation.setScriptExecutionDisabled", value=False)


def test_focus_is_seen_and_reaches_what_scrolls(tab, addresses):
    tab.open(addresses["failing"])
    tab.run("document.activeElement.blur()")
    seen = []
    for _ in range(20):
        for kind in ("keyDown", "keyUp"):
            tab.ask("Input.dispatchKeyEvent", type=kind, key="Tab", code="Tab", windowsVirtualKeyCode=9)
        seen.append(tab.run("[document.activeElement.id || document.activeElement.className, "
                            "getComputedStyle(document.activeElement).outlineStyle]"))  # fmt: skip
    names = [name for name, _ in seen]
    assert "filter" in names and "theme" in names and "scroll rows" in names
    assert all(style != "none" for name, style in seen if name in ("filter", "theme", "scroll rows"))
