"""Values that a JSON Schema describes, and what goes wrong with them, as Hypothesis strategies."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import strategies as st

Schema = dict[str, Any]

scalars = (
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=20)
)
anything = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)


def described_by(schema: Schema, definitions: dict[str, Schema]) -> st.SearchStrategy[Any]:  # noqa: PLR0911
    """Values as the schema has them: of the keywords that our models make schemas of."""
    if "$ref" in schema:
        name = schema["$ref"].rsplit("/", 1)[1]
        return st.deferred(lambda: described_by(definitions[name], definitions))
    if "anyOf" in schema and "type" not in schema:
        return st.one_of(*(described_by(each, definitions) for each in schema["anyOf"]))
    if "enum" in schema:
        return st.sampled_from(schema["enum"])
    if "const" in schema:
        return st.just(schema["const"])
    match schema.get("type"):
        case "object":
            return _object(schema, definitions)
        case "array":
            items = described_by(schema.get("items", {}), definitions)
            return st.lists(items, min_size=schema.get("minItems", 0), max_size=min(schema.get("maxItems", 3), 3))
        case "string" if "pattern" in schema:
            return st.from_regex(schema["pattern"], fullmatch=True)
        case "string":
            return st.text(min_size=schema.get("minLength", 0), max_size=min(schema.get("maxLength", 30), 30))
        case "integer":
            return st.integers(min_value=schema.get("minimum", -5), max_value=schema.get("maximum", 2**53))
        case "number":
            return st.floats(schema.get("minimum", -1e9), schema.get("maximum", 1e9), allow_nan=False)
        case "boolean":
            return st.booleans()
        case _:
            return anything


def _object(schema: Schema, definitions: dict[str, Schema]) -> st.SearchStrategy[Any]:
    properties = schema.get("properties", {})
    if not properties:
        return st.dictionaries(st.text(max_size=8), anything, min_size=schema.get("minProperties", 0), max_size=3)
    fields = {name: described_by(each, definitions) for name, each in properties.items()}
    required = set(schema.get("required", ()))
    return st.fixed_dictionaries(
        {name: each for name, each in fields.items() if name in required},
        optional={name: each for name, each in fields.items() if name not in required},
    )


@st.composite
def spoiled(draw: st.DrawFn, good: st.SearchStrategy[Any]) -> Any:
    """A good value with one part of it gone, or something else in its place."""
    value = draw(good)
    at, path = value, list[tuple[dict[str, Any], str]]()
    while isinstance(at, dict) and at and (not path or draw(st.booleans())):
        name = draw(st.sampled_from(sorted(at)))
        path.append((at, name))
        at = at[name]
    if path:
        holder, name = path[-1]
        if draw(st.booleans()):
            del holder[name]
        else:
            holder[name] = draw(anything)
    return value


def as_text(values: st.SearchStrategy[Any]) -> st.SearchStrategy[str]:
    """Their JSON."""
    return values.map(json.dumps)


no_json = st.text(max_size=40) | st.sampled_from(
    [
        "",
        "{",
        "[]",
        "null",
        '"x"',
        "1e999",
        '{"a":NaN}',
        '{"type":"\\ud800"}',
        "[" * 5_000,
        '{"a":' * 3_000,
        "\x00",
        "\ufeff{}",
    ]
)
