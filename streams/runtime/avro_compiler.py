"""Readers and writers of one Avro schema, compiled to Python source, as `dataclasses` compiles `__init__`.

fastavro makes dictionaries, which then have to become structs; that costs four times what the hot path may spend. The
functions made here go from bytes to structs, and back, at once. They know the everyday shape only: whatever else they
meet makes them raise `Unusual`, and the caller asks fastavro, which is the reference for every result and every error.

A field that is seldom set is one zero byte nearly always. So those that lie side by side are looked at together: that
many zero bytes are the defaults of all of them.

Both directions work on text in which each character stands for one byte (latin-1): slicing and joining text is cheaper
than decoding and encoding each string by itself, and ASCII, which most strings are, is the same in UTF-8.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from enum import Enum
from itertools import groupby
from typing import Any, Final, Union, get_args, get_origin, get_type_hints

from streams.runtime.avro_varints import SMALL, Unusual, encode_long, read_length, read_varint

Json = Any
Reader = Callable[..., tuple[Any, ...]]
Writer = Callable[..., str]

_EVERYDAY: Final = frozenset(
    {"key", "client_id", "text", "client_at", "ref", "assigned", "run_id", "run_epoch", "delivered_seq", "n"}
)
"""Fields with a default that are set in many records of the hot path: each is looked at by itself."""

_READ_HELPERS: Final[dict[str, Any]] = {
    "Unusual": Unusual,
    "read_varint": read_varint,
    "read_length": read_length,
    "BOOLEANS": {0: False, 1: True},
}
_WRITE_HELPERS: Final[dict[str, Any]] = {
    "SMALL": SMALL,
    "TRUE": "\1",
    "FALSE": "\0",
    "long": encode_long,
}


# ------------------------------------------------------------------------------------------------------- source
class _Source:
    """Lines of one function under construction, with the objects that it refers to."""

    def __init__(self, schema: Json, helpers: Mapping[str, Any]) -> None:
        self.lines: list[str] = []
        self.depth = 0
        self.scope: dict[str, Any] = dict(helpers)
        self.records: dict[str, Json] = {}
        self._names = 0
        self._collect(schema)

    def _collect(self, node: Json) -> None:
        """Remember every named record below `node`: further uses of it are by name."""
        if isinstance(node, list):
            for branch in node:
                self._collect(branch)
        elif isinstance(node, dict):
            if node["type"] == "record":
                self.records[node["name"]] = node
            for child in (*node.get("fields", ()), node.get("items"), node.get("values"), node["type"]):
                if isinstance(child, dict | list):
                    self._collect(child)

    def add(self, *lines: str) -> None:
        self.lines += ["    " * self.depth + line for line in lines]

    def name(self, hint: str) -> str:
        """A new local variable."""
        self._names += 1
        return f"{hint}_{self._names}"

    def refer(self, hint: str, value: object) -> str:
        """A global variable of the function that is `value`."""
        name = self.name(hint.upper())
        self.scope[name] = value
        return name

    def kind(self, node: Json) -> Json:
        """`node` without its wrapping: a primitive's name, a union's list, or a complex type's object."""
        if isinstance(node, dict) and node["type"] not in ("record", "array", "map"):
            node = node["type"]
        return self.records.get(node, node) if isinstance(node, str) else node

    def compile(self, function: str, filename: str) -> Any:
        code = compile("\n".join(self.lines) + "\n", filename, "exec")
        exec(code, self.scope)  # noqa: S102  the source was written above, from schemas of this distribution
        return self.scope[function]


def _in_turn(record: Json) -> list[list[Json]]:
    """The record's fields in order, those in one list that lie side by side and are seldom set."""
    found: list[list[Json]] = []
    for seldom, grouped in groupby(record["fields"], _is_seldom_set):
        fields = list(grouped)
        found += [fields] if seldom else [[field] for field in fields]
    return found


def _is_seldom_set(field: Json) -> bool:
    """Its default is one zero byte, and most records have that there."""
    if field["name"] in _EVERYDAY or "default" not in field:
        return False
    default = field["default"]
    return default is None or default is False or default in ("", []) or (default == 0 and field["type"] == "long")


