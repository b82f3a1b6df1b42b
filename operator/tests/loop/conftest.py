"""An API server in memory, with the controllers that matter, so that a pass can be crashed after any of its writes."""

from __future__ import annotations

import copy
import itertools
from dataclasses import dataclass, field
from datetime import UTC, datetime

import pytest

from tandem_operator.api.conditions import is_known
from tandem_operator.edges.errors import AlreadyExistsError, ConflictError, NotFoundError
from tandem_operator.loop.cache import Cache
from tandem_operator.loop.fleet import Fleet
from tandem_operator.loop.metrics import Metrics
from tandem_operator.loop.queue import Queue
from tandem_operator.loop.record import Recorder
from tandem_operator.loop.refs import Ref
from tandem_operator.loop.resync import fill_cache
from tandem_operator.loop.rollout import digest_in
from tandem_operator.loop.settings import Settings
from tandem_operator.loop.world import World

KIND = "DisaggregatedInference"
REF = Ref("serving", "chat")
CREATED = "2026-01-01T00:00:00Z"
READY = "2026-01-01T00:03:20Z"


def led(groups):
    """Groups as the Deployment of their leaders."""
    template = groups["spec"]["leaderWorkerTemplate"]["leaderTemplate"]
    spec = {"replicas": groups["spec"]["replicas"], "template": template, "selector": {"matchLabels": {}}}
    spec["strategy"] = {"rollingUpdate": groups["spec"]["rolloutStrategy"]["rollingUpdateConfiguration"]}
    return {"metadata": groups["metadata"], "spec": spec}


def serves(pod):
    """Is it up?"""
    return (pod.get("status") or {}).get("phase") == "Running"


class CrashedError(Exception):
    """The operator's process ended here."""


def merged(old, new):
    """A merge that keeps what the patch does not name; lists are replaced."""
    if not isinstance(old, dict) or not isinstance(new, dict):
        return copy.deepcopy(new)
    return {**old, **{key: merged(old.get(key), value) for key, value in new.items()}}


def check_conditions(status, generation):
    """What holds for every status at every moment: GitOps tools can read it, and each reason is documented."""
    found = {c["type"]: c for c in status["conditions"]}
    assert "Ready" in found, "an object without Ready counts as done"
    assert not {"Reconciling", "Stalled"} <= set(found), "in progress or failed, never both"
    assert found["Ready"]["status"] != "Unknown" or {"Reconciling", "Stalled"} & set(found), "not known for no reason"
    assert status["observedGeneration"] <= generation
    for condition in found.values():
        known = (condition["type"], condition["status"], condition["reason"])
        assert is_known(*known), f"{known} is not in docs/reference/conditions.md"
        assert condition["observedGeneration"] == status["observedGeneration"]


def empty_parts(part, path="status"):
    """Paths of empty objects; a map of pools that has none is none of those."""
    if not isinstance(part, dict):
        return [found for item in part for found in empty_parts(item, path)] if isinstance(part, list) else []
    own = [path] if not part and not path.endswith("pools") else []
    return own + [found for name, item in part.items() for found in empty_parts(item, f"{path}.{name}")]


