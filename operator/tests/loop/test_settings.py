"""Settings from the environment: a typing error shows at the start."""

from __future__ import annotations

import pytest

from tandem_operator.api.catalogue import CATALOGUE, BadCatalogueError, to_data
from tandem_operator.loop.catalogue import load
from tandem_operator.loop.settings import SettingsError, from_environment


def test_defaults_and_values():
    found = from_environment({"TANDEM_METRICS_WINDOW_SECONDS": "20", "PATH": "/bin", "TANDEM_WORKER_IMAGE": "w:1"})
    assert (found.metrics_window_seconds, found.images.worker, found.namespace) == (20, "w:1", "")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("TANDEM_PROMETHEUS_URL", "ftp://x"),
        ("TANDEM_PROMETHEUS_URL", "http://user:word@host"),
        ("TANDEM_METRICS_WINDOW_SECONDS", "soon"),
        ("TANDEM_RECONCILE_WORKERS", "0"),
        ("TANDEM_PROMETEUS_URL", "http://host"),
        ("TANDEM_NAMESPACE", 'x"y'),
        ("TANDEM_NAMESPACE", "kube-system"),
        ("TANDEM_LEASE_NAMESPACE", "anywhere"),
        ("TANDEM_TEMPLATE_ALLOW", "HostPath,Everything"),
    ],
)
def test_a_wrong_variable_is_named(name, value):
    with pytest.raises(SettingsError, match=name):
        from_environment({name: value})


@pytest.mark.parametrize(
    ("namespace", "lease"),
    [
        pytest.param("", "kube-system", id="cluster-wide, wherever it is installed"),
        pytest.param("serving", "serving", id="one namespace's"),
    ],
)
def test_operators_of_one_scope_meet_at_one_lease(namespace, lease):
    found = from_environment({"TANDEM_NAMESPACE": namespace})
    assert (found.elect, found.lease_namespace) == (True, lease)


def test_the_mounted_catalogue_is_laid_over_the_built_in_one(tmp_path):
    assert load("") == CATALOGUE
    assert load(str(tmp_path)) == CATALOGUE
    (tmp_path / "..data").mkdir()
    (tmp_path / "mine").write_text(to_data()["l4"])
    (tmp_path / "h200-sxm").write_text(to_data()["l4"])
    found = load(str(tmp_path))
    assert set(found) == {*CATALOGUE, "mine"}
    assert found["h200-sxm"].watts == CATALOGUE["l4"].watts, "an entry of its name stands for the built-in one"
    assert found["h100-sxm"] == CATALOGUE["h100-sxm"]
    (tmp_path / "bad").write_text("{")
    with pytest.raises(BadCatalogueError, match="bad"):
        load(str(tmp_path))
