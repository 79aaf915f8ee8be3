"""Files of tuned configs: what may stand there, how measured entries come in, whose entry is taken."""

from __future__ import annotations

import dataclasses
import multiprocessing
import os
import re

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import portable
from portable.backends.cuda.backend import OTHERS, TARGETS, CudaBackend
from portable.backends.rocm.backend import RocmBackend
from portable.configs import lookup, shape_class
from portable.dispatch import select
from portable.errors import TunedFileError
from portable.plan import Device
from portable.spec import registry
from portable.spec.formula import Formula
from portable.tune import problem, store

HOPPER = next(target for target in TARGETS if target.arch == "sm_90a")
HAND = """# Configs by hand.
schema_version: 1   # today's form

entries:
  # the narrow ones
  - {op: product, implementation: tiles, arch: sm_90a, when: "M <= 16",
     config: {BLOCK_M: 16}, source: "a # in words", date: 2026-11-21}   # keep

  - op: product      # in block style
    implementation: tiles
    arch: sm_90a
    config: {BLOCK_M: 64}
    source: by hand
    date: 2026-11-21
# the end
"""


def call(M=2048, N=1024, K=512, dtype="bfloat16", implementation="tiles", columns=()):
    spec = registry.spec("product")
    row = problem.type_row(spec, dtype)
    return problem.of_shapes(spec, implementation, [(M, K), (K, N)], row, {}, columns)


def entry(one=None, us=10.0, before=12.0, arch="sm_90a", **config):
    one = one or call()
    measured = lookup.Measured(
        one.facts, us, before, 20.0, "same", 16, "NVIDIA H200", 132, {"torch": "2.11.0", "driver": "580.1"}
    )
    when = shape_class.formula(one.spec, one.facts)
    values = {**one.imp.default, **config}
    return lookup.Entry(one.op, one.implementation, arch, when, values, store.SOURCE, "2026-11-21", 0,
                       one.shape_class, measured)  # fmt: skip


def modelled(one=None, us=10.0, arch="sm_90a", **config):
    """The entry of the timing model for the call."""
    found = entry(one, us, arch=arch, **config)
    assert found.measured is not None
    of = found.measured
    times = lookup.Modelled(of.call, us, 12.0, 20.0, "+-7% over 22 times", 16, "emulated gpu", of.versions)
    return dataclasses.replace(found, times=times, source=store.MODEL_SOURCE)


def bare(entries):
    return [dataclasses.replace(each, line=0) for each in entries]


@pytest.fixture
def file(tmp_path, product):
    return tmp_path / "tuned.yaml"


@pytest.fixture
def backend(tmp_path, product):
    (tmp_path / "cuda").mkdir()
    return CudaBackend(tmp_path / "cuda")


# Several ops ------------------------------------------------------------------------------------------


def test_an_entry_by_hand_may_name_several_ops(file):
    file.write_text(HAND.replace("op: product, ", "op: [product, other], "))
    found = lookup.entries(file)
    assert [each.op for each in found] == ["product", "other", "product"]
    assert found[0].line == found[1].line < found[2].line and found[0].config == found[1].config
    store.merge(file, [entry(), entry(call(M=64))])
    store.merge(file, [entry(us=9.0)])
    assert [each.measured is None for each in lookup.entries(file)].count(True) == 3
    assert bare(each for each in lookup.entries(file) if each.key == entry().key) == [entry(us=9.0)]


def test_a_measured_entry_is_of_one_op(file):
    store.merge(file, [entry()])
    text = file.read_text()
    assert "op: product, " in text
    with pytest.raises(TunedFileError, match="one op"):
        lookup.parse(file, text.replace("op: product, ", "op: [product, other], "))


# Merging ----------------------------------------------------------------------------------------------


def test_a_new_file_is_made_and_read_back(file):
    deep = file.parent / "not" / "there" / "cuda.yaml"
    store.merge(deep, [entry()])
    assert bare(lookup.entries(deep)) == [entry()]
    assert deep.read_text().startswith(store.HEAD)