def _default(field: Json) -> str:
    """The default of a field that is seldom set, as source."""
    return "()" if field.get("default") == [] else repr(field.get("default"))


def _bare(hint: Any) -> Any:
    """`hint` without None: what an optional field holds when it holds something."""
    if get_origin(hint) in (Union, types.UnionType):
        return next(arg for arg in get_args(hint) if arg is not types.NoneType)
    return hint


# ------------------------------------------------------------------------------------------------------- reader
def compile_reader(
    schema: Json, classes: Mapping[str, type], *, given: Sequence[str], inherited: Sequence[str]
) -> Reader:
    """A function `read(value, text, i, *given)` for an envelope whose last field is a union of records.

    `value` is the record, `text` the same as latin-1, `i` where the body starts. It returns the envelope's fields in
    order, the last one as an object of `classes[<branch>]` that also got the `given` arguments and the `inherited`
    envelope fields, and then the offset after the body, which the caller compares with the length. It raises `Unusual`,
    `IndexError`, `KeyError` or `UnicodeDecodeError` for what it leaves to the reference, cut bytes included.
    """
    source = _Source(schema, _READ_HELPERS)
    reader = _ReaderSource(source)
    *prefix, last = schema["fields"]
    source.add(f"def read({', '.join(('value', 'text', 'i', *given))}):")
    source.depth = 1
    for field in prefix:
        reader.read(field["type"], field["name"], Any)
    source.add("branch = value[i]", "i += 1")
    for index, branch in enumerate(last["type"]):
        record = source.kind(branch)
        source.add(f"{'if' if index == 0 else 'elif'} branch == {index * 2}:")
        source.depth = 2
        reader.record(record, "result", classes[record["name"]], (*given, *inherited))
        source.depth = 1
    source.add("else:", "    raise Unusual")
    source.add(f"return {', '.join((*(field['name'] for field in prefix), 'result', 'i'))}")
    read: Reader = source.compile("read", f"<reader of {schema['name']}>")
    return read


