"""`portable new-op NAME`: the folder of a new op, to be filled in."""

from __future__ import annotations

import argparse
import keyword
import re
import shutil
import sys
from pathlib import Path

from portable.errors import SpecError
from portable.spec import registry

TEMPLATE = Path(__file__).resolve().parent.parent / "kernels" / "_lib" / "new_op"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", help="the op's name, which is the folder's too")
    parser.add_argument("--like", metavar="OP", help="begin with a copy of this op (default: an empty one)")
    parser.add_argument(
        "--at", type=Path, help="the folder of ops to write into (default: that of this package)"
    )


def new_op(args: argparse.Namespace) -> int:
    """Writes the folder; 2 with a sentence on stderr where that cannot be."""
    root = Path(args.at or TEMPLATE.parents[1]).resolve()
    problem = _problem(args.name, args.like, root)
    if problem:
        print(f"portable new-op: {problem}", file=sys.stderr)
        return 2
    folder = root / args.name
    source = registry.op_folders()[args.like].parent if args.like else TEMPLATE
    _write(source, folder, args.like or TEMPLATE.name, args.name)
    problem = _unreadable(folder)
    if problem:
        shutil.rmtree(folder)
        print(f"portable new-op: {args.like} cannot be copied there: {problem}", file=sys.stderr)
        return 2
    for file in sorted(folder.rglob("*")):
        if file.is_file():
            print(file)
    if root not in registry.kernel_roots():
        print(f"export {registry.KERNEL_PATH}={root}   # so that the op is found")
    says = "judges it" if args.like else "judges it: what is to be filled in fails"
    print(f"portable-conformance run --ops {args.name}   # {says}")
    return 0


def _problem(name: str, like: str | None, root: Path) -> str:
    """Why there can be no such op, or an empty string."""
    if not name.isidentifier() or not name.isascii() or keyword.iskeyword(name) or name.startswith("_"):
        return f"{name!r} is no name for an op; write a Python name such as scaled_add"
    ops = registry.op_folders()
    if name in ops:
        return f"there is an op {name!r} already, in {ops[name].parent}"
    if name in registry.functions():
        return f"there is a function portable.{name} already, in {registry.functions()[name]}"
    if not root.is_dir():
        return f"{root} is not a folder"
    if (root / name).exists():
        return f"{root / name} is there already"
    if like is None:
        return ""
    if like not in registry.public_ops():
        return f"there is no op {like!r} to copy; there are {', '.join(registry.public_ops())}"
    if any(ops[like].parent in file.parents for file in registry.functions().values()):
        return f"{like} defines functions, which two ops cannot share; copy another op"
    return ""


def _write(source: Path, folder: Path, old: str, new: str) -> None:
    """A copy of an op's folder, its own files alone, under another name."""
    for file in sorted(source.rglob("*")):
        name = file.relative_to(source).as_posix()
        if file.is_file() and "__pycache__" not in name:
            target = folder / _renamed(name, old, new)
            target.parent.mkdir(parents=True, exist_ok=True)
            text = file.read_text(encoding="utf-8")
            target.write_text(_renamed(text, old, new), encoding="utf-8", newline="\n")


def _renamed(text: str, old: str, new: str) -> str:
    """`text` with the op's name in the place of another's, also within a longer name; `torch.<old>` stays."""
    return re.sub(rf"(?:(?<=portable\.)|(?<![A-Za-z0-9.])){re.escape(old)}(?![A-Za-z0-9])", new, text)


def _unreadable(folder: Path) -> str:
    """What is wrong with the copied specs: a source of a neighbouring op may not be there."""
    from portable.spec.reader import load_spec

    try:
        for file in folder.glob("*.yaml"):
            load_spec(file)
    except SpecError as error:
        return str(error)
    return ""