def test_everything_else_stays_to_the_letter(file):
    file.write_text(HAND)
    before = bare(lookup.parse(file, None))
    store.merge(file, [entry()])
    text = file.read_text()
    kept = text.replace(store.render(entry()), "").replace("schema_version: 2", "schema_version: 1")
    assert kept == HAND
    assert bare(lookup.entries(file)) == [entry(), *before]


def test_the_same_class_is_replaced_where_it_stands_and_comments_stay(file):
    file.write_text(HAND)
    store.merge(file, [entry(), entry(call(M=64))])
    marked = file.read_text().replace("   measured:", "   # seen twice\n     measured:")
    end = "2026-11-21}\n  - {"
    file.write_text(marked.replace(end, end.replace("}", "}  # mine")))
    store.merge(file, [entry(us=9.0, BLOCK_M=256)])
    found = lookup.entries(file)
    assert len(found) == 4 and sum(each.measured is not None for each in found) == 2
    assert bare(each for each in found if each.key == entry().key) == [entry(us=9.0, BLOCK_M=256)]
    text = file.read_text()
    for words in ("# seen twice", "# mine", "# keep", "# the end", "# in block style", "a # in words"):
        assert words in text, words


def test_merging_twice_changes_nothing(file):
    file.write_text(HAND)
    store.merge(file, [entry()])
    once, when = file.read_text(), file.stat().st_mtime_ns
    store.merge(file, [entry()])
    assert file.read_text() == once and file.stat().st_mtime_ns == when


LINES = st.sampled_from(["", "# a note", "  # indented: {note}", "  # - {op: not, an: entry}"])
HANDWRITTEN = st.builds(
    lambda when, block, style, arch: (
        f'  - {{op: product, implementation: tiles, arch: {arch}, {when}config: {{BLOCK_M: {block}}},\n'
        f'     source: "s", date: 2026-11-21}}'
        if style
        else f"  - op: product\n    implementation: tiles\n    arch: {arch}\n    config:\n"
        f"      BLOCK_M: {block}\n    source: s\n    date: 2026-11-21"
    ),
    st.sampled_from(["", 'when: "M <= 16", ', "when: 'N > 4 and K > 2', "]),
    st.sampled_from([16, 64, 256]),
    st.booleans(),
    st.sampled_from(["sm_90a", "sm_80"]),
)  # fmt: skip
SIZES = st.sampled_from([1, 2, 16, 17, 64, 100, 4096, 5000])


@given(
    body=st.lists(st.one_of(LINES, HANDWRITTEN), max_size=8),
    sizes=st.lists(st.tuples(SIZES, SIZES, st.sampled_from([10.0, 7.5])), min_size=1, max_size=5),
    schema_version=st.sampled_from([1, 2]),
    ends=st.booleans(),
)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_merging_keeps_every_line_and_entry_in_order(product, tmp_path, body, sizes, schema_version, ends):
    file = tmp_path / "any.yaml"
    old = f"# head\nschema_version: {schema_version}\nentries:\n" + "\n".join(body) + "\n" * ends
    hand = bare(lookup.parse(file, old))
    text, wanted = old, {}
    for M, N, us in sizes:
        new = entry(call(M=M, N=N), us=us)
        text = store.merged(file, text, [new])
        wanted[new.key] = new
        found = lookup.parse(file, text)
        assert {each.key: each for each in bare(found) if each.measured} == wanted
        assert [each for each in bare(found) if not each.measured] == hand
        rest = iter(text.splitlines())
        assert all(
            line in rest for line in old.replace("schema_version: 1", "schema_version: 2").splitlines()
        )


