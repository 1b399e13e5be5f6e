"""When a supervisor replaces children that have grown."""

from __future__ import annotations

import pytest

from holdfast.supervision import supervisor
from holdfast.supervision.supervisor import Options, Supervisor
from holdfast.supervision.ward import Stage, Ward
from holdfast.worker.recorder import Recorder
from holdfast.worker.slots import make_slots

SLOTS = make_slots(None, 4)


@pytest.mark.parametrize(
    ("stage", "then"),
    [(Stage.WORKING, Stage.WORKING), (Stage.RETIRING, Stage.STOPPING)],
    ids=["at work", "to be replaced"],
)
def test_a_child_that_is_too_large_at_rest_stays_unless_it_was_to_go(
    monkeypatch: pytest.MonkeyPatch, stage: Stage, then: Stage
) -> None:
    """All that it had in its hands may have been given back, and then it has finished nothing, and never will."""
    monkeypatch.setattr(supervisor, "resident_memory", lambda pid: 150)
    watching = Supervisor(Options("shop:hf", SLOTS, processes=1, max_memory=100))
    ward = Ward("shop:hf", SLOTS, 1, "INFO")
    ward.stage = stage
    watching._look_for_enough(ward, Recorder.in_memory(4).flight())
    assert ward.stage is then