class _ReaderSource:
    """Adds to a source the lines that read one value into a variable, advancing `i`."""

    def __init__(self, source: _Source) -> None:
        self.source = source

    def read(self, node: Json, target: str, hint: Any) -> None:
        kind = self.source.kind(node)
        match kind:
            case "string":
                self._string(target, hint)
            case "long":
                self._long(target)
            case "boolean":
                self.source.add(f"{target} = BOOLEANS[value[i]]", "i += 1")
            case ["null", inner]:
                self._optional(inner, target, _bare(hint))
            case {"type": "record"}:
                self.record(kind, target, hint)
            case {"type": "array", "items": items}:
                self._array(items, target, hint)
            case {"type": "map", "values": values}:
                self._map(values, target, hint)
            case _:
                raise TypeError(f"no reader for the Avro type {kind!r}")

    def record(self, record: Json, target: str, cls: type, passed: Sequence[str] = ()) -> None:
        make = self.source.refer(cls.__name__, cls)
        arguments = [f"{name}={name}" for name in passed]
        *parts, last = _in_turn(record)
        for fields in parts:
            names = [self.source.name(field["name"]) for field in fields]
            zero = [f"{name} = {_default(field)}" for name, field in zip(names, fields, strict=True)]
            with self._unless_zero(fields, zero):
                arguments += self._each(fields, names, cls)
        # To leave arguments out is cheaper than to hand their defaults over.
        with self._unless_zero(last, [f"{target} = {make}({', '.join(arguments)})"]):
            arguments += self._each(last, [self.source.name(field["name"]) for field in last], cls)
            self.source.add(f"{target} = {make}({', '.join(arguments)})")

    def _each(self, fields: Sequence[Json], names: Sequence[str], cls: type) -> Iterator[str]:
        """Read fields into variables of these names; yields them as arguments of the constructor."""
        hints = get_type_hints(cls)
        for name, field in zip(names, fields, strict=True):
            self.read(field["type"], name, hints[field["name"]])
            yield f"{field['name']}={name}"

    @contextmanager
    def _unless_zero(self, fields: Sequence[Json], zero: Sequence[str]) -> Iterator[None]:
        """The block reads one field, or several that are seldom set unless all are: then `zero` is done instead."""
        if len(fields) == 1:
            yield
            return
        self.source.add(f"if text.startswith('{_literal(chr(0)) * len(fields)}', i):")
        self.source.add(*(f"    {line}" for line in (*zero, f"i += {len(fields)}")), "else:")
        self.source.depth += 1
        yield
        self.source.depth -= 1

    def _string(self, target: str, hint: Any) -> None:
        self.source.add(
            "n = value[i]",
            "i += 1",
            "if n & 0x81:",
            "    n, i = read_length(value, i, n)",
            "j = i + (n >> 1)",
            f"{target} = text[i:j]",
            f"if not {target}.isascii():",
            f"    {target} = value[i:j].decode()",
            "i = j",
        )
        if isinstance(hint, type) and issubclass(hint, Enum):
            words = self.source.refer(hint.__name__, {member.value: member for member in hint})
            self.source.add(f"{target} = {words}[{target}]")

    def _long(self, target: str) -> None:
        self.source.add(
            "n = value[i]",
            "i += 1",
            "if n > 127:",
            "    n, i = read_varint(value, i, n)",
            f"{target} = n >> 1 if not n & 1 else ~(n >> 1)",
        )

    def _optional(self, inner: Json, target: str, hint: Any) -> None:
        self.source.add("n = value[i]", "i += 1", "if n == 0:", f"    {target} = None", "elif n == 2:")
        self.source.depth += 1
        self.read(inner, target, hint)
        self.source.depth -= 1
        self.source.add("else:", "    raise Unusual")

    def _array(self, items: Json, target: str, hint: Any) -> None:
        collected, item = self.source.name("items"), self.source.name("item")
        with self._block(target, empty="()", collected=f"{collected} = []"):
            self.read(items, item, get_args(hint)[0])
            self.source.add(f"{collected}.append({item})")
        self.source.add(f"    {target} = tuple({collected})")

    def _map(self, values: Json, target: str, hint: Any) -> None:
        key, item = self.source.name("key"), self.source.name("item")
        with self._block(target, empty="{}", collected=f"{target} = {{}}"):
            self._string(key, str)
            self.read(values, item, get_args(hint)[1])
            self.source.add(f"{target}[{key}] = {item}")

    @contextmanager
    def _block(self, target: str, empty: str, collected: str) -> Iterator[None]:
        """An array or a map in one block, as fastavro writes it, then the empty block that ends it."""
        self.source.add("n = value[i]", "i += 1", "if n == 0:", f"    {target} = {empty}", "else:")
        self.source.depth += 1
        self.source.add("n, i = read_length(value, i, n)", collected, "for _ in range(n >> 1):")
        self.source.depth += 1
        yield
        self.source.depth -= 1
        self.source.add("if value[i]:", "    raise Unusual", "i += 1")
        self.source.depth -= 1


# ------------------------------------------------------------------------------------------------------- writer
def compile_writers(schema: Json, classes: Mapping[str, type], *, given: Sequence[str]) -> dict[type, Writer]:
    """For each branch of an envelope's last field, a function `write(head, x, *given)` by the class of its objects.

    It returns `head` and the record as latin-1 text. The envelope's own fields are attributes of `x`, as the branch's
    are, but for the `given` ones, which are arguments, encoded already: the caller knows which of them repeat. It
    raises `Unusual`, `IndexError`, `AttributeError`, `TypeError` or `UnicodeEncodeError` for what it leaves to the
    reference.
    """
    *prefix, last = schema["fields"]
    writers: dict[type, Writer] = {}
    for index, branch in enumerate(last["type"]):
        source = _Source(schema, _WRITE_HELPERS)
        record = source.kind(branch)
        writer = _WriterSource(source)
        source.add(f"def write({', '.join(('head', 'x', *given))}):")
        source.depth = 1
        parts = ["{head}"]
        for field in prefix:
            name = field["name"]
            parts.append(f"{{{name}}}" if name in given else writer.write(field["type"], f"x.{name}"))
        parts += [_literal(encode_long(index)), writer.record(record, "x")]
        source.add(f"return f'{''.join(parts)}'")
        writers[classes[record["name"]]] = source.compile("write", f"<writer of {record['name']}>")
    return writers


