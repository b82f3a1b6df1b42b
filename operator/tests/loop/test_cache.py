"""The cache: news, old news, and what a list puts right."""

from __future__ import annotations

from tandem_operator.loop.cache import Cache, ref_of
from tandem_operator.loop.handlers import take_event
from tandem_operator.loop.refs import Ref

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


def test_a_list_puts_right_what_the_watch_missed():
    cache = Cache()
    cache.put("Pod", pod(5, "missed-deletion"))
    cache.put("Pod", pod(5, "changed"))
    cache.put("Pod", pod(20, "newer-than-the-list"))
    changed = cache.replace("Pod", [pod(8, "changed"), pod(7, "missed-creation")], as_of=10)
    assert changed == {REF}
    assert [p["metadata"]["name"] for p in cache.of(REF, "Pod")] == [
        "changed",
        "missed-creation",
        "newer-than-the-list",
    ]
    assert (
        cache.replace("Pod", [pod(8, "changed"), pod(7, "missed-creation"), pod(20, "newer-than-the-list")], 21)
        == set()
    )


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


def test_only_news_wakes():
    class Marks(list):
        mark = list.append

    cache, queue = Cache(), Marks()
    take_event("Pod", {"type": "ADDED", "object": pod(5)}, cache, queue)
    take_event("Pod", {"type": "MODIFIED", "object": pod(5)}, cache, queue)
    take_event("Pod", {"type": "ADDED", "object": pod(5, resource=None)}, cache, queue)
    take_event("Pod", {"type": "DELETED", "object": pod(6)}, cache, queue)
    assert queue == [REF, REF]