def test_a_damaged_file_is_refused_and_stays(file):
    for text in (
        "schema_version: 2\nentries: {}\n",
        "schema_version: 3\nentries: []\n",
        "entries: [",
        "schema_version: 1\n",
    ):
        file.write_text(text)
        with pytest.raises(TunedFileError, match=r"tuned\.yaml"):
            store.merge(file, [entry()])
        assert file.read_text() == text


def test_a_list_in_flow_style_is_refused_not_rewritten(file):
    text = (
        "schema_version: 2\nentries: [{op: a, implementation: b, arch: c, config: {}, source: s, date: d}]\n"
    )
    file.write_text(text)
    with pytest.raises(TunedFileError, match="expected a line `entries:`"):
        store.merge(file, [entry()])
    assert file.read_text() == text


def test_a_write_that_fails_leaves_the_old_file_and_nothing_beside_it(file, monkeypatch):
    file.write_text(HAND)

    def full(*args):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    before = sorted(file.parent.iterdir())
    with pytest.raises(OSError, match="No space"):
        store.merge(file, [entry()])
    assert file.read_text() == HAND and sorted(file.parent.iterdir()) == before


def test_links_and_modes_stay(file):
    real = file.with_name("real.yaml")
    real.write_text(HAND)
    real.chmod(0o640)
    file.symlink_to(real)
    store.merge(file, [entry()])
    assert file.is_symlink() and len(lookup.parse(real, None)) == 3 and real.stat().st_mode & 0o777 == 0o640


def _write(file, first):
    for M in range(first, first + 6):
        store.merge(file, [entry(call(M=1 << M))])


def test_two_that_write_at_once_lose_nothing(file):
    file.write_text(HAND)
    fork = multiprocessing.get_context("fork")
    writers = [fork.Process(target=_write, args=(file, first)) for first in (0, 6)]
    for each in writers:
        each.start()
    for each in writers:
        each.join(120)
    assert [each.exitcode for each in writers] == [0, 0]
    found = lookup.parse(file, None)
    assert len({each.key for each in found if each.measured}) == 12 and len(found) == 14


def test_results_go_to_the_vendors_file_in_a_checkout_else_to_the_users(backend, tmp_path, monkeypatch):
    assert store.place("cuda", backend.folder) == backend.folder / "tuned.yaml"
    mine = tmp_path / "mine" / "cuda.yaml"
    installed = tmp_path / "site-packages" / "portable" / "backends" / "cuda"
    installed.mkdir(parents=True)
    assert store.place("cuda", installed) == mine
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    assert store.place("cuda", backend.folder) == mine


def test_the_users_folder(monkeypatch, tmp_path):
    monkeypatch.setenv("PORTABLE_TUNED_DIR", "/somewhere")
    assert str(lookup.user_file("cuda")) == "/somewhere/cuda.yaml"
    monkeypatch.delenv("PORTABLE_TUNED_DIR")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    assert lookup.user_file("rocm") == tmp_path / "portable" / "tuned" / "rocm.yaml"


# Reading ----------------------------------------------------------------------------------------------

WRONG = [
    ("gain: 1.2", "gain: 1.3", "gain: 1.3 is not before_us / us, which is 1.2"),
    ("us: 10.0, b", "us: 11.0, b", "gain: 1.2 is not before_us / us, which is 1.091"),
    ("us: 10.0, b", "us: -1, b", "us: -1 is not a positive number"),
    ("us: 10.0, b", "us: fast, b", "us: 'fast' is not a positive number"),
    ("trials: 16", "trials: 0", "trials: 0 is not a number from 1 on"),
    ("bits: same", "bits: some", "bits: 'some' is not one of same, differ, unknown"),
    ("device: ", "devcie: ", "unknown key 'devcie'. Did you mean 'device'"),
    (", trials: 16", "", "lacks trials"),
    ("M: 2048", "M: 100", "class: .* is not that of the measured call"),
    ("1025 <= M <= 2048", "1 <= M", "when: .* is not that of the measured call"),
    ("M=1025..2048", "M=any", "class: 'T=bfloat16 precision=ieee .*M=any"),
    ("precision: ieee, ", "", "call names .*; the class is decided by"),
    ("{T: bfloat16, precision: ieee", "{T: bfloat16, precision: loud", "precision: 'loud' is no value of it"),
    ("K: 512}", "K: long}", "K: 'long' is no size"),
    ("num_warps: 8", "num_warps: 7", "num_warps: 7 is not one of 4, 8"),
    ("num_warps: 8", "warps: 8", "'warps' is no tunable of product.tiles"),
    ("date: 2026-11-21", "date: today", "'today' is not like 2026-11-21"),
    ("schema_version: 2", "edition: 2", "'edition' is now called schema_version"),
    ("schema_version: 2", "schema_version: 1", "measured entries need `schema_version: 2`"),
    ("class: ", "clas: ", "unknown key 'clas'. Did you mean 'class'"),
]