def _is_default(field: Json, expression: str) -> str:
    """The condition by which a field that is seldom set is told to be one zero byte."""
    default = field["default"]
    if default is None:
        return f"{expression} is None"
    return f"{expression} == {default!r}" if field["type"] in ("long", "string") else f"not {expression}"


def _literal(text: str) -> str:
    """`text` as it stands inside an f-string in single quotes."""
    return repr(text)[1:-1].replace("{", "{{").replace("}", "}}")


class _WriterSource:
    """Adds to a source the lines that prepare a value, and returns the f-string part that is its bytes."""

    def __init__(self, source: _Source) -> None:
        self.source = source

    def write(self, node: Json, expression: str) -> str:
        kind = self.source.kind(node)
        match kind:
            case "string":
                return self._string(expression)
            case "long":
                number = self.source.name("number")
                self.source.add(f"{number} = {expression}")
                return f"{{SMALL[{number} << 1] if 0 <= {number} <= 8191 else long({number})}}"
            case "boolean":
                return f"{{TRUE if {expression} else FALSE}}"
            case ["null", inner]:
                return self._optional(inner, expression)
            case {"type": "record"}:
                local = self.source.name(kind["name"].lower())
                self.source.add(f"{local} = {expression}")
                return self.record(kind, local)
            case {"type": "array", "items": items}:
                return self._array(items, expression)
            case {"type": "map", "values": values}:
                return self._map(values, expression)
            case _:
                raise TypeError(f"no writer for the Avro type {kind!r}")

    def record(self, record: Json, local: str) -> str:
        return "".join(self._part(fields, local) for fields in _in_turn(record))

    def _part(self, fields: Sequence[Json], local: str) -> str:
        """One field, or several that are seldom set."""
        if len(fields) == 1:
            return self.write(fields[0]["type"], f"{local}.{fields[0]['name']}")
        part = self.source.name("part")
        zero = " and ".join(_is_default(field, f"{local}.{field['name']}") for field in fields)
        self.source.add(f"if {zero}:", f"    {part} = '{_literal(chr(0)) * len(fields)}'", "else:")
        self.source.depth += 1
        each = "".join(self.write(field["type"], f"{local}.{field['name']}") for field in fields)
        self.source.add(f"{part} = f'{each}'")
        self.source.depth -= 1
        return f"{{{part}}}"

    def _string(self, expression: str) -> str:
        text = self.source.name("text")
        self.source.add(f"{text} = {expression}", f"if not {text}.isascii():")
        self.source.add(f"    {text} = {text}.encode().decode('latin-1')")
        return f"{{SMALL[len({text}) << 1]}}{{{text}}}"

    def _optional(self, inner: Json, expression: str) -> str:
        held, part = self.source.name("held"), self.source.name("part")
        self.source.add(f"{held} = {expression}", f"if {held} is None:", f"    {part} = '\\0'", "else:")
        self.source.depth += 1
        self.source.add(f"{part} = f'\\2{self.write(inner, held)}'")
        self.source.depth -= 1
        return f"{{{part}}}"

    def _array(self, items: Json, expression: str) -> str:
        item = self.source.name("item")
        with self._block(expression, item) as (held, out):
            self.source.add(f"{out}.append(f'{self.write(items, item)}')")
        return f"{{{held}}}"

    def _map(self, values: Json, expression: str) -> str:
        key = self.source.name("key")
        with self._block(expression, key) as (held, out):
            item = f"{held}[{key}]"
            self.source.add(f"{out}.append(f'{self._string(key)}{self.write(values, item)}')")
        return f"{{{held}}}"

    @contextmanager
    def _block(self, expression: str, item: str) -> Iterator[tuple[str, str]]:
        """A loop over a collection; after it the variable that held the collection holds its bytes."""
        held, out = self.source.name("held"), self.source.name("out")
        self.source.add(f"{held} = {expression}", f"if not {held}:", f"    {held} = '\\0'", "else:")
        self.source.depth += 1
        self.source.add(f"{out} = [SMALL[len({held}) << 1]]", f"for {item} in {held}:")
        self.source.depth += 1
        yield held, out
        self.source.depth -= 1
        self.source.add(f"{out}.append('\\0')", f"{held} = ''.join({out})")
        self.source.depth -= 1
