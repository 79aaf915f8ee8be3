"""Count published kernels beside ours on the emulated AMD GPUs: `python docs/peers.py --hipkittens DIR ...`.

docs/peers.md has the table, the versions and the commands. The peers' sources stay in their checkouts; this
reads, compiles and runs them there. Nothing is measured: counts, and a bound by the pipe model (trace.md).
"""

from __future__ import annotations

import argparse
import ast
import copy
import importlib.util
import os
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any
from unittest import mock

import hipkittens
import page
import torch

import portable
from portable.backend import Trace
from portable.backends.rocm import pipe_model
from portable.backends.rocm.emulator.count import count
from portable.backends.rocm.emulator.faults import KernelFault
from portable.backends.rocm.emulator.runtime import runtime
from portable.commands import trace as tracing
from portable.runtime import detect

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "peers.md"
MARKS = ("<!-- table -->", "<!-- end of table -->")
GPUS = ("gfx942", "gfx950")
MATMUL = (4096, 4096, 512)
SMALL = (512, 512, 1024)
ATTENTION = (1, 2, 2048, 128)
TUTORIALS = {
    "matmul": "03-matrix-multiplication.py",
    "persistent": "09-persistent-matmul.py",
    "attention": "06-fused-attention.py",
}
FLAGGEMS_ATTENTION = {
    "scaled_dot_product_attention": ("attention", "_attn_fwd"),
    "flash_attention_forward": ("flash_api", "flash_fwd_kernel"),
}
"""The module that calls each one's kernel, and the kernel."""


@dataclass
class Row:
    """The counts of one call; `note` where it is not bfloat16 as asked for, or could not run."""

    problem: str
    gpu: str
    implementation: str
    note: str = ""
    matrix: int = 0
    vector: float = 0.0
    transcendental: float = 0.0
    lds_bytes_per_flop: float = 0.0
    pipes: float = 0.0
    """The vector pipe's time over the matrix pipe's: what compares instructions of different shapes."""
    conflicts: int = 0
    sectors: float = 0.0
    vgprs: int = 0
    spills: int = 0
    waves: int = 0
    bound: float = 0.0
    busiest: str = ""


def row(problem: str, gpu: str, implementation: str, traces: Sequence[Trace], note: str = "") -> Row:
    """The counts of all launches of a call together."""
    classes: dict[str, int] = {}
    for trace in traces:
        for name, value in trace.figures["instructions"].items():
            classes[name] = classes.get(name, 0) + value
    figures = [trace.figures for trace in traces]
    matrix, flops = classes.get("matrix", 0), sum(each["matrix_flops"] for each in figures)
    stores = [each["memory"]["global stores"] for each in figures]
    main = max(traces, key=lambda trace: trace.figures["matrix_flops"])
    bounds = [trace.bound for trace in traces if trace.bound is not None]
    lds = [each["lds"] for each in figures]
    busy = {
        name: sum(p.cycles for b in bounds for p in b.pipes if p.name == name)
        for name in ("vector", "matrix")
    }
    return Row(
        problem, gpu, implementation, note, matrix,
        classes.get("vector", 0) / max(1, matrix),
        classes.get("transcendental", 0) / max(1, matrix),
        sum(each["reads"]["bytes"] for each in lds) / max(1, flops),
        busy["vector"] / max(1, busy["matrix"]),
        sum(each[kind]["conflicts"] for each in lds for kind in ("reads", "writes")),
        sum(each["sectors"] for each in stores) / max(1, sum(each["fewest_sectors"] for each in stores)),
        main.figures["vgprs"],
        main.figures["spills"],
        main.figures["waves_per_simd"],
        tracing.together(bounds),
        max(bounds, key=lambda bound: bound.pipes[0].cycles).pipes[0].name,
    )  # fmt: skip


def close(got: torch.Tensor, want: torch.Tensor, allowed: float) -> None:
    """Every element within `allowed` of the float32 result, relative to 1 + |result|."""
    error = ((got.float() - want).abs() / (1 + want.abs())).max().item()
    if not error <= allowed:
        raise SystemExit(f"a wrong result: error {error}")


# The operands of each problem, and what the result has to be.


