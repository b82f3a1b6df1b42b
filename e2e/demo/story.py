"""The story's steps, in order; each prints what it did and raises when it was not so."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from pathlib import Path

from e2e.demo.chat import ask
from e2e.demo.rebalancing import Move, NotTrueError, Stage, demand, rebalance
from e2e.demo.screen import console, note, step, true, with_unit
from e2e.harness import cluster as clusters
from e2e.harness.cluster import Cluster
from e2e.harness.kube import REPO, Kube
from e2e.harness.memory import resident_mib
from e2e.harness.waiting import until
from e2e.harness.world import NAMESPACE, SYSTEM, install, wait_ready, wait_settled

DIRECTORY = REPO / "build/demo"
OUT = REPO / "build/demo-load"  # what the loads and the operator wrote; stays
NAME = "smollm2"
PORT = 16443
HELLO = '{"model": "smollm2", "stream": true, "messages": [{"role": "user", "content": "Hello"}]}'
QUESTION = "Why is the sky blue? Answer in one sentence."


def tell(*, keep: bool) -> None:
    """Steps 2 to 7; whatever happens, nothing is left behind unless `keep`."""
    start = time.monotonic()
    cluster = bring_up()
    try:
        deploy(cluster.kube)
        act(cluster)
        true(f"all of it was true, in {time.monotonic() - start:.0f} s")
    except BaseException:
        show_state(cluster.kube)
        raise
    finally:
        if keep:
            hints(cluster)
        else:
            take_down(cluster)


def bring_up() -> Cluster:
    """Step 2: the control plane and its nodes."""
    given = os.environ.get("KUBECONFIG")
    step(
        f"the cluster of KUBECONFIG={given}"
        if given
        else "a control plane: etcd, kube-apiserver, controller-manager, scheduler, kubelets"
    )
    start = time.monotonic()
    cluster = clusters.up(DIRECTORY, PORT)
    true(f"ready in {time.monotonic() - start:.1f} s")
    note(cluster.kube.run("get", "nodes", "-L", "nvidia.com/gpu.product").rstrip())
    return cluster


def deploy(kube: Kube) -> None:
    """Steps 3 and 4: the operator from its manifests, then the resource, until it is Ready."""
    step("the operator: kubectl apply -k manifests/overlays/local --server-side")
    install(kube)
    account = f"system:serviceaccount:{SYSTEM}:tandem-operator"
    can = subprocess.run(
        ["kubectl", "auth", "can-i", "get", "secrets", "-A", f"--as={account}"],
        env=kube.environment(),
        capture_output=True,
        text=True,
        check=False,
        timeout=30,
    )
    demand(can.stdout.strip() == "no", "the operator runs under its own service account and cannot read secrets")
    step("the resource: kubectl apply -f manifests/samples/smollm2.yaml")
    kube.run("apply", "--server-side", "-f", "manifests/samples/namespace.yaml")
    kube.run("apply", "--server-side", "--force-conflicts", "-f", "manifests/samples/smollm2.yaml")
    start = time.monotonic()
    wait_ready(kube, NAME, seconds=180)
    true(f"Ready=True after {time.monotonic() - start:.0f} s")
    wait_settled(kube, NAME)
    note(kube.run("get", "pods", "-n", NAMESPACE, "-o", "wide", "-L", "tandem.dev/role").rstrip())


def act(cluster: Cluster) -> None:
    """Steps 5 and 6: a chat, the loads, the replay."""
    OUT.mkdir(parents=True, exist_ok=True)
    stage = Stage(cluster, NAME, OUT)
    with stage.router() as url:
        converse(url)
    note(cluster.kube.run("get", "di", "-n", NAMESPACE).rstrip())
    moves = rebalance(stage)
    check_replay(cluster.kube)
    summary(moves)
    if cluster.directory is not None:
        note(f"memory of the control plane, the nodes and all pods: {resident_mib(cluster.directory):,} MiB")


def converse(url: str) -> None:
    """Step 5: one question, and the way that its answer took."""
    step(f"a chat through the OpenAI API: {QUESTION}")
    answer = ask(url, NAME, QUESTION)
    console.print(f"    [italic]{answer.text}[/]", soft_wrap=True)
    true(f"TTFT {answer.ttft_ms:,.0f} ms, TPOT {answer.tpot_ms:,.0f} ms")
    demand(
        "-prefill-" in answer.prefill_worker and "-decode-" in answer.decode_worker,
        f"prefill by {answer.prefill_worker}, decode by {answer.decode_worker}",
    )
    demand(answer.kv_bytes > 0, f"{answer.kv_bytes:,} bytes of KV moved between them")


def check_replay(kube: Kube) -> None:
    """The recorded observations, through `plan/` again, give the very decisions that were made."""
    step("the recorded observations, replayed through the planner")
    record = save_record(kube)
    tandem = Path(sys.executable).with_name("tandem")
    done = subprocess.run([tandem, "replay", record], capture_output=True, text=True, check=False, timeout=120)
    if done.returncode != 0:
        raise NotTrueError(f"replay differs:\n{done.stdout}{done.stderr}")
    true(done.stdout.strip().splitlines()[-1])


def save_record(kube: Kube) -> Path:
    """What the operator recorded, brought out of its pod to build/demo-load/decisions.jsonl."""
    lines = kube.run("exec", "-n", SYSTEM, "deployment/tandem-operator", "--", "cat", "/var/lib/tandem/decisions.jsonl")
    OUT.mkdir(parents=True, exist_ok=True)
    record = OUT / "decisions.jsonl"
    record.write_text(lines)
    return record


def summary(moves: list[Move]) -> None:
    """Before and after, in four lines."""
    step("before and after")
    for m in moves:
        unit = "TTFT" if m.load.starved == "prefill" else "TPOT"
        figures = [with_unit(s.ttft_ms if unit == "TTFT" else s.tpot_ms) for s in (m.off, m.before, m.after)]
        note(
            f"{m.load.title}: {m.ratios[0]} → {m.ratios[1]} after {m.moved_at:.0f} s; {unit} p90: "
            "Off {}, before {}, after {}".format(*figures)
        )


def show_state(kube: Kube) -> None:
    """What one would look at first."""
    with contextlib.suppress(RuntimeError, subprocess.TimeoutExpired):
        note(f"the operator's record: {save_record(kube)}")
    for words in (
        ("get", "di,deployments,pods", "-A", "-o", "wide"),
        ("describe", "di", "-n", NAMESPACE),
        ("logs", "-n", SYSTEM, "deployment/tandem-operator", "--tail=40"),
    ):
        try:
            console.print(kube.run(*words), soft_wrap=True, markup=False)
        except (RuntimeError, subprocess.TimeoutExpired) as error:
            console.print(f"(kubectl {' '.join(words)}: {error})", markup=False)


def take_down(cluster: Cluster) -> None:
    """Step 7: everything ends, and nothing is left."""
    step("taking everything down")
    if cluster.directory is None:
        cluster.kube.run("delete", "-f", "manifests/samples/smollm2.yaml", "--ignore-not-found", seconds=90)
        note("the cluster is not ours: the operator stays, the sample is deleted")
        return
    cluster.down()
    until("no process, mount or namespace is left", lambda: not clusters.leftovers(DIRECTORY), 20)
    true("no process, mount or namespace is left")


def hints(cluster: Cluster) -> None:
    """What to try on a cluster that stays up."""
    step("still up; try")
    shown = cluster.kube.kubeconfig
    here = shown.relative_to(Path.cwd()) if shown.is_relative_to(Path.cwd()) else shown
    for line in (
        f"export KUBECONFIG={here} PATH=$PWD/.venv/bin:$PATH",
        f"kubectl get di -n {NAMESPACE} -w",
        f"kubectl describe di {NAME} -n {NAMESPACE}",
        f"kubectl logs -n {SYSTEM} deployment/tandem-operator -f",
        f"kubectl tandem status {NAME} -n {NAMESPACE}",
        f"kubectl port-forward -n {NAMESPACE} service/{NAME}-router 8000:8000 &",
        f"curl -N http://127.0.0.1:8000/v1/chat/completions -H 'content-type: application/json' -d '{HELLO}'",
        "make down",
    ):
        console.print(f"    {line}", soft_wrap=True, markup=False)
