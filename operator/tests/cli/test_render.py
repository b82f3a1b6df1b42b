"""`tandem render`: the children of a file, and one line of reason where there are none."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner

from tandem_operator.cli.main import app

RUNNER = CliRunner(env={"COLUMNS": "200", "NO_COLOR": "1"})
SAMPLES = Path(__file__).parents[3] / "manifests/samples"
SAMPLE = yaml.safe_load((SAMPLES / "rdma/aks.yaml").read_text())


def render(tmp_path, edit, *options):
    body = yaml.safe_load(yaml.safe_dump(SAMPLE))
    edit(body["spec"])
    file = tmp_path / "resource.yaml"
    file.write_text(yaml.safe_dump(body))
    return RUNNER.invoke(app, ["render", "-f", str(file), *options])


def host_path(spec):
    spec["router"] = {"template": {"volumes": [{"name": "h", "hostPath": {"path": "/"}}]}}


def test_all_children_but_the_key(tmp_path):
    done = render(tmp_path, lambda spec: None)
    assert done.exit_code == 0
    kinds = sorted(item["kind"] for item in yaml.safe_load_all(done.stdout))
    assert kinds.count("Deployment") == 3
    assert "Secret" not in kinds


@pytest.mark.parametrize(
    ("edit", "words"),
    [
        pytest.param(host_path, "HostPath", id="a template that is not allowed"),
        pytest.param(lambda s: s["pools"][0]["hardware"].update(accelerator="h9"), "h9", id="an unknown accelerator"),
        pytest.param(lambda s: s["slo"].update(ttftMilliseconds=0), "ttft", id="no valid resource"),
    ],
)
def test_a_reason_in_one_line(tmp_path, edit, words):
    done = render(tmp_path, edit)
    assert done.exit_code == 2
    assert words in done.stderr


def test_what_the_cluster_allows_can_be_said(tmp_path):
    assert render(tmp_path, host_path, "--allow", "HostPath").exit_code == 0
    assert render(tmp_path, host_path, "--allow", "Everything").exit_code == 2
