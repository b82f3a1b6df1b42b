"""When is another plan clearly better than staying?"""

from types import SimpleNamespace

import pytest

from tandem_operator.plan.desk import Option
from tandem_operator.plan.facts import Target
from tandem_operator.plan.moves import is_clearly_better
from tandem_operator.plan.predict import Forecast, Side


def option(attainment, sure, overload):
    side = Side(overload, None if overload > 1 else 400.0, attainment)
    return Option(Target({"p": 1, "d": 2}, 1, 2), Forecast(Side(0.3, 100.0, 1.0), side, 0.0), sure, 1.0, 3, 1)


@pytest.mark.parametrize(
    ("now", "other", "better"),
    [
        pytest.param((0.50, 0.40, 0.9), (0.99, 0.95, 0.6), True, id="more by far, and surely"),
        pytest.param((0.93, 0.90, 0.8), (0.96, 0.94, 0.7), False, id="a little more"),
        pytest.param((0.50, 0.40, 0.9), (0.90, 0.42, 0.8), False, id="more by far, but not surely"),
        pytest.param((0.00, 0.00, 1.98), (0.87, 0.00, 0.99), True, id="no surer, but staying is sure to fail"),
        pytest.param((0.00, 0.00, 1.05), (0.87, 0.00, 1.00), False, id="hardly lighter, and not sure"),
        pytest.param((0.00, 0.00, 2.00), (0.00, 0.00, 1.00), True, id="neither serves it: half the overload"),
        pytest.param((0.00, 0.00, 2.00), (0.00, 0.00, 1.90), False, id="neither serves it: about the same overload"),
    ],
)
def test_clearly_better(now, other, better):
    assert is_clearly_better(SimpleNamespace(current=option(*now)), option(*other)) is better