@pytest.mark.parametrize("good, bad, message", WRONG, ids=[bad or "lacks" for _, bad, _ in WRONG])
def test_a_wrong_entry_is_refused_with_file_and_line(backend, good, bad, message):
    file = backend.folder / "tuned.yaml"
    store.merge(file, [entry()])
    text = file.read_text()
    assert good in text
    file.write_text(text.replace(good, bad, 1))
    lookup.entries.cache_clear()
    spec = registry.spec("product")
    tiles = spec.implementation("tiles")
    assert tiles is not None
    with pytest.raises(TunedFileError, match=rf"tuned\.yaml:\d+: .*{message}") as caught:
        lookup.resolve(spec, tiles, backend, HOPPER, call().signature.facts)
    assert caught.value.line in (1, 3, 5, 6, 7, 8, 9)


def test_a_class_that_stands_twice_is_refused(file):
    store.merge(file, [entry()])
    file.write_text(file.read_text() + store.render(entry(us=8.0)))
    with pytest.raises(TunedFileError, match=r":10: the class is measured already on line 5"):
        lookup.parse(file, None)


def test_an_empty_list_is_no_mistake(file):
    for text in ("schema_version: 2\nentries:\n", "schema_version: 1\nentries: []\n"):
        assert len(lookup.parse(file, text)) == 0
        assert len(lookup.parse(file, store.merged(file, text, [entry()]))) == 1


# Classes ----------------------------------------------------------------------------------------------

ANY = st.integers(1, 1 << 20) | st.sampled_from([1, 2, 3, 4, 15, 16, 17, 4096, 4097])
DRAWN = st.tuples(ANY, ANY, ANY, st.sampled_from(["bfloat16", "float32"]), st.sampled_from(["row", "col"]))


def facts(drawn):
    M, N, K, T, order = drawn
    return {"T": T, "R": T, "acc": "float32", "precision": "ieee", "a_order": "row", "b_order": order,
            "M": M, "N": N, "K": K, "B": 3}  # fmt: skip


@given(one=DRAWN, other=DRAWN)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_calls_of_one_class_are_those_that_its_formula_admits(product, one, other):
    spec, imp = product, product.implementation("tiles")
    kept = shape_class.class_facts(spec, imp, facts(one))
    formula = Formula(shape_class.formula(spec, kept), lookup.names(spec))
    assert formula.evaluate(**facts(one)) is True
    name = shape_class.class_name(spec, kept)
    same = name == shape_class.class_name(spec, shape_class.class_facts(spec, imp, facts(other)))
    assert formula.evaluate(**facts(other)) is same


def test_a_batch_invariant_implementation_has_no_batch_in_its_classes(product):
    assert "B" not in shape_class.class_names(product, product.implementation("tiles"))
    # The rows of what broadcasts are an axis, and B counts matrices.
    assert "B" not in shape_class.class_names(product, product.implementation("apart"))
    for op in registry.op_folders():
        spec = registry.spec(op)
        for each in spec.implementations:
            rows = spec.leading == "same" and any(x.leading for x in spec.inputs.values())
            assert ("B" in shape_class.class_names(spec, each)) is (rows and not each.batch_invariant)


