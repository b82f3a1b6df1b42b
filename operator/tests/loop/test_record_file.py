"""The record: lines that replay, in a file that stays bounded."""

from __future__ import annotations

import json
from datetime import UTC, datetime

from tandem_operator.loop.record import Recorder
from tandem_operator.loop.refs import Ref
from tandem_operator.plan.decide import decide
from tandem_operator.plan.facts import Answer, Limits, Observed, RebalanceMode, Slo, Verdict
from tandem_operator.plan.record import replay

NOW = datetime(2026, 1, 1, tzinfo=UTC)
SEEN = Observed(
    Limits(Slo(500, 40, 95), RebalanceMode.AUTO, ()), (), (), None, None, Verdict(Answer.UNKNOWN, "NoSamples", "none")
)
REF = Ref("ns", "chat")


def test_lines_replay(tmp_path):
    path = tmp_path / "decisions.jsonl"
    for _ in range(3):
        Recorder(str(path)).write(REF, SEEN, NOW, decide(SEEN, NOW))
    lines = path.read_text().splitlines()
    assert len(lines) == 3
    assert json.loads(lines[0])["resource"] == "ns/chat"
    assert replay(lines) == []


def test_the_file_is_turned_over(tmp_path):
    path = tmp_path / "decisions.jsonl"
    recorder = Recorder(str(path), max_bytes=4000)
    for _ in range(40):
        recorder.write(REF, SEEN, NOW, decide(SEEN, NOW))
    assert path.stat().st_size <= 4000
    assert sorted(p.name for p in tmp_path.iterdir()) == ["decisions.jsonl", "decisions.jsonl.1"]


def test_a_disk_that_is_gone_costs_the_record_alone(tmp_path, caplog):
    Recorder(str(tmp_path / "nowhere" / "x")).write(REF, SEEN, NOW, decide(SEEN, NOW))
    assert "was not recorded" in caplog.text
    Recorder("").write(REF, SEEN, NOW, decide(SEEN, NOW))
