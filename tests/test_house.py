"""The core names no vendor and no op, imports keep their contracts, ops are whole, pages are current."""

from __future__ import annotations

import ast
import re
import runpy
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from portable.spec import registry
from portable.spec.reader import load_spec

ROOT = Path(__file__).resolve().parents[1]
INTEGRATIONS = ROOT / "portable" / "integrations"  # of other libraries with the ops, above both
QUANTIZATION = ROOT / "portable" / "quantization"  # of whole models with the ops, above them too
ABOVE = {*INTEGRATIONS.rglob("*.py"), *QUANTIZATION.rglob("*.py")}
CORE = sorted({*(ROOT / "portable").rglob("*.py")} - ABOVE)
OUTER = ("backends", "kernels", "conformance")
OPS = registry.op_folders()
THIRD_PARTY = {
    *("torch", "triton", "numpy", "yaml", "rich", "cupy", "cuda", "hypothesis", "pytest", "ziglang"),
    *("elftools", "liger_kernel"),
}
LONGEST = 600  # lines

# `cpu` is a vendor's folder too, but it is also torch's word for where a tensor is.
VENDORS = {
    *(set(registry.vendors()) - {"cpu"}),
    *("nvidia", "nvcc", "nvrtc", "cupy", "ptx", "cubin", "hopper", "h100", "h200"),
    *("amd", "amdgpu", "amdgcn", "hip", "hiprtc", "hsaco", "mi300", "mi300x"),
}
# `mean` and `sample` are ops too, but also a verb ("Did you mean") and what timings have.
TERMS = {
    *(
        {word for name in registry.op_folders() for word in (name, name.replace("_", ""))}
        - {"mean", "sample"}
    ),
    *("gemm", "norm", "layernorm", "rmsnorm", "relu", "gelu", "silu", "attention"),
}
TORCH_VERSION = "torch.version has these two attributes, and which one is set says what torch was built for"
ALLOWED = {
    ("runtime/detect.py", "cuda"): TORCH_VERSION,
    ("runtime/detect.py", "hip"): TORCH_VERSION,
    ("commands/cli.py", "cuda"): TORCH_VERSION,
    ("commands/cli.py", "hip"): TORCH_VERSION,
    ("runtime/timing.py", "cuda"): "torch's name of any vendor's events and graphs",
    ("dispatch/torch_library.py", "cuda"): "torch's dispatch key for autocast, by torch's device type",
    ("dispatch/select.py", "cuda"): "languages as messages name them",
    ("dispatch/select.py", "hip"): "languages as messages name them",
    ("runtime/build.py", "cubin"): "Triton's name of a binary",
    ("runtime/build.py", "hsaco"): "Triton's name of a binary",
}


def words(text: str) -> set[str]:
    """The words of an identifier or sentence, and the identifier itself: snake_case and CamelCase split."""
    parts = re.findall(r"[A-Z]+(?![a-z])\d*|[A-Z]?[a-z]+\d*[a-z]?", text)
    return {part.lower() for part in parts} | {text.lower()}


def docstrings(tree: ast.AST) -> set[int]:
    owners = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    return {
        id(node.body[0].value)
        for node in ast.walk(tree)
        if isinstance(node, owners) and node.body and isinstance(node.body[0], ast.Expr)
    }


def texts(file: Path) -> Iterator[tuple[int, str]]:
    """Identifiers and strings of a module with their lines; docstrings and comments may give examples."""
    tree = ast.parse(file.read_text())
    skipped = docstrings(tree)
    for node in ast.walk(tree):
        line = getattr(node, "lineno", 0)
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in skipped:
            yield line, node.value
        for field in ("id", "attr", "arg", "name", "asname", "module"):
            value = getattr(node, field, None)
            if isinstance(value, str):
                yield line, value


def named(file: Path, forbidden: set[str]) -> list[tuple[str, str]]:
    name = file.relative_to(ROOT / "portable").as_posix()
    found = {
        (word, f"{name}:{line}: {text!r}")
        for line, text in texts(file)
        for word in words(text)
        if word in forbidden or re.fullmatch(r"gfx\d\w*|sm_?\d+[af]?", word)
    }
    return sorted(found)


@pytest.mark.parametrize("forbidden", [VENDORS, TERMS], ids=["vendor", "op"])
def test_the_core_names_no(forbidden):
    wrong = [
        where
        for file in CORE
        for word, where in named(file, forbidden)
        if (file.relative_to(ROOT / "portable").as_posix(), word) not in ALLOWED
    ]
    assert wrong == []


def test_every_exemption_is_used():
    used = {
        (file.relative_to(ROOT / "portable").as_posix(), word)
        for file in CORE
        for word, _ in named(file, VENDORS | TERMS)
    }
    assert set(ALLOWED) <= used


def test_the_detector_detects():
    """The rule is worth nothing if the words are not found."""
    assert {"cuda", "autocastcuda"} <= words("AutocastCUDA")
    assert "hip" in words("written in HIP C++") and "hip" not in words("relationship, ship_it")
    assert "gfx942" in words("needs gfx942") and "softmax_backward" in words("softmax_backward")
    assert "norm" not in words("normal")


def imports(file: Path) -> Iterator[tuple[int, str]]:
    """Modules that a file imports by statement, `from a import b` as a.b; relative ones left out."""
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and not node.level:
            yield from ((node.lineno, f"{node.module}.{alias.name}") for alias in node.names)


