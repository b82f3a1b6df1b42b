"""From a template and values to an object: sandboxed, strict, and parsed to dicts at once."""

from __future__ import annotations

import json
import re
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

import yaml
from jinja2 import FileSystemLoader, StrictUndefined
from jinja2.sandbox import SandboxedEnvironment

FOLDER = Path(__file__).parent
PARSED = 8192  # texts that are kept: the children of some hundred resources, 4 KiB each
PAIR = re.compile(r"\\ud[89ab][0-9a-f]{2}\\ud[c-f][0-9a-f]{2}")
TEXT = "tag:yaml.org,2002:str"
SAFE = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # libyaml's is ten times faster, where it is there


@cache
def environment() -> SandboxedEnvironment:
    """The templates' environment: a name that is not given is an error, and nothing of Python can be reached."""
    # YAML, not HTML: every value goes through `tojson`, which quotes it for YAML too.
    found = SandboxedEnvironment(
        loader=FileSystemLoader(FOLDER),
        undefined=StrictUndefined,
        autoescape=False,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    found.policies["json.dumps_kwargs"] = {"sort_keys": False}
    found.policies["json.dumps_function"] = quoted
    return found


def quoted(value: Any, **how: Any) -> str:
    """JSON that YAML reads, too: it has no pairs of surrogates, in which JSON escapes what lies beyond 16 bits."""
    return PAIR.sub(_one_escape, json.dumps(value, **how))


def _one_escape(pair: re.Match[str]) -> str:
    character: str = json.loads(f'"{pair[0]}"')
    return f"\\U{ord(character):08x}"


def render(template: str, **values: Any) -> dict[str, Any]:
    """The object of `<template>.yaml.j2`; raises jinja2.UndefinedError or TypeError for a name that is not given."""
    parsed = json.loads(as_json(environment().get_template(f"{template}.yaml.j2").render(**values)))
    if not isinstance(parsed, dict):
        raise TypeError(f"template {template} gave {type(parsed).__name__}, not an object")
    return parsed


@lru_cache(maxsize=PARSED)
def as_json(text: str) -> str:
    """YAML as JSON, which is read twenty times faster: a child is rendered at every pass and seldom differs."""
    loader = SAFE(text)
    try:
        return json.dumps(value_of(loader.get_single_node(), loader))
    finally:
        loader.dispose()


def value_of(node: Any, loader: Any) -> Any:
    """A node's value. yaml.load's own way, made for references and tags, which no template has, takes twice as long."""
    if isinstance(node, yaml.MappingNode):
        return {value_of(key, loader): value_of(value, loader) for key, value in node.value}
    if isinstance(node, yaml.SequenceNode):
        return [value_of(item, loader) for item in node.value]
    return node.value if node.tag == TEXT else loader.construct_object(node)