def product(
    layout: str, sizes: tuple[int, int, int], dtype: torch.dtype
) -> tuple[torch.Tensor, torch.Tensor]:
    """a, b of c = a @ b; "nt" has b as the transposed view of a row-major (N, K)."""
    m, n, k = sizes
    a = torch.randn(m, k).to(dtype)
    b = torch.randn(n, k).to(dtype).T if layout == "nt" else torch.randn(k, n).to(dtype)
    return a, b


def heads(sizes: tuple[int, int, int, int], dtype: torch.dtype) -> list[torch.Tensor]:
    """q, k, v as (batch, heads, length, 128)."""
    return [torch.randn(*sizes).to(dtype) for _ in range(3)]


def attended(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, causal: bool) -> torch.Tensor:
    return torch.nn.functional.scaled_dot_product_attention(q.float(), k.float(), v.float(), is_causal=causal)


# Ours.


def ours(gpu: str, op: str, implementation: str, call: Callable[[], torch.Tensor]) -> tuple[list[Trace], Any]:
    tracing.choose(gpu)
    with detect.main_backend().trace() as traces, portable.using(**{op: implementation}):
        return traces, call()


# HipKittens.


def hipkittens_row(
    problem: str, gpu: str, launch: hipkittens.Launch, note: str, check: Callable[[], None]
) -> Row:
    try:
        trace = count(
            launch.image, launch.kernel, launch.grid, launch.block, [launch.argument],
            shared=launch.shared, pointed_to=launch.tensors,
        )  # fmt: skip
    except KernelFault as fault:
        return Row(problem, gpu, "HipKittens, as published", f"stops: {fault.kind}")
    check()
    return row(problem, gpu, "HipKittens", [trace], note)


def hipkittens_gemm(args: argparse.Namespace, gpu: str, sizes: tuple[int, int, int]) -> Iterator[Row]:
    checkout = args.hipkittens_cdna3 if gpu == "gfx942" else args.hipkittens
    if checkout is None:
        return
    headers = hipkittens.Headers(args.hip_headers, args.clang_headers)
    for as_published, size in ((True, (512, 512, 512)), (False, sizes)):
        launch = hipkittens.gemm(checkout, headers, gpu, *size, as_published=as_published)
        a, b = launch.tensors["a"].float(), launch.tensors["b"].float()
        waits = len(hipkittens.GEMM[gpu].lacks)
        yield hipkittens_row(
            "matmul nt",
            gpu,
            launch,
            f"{waits} wait{'s' if waits > 1 else ''} added",
            lambda a=a, b=b, c=launch: close(c.result, a @ b.T, 0.02),
        )


def hipkittens_attention(
    args: argparse.Namespace, gpu: str, sizes: tuple[int, ...], causal: bool
) -> Iterator[Row]:
    if args.hipkittens is None or gpu != "gfx950":
        return
    headers = hipkittens.Headers(args.hip_headers, args.clang_headers)
    batch, count_of_heads, length, _ = sizes
    launch = hipkittens.attention(
        args.hipkittens, headers, batch, count_of_heads, count_of_heads, length, causal=causal
    )
    q, k, v = (launch.tensors[name].transpose(1, 2) for name in "qkv")
    yield hipkittens_row(
        problem_of(causal), gpu, launch, "",
        lambda: close(launch.result.transpose(1, 2), attended(q, k, v, causal), 0.02),
    )  # fmt: skip


def problem_of(causal: bool) -> str:
    return "attention " + ("causal" if causal else "full")


# Triton's tutorials.


def tutorial(folder: Path, name: str) -> ModuleType:
    """The definitions of a tutorial: its module up to the first call that it makes on its own."""
    source = folder / TUTORIALS[name]
    tree = ast.parse(source.read_text())
    body: list[ast.stmt] = []
    for node in tree.body:
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
            break
        body.append(node)
    tree.body = body
    kept = Path(tempfile.mkdtemp(prefix="tutorial-")) / f"tutorial_{name}.py"
    kept.write_text(ast.unparse(tree))
    spec = importlib.util.spec_from_file_location(kept.stem, kept)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[kept.stem] = module
    spec.loader.exec_module(module)
    return module


def busy(traces: Sequence[Trace]) -> tuple[int, int]:
    """Cycles of the busiest pipe but the memory's, which is a small problem's, and of all pipes."""
    bounds = [trace.bound for trace in traces if trace.bound is not None]
    found = [pipe.cycles for bound in bounds for pipe in bound.pipes if pipe.name != "memory"]
    return max(found), sum(found)


