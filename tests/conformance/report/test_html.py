"""The page: sound HTML that loads nothing, says the verdict first, and escapes whatever a record holds."""

from __future__ import annotations

import copy
import itertools
import json
import re
from html.parser import HTMLParser

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from portable.conformance.records import compare, record
from portable.conformance.report import html, plots, wording

from . import pages

VOID = {"meta", "link", "input", "wbr"}
RAW = {"script", "style"}


class Page(HTMLParser):
    """Every element with its attributes and text; a tag that is not closed in order is an error."""

    def __init__(self, text):
        super().__init__()
        self.stack, self.found, self.texts, self.raw = [], [], [], {}
        self.feed(text)
        self.close()
        assert not self.stack

    def handle_starttag(self, tag, attrs):
        names = [name for name, _ in attrs]
        assert len(names) == len(set(names)), (tag, attrs)
        self.found.append((tag, dict(attrs)))
        if tag not in VOID:
            self.stack.append(tag)

    def handle_endtag(self, tag):
        assert tag not in VOID
        assert self.stack.pop() == tag

    def handle_data(self, data):
        if self.stack and self.stack[-1] in RAW:
            self.raw.setdefault(self.stack[-1], []).append(data)
        else:
            self.texts.append(data)

    def all(self, tag):
        return [attrs for name, attrs in self.found if name == tag]

    @property
    def text(self):
        return re.sub(r"\s+", " ", "".join(self.texts))

    @property
    def data(self):
        return json.loads(self.raw["script"][0])


def above_roof():
    entries = pages.sample_record()
    entries["timings"][0] |= {"state": "InternalError", "message": "1.31 of the roof", "of_roof": 1.31}
    return entries


RECORDS = {
    "conforming": pages.sample_record,
    "failing": pages.failing,
    "emulated": pages.emulated,
    "interrupted": lambda: pages.sample_record(complete=False),
    "empty": lambda: pages.sample_record() | {"results": [], "timings": [], "roof": None},
    "above the roof": above_roof,
    "hostile": pages.hostile,
    "no roof": lambda: pages.sample_record() | {"roof": None},
    "large": lambda: pages.large(1200),
}


@pytest.fixture(scope="module", params=RECORDS)
def made(request):
    entries = RECORDS[request.param]()
    text = html.page(entries)
    return entries, text, Page(text)


def test_tags_close_and_ids_are_unique(made):
    _, text, page = made
    ids = [attrs["id"] for _, attrs in page.found if "id" in attrs]
    assert len(ids) == len(set(ids))
    targets = [attrs["href"] for attrs in page.all("a")]
    assert targets and all(target[0] == "#" and target[1:] in ids for target in targets)
    for _, attrs in page.found:
        for name in ("aria-labelledby", "for"):
            assert attrs.get(name) is None or attrs[name] in ids
    assert text.startswith("<!doctype html>")
    assert not re.search(r"\{\{(?!data)\w+\}\}", text)


def test_the_page_loads_nothing(made):
    _, text, page = made
    for _, attrs in page.found:
        assert "src" not in attrs and "srcset" not in attrs and not any(name[:2] == "on" for name in attrs)
    assert page.all("link") == [{"rel": "icon", "href": "data:,"}]
    assert "http://" not in text and "https://" not in text
    assert "url(" not in text and "@import" not in text
    policy = next(attrs["content"] for attrs in page.all("meta") if "http-equiv" in attrs)
    assert policy.startswith("default-src 'none';") and "sha256-" in policy
    assert len(page.all("script")) == 2


def test_headings_and_tables_are_semantic(made):
    _, _, page = made
    levels = [int(name[1]) for name, _ in page.found if re.fullmatch("h[1-6]", name)]
    assert levels[0] == 1 and levels.count(1) == 1
    assert all(after <= before + 1 for before, after in itertools.pairwise(levels))
    assert len(page.all("caption")) == len(page.all("table"))
    assert all(attrs.get("scope") in ("col", "row") for attrs in page.all("th"))
    for attrs in page.all("svg"):
        assert attrs.get("aria-hidden") == "true" or (attrs["role"] == "img" and attrs["aria-label"])


