"""The generated CRD is structural, bounded, described and small; what is made of the models is current."""

from pathlib import Path
from typing import Any, Literal

import pytest
import yaml
from pydantic import BaseModel

from tandem_operator.api.crd import COLUMNS, CRD_FILE, made_files, main, outdated, resource_schema, write
from tandem_operator.api.schema import UnmappedSchemaError, structural

ROOT = Path(__file__).parents[3]
FORBIDDEN = {
    "$ref",
    "$defs",
    "const",
    "oneOf",
    "allOf",
    "discriminator",
    "prefixItems",
    "examples",
    "uniqueItems",
    "title",
}


def nodes(schema, path=""):
    """Every schema in the schema, with its path."""
    yield path, schema
    for name, below in schema.get("properties", {}).items():
        yield from nodes(below, f"{path}.{name}")
    for key, step in (("items", "[]"), ("additionalProperties", "{}")):
        if key in schema:
            yield from nodes(schema[key], path + step)


SCHEMA = resource_schema()
NODES = [(path, node) for path, node in nodes(SCHEMA) if path not in ("", ".apiVersion", ".kind", ".metadata")]


def is_structural(node):
    typed = "type" in node or node.get("x-kubernetes-int-or-string")
    clash = "properties" in node and "additionalProperties" in node
    return typed and not clash and not FORBIDDEN & set(node) and node.get("default", 0) is not None


def is_bounded(node):
    keys = set(node)
    match node.get("type"):
        case "string":
            return bool({"maxLength", "enum", "format"} & keys)
        case "integer":
            return {"minimum", "maximum"} <= keys
        case "array":
            return {"maxItems", "x-kubernetes-list-type"} <= keys
        case "number":  # no floats in this API
            return False
    return "additionalProperties" not in node or "maxProperties" in node


def test_structural():
    assert [path for path, node in NODES if not is_structural(node)] == []


def test_bounded():
    assert [path for path, node in NODES if not is_bounded(node)] == []


def test_every_field_is_described():
    fields = [(path, node) for path, node in NODES if not path.endswith(("[]", "{}"))]
    assert len(fields) > 150
    assert [path for path, node in fields if len(node.get("description", "").split()) < 2] == []


def test_status_has_no_defaults():
    assert [path for path, node in nodes(SCHEMA["properties"]["status"]) if "default" in node] == []


def test_counts_that_are_chosen_have_no_default():
    replicas = SCHEMA["properties"]["spec"]["properties"]["pools"]["items"]["properties"]["replicas"]
    assert [name for name, field in replicas["properties"].items() if "default" in field] == []


def test_small_enough_for_an_annotation():
    assert len(made_files()[CRD_FILE].encode()) < 262_144


def test_print_columns():
    (version,) = yaml.safe_load(made_files()[CRD_FILE])["spec"]["versions"]
    assert [c["name"] for c in version["additionalPrinterColumns"]] == [c[0] for c in COLUMNS]
    assert version["subresources"] == {"status": {}}


def test_files_of_this_checkout_are_current():
    assert outdated(ROOT) == []


def test_check_names_what_is_not_current(tmp_path, capsys):
    assert main(["--check", "--root", str(tmp_path)]) == 1
    assert CRD_FILE in capsys.readouterr().err
    write(tmp_path)
    assert main(["--check", "--root", str(tmp_path)]) == 0


class Inner(BaseModel):
    """In."""

    value: int


class Union3(BaseModel):
    x: int | list[int] | None


class AnyUnion(BaseModel):
    x: int | Inner


class Fixed(BaseModel):
    x: tuple[int, str]


class Uri(BaseModel):
    x: Literal["a"] = "a"
    y: bytes = b""


@pytest.mark.parametrize("model", [Union3, AnyUnion, Fixed, Uri], ids=lambda m: m.__name__)
def test_what_is_not_mapped_is_refused(model):
    with pytest.raises(UnmappedSchemaError, match=model.__name__):
        structural(model, defaults=True)


class Mapped(BaseModel):
    maybe: Inner | None = None
    only: Literal["a"]
    either: int | str
    free: dict[str, Any]


def test_mapped():
    found = structural(Mapped, defaults=True)["properties"]
    assert found["maybe"] == {
        "type": "object",
        "description": "In.",
        "properties": {"value": {"type": "integer"}},
        "required": ["value"],
    }
    assert found["only"] == {"type": "string", "enum": ["a"]}
    assert found["either"] == {"anyOf": [{"type": "integer"}, {"type": "string"}], "x-kubernetes-int-or-string": True}
    assert found["free"] == {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
