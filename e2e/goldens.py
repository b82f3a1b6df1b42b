"""Writes what the operator makes of the samples: `python -m e2e.goldens` (--check compares).

Of each cloud's RDMA and of each engine. The files are for reading in a review: a change of a template shows as a change
of every cloud's pods.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import yaml

from tandem_operator.api.constants import LABEL_POOL, LABEL_REVISION
from tandem_operator.api.v1alpha1 import read
from tandem_operator.cli.rendered import rendered
from tandem_operator.templates.children import Images
from tandem_operator.templates.groups import GROUP
from tandem_operator.templates.names import TEMPLATE

REPO = Path(__file__).resolve().parents[1]
SAMPLES = REPO / "manifests/samples"
TANDEM = SAMPLES / "smollm2.yaml"  # the operator's own workers
GOLDENS = REPO / "operator/tests/goldens"
IMAGES = Images("tandem-worker:0.1.0", "tandem-router:0.1.0")
SHAPED = ("Deployment", GROUP, "ResourceClaimTemplate")
MADE = "# Made by `python -m e2e.goldens` of {path}; the first pool's.\n"


def samples() -> list[Path]:
    """The samples, by name."""
    return [*sorted(SAMPLES.glob("rdma/*.yaml")), *sorted(SAMPLES.glob("engines/*.yaml")), TANDEM]


def shaped(sample: Path) -> list[dict[str, Any]]:
    """The first pool's Deployment or groups, and what its pods claim: the other pools' are alike."""
    resource = read(yaml.safe_load(sample.read_text(encoding="utf-8")))
    pool = resource.spec.pools[0].name
    made = [item for item in rendered(resource, IMAGES) if item["metadata"]["labels"].get(LABEL_POOL) == pool]
    found = [item for item in made if item["kind"] in SHAPED]
    for metadata in (template["metadata"] for item in found for template in templates_of(item)):
        # Digests of the rest: they would change with every line of a template, and say nothing here.
        metadata.get("annotations", {}).pop(TEMPLATE, None)
        metadata["labels"].pop(LABEL_REVISION, None)
    return found


def templates_of(item: dict[str, Any]) -> list[dict[str, Any]]:
    """The pod templates of a manifest: a Deployment has one, a group one for its leader and one for the others."""
    if item["kind"] == GROUP:
        return [item["spec"]["leaderWorkerTemplate"][whose] for whose in ("leaderTemplate", "workerTemplate")]
    return [item["spec"]["template"]] if item["kind"] == "Deployment" else []


def text_of(sample: Path) -> str:
    """The golden file of a sample."""
    return MADE.format(path=sample.relative_to(REPO)) + yaml.safe_dump_all(shaped(sample), sort_keys=False, width=120)


def main(arguments: list[str]) -> int:
    """Write, or compare; 1 where a file is not current."""
    stale = [s.name for s in samples() if _current(s) != text_of(s)]
    if "--check" in arguments:
        sys.stderr.write(f"not current: {', '.join(stale)}; run python -m e2e.goldens\n" if stale else "")
        return 1 if stale else 0
    GOLDENS.mkdir(exist_ok=True)
    for sample in samples():
        (GOLDENS / sample.name).write_text(text_of(sample), encoding="utf-8")
    return 0


def _current(sample: Path) -> str:
    golden = GOLDENS / sample.name
    return golden.read_text(encoding="utf-8") if golden.exists() else ""


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