def best_config(kernel: Any, call: Callable[[], Any], gpu: str) -> Any:
    """The autotuner's config whose busiest pipe has the fewest cycles; of those that differ in stages, which
    change no count, the first that runs."""
    found: list[tuple[tuple[int, int], int]] = []
    configs, seen = kernel.configs, set()
    for index, config in enumerate(configs):
        key = (tuple(sorted(config.kwargs.items())), config.num_warps)
        if key in seen:
            continue
        kernel.configs = [config]
        kernel.cache.clear()
        try:
            with runtime(gpu).trace() as traces:
                call()
        except Exception as error:  # too much LDS, say
            print(f"    {config}: {str(error).splitlines()[0][:90]}", flush=True)
            continue
        seen.add(key)
        found.append((busy(traces), index))
        print(f"    {config}: {busy(traces)[0]:,} cycles", flush=True)
    chosen = configs[min(found)[1]]
    kernel.configs = [chosen]
    kernel.cache.clear()
    return chosen


def text_of(config: Any) -> str:
    sizes = [value for name, value in config.kwargs.items() if name.startswith("BLOCK")]
    return "x".join(map(str, sizes)) + f", {config.num_warps} warps"


def triton_matmul(
    folder: Path, gpu: str, name: str, layout: str, sizes: tuple[int, int, int]
) -> Iterator[Row]:
    from portable.backends.rocm.emulator.triton_driver import emulated

    with emulated(gpu), multiprocessors(gpu):
        module = tutorial(folder, name)
        call = module.matmul if name == "matmul" else module.matmul_persistent
        kernel = module.matmul_kernel if name == "matmul" else module.matmul_kernel_persistent
        small = product(layout, SMALL, torch.float16)
        config = best_config(kernel, lambda: call(*small), gpu)
        a, b = product(layout, sizes, torch.float16)
        with runtime(gpu).trace() as traces:
            c = call(a, b)
        close(c, a.float() @ b.float(), 0.02)
        label = {"matmul": "Triton tutorial 03", "persistent": "Triton tutorial 09, persistent"}[name]
        yield row(f"matmul {layout}", gpu, label, traces, f"float16; {text_of(config)}")


def triton_attention(folder: Path, gpu: str, sizes: tuple[int, int, int, int], causal: bool) -> Iterator[Row]:
    from portable.backends.rocm.emulator.triton_driver import emulated

    with emulated(gpu), multiprocessors(gpu):
        module = tutorial(folder, "attention")
        scale = sizes[-1] ** -0.5
        small = heads((1, 1, 512, 128), torch.float16)
        apply = module._attention.apply
        config = best_config(module._attn_fwd, lambda: apply(*small, causal, scale, False), gpu)
        q, k, v = heads(sizes, torch.float16)
        with runtime(gpu).trace() as traces:
            o = apply(q, k, v, causal, scale, False)
        close(o, attended(q, k, v, causal), 0.02)
        yield row(problem_of(causal), gpu, "Triton tutorial 06", traces, f"float16; {text_of(config)}")


@contextmanager
def multiprocessors(gpu: str) -> Iterator[None]:
    """torch.cuda tells how many compute units the emulated GPU has: a persistent kernel's grid follows it."""
    former = torch.cuda.get_device_properties
    units = pipe_model.models()[gpu].compute_units
    torch.cuda.get_device_properties = lambda *_: SimpleNamespace(multi_processor_count=units)  # type: ignore[assignment]
    try:
        yield
    finally:
        torch.cuda.get_device_properties = former


# FlagGems.


