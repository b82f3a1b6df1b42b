"""The overlay of `template`: each field once, what it adds to, and what it cannot reach."""

from __future__ import annotations

import copy

import pytest

from tandem_operator.api.spec_template import PodTemplate
from tandem_operator.templates.allowed import VOLUMES
from tandem_operator.templates.overlay import TemplateRefusedError, overlaid

PRODUCT = {"key": "product", "operator": "In", "values": ["H100"]}
CLOUD = {"key": "cloud", "operator": "In", "values": ["h100"]}
ZONE = {"key": "zone", "operator": "In", "values": ["a"]}
REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"


def node(*terms):
    return {"nodeAffinity": {REQUIRED: {"nodeSelectorTerms": [{"matchExpressions": term} for term in terms]}}}


BASE = {
    "metadata": {"name": "chat-prefill"},
    "spec": {
        "template": {
            "metadata": {"annotations": {"prometheus.io/port": "8000"}, "labels": {"a": "b"}},
            "spec": {
                "affinity": node([PRODUCT], [CLOUD]),
                "tolerations": [{"key": "nvidia.com/gpu", "operator": "Exists"}],
                "volumes": [{"name": "tmp", "emptyDir": {}}, {"name": "model", "emptyDir": {}}],
                "containers": [
                    {
                        "name": "worker",
                        "env": [{"name": "HOME", "value": "/tmp"}],
                        "resources": {"limits": {"nvidia.com/gpu": "1"}, "requests": {"nvidia.com/gpu": "1"}},
                        "securityContext": {"allowPrivilegeEscalation": False},
                        "volumeMounts": [{"name": "tmp", "mountPath": "/tmp"}],
                    }
                ],
            },
        }
    },
}
DEFAULTS = {
    "metadata": {"annotations": {"keep": "true"}},
    "spec": {
        "affinity": {"podAffinity": {"preferred": [1]}},
        "topologySpreadConstraints": [{"topologyKey": "zone", "maxSkew": 1}, {"topologyKey": "host", "maxSkew": 1}],
        "containers": [{"name": "worker", "env": [{"name": "UCX_TLS", "value": "rc"}]}],
    },
}


def at(deployment, path):
    found = deployment["spec"]["template"]
    for part in path.split("/"):
        found = found[int(part)] if part.isdigit() else found[part]
    return found


GPU = {"nvidia.com/gpu": "1"}
MAIN = "spec/containers/0"
UCX = {"name": "UCX_TLS", "value": "rc"}
FIELD = {"name": "X", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}}
CONFINED = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}


def row(name, template, path, expected):
    return pytest.param(template, path, expected, id=name)


