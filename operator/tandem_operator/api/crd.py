"""Writes what is made of the models: the CRD, the catalogue's ConfigMap and the reference pages.

`python -m tandem_operator.api.crd` writes them below the current folder; `--check` exits 1 where one is not current.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

from tandem_operator.api import constants as names
from tandem_operator.api.catalogue import to_data
from tandem_operator.api.pages import conditions_page, hardware_page, resource_page
from tandem_operator.api.schema import Schema, structural
from tandem_operator.api.spec import Spec
from tandem_operator.api.status import Status
from tandem_operator.api.v1alpha1 import DisaggregatedInference

MADE = "# Made by `python -m tandem_operator.api.crd`; edit the models instead.\n"
CRD_FILE = f"crds/{names.GROUP}_{names.PLURAL}.yaml"
CHART_FILE = "charts/tandem/files/crd.yaml"  # no link: Flux leaves links out of what it hands to Helm

COLUMNS = (
    ("Ready", "string", '.status.conditions[?(@.type=="Ready")].status', "Can clients be served?", False),
    ("Prefill", "integer", ".status.roles.prefill", "Serving workers that do prefill", False),
    ("Decode", "integer", ".status.roles.decode", "Serving workers that do decode", False),
    ("Ratio", "string", ".status.ratio", "Serving prefill workers to serving decode workers", False),
    ("TTFT", "integer", ".status.observed.ttftMilliseconds", "Time to first token at the percentile, ms", False),
    ("TPOT", "integer", ".status.observed.tpotMilliseconds", "Time per output token at the percentile, ms", False),
    ("Reason", "string", ".status.decision.reason", "Why the last decision was made", True),
    ("Age", "date", ".metadata.creationTimestamp", "Since when there is the resource", False),
)


def resource_schema() -> Schema:
    """The structural schema of the whole object, with every rule in it."""
    spec = structural(Spec, defaults=True)
    spec["description"] = "What is wanted."
    status = structural(Status, defaults=False)
    text = {"type": "string"}
    return {
        "type": "object",
        "description": " ".join((DisaggregatedInference.__doc__ or "").split()),
        "properties": {
            "apiVersion": {**text, "description": f"Version of the API: {names.API_VERSION}."},
            "kind": {**text, "description": f"Kind of the object: {names.KIND}."},
            "metadata": {"type": "object"},  # the API server allows no more here
            "spec": spec,
            "status": status,
        },
        "required": ["spec"],
        "x-kubernetes-validations": [rule.as_validation() for rule in DisaggregatedInference.rules],
    }


def custom_resource_definition() -> dict[str, Any]:
    """The CRD as an object of apiextensions.k8s.io/v1."""
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {
            "name": f"{names.PLURAL}.{names.GROUP}",
            "labels": {names.LABEL_NAME: names.APP_NAME, names.LABEL_APP_COMPONENT: "crd"},
        },
        "spec": {
            "group": names.GROUP,
            "scope": "Namespaced",
            "names": {
                "kind": names.KIND,
                "listKind": names.LIST_KIND,
                "plural": names.PLURAL,
                "singular": names.SINGULAR,
                "shortNames": [names.SHORT_NAME],
                "categories": ["all"],
            },
            "versions": [_version()],
        },
    }


def _version() -> dict[str, Any]:
    return {
        "name": names.VERSION,
        "served": True,
        "storage": True,
        "subresources": {"status": {}},
        "additionalPrinterColumns": [
            # The API server stores no priority of 0: written out, it would be a difference for ever.
            {"name": name, "type": kind, "jsonPath": path, "description": about} | ({"priority": 1} if wide else {})
            for name, kind, path, about, wide in COLUMNS
        ],
        "schema": {"openAPIV3Schema": resource_schema()},
    }


def catalogue_config_map() -> dict[str, Any]:
    """The hardware catalogue as the ConfigMap that operator and admission policy read."""
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {
            "name": names.CATALOGUE_NAME,
            "namespace": names.SYSTEM_NAMESPACE,
            "labels": {names.LABEL_NAME: names.APP_NAME, names.LABEL_APP_COMPONENT: "catalogue"},
        },
        "data": to_data(),
    }


class _Dumper(yaml.SafeDumper):
    """YAML as people write it: long texts as blocks, no aliases."""

    def ignore_aliases(self, data: Any) -> bool:  # noqa: ARG002 (PyYAML's signature)
        return True


def _text(dumper: yaml.SafeDumper, value: str) -> yaml.ScalarNode:
    return dumper.represent_scalar("tag:yaml.org,2002:str", value, style="|" if "\n" in value else None)


_Dumper.add_representer(str, _text)


def _yaml(content: dict[str, Any]) -> str:
    return MADE + yaml.dump(content, Dumper=_Dumper, sort_keys=False, width=120, allow_unicode=True)


def made_files() -> dict[str, str]:
    """Path below the repository's root → content, of every file that is made of the models."""
    crd = _yaml(custom_resource_definition())
    return {
        CRD_FILE: crd,
        CHART_FILE: crd,
        "manifests/components/admission/catalogue.yaml": _yaml(catalogue_config_map()),
        "docs/reference/resource.md": resource_page(resource_schema()),
        "docs/reference/conditions.md": conditions_page(),
        "docs/reference/hardware.md": hardware_page(),
    }


def outdated(root: Path) -> list[str]:
    """The files below `root` that are missing or not as the models say."""
    return [
        path
        for path, content in made_files().items()
        if not (root / path).is_file() or (root / path).read_text(encoding="utf-8") != content
    ]


def write(root: Path) -> None:
    """Write every file below `root`."""
    for path, content in made_files().items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(content, encoding="utf-8")


def main(arguments: Sequence[str] | None = None) -> int:
    """Write or check; the exit status says whether all is current."""
    parser = argparse.ArgumentParser(prog="python -m tandem_operator.api.crd", description=__doc__)
    parser.add_argument("--check", action="store_true", help="change nothing; exit 1 where a file is not current")
    parser.add_argument("--root", type=Path, default=Path(), help="the repository's root (default: the current folder)")
    options = parser.parse_args(arguments)
    if not options.check:
        write(options.root)
        return 0
    if stale := outdated(options.root):
        sys.stderr.write(f"not current: {', '.join(stale)}; run `make crds`\n")
    return 1 if stale else 0


if __name__ == "__main__":
    sys.exit(main())