@dataclass
class Api:
    """Objects by (kind, namespace, name), resource versions that rise, preconditions that hold."""

    items: dict = field(default_factory=dict)
    version: itertools.count = field(default_factory=lambda: itertools.count(1))
    writes: list = field(default_factory=list)
    lists: list = field(default_factory=list)  # (kind, metadata alone?)
    unserved: set = field(default_factory=set)  # kinds that this cluster does not know
    crash_after: int | None = None  # writes that still succeed; the one after them is the process's end

    def store(self, kind, item):
        metadata = item["metadata"]
        metadata["resourceVersion"] = str(next(self.version))
        metadata.setdefault("uid", f"uid-{metadata['resourceVersion']}")
        metadata.setdefault("creationTimestamp", CREATED)
        self.items[kind, metadata["namespace"], metadata["name"]] = item
        return copy.deepcopy(item)

    def wrote(self, *what):
        self.writes.append(what)
        if self.crash_after is not None:
            if self.crash_after == 0:
                raise CrashedError
            self.crash_after -= 1

    def find(self, kind, name):
        return self.items.get((kind, REF.namespace, name))

    def of(self, kind):
        return [item for key, item in sorted(self.items.items()) if key[0] == kind]

    # --- the verbs of edges.kube.Kube ---

    async def apply(self, manifest, *, uid):
        metadata = manifest["metadata"]
        key = (manifest["kind"], metadata["namespace"], metadata["name"])
        old = self.items.get(key)
        if manifest["kind"] in self.unserved:
            raise NotFoundError("NotFound", "no such kind")
        if uid is not None and (old is None or old["metadata"]["uid"] != uid):
            raise ConflictError("Conflict", "uid")
        if uid is None and old is not None:
            raise ConflictError("Conflict", "somebody else's fields")
        # Fields that a former apply had and this one has not are gone: all of these objects are the operator's alone.
        kept = {"metadata": old["metadata"], "status": old.get("status", {})} if old else {}
        found = self.store(key[0], merged(kept, manifest))
        self.wrote("apply", *key)
        return found

    async def create(self, manifest):
        metadata = manifest["metadata"]
        key = (manifest["kind"], metadata["namespace"], metadata["name"])
        if key in self.items:
            raise AlreadyExistsError("AlreadyExists", "there")
        found = self.store(key[0], copy.deepcopy(manifest))
        self.wrote("create", *key)
        return found

    async def get(self, kind, namespace, name):
        assert kind != "Secret", "a Secret is never read"
        return copy.deepcopy(self.items.get((kind, namespace, name)))

    async def pages(self, kind, namespace, selector="", *, heads=False):
        if kind in self.unserved:
            raise NotFoundError("NotFound", "no such kind")
        self.lists.append((kind, heads))
        wanted = [part.split("=")[0] for part in selector.split(",") if part]
        found = [copy.deepcopy(i) for i in self.of(kind) if all(w in i["metadata"].get("labels", {}) for w in wanted)]
        for item in found:  # as the real one's
            item.pop("apiVersion", None)
            item.pop("kind", None)
            if heads:
                item.pop("spec", None)
                item.pop("status", None)
        yield found, next(self.version)

    async def events_on_pod(self, namespace, pod):
        return [e for e in self.of("Event") if e.get("regarding", {}).get("name") == pod]

    async def patch_pod(self, pod, *, labels=None, annotations=None):
        key = ("Pod", pod["metadata"]["namespace"], pod["metadata"]["name"])
        live = self.items.get(key)
        if live is None:
            raise NotFoundError("NotFound", "gone")
        if live["metadata"]["resourceVersion"] != pod["metadata"]["resourceVersion"]:
            raise ConflictError("Conflict", "newer")
        changed = {"metadata": {"labels": labels or {}, "annotations": annotations or {}}}
        found = self.store("Pod", merged(live, changed))
        self.wrote("patch", *key)
        return found

    async def write_status(self, resource, status):
        key = (KIND, resource["metadata"]["namespace"], resource["metadata"]["name"])
        live = self.items[key]
        check_conditions(status, live["metadata"]["generation"])
        assert not empty_parts(status), "the API server makes null of an object that was not empty before"
        found = self.store(KIND, {**live, "status": copy.deepcopy(status)})
        self.wrote("status", *key)
        return found

    async def delete(self, manifest):
        metadata = manifest["metadata"]
        key = (manifest["kind"], metadata["namespace"], metadata["name"])
        if self.items[key]["metadata"]["uid"] != metadata["uid"]:
            raise ConflictError("Conflict", "uid")
        del self.items[key]
        self.wrote("delete", *key)

    # --- the cluster's own controllers ---

    def settle(self, ready=True):
        """Deployments get their pods, pods become ready; what nobody owns goes."""
        for deployment in [*self.of("Deployment"), *map(led, self.of("LeaderWorkerSet"))]:
            name, selector = deployment["metadata"]["name"], deployment["spec"]["selector"]["matchLabels"]
            pods = [p for p in self.of("Pod") if p["metadata"]["name"].startswith(f"{name}-")]
            pods.sort(
                key=lambda p: int(
                    p["metadata"].get("annotations", {}).get("controller.kubernetes.io/pod-deletion-cost", 0)
                )
            )
            for pod in pods[: max(len(pods) - deployment["spec"]["replicas"], 0)]:
                del self.items["Pod", REF.namespace, pod["metadata"]["name"]]
            template = deployment["spec"]["template"]["metadata"]
            pods = [p for p in pods if ("Pod", REF.namespace, p["metadata"]["name"]) in self.items]
            gone = self.roll_on(deployment, pods)
            for _ in range(deployment["spec"]["replicas"] - len(pods) + gone):
                labels = template["labels"]
                assert selector.items() <= labels.items()
                self.store(
                    "Pod",
                    {
                        "kind": "Pod",
                        "metadata": {
                            "name": f"{name}-{next(self.version)}",
                            "namespace": REF.namespace,
                            "labels": dict(labels),
                            "annotations": dict(template.get("annotations") or {}),
                        },
                    },
                )
        for job in self.of("Job"):
            if ready and "status" not in job:
                self.store("Job", job | {"status": {"conditions": [{"type": "Complete", "status": "True"}]}})
        for pod in self.of("Pod"):
            if ready and "status" not in pod:
                pod["status"] = {
                    "conditions": [{"type": "Ready", "status": "True", "lastTransitionTime": READY}],
                    "phase": "Running",
                }
                self.store("Pod", pod)
            owners = [*self.of("Deployment"), *self.of("LeaderWorkerSet")]
            if not any(pod["metadata"]["name"].startswith(d["metadata"]["name"] + "-") for d in owners):
                del self.items["Pod", REF.namespace, pod["metadata"]["name"]]

    def roll_on(self, deployment, pods):
        """Pods of an older template go, how many: as the strategy allows, unready ones first, none if it is held."""
        spec, digest = deployment["spec"], digest_in(deployment["spec"]["template"])
        old = [pod for pod in pods if digest_in(pod) != digest]
        if spec.get("paused") or not old or len(pods) < spec["replicas"]:
            return 0
        # As the Deployment controller has it: wrecks first, then what serves down to the fewest that must.
        most, serving = int(spec["strategy"]["rollingUpdate"]["maxUnavailable"]), [p for p in pods if serves(p)]
        late = sum(not serves(p) for p in pods if p not in old)
        spare = max(len(serving) - (spec["replicas"] - most), 0)
        gone = [p for p in old if not serves(p)] + [p for p in old if serves(p)][:spare]
        gone = gone[: max(most - late, 0)]
        for pod in gone:
            del self.items["Pod", REF.namespace, pod["metadata"]["name"]]
        return len(gone)

    def state(self):
        """What is, without versions, times and names that chance gave."""
        found = {}
        for (kind, _, name), item in self.items.items():
            if kind in {"Event", "Secret"}:
                continue
            if kind == "Pod":
                labels = item["metadata"]["labels"]
                key = ("Pod", labels.get("tandem.dev/pool", "router"), labels.get("tandem.dev/role", ""))
                found[key] = found.get(key, 0) + 1
            elif kind == KIND:
                decision = item["status"]["decision"]
                found[kind] = (decision["target"], item["status"]["ratio"], item["status"]["observedGeneration"])
            else:
                found[kind, name] = copy.deepcopy(item.get("spec"))
        return found