@pytest.mark.parametrize(
    ("template", "path", "expected"),
    [
        row("nothing laid over", {}, f"{MAIN}/resources/limits", GPU),
        row("limits add", {"resources": {"limits": {"cpu": 2}}}, f"{MAIN}/resources/limits", {"cpu": "2", **GPU}),
        row("requests stay", {"resources": {"limits": {"cpu": 2}}}, f"{MAIN}/resources/requests", GPU),
        row("node selector", {"nodeSelector": {"disk": "fast"}}, "spec/nodeSelector", {"disk": "fast"}),
        row(
            "tolerations add",
            {"tolerations": [{"key": "spot", "operator": "Exists"}, {"key": "nvidia.com/gpu", "operator": "Exists"}]},
            "spec/tolerations",
            [{"key": "nvidia.com/gpu", "operator": "Exists"}, {"key": "spot", "operator": "Exists"}],
        ),
        row("variable", {"env": [{"name": "X", "value": "1"}]}, f"{MAIN}/env/1", {"name": "X", "value": "1"}),
        row("a variable's source", {"env": [FIELD]}, f"{MAIN}/env/1", FIELD),
        row("a default's turn", {}, f"{MAIN}/env/1", UCX),
        row(
            "a default replaced by a source",
            {"env": [FIELD | {"name": "UCX_TLS"}]},
            f"{MAIN}/env/1",
            FIELD | {"name": "UCX_TLS"},
        ),
        row("label", {"labels": {"c": "d"}}, "metadata/labels", {"a": "b", "c": "d"}),
        row(
            "annotation",
            {"annotations": {"note": "x", "keep": "false"}},
            "metadata/annotations",
            {"note": "x", "prometheus.io/port": "8000", "keep": "false"},
        ),
        row("node affinity holds besides", {"affinity": node([ZONE])}, "spec/affinity/nodeAffinity",
            node([PRODUCT, ZONE], [CLOUD, ZONE])["nodeAffinity"]),
        row("pod affinity replaces the default", {"affinity": {"podAffinity": {"preferred": [2]}}},
            "spec/affinity/podAffinity", {"preferred": [2]}),
        row("pod affinity's default stays beside a node's", {"affinity": node([ZONE])}, "spec/affinity/podAffinity",
            {"preferred": [1]}),
        row("spread by key", {"topologySpreadConstraints": [{"topologyKey": "host", "maxSkew": 3}]},
            "spec/topologySpreadConstraints",
            [{"topologyKey": "host", "maxSkew": 3}, {"topologyKey": "zone", "maxSkew": 1}]),
        row("priority", {"priorityClassName": "high"}, "spec/priorityClassName", "high"),
        row("runtime", {"runtimeClassName": "nvidia"}, "spec/runtimeClassName", "nvidia"),
        row("scheduler", {"schedulerName": "volcano"}, "spec/schedulerName", "volcano"),
        row("pull secrets", {"imagePullSecrets": [{"name": "s"}]}, "spec/imagePullSecrets", [{"name": "s"}]),
        row("volume", {"volumes": [{"name": "x", "emptyDir": {}}]}, "spec/volumes",
            [{"name": "model", "emptyDir": {}}, {"name": "x", "emptyDir": {}}, {"name": "tmp", "emptyDir": {}}]),
        row("scratch space replaced whole", {"volumes": [{"name": "tmp", "ephemeral": {}}]}, "spec/volumes",
            [{"name": "model", "emptyDir": {}}, {"name": "tmp", "ephemeral": {}}]),
        row("mount", {"volumeMounts": [{"name": "x", "mountPath": "/x"}]}, f"{MAIN}/volumeMounts/1",
            {"name": "x", "mountPath": "/x"}),
        row("further container, confined", {"containers": [{"name": "log", "image": "i"}]}, "spec/containers/1",
            {"name": "log", "image": "i", "securityContext": CONFINED}),
        row("the main container", {"containers": [{"name": "worker", "lifecycle": {"preStop": 1}}]},
            f"{MAIN}/lifecycle", {"preStop": 1}),
        row("null is unset", {"affinity": {"podAffinity": None}}, "spec/affinity/podAffinity", {"preferred": [1]}),
    ],
)  # fmt: skip
def test_overlay(template, path, expected):
    before = copy.deepcopy(BASE)
    assert at(overlaid(BASE, PodTemplate.model_validate(template), defaults=DEFAULTS), path) == expected
    assert before == BASE, "the input is not changed"


def other(**fields):
    return {"containers": [{"name": "x", **fields}]}


def secure(**fields):
    return other(securityContext=fields)


APPARMOR = "container.apparmor.security.beta.kubernetes.io/"
TOKEN = {"name": "t", "projected": {"sources": [{"serviceAccountToken": {"path": "t"}}]}}