def test_orders_are_facts(product):
    by_rows, by_columns = call(), call(columns=("b",))
    assert by_rows.signature.facts["b_order"] == "row" and by_columns.signature.facts["b_order"] == "col"
    assert "K=512" not in by_columns.shape_class and by_columns.shape_class != by_rows.shape_class


# Whose entry is taken ---------------------------------------------------------------------------------


def taken(backend, one=None, device=HOPPER):
    spec, one = registry.spec("product"), one or call()
    lookup.entries.cache_clear()
    return lookup.resolve(spec, one.imp, backend, device, one.signature.facts)


def hand(block, arch="sm_90a", when=""):
    return (
        f'  - {{op: product, implementation: tiles, arch: {arch}, when: "{when}", '
        f'config: {{BLOCK_M: {block}}}, source: "hand {block}", date: 2026-11-21}}\n'
    )


def test_the_order_of_files_and_kinds(backend, tmp_path):
    """The user's file, then the vendor's; in each measured entries, wherever they stand, then by order."""
    theirs, mine = backend.folder / "tuned.yaml", tmp_path / "mine" / "cuda.yaml"
    assert taken(backend).source == "default"
    by_hand = hand(16, when="M > 4096") + hand(32, when="M > 16") + hand(64)
    theirs.write_text("schema_version: 2\nentries:\n" + by_hand)
    assert taken(backend).values["BLOCK_M"] == 32
    assert taken(backend, call(M=8)).values["BLOCK_M"] == 64
    theirs.write_text(theirs.read_text() + store.render(entry(BLOCK_M=128)))  # at the end, before all others
    assert taken(backend).values["BLOCK_M"] == 128
    assert taken(backend, call(M=4096)).values["BLOCK_M"] == 32  # another class
    mine.parent.mkdir()
    mine.write_text("schema_version: 1\nentries:\n" + hand(256))
    assert taken(backend).values["BLOCK_M"] == 256
    assert taken(backend, call(implementation="apart")).source == "default"


def test_as_if_nothing_were_tuned(backend):
    (backend.folder / "tuned.yaml").write_text("schema_version: 2\nentries:\n" + hand(64))
    store.merge(backend.folder / "tuned.yaml", [entry(BLOCK_M=128), modelled(BLOCK_M=32)])
    one = call()
    found = lookup.resolve(one.spec, one.imp, backend, HOPPER, one.signature.facts, tuned=False)
    assert found.values["BLOCK_M"] == 64


def test_a_modelled_config_is_taken_before_hand_written_ones_and_says_so(backend):
    (backend.folder / "tuned.yaml").write_text("schema_version: 2\nentries:\n" + hand(64))
    store.merge(backend.folder / "tuned.yaml", [modelled(BLOCK_M=32)])
    found = taken(backend)
    assert found.values["BLOCK_M"] == 32
    assert found.source.startswith("tuned by the timing model, not measured (emulated gpu at T=bfloat16 ")
    assert "1.20 times the speed before, modelled +-7% over 22 times" in found.source
    assert "measured on" not in found.source and taken(backend, call(M=8)).values["BLOCK_M"] == 64


@pytest.mark.parametrize("first", ["measured", "modelled"])
@pytest.mark.parametrize("users", ["measured", "modelled", "both", "none"])
def test_a_measured_config_wins_over_a_modelled_one_wherever_they_stand(backend, tmp_path, first, users):
    """In one file or two, whichever was filed first, and whoever's file it is."""
    by_kind = {"measured": entry(us=11.0, BLOCK_M=128), "modelled": modelled(us=1.0, BLOCK_M=32)}
    for kind in sorted(by_kind, key=lambda kind: kind != first):
        own = users in ("both", kind)
        store.merge(
            tmp_path / "mine" / "cuda.yaml" if own else backend.folder / "tuned.yaml", [by_kind[kind]]
        )
    found = taken(backend)
    assert found.values["BLOCK_M"] == 128 and "measured on NVIDIA H200" in found.source