class Silent:
    """A Prometheus that has nothing to say."""

    async def ask(self):
        return {}


def body_of(**spec):
    return {
        "apiVersion": "tandem.dev/v1alpha1",
        "kind": KIND,
        "metadata": {"name": "chat", "namespace": "serving", "generation": 1},
        "spec": {
            "model": {"source": "file:///models/m", "servedName": "m"},
            "pools": [
                {
                    "name": "prefill",
                    "role": "Prefill",
                    "hardware": {"accelerator": "h100-sxm"},
                    "replicas": {"min": 1, "max": 3},
                },
                {
                    "name": "decode",
                    "role": "Decode",
                    "hardware": {"accelerator": "h200-sxm"},
                    "replicas": {"min": 1, "max": 4, "initial": 2},
                },
            ],
            "slo": {"ttftMilliseconds": 500, "tpotMilliseconds": 40},
            "router": {"replicas": 1},
            **spec,
        },
    }


@pytest.fixture
def api():
    """An API server with one resource, `serving/chat`."""
    found = Api()
    found.store(KIND, body_of())
    return found


@pytest.fixture
def edit(api):
    """Change the resource's spec as a user does: the generation rises."""

    def change(how):
        item = copy.deepcopy(api.find(KIND, "chat"))
        how(item["spec"])
        item["metadata"]["generation"] += 1
        api.store(KIND, item)

    return change


async def fresh_world(api, settings=None):
    """An operator that has just started: it knows what the API server has, and nothing else."""
    world = World(
        settings or Settings(), api, Cache(), Fleet(Silent(), 60), Queue(lambda: 0.0), Recorder(""), Metrics()
    )
    await fill_cache(world)
    return world


@pytest.fixture
def start(api):
    """Start an operator anew."""
    return lambda settings=None: fresh_world(api, settings)


@pytest.fixture
def now():
    return datetime(2026, 1, 1, 12, tzinfo=UTC)
