import pytest

from tandem_operator.simulate.published.costs import Line, Point, context_counted, line, measured, of_table, read_table

HEAD = "model,hardware,prompt_size,batch_size,token_size,prompt_time,token_time,tensor_parallel\n"


@pytest.mark.parametrize(
    ("query", "value"),
    [
        pytest.param(10, 1.0, id="first point"),
        pytest.param(15, 1.5, id="between"),
        pytest.param(20, 2.0, id="middle point"),
        pytest.param(30, 4.0, id="second slope"),
        pytest.param(0, 0.0, id="below, carried on"),
        pytest.param(50, 8.0, id="above, carried on"),
    ],
)
def test_a_line(query, value):
    assert Line((10, 20, 40), (1.0, 2.0, 6.0)).at(query) == pytest.approx(value)


def test_a_line_takes_the_median_of_each_x():
    assert line([(2, 9.0), (1, 1.0), (2, 5.0), (2, 6.0)]) == Line((1, 2), (1.0, 6.0))


def test_measured_knows_tokens_alone():
    costs = measured([Point(100, 1, 10, 1.0, 0.1), Point(100, 2, 10, 2.0, 0.2)])
    assert costs.prompt_s([50, 50], 0, 0) == pytest.approx(1.0)
    assert costs.prompt_s([50, 49], 1, 12345) == pytest.approx(1.1), "decodes ride along: a tenth more"
    assert costs.step(100, 99999) == (pytest.approx(0.1), 0.0), "100 requests ask the line at 100 tokens"


def test_context_is_fitted_from_the_same_table():
    # step = 2 + 3·batch + 0.5·batch·(prompt + output/2), as measured without error.
    shapes = [(1, 100), (2, 100), (4, 100), (1, 200), (1, 400)]
    points = [Point(p, b, 20, p * b, 2 + 3 * b + 0.5 * b * (p + 10)) for b, p in shapes]
    costs = context_counted(points)
    assert (costs.base_s, costs.request_s, costs.context_token_s) == (
        pytest.approx(2),
        pytest.approx(3),
        pytest.approx(0.5),
    )
    assert costs.step(2, 300) == (pytest.approx(2 + 6 + 150), pytest.approx(1.0)), "each step adds 2 tokens of context"


def test_the_table_is_read_in_seconds(tmp_path):
    path = tmp_path / "table.csv"
    path.write_text(HEAD + "m,h,512,2,128,250.0,40.0,8\n")
    assert of_table(read_table(path), "m", "h") == [Point(512, 2, 128, 0.25, 0.04)]


def test_a_machine_that_was_not_measured_is_refused(tmp_path):
    with pytest.raises(LookupError, match="no rows for"):
        of_table({}, "m", "h")