@contextmanager
def flaggems(folder: Path, gpu: str, module: str, kernel: str) -> Iterator[tuple[ModuleType, Any]]:
    """A module of FlagGems' operators and the autotuner of one of its kernels, with every config again.

    FlagGems finds an AMD GPU: torch.cuda answers for the emulated one, whose tensors are the CPU's. What it
    keeps of its choices stays in memory. Its cache of launches is left out: it passes no constexprs to
    Triton 3.7, which asks for them.
    """
    from portable.backends.rocm.emulator.triton_driver import emulated

    answers = {
        "device": lambda *_: nullcontext(),
        "device_count": lambda: 1,
        "current_device": lambda: 0,
        "get_device_name": lambda *_: gpu,
    }
    settings = {
        "GEMS_VENDOR": "amd",
        "FLAGGEMS_DB_URL": "sqlite://",
        "FLAGGEMS_CACHE_DIR": str(Path(tempfile.gettempdir(), "flaggems")),
    }
    with ExitStack() as within:
        driver = within.enter_context(emulated(gpu))
        within.enter_context(multiprocessors(gpu))
        capability = driver.get_device_capability
        within.enter_context(
            mock.patch.multiple(torch.cuda, **answers, get_device_capability=lambda *_: capability())
        )
        within.enter_context(mock.patch.dict(os.environ, settings))
        within.enter_context(mock.patch.object(sys, "path", [str(folder), *sys.path]))
        package = importlib.import_module("flag_gems")
        within.enter_context(mock.patch.object(package, "device", "cpu"))
        home = sys.modules[f"flag_gems.ops.{module}"]
        tuner = copy.copy(getattr(home, kernel).fn)
        tuner.cache = {}
        within.enter_context(mock.patch.object(home, kernel, tuner))
        yield home, tuner


def flaggems_matmul(folder: Path, gpu: str, layout: str, sizes: tuple[int, int, int]) -> Iterator[Row]:
    with flaggems(folder, gpu, "mm", "mm_kernel_general") as (module, kernel):
        small = product(layout, SMALL, torch.bfloat16)
        config = best_config(kernel, lambda: module.mm(*small), gpu)
        a, b = product(layout, sizes, torch.bfloat16)
        with runtime(gpu).trace() as traces:
            c = module.mm(a, b)
        close(c, a.float() @ b.float(), 0.02)
        yield row(f"matmul {layout}", gpu, "FlagGems mm", traces, text_of(config))


