"""The cache: news, old news, and what a list puts right."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tandem_operator.edges.errors import NotFoundError
from tandem_operator.edges.kinds import RESOURCE
from tandem_operator.loop.cache import Cache, ref_of
from tandem_operator.loop.handlers import SETTLE_S, take_event
from tandem_operator.loop.refs import Ref
from tandem_operator.loop.resync import take_kind

REF = Ref("ns", "chat")


def pod(version, name="p", resource="chat"):
    labels = {"tandem.dev/resource": resource} if resource else {}
    return {"metadata": {"name": name, "namespace": "ns", "resourceVersion": str(version), "labels": labels}}


def test_an_older_version_is_no_news():
    cache = Cache()
    assert cache.put("Pod", pod(5))
    assert not cache.put("Pod", pod(5))
    assert not cache.put("Pod", pod(4))
    assert cache.put("Pod", pod(10)), "versions are numbers, not text"
    assert cache.of(REF, "Pod")[0]["metadata"]["resourceVersion"] == "10"


def test_a_deleted_object_does_not_come_back_from_an_old_event():
    cache = Cache()
    cache.put("Pod", pod(5))
    cache.drop("Pod", pod(6))
    assert not cache.put("Pod", pod(5))
    assert cache.of(REF, "Pod") == []
    assert cache.put("Pod", pod(7)), "made anew"


def test_a_deletion_that_comes_late_does_not_remove_the_new_object():
    cache = Cache()
    cache.put("Pod", pod(9))
    cache.drop("Pod", pod(6))
    assert len(cache.of(REF, "Pod")) == 1


async def test_a_list_puts_right_what_the_watch_missed():
    lists = [[pod(8, "changed"), pod(7, "missed-creation")]]
    world = listing(lists, as_of=10)
    for missed in (pod(5, "missed-deletion"), pod(5, "changed"), pod(20, "newer-than-the-list")):
        world.cache.put("Pod", missed)
    assert await take_kind(world, "Pod") == {REF}
    names = ["changed", "missed-creation", "newer-than-the-list"]
    assert [p["metadata"]["name"] for p in world.cache.of(REF, "Pod")] == names
    lists[:] = [[pod(8, "changed")], [pod(7, "missed-creation"), pod(20, "newer-than-the-list")]]
    assert await take_kind(world, "Pod") == set(), "two pages of the same"


async def test_after_a_list_an_old_event_does_not_bring_back_what_the_list_did_not_have():
    lists = [[pod(5, "gone"), pod(5, "stays")]]
    world = listing(lists, as_of=6)
    await take_kind(world, "Pod")
    world.cache.drop("Pod", pod(8, "gone"))
    lists[:] = [[pod(5, "stays")]]
    world.as_of = 10
    assert await take_kind(world, "Pod") == set()
    assert not world.cache.put("Pod", pod(7, "gone")), "an event that comes late, from before the deletion"
    assert world.cache.put("Pod", pod(11, "gone")), "made anew"
    lists[:] = [[pod(5, "stays"), pod(9, "never-told"), pod(11, "gone")]]
    world.as_of = 12
    assert await take_kind(world, "Pod") == {REF}, "a list is believed whatever the one before said"


async def test_an_api_that_is_gone_takes_its_objects_along():
    world = listing(NotFoundError("NotFound", "no such kind"))
    world.cache.put("PodMonitor", pod(5))
    with pytest.raises(NotFoundError):
        await take_kind(world, "Pod")
    assert await take_kind(world, "PodMonitor") == {REF}
    assert world.cache.all("PodMonitor") == []
    assert world.absent == {"PodMonitor"}
    assert world.cache.put("PodMonitor", pod(6)), "it is served again"


def listing(lists, as_of=0):
    """A world whose API server answers a list with these pages, or raises."""

    class Kube:
        async def pages(self, *_, heads):  # whole objects have metadata, too
            if isinstance(lists, Exception):
                raise lists
            for items in lists:
                yield items, world.as_of

    settings = SimpleNamespace(namespace="")
    world = SimpleNamespace(cache=Cache(), kube=Kube(), absent=set(), settings=settings, as_of=as_of)
    return world


@pytest.mark.parametrize(
    ("field", "value", "kept"),
    [
        pytest.param("spec", {"containers": [{"name": "worker"}]}, None, id="a pod's spec is in its Deployment"),
        pytest.param(
            "status",
            {"phase": "Running", "hostIP": "1.2.3.4", "conditions": [{"type": "Ready", "status": "True"}]},
            {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]},
            id="of a status what passes read",
        ),
    ],
)
def test_pods_are_kept_small(field, value, kept):
    cache = Cache()
    cache.put("Pod", {**pod(5), field: value})
    assert cache.of(REF, "Pod")[0].get(field) == kept


PARTS = st.recursive(
    st.none() | st.booleans() | st.integers(-2, 2) | st.sampled_from([0.0, 1.0, 1.5]) | st.text("ab", max_size=2),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text("ab", max_size=2), inner, max_size=3),
    max_leaves=12,
)


@given(st.lists(st.dictionaries(st.text("ab", max_size=2), PARTS, max_size=3), max_size=5))
def test_what_is_shared_is_still_the_same(specs):
    cache = Cache()
    for number, spec in enumerate(specs):
        cache.put("Deployment", {**pod(5, f"d{number}"), "spec": spec})
    found = [cache.find("Deployment", "ns", f"d{number}")["spec"] for number in range(len(specs))]
    assert list(map(repr, found)) == list(map(repr, specs)), "True is not 1, and 1 is not 1.0"


def test_an_item_of_a_list_says_what_it_is():
    cache = Cache()
    cache.put("Deployment", pod(5, "d"))
    found = cache.find("Deployment", "ns", "d")
    assert (found["apiVersion"], found["kind"]) == ("apps/v1", "Deployment")


def test_equal_parts_are_kept_once():
    cache = Cache()
    for name in ("a", "b"):
        cache.put("Deployment", {**pod(5, name), "spec": {"template": {"probe": {"port": 8000}}, "replicas": 1}})
    one, other = (cache.find("Deployment", "ns", name) for name in ("a", "b"))
    assert one["spec"] is other["spec"]
    assert one["metadata"]["labels"] is other["metadata"]["labels"]


def test_a_label_that_moves_takes_the_object_along():
    cache = Cache()
    cache.put("Pod", pod(5))
    cache.put("Pod", pod(6, resource="other"))
    assert cache.of(REF, "Pod") == []
    assert len(cache.of(Ref("ns", "other"), "Pod")) == 1
    assert len(cache.all("Pod")) == 1


def test_whose_an_object_is():
    assert ref_of("Pod", pod(1)) == REF
    assert ref_of("Pod", pod(1, resource=None)) is None
    assert ref_of("DisaggregatedInference", pod(1, "mine")) == Ref("ns", "mine")


class Marks(list):
    """Who is marked, and when."""

    running = False

    def is_running(self, ref):
        return self.running and ref == REF

    def mark(self, ref):
        self.append((ref, "now"))

    def mark_later(self, ref, seconds):
        self.append((ref, seconds))


def child(version, generation=None, **metadata):
    found = pod(version)
    found["metadata"] |= metadata | ({"generation": generation} if generation else {})
    return found


def cr(version, generation, **metadata):
    found = child(version, generation, **metadata)
    found["metadata"]["name"] = REF.name
    return found


@pytest.mark.parametrize(
    ("kind", "events", "wakes"),
    [
        pytest.param("Pod", [("ADDED", pod(5)), ("MODIFIED", pod(5))], [SETTLE_S], id="only news, once settled"),
        pytest.param("Pod", [("ADDED", pod(5)), ("DELETED", pod(6))], [SETTLE_S, "now"], id="a pod goes"),
        pytest.param("Pod", [("ADDED", pod(5, resource=None))], [], id="nobody's"),
        pytest.param("Service", [("ADDED", child(5)), ("MODIFIED", child(6))], ["now", "now"], id="no generation"),
        pytest.param(
            "Deployment",
            [("ADDED", child(5, 1)), ("MODIFIED", child(6, 1)), ("MODIFIED", child(7, 2))],
            ["now", SETTLE_S, "now"],
            id="a status moves, a spec is edited",
        ),
    ],
)
def test_what_wakes_and_when(kind, events, wakes):
    cache, queue = Cache(), Marks()
    for what, item in events:
        take_event(kind, {"type": what, "object": item}, cache, queue)
    assert queue == [(REF, when) for when in wakes]


GOING = {"deletionTimestamp": "2026-01-01T00:00:00Z"}


@pytest.mark.parametrize(
    ("kind", "what", "item", "when"),
    [
        pytest.param("Service", "ADDED", child(5), SETTLE_S, id="a child appears: the pass has made it"),
        pytest.param("Deployment", "MODIFIED", child(6, 2), SETTLE_S, id="a child has another spec: applied"),
        pytest.param("Deployment", "DELETED", child(6, 1), "now", id="a child goes: no pass deletes what it needs"),
        pytest.param("Deployment", "MODIFIED", child(6, 2, **GOING), "now", id="a child is going"),
        pytest.param(RESOURCE, "MODIFIED", cr(6, 1), SETTLE_S, id="the resource's status moves: written"),
        pytest.param(RESOURCE, "MODIFIED", cr(6, 2), "now", id="the resource is edited"),
        pytest.param(RESOURCE, "MODIFIED", cr(6, 1, **GOING), "now", id="the resource is going"),
    ],
)
def test_what_a_pass_may_have_written_itself_wakes_later(kind, what, item, when):
    cache, queue = Cache(), Marks()
    cache.put("Deployment", child(5, 1))
    cache.put(RESOURCE, cr(5, 1))
    queue.running = True
    take_event(kind, {"type": what, "object": item}, cache, queue)
    assert queue == [(REF, when)]


@pytest.mark.parametrize(
    ("what", "after"),
    [
        pytest.param("MODIFIED", {"tandem.dev/resource": "other"}, id="moved"),
        pytest.param("DELETED", {}, id="taken off: the watch sees it no more"),
    ],
)
def test_whose_label_is_changed_is_woken(what, after):
    cache, queue = Cache(), Marks()
    cache.put("Service", pod(5))
    item = pod(6)
    item["metadata"]["labels"] = after
    take_event("Service", {"type": what, "object": item}, cache, queue)
    assert (REF, "now") in queue
    assert cache.of(REF, "Service") == []