def test_every_result_is_in_the_list(made):
    entries, _, page = made
    data = page.data
    listed = [tuple(data["texts"][row[index]] for index in (1, 2, 3)) for row in data["rows"]]
    assert listed == [
        tuple(wording.clean(each[name]) for name in ("case", "impl", "state")) for each in entries["results"]
    ]


@pytest.mark.parametrize(
    ("name", "start"),
    (
        ("conforming", "Conforms: NVIDIA H200 (sm_90a), 12 judged (all pass), 1 declined by rule."),
        (
            "failing",
            "Does not conform: on NVIDIA H200 (sm_90a), 1 of 12 judged fail (1 Fail.value), "
            "1 declined by rule.",
        ),
        ("emulated", "Conforms: emulated gfx942, 12 judged (all pass)"),
        (
            "interrupted",
            "Does not conform: on NVIDIA H200 (sm_90a), the run was interrupted after 13 results.",
        ),
        ("empty", "Does not conform: nothing was judged"),
        ("above the roof", "Does not conform: on NVIDIA H200 (sm_90a), 1 timing cannot be"),
    ),
)
def test_the_verdict_comes_first(name, start):
    entries = RECORDS[name]()
    text = html.page(entries)
    heading = re.search("<h1>(.*?)</h1>", text)
    assert heading is not None
    assert re.sub("<[^>]*>", "", heading[1])[2:].startswith(start)
    assert text.index("<h1>") < text.index("<h2")
    sentence, kind = html.sentence(entries)
    assert (kind == "bad") == (not record.conforming(entries)), sentence


def test_known_failures_are_told_apart():
    entries = pages.failing()
    entries["results"][0]["state"] = "XFail"
    assert html.sentence(entries)[0].endswith(
        "12 judged (10 pass, 1 pass with a warning, 2 known failures), 1 declined by rule."
    )


@pytest.mark.parametrize(
    ("entries", "notice"),
    (
        (pages.emulated(), "executed by the CPU, not hardware"),
        (pages.sample_record(complete=False), "Incomplete"),
        (pages.sample_record(fraction=[2, 4]), "Shard 2 of 4"),
        (pages.sample_record(dirty=True), "not committed"),
        (pages.sample_record(selection={"ops": [], "impls": ["triton"], "k": "M=1"}),
         "implementations triton and cases whose id contains 'M=1'"),
    ),
)  # fmt: skip
def test_what_a_reader_must_know_is_told(entries, notice):
    assert notice in Page(html.page(entries)).text
    assert notice not in Page(html.page(pages.sample_record())).text


def test_a_failure_has_its_paragraph_and_command():
    entries = pages.failing()
    page = Page(html.page(entries))
    assert wording.rerun(entries["results"][0], entries["header"]) in page.text
    for wanted in ("y: first wrong element [0, 8]", "✗ 1 Fail.value", "~ 1 XFail", "known: subnormals",
                   "rocm/known_failures.yaml:7", "biased", "needs a GPU", "0 / 1"):  # fmt: skip
        assert wanted in page.text, wanted
    assert "Failures" not in Page(html.page(pages.sample_record())).text


def test_equal_failures_are_one_paragraph():
    """A page of 24 failures of one kernel was 24 nearly equal paragraphs, ten of them shown."""
    entries = pages.sample_record()
    entries["results"] = [
        {"case": f"matmul/bfloat16/M={n},N=3,K=5/normal/contiguous", "impl": impl, "state": "Fail.value",
         "worst": 3.0, "message": f"y: first wrong element [0, {n}]: got {n}.5, expected nan"}
        for impl in ("triton", "wgmma") for n in range(1, 25)
    ]  # fmt: skip
    page = Page(html.page(entries))
    assert sum(attrs.get("class") == "failure" for attrs in page.all("article")) == 2
    assert page.text.count("23 more fail in this way") == 2
    assert "matmul/bfloat16/M=4,N=3,K=5/normal/contiguous and 20 more" in page.text