def flaggems_attention(
    folder: Path, gpu: str, name: str, sizes: tuple[int, int, int, int], causal: bool
) -> Iterator[Row]:
    """By one of FLAGGEMS_ATTENTION, the flash attention without splitting the keys."""
    module, kernel = FLAGGEMS_ATTENTION[name]
    with flaggems(folder, gpu, module, kernel) as (_, tuner):
        attention = sys.modules["flag_gems.ops.attention"]

        def call(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
            if name == "scaled_dot_product_attention":
                return attention.scaled_dot_product_attention(q, k, v, is_causal=causal)
            turned = (each.transpose(1, 2) for each in (q, k, v))
            lengths = (None, None, q.shape[2], k.shape[2])
            o, *_ = attention.flash_attention_forward(
                *turned, *lengths, 0.0, causal, False, disable_splitkv=True
            )
            return o.transpose(1, 2)

        small = heads((1, 1, 512, 128), torch.bfloat16)
        config = best_config(tuner, lambda: call(*small), gpu)
        q, k, v = heads(sizes, torch.bfloat16)
        with runtime(gpu).trace() as traces:
            o = call(q, k, v)
        close(o, attended(q, k, v, causal), 0.02)
        yield row(problem_of(causal), gpu, f"FlagGems {name}", traces, text_of(config))


def rows(args: argparse.Namespace, gpu: str) -> Iterator[Row]:
    """Every row of one GPU, of the problems asked for."""
    if "attention" in args.only:
        yield from attention_rows(args, gpu)
    if "matmul" in args.only:
        yield from matmul_rows(args, gpu)


def matmul_rows(args: argparse.Namespace, gpu: str) -> Iterator[Row]:
    for layout in ("nt", "nn"):
        problem = f"matmul {layout}"
        for implementation, label in (("mfma", "ours, HIP"), ("triton", "ours, Triton")):
            a, b = product(layout, args.matmul, torch.bfloat16)
            traces, c = ours(gpu, "matmul", implementation, lambda a=a, b=b: portable.matmul(a, b))
            close(c, a.float() @ b.float(), 0.02)
            yield row(problem, gpu, label, traces)
        if layout == "nt":
            yield from hipkittens_gemm(args, gpu, args.matmul)
        if args.triton_tutorials is not None:
            for name in ("matmul", "persistent"):
                yield from triton_matmul(args.triton_tutorials, gpu, name, layout, args.matmul)
        if args.flaggems is not None:
            yield from flaggems_matmul(args.flaggems, gpu, layout, args.matmul)


def attention_rows(args: argparse.Namespace, gpu: str) -> Iterator[Row]:
    for causal in (False, True):
        problem = problem_of(causal)
        for implementation, label in (("mfma", "ours, HIP"), ("triton", "ours, Triton")):
            q, k, v = heads(args.attention, torch.bfloat16)
            traces, o = ours(
                gpu,
                "attention",
                implementation,
                lambda q=q, k=k, v=v, c=causal: portable.attention(q, k, v, causal=c),
            )
            close(o[0] if isinstance(o, tuple) else o, attended(q, k, v, causal), 0.02)
            yield row(problem, gpu, label, traces)
        yield from hipkittens_attention(args, gpu, args.attention, causal)
        if args.triton_tutorials is not None:
            yield from triton_attention(args.triton_tutorials, gpu, args.attention, causal)
        if args.flaggems is not None:
            for name in FLAGGEMS_ATTENTION:
                yield from flaggems_attention(args.flaggems, gpu, name, args.attention, causal)


COLUMNS = (
    ("matrix", lambda each: f"{each.matrix:,}"),
    ("vector per matrix", lambda each: f"{each.vector:.2f}"),
    ("transcendental per matrix", lambda each: f"{each.transcendental:.2f}"),
    ("vector / matrix time", lambda each: f"{each.pipes:.2f}"),
    ("LDS bytes per FLOP", lambda each: f"{each.lds_bytes_per_flop:.4f}"),
    ("conflicts", lambda each: f"{each.conflicts:,}"),
    ("sectors / fewest", lambda each: f"{each.sectors:.2f}"),
    ("VGPRs", lambda each: str(each.vgprs)),
    ("spills", lambda each: str(each.spills)),
    ("waves", lambda each: str(each.waves)),
    ("bound", lambda each: f"{each.bound:.2f}, {each.busiest}"),
)


def table(found: Sequence[Row]) -> str:
    """A table per problem and GPU."""
    text = ""
    for problem, gpu in dict.fromkeys((each.problem, each.gpu) for each in found):
        names = " | ".join(name for name, _ in COLUMNS)
        text += f"\n| {problem}, {gpu} | {names} |\n|---|" + "--:|" * len(COLUMNS) + "\n"
        for each in found:
            if (each.problem, each.gpu) == (problem, gpu):
                name = each.implementation + (f" ({each.note})" if each.note else "")
                cells = [show(each) for _, show in COLUMNS] if each.matrix else [""] * len(COLUMNS)
                text += f"| {name} | " + " | ".join(cells) + " |\n"
    return text


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    for name, what in (
        ("hipkittens", "a checkout of HipKittens, branch main (gfx950)"),
        ("hipkittens-cdna3", "a checkout of HipKittens, branch cdna3 (gfx942)"),
        ("hip-headers", "a folder with hip/hip_runtime.h, hip/amd_detail and hip/hip_version.h"),
        ("clang-headers", "a folder with __clang_hip_runtime_wrapper.h"),
        ("triton-tutorials", "python/tutorials of a checkout of Triton"),
        ("flaggems", "a folder that flag_gems and sqlalchemy are installed in"),
    ):
        parser.add_argument(f"--{name}", type=Path, help=what)
    sizes = lambda text: tuple(map(int, text.split("x")))  # noqa: E731
    parser.add_argument("--gpus", default=",".join(GPUS))
    parser.add_argument("--only", default="attention,matmul")
    parser.add_argument("--matmul", type=sizes, default=MATMUL, help="MxNxK")
    parser.add_argument("--attention", type=sizes, default=ATTENTION, help="batch x heads x length x 128")
    parser.add_argument("--json", type=Path, help="where the rows go, one after the other")
    parser.add_argument("--write", action="store_true", help=f"write the table of {PAGE.name} from --json")
    args = parser.parse_args()
    if args.write:
        page.write_between(PAGE, MARKS, table(page.read(args.json, Row)))
        return 0
    torch.manual_seed(0)
    for gpu in args.gpus.split(","):
        for each in rows(args, gpu):
            print(each, flush=True)
            page.append(args.json, each)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