@pytest.mark.parametrize(
    ("template", "allowed", "words"),
    [
        row("a variable of the operator", {"env": [{"name": "HOME", "value": "/x"}]}, "", "env[HOME]"),
        row("an annotation of the operator", {"annotations": {"prometheus.io/port": "1"}}, "", "prometheus.io/port"),
        row("a label of the operator", {"labels": {"a": "c"}}, "", "metadata.labels.a is the operator's own"),
        row(
            "a volume of the operator", {"volumes": [{"name": "model", "emptyDir": {"medium": "Memory"}}]}, "", "model"
        ),
        row("a mount of the operator", {"volumeMounts": [{"name": "x", "mountPath": "/tmp"}]}, "", "/tmp"),
        row("a container twice", {"containers": [{"name": "x"}, {"name": "x"}]}, "", "containers[x] is there twice"),
        row("the GPU for another", other(resources={"limits": {"nvidia.com/gpu": 1}}), "", "main container's alone"),
        row("hostPath", {"volumes": [{"name": "h", "hostPath": {"path": "/"}}]}, "HostPath", "volumes[h].hostPath"),
        row("token", {"volumes": [TOKEN]}, "ServiceAccountToken", "volumes[t].projected"),
        row("hostPort", other(ports=[{"containerPort": 1, "hostPort": 1}]), "HostPort", "containers[x].ports.hostPort"),
        row("root", secure(runAsUser=0), "Root", "runAsUser"),
        row("root by another name", secure(runAsNonRoot=False), "Root", "runAsUser"),
        row("privileged", secure(privileged=True), "Privileged", "securityContext.privileged"),
        row("escalation", secure(allowPrivilegeEscalation=True), "Privileged", "allowPrivilegeEscalation"),
        row("capability", secure(capabilities={"add": ["SYS_ADMIN"]}), "Privileged", "capabilities.add"),
        row("unmasked /proc", secure(procMount="Unmasked"), "Privileged", "procMount"),
        row("unconfined", secure(seccompProfile={"type": "Unconfined"}), "Privileged", "seccompProfile"),
        row("no AppArmor", secure(appArmorProfile={"type": "Unconfined"}), "Privileged", "appArmorProfile"),
        row("no AppArmor, the old way", {"annotations": {f"{APPARMOR}x": "unconfined"}}, "Privileged", APPARMOR),
        row(
            "SELinux user", secure(seLinuxOptions={"user": "system_u"}), "Privileged", "securityContext.seLinuxOptions"
        ),
        row("SELinux role", secure(seLinuxOptions={"role": "system_r"}), "Privileged", "seLinuxOptions"),
        row("SELinux type", secure(seLinuxOptions={"type": "spc_t"}), "Privileged", "seLinuxOptions"),
        row("a type that is none", secure(seLinuxOptions={"type": 1}), "Privileged", "seLinuxOptions"),
        row("host process", secure(windowsOptions={"hostProcess": True}), "Privileged", "windowsOptions"),
        row("drops less", secure(capabilities={"drop": ["NET_RAW"]}), "Privileged", "capabilities.drop"),
        row("drops nothing", secure(capabilities={"drop": []}), "Privileged", "capabilities.drop"),
        row("nfs", {"volumes": [{"name": "n", "nfs": {"server": "s", "path": "/"}}]}, "InlineVolume", "volumes[n].nfs"),
        row(
            "a probe of others",
            other(livenessProbe={"tcpSocket": {"port": 1, "host": "h"}}),
            "ProbeHost",
            "containers[x].livenessProbe.tcpSocket.host",
        ),
        row(
            "a hook to others",
            other(lifecycle={"preStop": {"httpGet": {"port": 1, "host": "h"}}}),
            "ProbeHost",
            "containers[x].lifecycle.preStop.httpGet.host",
        ),
    ],
)
def test_refused_unless_allowed(template, allowed, words):
    with pytest.raises(TemplateRefusedError, match="chat-prefill: template: ") as refused:
        overlaid(BASE, PodTemplate.model_validate(template), defaults=DEFAULTS)
    assert words in str(refused.value)
    if allowed:
        overlaid(BASE, PodTemplate.model_validate(template), allowed=frozenset({allowed}))


def plain(name, template):
    return pytest.param(template, id=name)


@pytest.mark.parametrize(
    "template",
    [
        plain("SELinux level", secure(seLinuxOptions={"level": "s0:c123,c456"})),
        plain("SELinux type of containers", secure(seLinuxOptions={"type": "container_engine_t"})),
        plain("a profile of the node's", secure(seccompProfile={"type": "Localhost", "localhostProfile": "p.json"})),
        plain("masked /proc", secure(procMount="Default")),
        plain("another user", secure(runAsUser=1000, runAsNonRoot=True)),
        plain("all dropped again", secure(capabilities={"drop": ["ALL"]})),
        plain("a probe of itself", other(livenessProbe={"httpGet": {"port": 1, "path": "/"}})),
        plain("AppArmor as usual", {"annotations": {f"{APPARMOR}x": "runtime/default"}}),
        plain("volumes", {"volumes": [{"name": kind, kind: {}} for kind in sorted(VOLUMES)]}),
    ],
)
def test_what_a_restricted_pod_may_have(template):
    made = overlaid(BASE, PodTemplate.model_validate(template), defaults=DEFAULTS)
    for container in made["spec"]["template"]["spec"]["containers"][1:]:
        assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
        assert container["securityContext"]["allowPrivilegeEscalation"] is False