def test_the_verdict_is_the_second_column():
    """On a phone it lay beyond the edge, behind the types."""
    one, other = pages.sample_record(), pages.failing(device="AMD MI300X", vendor="rocm", arch="gfx942")
    text = html.page(one, other, pages.comparison())
    heads = re.findall(r"<thead><tr>(.*?)</tr>", text)
    columns = [re.findall(r"<th[^>]*>([^<]*)", head) for head in heads]
    with_verdict = [names for names in columns if "verdict" in names]
    assert len(with_verdict) == 6 and all(names[1] == "verdict" for names in with_verdict)


def test_what_is_not_judged_is_not_shown_as_if_it_were():
    """Errors of 1e38 ULP, beside results that cancel, stood in rows that conform."""
    entries = pages.sample_record()
    entries["results"][0] |= {"case": "matmul/bfloat16/M=3,N=3,K=5/normal/contiguous", "ulp": -3.38e38}
    text = html.page(entries)
    assert "ULP" not in text and "e+38" not in text and "e38" not in text


def test_many_failures_are_cut_and_counted():
    page = Page(html.page(pages.large(1200, wrong=True)))
    shown = sum(attrs.get("class") == "failure" for attrs in page.all("article"))
    assert shown == html.sections.PARAGRAPHS
    alike = sum(map(int, re.findall(r"(\d+) more fails? in this way", page.text)))
    assert alike > shown and f"{1200 - shown - alike:,} further failures" in page.text


def test_untimed_records_have_no_plot():
    page = Page(html.page(pages.emulated()))
    assert not page.all("figure") and "Throughput" not in page.text
    page = Page(html.page(RECORDS["no roof"]()))
    assert not page.all("figure") and "Throughput" in page.text


def test_the_roofline_stands_where_the_figures_say():
    entries = pages.sample_record()
    text = str(plots.rooflines(entries))
    titles = re.findall("<title>(.*?)</title>", text, re.S)
    assert len(titles) == len(entries["timings"])
    assert all(f"{100 * each['of_roof']:.1f} % of the roof" in title
               for each, title in zip(entries["timings"], titles, strict=True))  # fmt: skip
    x = plots.Scale(0.1, 1000, 62, 606)
    assert x(0.1) == 62 and x(1000) == pytest.approx(606) and x(10) == pytest.approx(334)
    assert x.decades() == [0.1, 1.0, 10.0, 100.0, 1000.0]
    # At 100 % of the roof a point lies on the drawn line.
    on_roof = next(each for each in entries["timings"] if each["op"] == "softmax")
    on_roof |= {"flop_per_s": 4e12 * on_roof["flops"] / on_roof["bytes"], "of_roof": 1.0}
    text = str(plots.rooflines(entries | {"timings": [on_roof]}))
    line = re.search('<line x1="([^"]*)" y1="([^"]*)" x2="([^"]*)" y2="([^"]*)" class="roof">', text)
    point = re.search(r"translate\((\S+) (\S+)\)", text)
    assert line is not None and point is not None
    x1, y1, x2, y2 = map(float, line.groups())
    px, py = map(float, point.groups())
    assert py == pytest.approx(y1 + (px - x1) / (x2 - x1) * (y2 - y1), abs=0.3)


def test_labels_do_not_overlap():
    entries = pages.sample_record()
    first = entries["timings"][2]
    for number in range(14):
        more = copy.deepcopy(first)
        more |= {"op": f"op_{number}", "case": f"op_{number}/bfloat16/N=1/normal/bench"}
        more |= {name: first[name] * (1 + number / 50) for name in ("flops", "flop_per_s")}
        entries["timings"].append(more)
    text = str(plots.rooflines(entries))
    labels = re.findall('<text x="[^"]*" y="([^"]*)" class="label" text-anchor="end">([^<]*)', text)
    assert len(labels) == 16
    heights = sorted(float(y) for y, name in labels if name != "matmul")
    assert all(after - before >= plots.LINE - 0.11 for before, after in itertools.pairwise(heights))
    assert heights[0] > 0