@pytest.mark.parametrize("folder", OUTER)
def test_what_is_imported_is_required_somewhere(folder):
    allowed = {"portable", *THIRD_PARTY, *sys.stdlib_module_names}
    wrong = [
        f"{file.relative_to(ROOT)}:{line}: {module}"
        for file in sorted((ROOT / folder).rglob("*.py"))
        for line, module in imports(file)
        if module.split(".")[0] not in allowed
    ]
    assert wrong == []


@pytest.mark.slow
@pytest.mark.parametrize(
    ("file", "line"),
    [
        ("portable/plan.py", "from portable.kernels.matmul import problem"),
        ("portable/runtime/detect.py", "def late():\n    from portable.dispatch import dispatcher"),
        ("kernels/softmax/triton_impl.py", "import portable.conformance.text"),
        ("kernels/softmax/triton_impl.py", "import portable.integrations.report"),
        ("conformance/judge/bound.py", "from portable.conformance.commands import run"),
    ],
)
def test_an_import_against_a_contract_is_found(file, line, tmp_path):
    """`make lint` holds the package itself to them."""
    linter = runpy.run_path(str(ROOT / "tests" / "lint_imports.py"))
    linter["mirror"](ROOT / "portable", tmp_path / "portable")
    changed = tmp_path / "portable" / file.removeprefix("portable/")
    text = changed.read_text()
    changed.unlink()
    changed.write_text(f"{text}\n{line}\n")
    assert linter["main"](root=tmp_path) == 1


def test_no_source_is_longer_than_a_reader_wants():
    kinds = {".py", ".cu", ".hip", ".h", ".c", ".yaml"}
    long = {
        str(file.relative_to(ROOT)): count
        for folder in ("portable", *OUTER)
        for file in (ROOT / folder).rglob("*")
        if file.suffix in kinds and (count := len(file.read_text().splitlines())) > LONGEST
    }
    assert long == {}


def test_no_module_hides_triton():
    """A file of that name would be imported for the package by whatever runs in its folder."""
    assert [file for folder in ("portable", *OUTER) for file in (ROOT / folder).rglob("triton.py")] == []


IN_TRITON_ALONE = ("quantize_int4", "quantize_int4_asymmetric")
WITHOUT_HIP = (
    *("int4_mm", "int8_int4_mm", "sparse_scaled_mm"),
    *("scaled_mm_mx", "scaled_mm_mxfp4", "scaled_mm_nvfp4"),
)
LACKING = {op: {"cuda", "hip"} for op in IN_TRITON_ALONE} | {op: {"hip"} for op in WITHOUT_HIP}
"""Languages that an op has no kernel in yet: docs/notes/{scaled_mm,int4_mm,sparse_mm,attention}.md."""


@pytest.mark.parametrize("op", OPS)
def test_an_op_has_all_three_languages(op):
    spec = load_spec(OPS[op])  # every file that it names exists
    wanted = {"triton", "cuda", "hip"} - LACKING.get(op, set())
    assert wanted <= {name for each in spec.implementations for name in each.languages}


def pinned() -> dict[str, set[str]]:
    """Project names of constraints.txt with the versions that any Python gets."""
    found: dict[str, set[str]] = {}
    for line in (ROOT / "constraints.txt").read_text().splitlines():
        requirement = line.partition("#")[0].partition(";")[0].strip()
        if requirement:
            name, equals, version = requirement.partition("==")
            assert equals, f"{line!r} pins nothing"
            found.setdefault(normal(name), set()).add(version)
    return found


def normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def test_constraints_pin_what_make_installs():
    tomllib = pytest.importorskip("tomllib", reason="Python 3.10: it has no TOML reader")
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    pins, extras = pinned(), project["optional-dependencies"]
    for requirement in [*project["dependencies"], *extras["test"], *extras["check"]]:
        if requirement == f"{project['name']}[check]":
            continue
        found = re.match(r"([\w.-]+)(?:\[\w+\])?(?:==([\w.]+))?", requirement)
        assert found is not None, requirement
        name, exact = found.groups()
        assert normal(name) in pins, requirement
        assert exact is None or pins[normal(name)] == {exact}, requirement


PAGES = [
    *ROOT.glob("*.md"),
    *(
        file
        for folder in ("docs", "backends", "kernels", "conformance")
        for file in (ROOT / folder).rglob("*.md")
    ),
]


@pytest.mark.parametrize("page", sorted(str(page.relative_to(ROOT)) for page in PAGES))
def test_links_and_figures_lead_somewhere(page):
    file = ROOT / page
    prose = re.sub(r"```.*?```|`[^`\n]*`", "", file.read_text(), flags=re.DOTALL)
    for target in re.findall(r"\]\(([^)\s]+)\)", prose):
        if "://" not in target and not target.startswith("#"):
            assert (file.parent / target.partition("#")[0]).exists(), target


def test_generated_pages_are_current(tmp_path):
    """`make docs` writes them."""
    runpy.run_path(str(ROOT / "docs" / "generate.py"))["write"](tmp_path)
    fresh = {file.relative_to(tmp_path): file.read_text() for file in tmp_path.rglob("*.md")}
    for name, text in fresh.items():
        assert (ROOT / "docs" / name).read_text() == text, f"docs/{name} is old: make docs"
    there = {file.relative_to(ROOT / "docs") for file in (ROOT / "docs" / "ops").glob("*.md")}
    assert there == {name for name in fresh if name.parent.name == "ops"}
