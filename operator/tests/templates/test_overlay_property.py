"""Whatever the CRD lets through in a template's unread parts: the overlay gives a pod or says no, and nothing else."""

from __future__ import annotations

import contextlib

from hypothesis import given
from hypothesis import strategies as st

from tandem_operator.api.spec_template import PodTemplate
from tandem_operator.templates.overlay import TemplateRefusedError, overlaid

NAMES = [
    "name",
    "securityContext",
    "capabilities",
    "add",
    "ports",
    "hostPort",
    "resources",
    "limits",
    "env",
    "projected",
]
NAMES += ["sources", "volumeMounts", "mountPath", "nodeAffinity", "requiredDuringSchedulingIgnoredDuringExecution"]
NAMES += ["seLinuxOptions", "drop", "livenessProbe", "lifecycle", "preStop", "httpGet", "host", "procMount"]
NAMES += ["nodeSelectorTerms", "matchExpressions", "seccompProfile", "type", "podAffinity", "topologyKey", "hostPath"]
LEAF = (
    st.none() | st.booleans() | st.integers(0, 1) | st.sampled_from(["worker", "tmp", "Unconfined", "nvidia.com/gpu"])
)
JSON = st.recursive(
    LEAF,
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from(NAMES), inner, max_size=4),
    max_leaves=15,
)
OBJECT = st.dictionaries(st.sampled_from(NAMES), JSON, max_size=4)
OBJECTS = st.lists(OBJECT, max_size=3)
TERMS = st.fixed_dictionaries({"nodeSelectorTerms": JSON})
REQUIRED = st.fixed_dictionaries({"requiredDuringSchedulingIgnoredDuringExecution": TERMS | JSON})
CONTAINERS = st.lists(
    st.fixed_dictionaries(
        {"name": st.sampled_from(["worker", "x"])}, optional={"securityContext": OBJECT, "env": JSON}
    ),
    max_size=2,
)
AFFINITY = OBJECT | st.fixed_dictionaries({"nodeAffinity": REQUIRED})
TEMPLATES = st.fixed_dictionaries(
    {},
    optional={
        "affinity": AFFINITY,
        "volumes": OBJECTS,
        "volumeMounts": OBJECTS,
        "containers": OBJECTS | CONTAINERS,
        "topologySpreadConstraints": OBJECTS,
        "imagePullSecrets": OBJECTS,
        "env": st.lists(st.builds(lambda source: {"name": "A", "valueFrom": source}, OBJECT), max_size=1),
    },
)
TERM = {"matchExpressions": [{"key": "product", "operator": "In", "values": ["H100"]}]}
MAIN = {
    "name": "worker",
    "env": [{"name": "HOME", "value": "/tmp"}],
    "resources": {"limits": {"nvidia.com/gpu": "1"}},
    "securityContext": {"allowPrivilegeEscalation": False},
    "volumeMounts": [{"name": "tmp", "mountPath": "/tmp"}],
}
DEPLOYMENT = {
    "metadata": {"name": "chat-prefill"},
    "spec": {
        "template": {
            "metadata": {"annotations": {}, "labels": {"a": "b"}},
            "spec": {
                "affinity": {
                    "nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [TERM]}}
                },
                "volumes": [{"name": "tmp", "emptyDir": {}}],
                "containers": [MAIN],
            },
        }
    },
}


@given(TEMPLATES)
def test_a_pod_or_a_refusal(template):
    with contextlib.suppress(TemplateRefusedError):
        pod = overlaid(DEPLOYMENT, PodTemplate.model_validate(template))["spec"]["template"]["spec"]
        main = pod["containers"][0]
        assert main["securityContext"].items() >= MAIN["securityContext"].items()
        assert main["resources"]["limits"]["nvidia.com/gpu"] == "1"
        terms = pod["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]
        assert all(TERM["matchExpressions"][0] in term["matchExpressions"] for term in terms), "never another card"
        assert not any("hostPath" in volume for volume in pod["volumes"] if isinstance(volume, dict))