def test_what_compare_gives_is_shown():
    one, other = pages.sample_record(), pages.sample_record(commit="1" * 40)
    found = compare.data(one, other, 0.8)
    found["parity"].append(found["parity"][0] | {"case": ""})
    page = Page(html.page(one, other, found))
    for wanted in (found["verdict"], *found["names"], "✓ agree", "✓ parity", "mean of its cases"):
        assert re.sub(r"\s+", " ", wanted) in page.text, wanted
    noted = Page(html.page(one, other, found | {"agree": False, "notices": ["take care"]}))
    assert {"id": "verdict", "class": "bad"} in noted.all("section") and "take care" in noted.text


def test_two_records_are_compared():
    one, other = pages.sample_record(), pages.failing(device="AMD MI300X", vendor="rocm", arch="gfx942")
    page = Page(html.page(one, other, pages.comparison(("softmax/x differs for no reason",))))
    for wanted in ("The records agree.", "Agreement", "Parity", "0.900", "[0.880, 0.930]", "✓ parity",
                   "? inconclusive", "softmax/x differs for no reason", "AMD MI300X over NVIDIA H200",
                   "Conforms: NVIDIA H200", "Does not conform: on AMD MI300X"):  # fmt: skip
        assert wanted in page.text, wanted
    assert len(page.data["rows"]) == 26 and len(page.all("figure")) == 2
    ids = [attrs["id"] for _, attrs in page.found if "id" in attrs]
    assert len(ids) == len(set(ids))
    with pytest.raises(ValueError, match="both"):
        html.page(one, other)


@pytest.mark.parametrize(
    ("problems", "verdict", "kind"),
    ((("x",), "parity", "bad"), ((), "below", "bad"), ((), "parity", "none")),
)
def test_the_mark_of_a_comparison(problems, verdict, kind):
    text = html.page(pages.sample_record(), pages.emulated(), pages.comparison(problems, verdict))
    assert f'<section id="verdict" class="{kind}">' in text


@pytest.mark.slow
@settings(max_examples=40, deadline=None)
@given(st.text(st.characters(codec=None), max_size=80))
def test_any_text_is_escaped(text):
    entries = pages.failing()
    entries["results"][0] |= {"message": text, "impl": text}
    entries["results"][-1]["message"] = text
    page = Page(html.page(entries))
    expected = len(Page(html.page(pages.failing())).all("script"))
    assert len(page.all("script")) == expected
    assert wording.clean(text).strip() in "".join(page.texts)
    data = page.data
    assert data["texts"][data["rows"][0][2]] == wording.clean(text)


@pytest.mark.parametrize("wrong", (False, pytest.param(True, marks=pytest.mark.slow)))
def test_eight_thousand_results_fit(tmp_path, wrong):
    path = tmp_path / "page.html"
    html.write(path, pages.large(8000, wrong))
    assert path.stat().st_size < 2_000_000
    assert [each.name for each in tmp_path.iterdir()] == ["page.html"]


# Contrast -----------------------------------------------------------------------------------------


def tokens():
    style = (html.FOLDER / "page.css").read_text(encoding="utf-8")
    found = re.findall(r"--([\w]+): light-dark\((#\w{6}), (#\w{6})\);", style)
    return {name: (light, dark) for name, light, dark in found}


def contrast(one, other):
    def luminance(colour):
        parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
        linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("theme", (0, 1), ids=("light", "dark"))
def test_contrast_is_enough(theme):
    colours = {name: pair[theme] for name, pair in tokens().items()}
    assert contrast("#000000", "#ffffff") == pytest.approx(21)
    for ground in ("page", "panel"):
        for name in ("text", "quiet", "link", "good", "bad", "known"):
            assert contrast(colours[name], colours[ground]) >= 4.5, (name, ground)
        for name in ("s0", "s1", "s2", "s3", "s4", "s5"):
            assert contrast(colours[name], colours[ground]) >= 3, (name, ground)
    assert contrast(colours["text"], colours["fill"]) >= 4.5