def test_a_users_own_config_wins_over_a_modelled_one_that_ships(backend, tmp_path):
    store.merge(backend.folder / "tuned.yaml", [modelled(BLOCK_M=32)])
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "cuda.yaml").write_text("schema_version: 1\nentries:\n" + hand(256))
    assert taken(backend).values["BLOCK_M"] == 256


def test_a_modelled_config_serves_its_own_architecture_alone(backend):
    file = backend.folder / "tuned.yaml"
    store.merge(file, [modelled(arch="sm_100", BLOCK_M=32)])
    assert taken(backend).source == "default"
    store.merge(file, [entry(arch="sm_100", BLOCK_M=256)])
    assert taken(backend).values["BLOCK_M"] == 256 and "nearest by features, sm_100" in taken(backend).source
    store.merge(file, [modelled(BLOCK_M=16)])
    assert taken(backend).values["BLOCK_M"] == 16


def test_one_class_may_be_measured_and_modelled_and_each_replaces_its_own_kind(file):
    file.write_text(HAND)
    store.merge(file, [entry(), modelled()])
    store.merge(file, [modelled(us=8.0)])
    store.merge(file, [entry(us=9.0)])
    found = bare(lookup.parse(file, None))
    assert [each for each in found if each.kind == "measured"] == [entry(us=9.0)]
    assert [each for each in found if each.kind == "modelled"] == [modelled(us=8.0)] and len(found) == 4
    with pytest.raises(TunedFileError, match=r"the class is modelled already on line 5"):
        lookup.parse(file, file.read_text().replace("measured: {", "modelled: {").replace(
            "bits: same, ", 'accuracy: "+-7%", ').replace("multiprocessors: 132, ", ""))  # fmt: skip


WRONG_MODELS = [
    ("accuracy: ", "bits: same, accuracy: ", "modelled: unknown key 'bits'"),
    ('accuracy: "+-7% over 22 times", ', "", "modelled: lacks accuracy"),
    ("gain: 1.2", "gain: 1.3", "modelled: gain: 1.3 is not before_us / us"),
    ("M: 2048", "M: 100", "class: .* is not that of the modelled call"),
    ("modelled: {", "measured: {}, modelled: {", "one of `measured`, `modelled`"),
    ("schema_version: 2", "schema_version: 1", "modelled entries need `schema_version: 2`"),
    ("op: product", "op: [product]", "a modelled entry is of one op"),
]


@pytest.mark.parametrize(
    "good, bad, message", WRONG_MODELS, ids=[bad or "lacks" for _, bad, _ in WRONG_MODELS]
)
def test_a_wrong_modelled_entry_is_refused(backend, good, bad, message):
    file = backend.folder / "tuned.yaml"
    store.merge(file, [modelled()])
    assert good in file.read_text()
    file.write_text(file.read_text().replace(good, bad, 1))
    with pytest.raises(TunedFileError, match=message):
        taken(backend)


def test_forcing_holds_within_its_block_alone(backend):
    with lookup.forcing("product", "tiles", {"BLOCK_M": 32}):
        assert taken(backend).values == {"BLOCK_M": 32}
        assert taken(backend, call(implementation="apart")).values == {"BLOCK_M": 64}
    assert taken(backend).source == "default"


def gpu(arch, multiprocessors, shared_kb, l2_mb):
    return Device("cuda", arch, "made up", 0, multiprocessors, 32, shared_kb << 10, 255, l2_mb << 20)


