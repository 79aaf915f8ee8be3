"""Reads the implementations of a spec file."""

from __future__ import annotations

import posixpath
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from portable.errors import listed, nearest
from portable.spec import strict_yaml
from portable.spec.base import PACKAGE, BaseReader
from portable.spec.formula import Formula
from portable.spec.model import (
    Entry,
    Implementation,
    Input,
    Output,
    Param,
    Requirement,
    RoundedReference,
    dtype_variables,
)
from portable.spec.strict_yaml import List, Map

_PLANS = "_lib/plans"


class ImplementationReader(BaseReader):
    """Reads `implementations` against the declared types, inputs, outputs and parameters."""

    def __init__(
        self,
        reader: BaseReader,
        types: tuple[Mapping[str, str], ...],
        inputs: Mapping[str, Input],
        params: Mapping[str, Param],
        outputs: Mapping[str, Output],
        names: Iterable[str],
        reference: Entry,
    ) -> None:
        super().__init__(reader.path, reader.files)
        self.types, self.names, self.reference = types, tuple(names), reference
        self.inputs, self.params, self.outputs = inputs, params, outputs

    def several(self, data: List) -> tuple[Implementation, ...]:
        found: dict[str, Implementation] = {}
        for index, item in enumerate(data):
            line = data.line_of(index)
            one = self.one(self.extended(item, line), line)
            if one.name in found:
                raise self.fail(line, f"two implementations are called {one.name!r}")
            found[one.name] = one
        return tuple(found.values())

    def extended(self, item: Any, line: int, seen: tuple[Path, ...] = ()) -> Any:
        """`item` with what it takes from the implementation of the same name in the file that it extends."""
        if not isinstance(item, Map) or not isinstance(item.get("extends"), str):
            return item
        text, name = item["extends"], item.get("name")
        file = self.file(text, line)
        if file in (self.path.resolve(), *seen):
            raise self.fail(line, f"implementation {name} extends itself")
        data = self.map(strict_yaml.load(file), line, text)
        others = data.get("implementations", ())
        same = [each for each in others if isinstance(each, Map) and each.get("name") == name]
        if not same:
            raise self.fail(line, f"{text} has no implementation {name!r}")
        found = Map(line)
        found.update(self.extended(_from_here(same[0], text), line, (*seen, file)))
        found.update(item)
        return found

    def one(self, item: Any, line: int) -> Implementation:
        found = self.keys(item, "implementation", "an implementation", line)
        name = self.identifier(found["name"], found.line_of("name"), "the implementation's name")
        what = f"implementation {name}"
        if ("plan" in found) == ("run" in found):
            raise self.fail(line, f"{what} needs exactly one of 'plan' and 'run'")
        kind = "plan" if "plan" in found else "run"
        languages = self.strings(found["language"], found.line_of("language"), f"language of {what}")
        sources: tuple[Path, ...] = ()
        if "sources" in found:
            at = found.line_of("sources")
            sources = tuple(
                self.file(each, at) for each in self.strings(found["sources"], at, f"sources of {what}")
            )
        entry = self.planned(found, what) if kind == "plan" else self.run(found)
        if entry.arguments and "source" in entry.arguments and not sources:
            sources = (entry.arguments["source"],)
        tunables, default = self.tunables(found, what)
        return Implementation(
            name=name,
            entry=entry,
            kind=kind,
            languages=languages,
            sources=sources,
            requires=self.requirement(found, what),
            tunables=tunables,
            default=default,
            batch_invariant=found.get("batch_invariant", True),
            accumulation_ulp=self.accumulation(found, what),
            line=line,
        )

    def planned(self, found: Map, what: str) -> Entry:
        """The function of a file, or a shared plan with what `kernel` says of the kernel."""
        text, line = found["plan"], found.line_of("plan")
        if not text.isidentifier():
            if "kernel" in found:
                raise self.fail(
                    found.line_of("kernel"), f"'kernel' of {what} is for a shared plan, not a file"
                )
            return replace(self.entry(text, line), arguments=dict(found.get("options", {})))
        folders = (self.path.parent.parent / _PLANS, PACKAGE / _PLANS)
        file = next(
            (each / f"{text}_plan.py" for each in folders if (each / f"{text}_plan.py").is_file()), None
        )
        if file is None:
            raise self.fail(line, f"there is no shared plan {text!r} ({_PLANS}/{text}_plan.py)")
        if "kernel" not in found:
            raise self.fail(line, f"{what} has the shared plan {text!r} but lacks the key 'kernel'")
        line = found.line_of("kernel")
        kernel = self.keys(found["kernel"], "kernel", f"kernel of {what}", line)
        names = self.strings(kernel["args"], kernel.line_of("args"), f"args of {what}")
        tensors = (*self.inputs, *self.outputs)
        for name in names:
            if name not in tensors:
                at = kernel.line_of("args")
                raise self.fail(at, f"{name!r} in args of {what} is not a tensor.{nearest(name, tensors)}")
        arguments = {
            "source": self.file(kernel["source"], kernel.line_of("source")),
            "entry": kernel["entry"],
            "names": names,
            "defines": tuple(kernel.get("defines", {}).items()),
            **found.get("options", {}),
        }
        parameters = tuple(each.name for each in self.inputs.values() if not each.leading)
        scalars = tuple(each.name for each in self.params.values() if each.type == "float")
        tiles = self.tiles(kernel, what) if "tiles" in kernel else ()
        for key, value in (("parameters", parameters), ("scalars", scalars), ("tiles", tiles)):
            if value:
                arguments[key] = value
        return Entry(file.resolve(), f"{text}_plan", arguments=arguments)

    def tiles(self, kernel: Map, what: str) -> tuple[dict[str, Any], ...]:
        """The tiles of a row kernel as a shared plan takes them."""
        found = []
        for index, item in enumerate(kernel["tiles"]):
            line = kernel["tiles"].line_of(index)
            tile = dict(self.keys(item, "tile", f"a tile of {what}", line))
            if "dtypes" in tile:
                tile["dtypes"] = self.strings(tile["dtypes"], line, f"dtypes of a tile of {what}")
                for dtype in tile["dtypes"]:
                    self.dtype(dtype, line)
            found.append(tile)
        return tuple(found)

    def run(self, found: Map) -> Entry:
        """A function of tensors: of a file, of torch, or the reference, rounded."""
        text = found["run"]
        if text != "reference":
            return self.entry(text, found.line_of("run"), of_torch=(*self.inputs, *self.params))
        if any(each.mutated for each in self.inputs.values()):
            problem = "is a function of tensors that writes the mutated inputs; 'reference' writes nothing"
            raise self.fail(found.line_of("run"), f"'run' of an op with mutated inputs {problem}")
        outputs = tuple((each.name, each.dtype, each.when) for each in self.outputs.values())
        inputs = {each.name: each.dtype for each in self.inputs.values()}
        return RoundedReference(
            self.reference.file, self.reference.function, inputs=inputs, outputs=outputs, types=self.types,
            dtype_variables=dtype_variables(self.params),
            indices=tuple(each.name for each in self.inputs.values() if each.below is not None),
        )  # fmt: skip

    def requirement(self, found: Map, what: str) -> Requirement:
        data = found.get("requires", Map(found.line))
        variables = [name for name in self.types[0] if name != "acc"]
        arch, limits, rules = None, {}, []
        for key, value in data.items():
            line = data.line_of(key)
            if key == "arch":
                arch = self.strings(value, line, f"arch of {what}")
            elif key == "rules":
                texts = self.strings(value, line, f"rules of {what}")
                rules = [self.formula(text, self.names, line) for text in texts]
            elif key in variables:
                limits[key] = self.strings(value, line, f"{key} of {what}")
                for dtype in limits[key]:
                    if self.dtype(dtype, line) not in {row[key] for row in self.types}:
                        raise self.fail(line, f"{what} requires {key} {dtype}, which no row of types has")
            else:
                legal = ("arch", "rules", *variables)
                hint = nearest(key, legal) or f" Legal are {listed(legal)}."
                raise self.fail(line, f"unknown key {key!r} in requires of {what}.{hint}")
        return Requirement(arch, limits, tuple(rules))

    def accumulation(self, found: Map, what: str) -> dict[str, Formula]:
        """By arch, the bound of its own that the implementation has there."""
        data = found.get("accumulation_ulp", Map(found.line))
        return {arch: self.formula(text, self.names, data.line_of(arch)) for arch, text in data.items()}

    def tunables(self, found: Map, what: str) -> tuple[dict[str, tuple[Any, ...]], dict[str, Any]]:
        tunables: dict[str, tuple[Any, ...]] = {}
        data = found.get("tunables", Map(found.line))
        for name, values in data.items():
            line = data.line_of(name)
            self.identifier(name, line, "the tunable")
            plain = isinstance(values, list) and all(isinstance(each, (int, str)) for each in values)
            if not plain or not values or len(set(values)) != len(values):
                raise self.fail(line, f"tunable {name} of {what} must list distinct integers or words")
            tunables[name] = tuple(values)
        default = found.get("default", Map(found.line))
        for name, value in default.items():
            line = default.line_of(name)
            if name not in tunables:
                hint = nearest(name, tunables)
                raise self.fail(line, f"default of {what}: {name!r} is no tunable.{hint}")
            if value not in tunables[name]:
                legal = listed(tunables[name])
                raise self.fail(line, f"default of {what}: {name} = {value!r} is not among {legal}")
        return tunables, dict(default)


def _from_here(item: Map, text: str) -> Map:
    """An implementation of the file `text` with its own files named as that one is."""
    folder = posixpath.dirname(text)

    def moved(name: str) -> str:
        return posixpath.normpath(posixpath.join(folder, name))

    found = Map(item.line)
    found.update(item)
    for key in ("plan", "run", "extends"):
        if key in item and (key == "extends" or ".py:" in item[key]):
            found[key] = moved(item[key])
    if "sources" in item:
        found["sources"] = [moved(name) for name in item["sources"]]
    if "kernel" in item:
        found["kernel"] = Map(item["kernel"].line)
        found["kernel"].update({**item["kernel"], "source": moved(item["kernel"]["source"])})
    return found