def test_an_unlisted_gpu_takes_the_nearest_and_explain_says_so(backend):
    file = backend.folder / "tuned.yaml"
    file.write_text(
        "schema_version: 1\nentries:\n" + hand(16, "sm_80") + hand(32, "sm_86") + hand(64, "sm_100")
    )
    one = call()
    for device, block in ((gpu("sm_103", 148, 227, 126), 64), (gpu("sm_82", 96, 163, 40), 16),
                          (gpu("sm_87", 16, 163, 4), 32), (HOPPER, 64)):  # fmt: skip
        found = taken(backend, one, device)
        assert found.values["BLOCK_M"] == block, device.arch
        assert f"no config for {device.arch}; from the device nearest by features, sm_" in found.source
    answer = select.evaluate(one.imp, one.signature, backend, gpu("sm_103", 148, 227, 126), static=False)
    assert answer.config is not None and "nearest by features, sm_100 (hand 64" in answer.config.source
    said = str(select.Explanation(one.signature, HOPPER, (dataclasses.replace(answer, chosen=True),)))
    assert "nearest by features, sm_100" in said


def test_another_gpu_of_the_same_architecture_is_named(backend):
    store.merge(backend.folder / "tuned.yaml", [entry(BLOCK_M=128)])
    assert "tuned for this device (measured on NVIDIA H200 at T=bfloat16" in taken(backend).source
    fewer = dataclasses.replace(HOPPER, multiprocessors=114, name="NVIDIA H100 PCIe")
    assert "tuned for NVIDIA H200 of this architecture (measured" in taken(backend, device=fewer).source
    measured = entry().measured
    assert measured is not None
    other = dataclasses.replace(measured, bits="differ")
    store.merge(backend.folder / "tuned.yaml", [dataclasses.replace(entry(BLOCK_M=64), times=other)])
    assert "bits differ from the default's" in taken(backend).source


def test_the_nearest_gpus():
    backend = CudaBackend.__new__(CudaBackend)

    def near(device):
        return lookup.relatives(backend, device)[0]

    assert near(gpu("sm_121", 48, 99, 24)) == "sm_120"
    assert near(gpu("sm_103", 148, 227, 126)) == "sm_100"
    assert near(gpu("sm_87", 16, 163, 4)) == "sm_86"
    assert near(gpu("sm_82", 96, 163, 40)) == "sm_80"
    known = {target.arch for target in (*TARGETS, *OTHERS)}
    assert set(lookup.relatives(backend, HOPPER)) == known - {"sm_90a"}
    amd = RocmBackend.__new__(RocmBackend)
    by_arch = {target.arch: target for target in amd.targets()}
    like = lambda arch, of: lookup.relatives(amd, dataclasses.replace(by_arch[of], arch=arch))[0]  # noqa: E731
    assert like("gfx1101", "gfx1100") == "gfx1100"
    assert like("gfx940", "gfx942") == "gfx942"
    assert like("gfx1200", "gfx1201") == "gfx1201"
    assert lookup.relatives(amd, by_arch["gfx950"])[0] == "gfx942"


def test_the_entries_that_ship_fit_their_specs_and_are_ordered():
    for vendor, folder in registry.vendors().items():
        found = lookup.parse(folder / "tuned.yaml", None)
        assert len({each.key for each in found if each.measured}) == sum(1 for each in found if each.measured)
        for each in found:
            assert each.op in registry.op_folders(), (vendor, each.line)


@pytest.mark.slow
def test_no_call_reads_the_tuner(product):
    """What a call imports has no way to tune."""
    import subprocess
    import sys

    program = (
        "import sys, torch, portable\nx = torch.ones(2, 8)\n"
        "portable.softmax(x)\nportable.explain('softmax', x)\n"
        "print([name for name in sys.modules if name.startswith('portable.tune.')])"
    )
    env = {key: value for key, value in os.environ.items() if not key.startswith("PORTABLE_")}
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=120)
    assert done.stdout.strip() == "[]", done.stderr
    assert not hasattr(portable, "tune") or re.match("<module", repr(portable.tune))
