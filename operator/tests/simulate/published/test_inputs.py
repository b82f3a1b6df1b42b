import numpy as np
import pytest

from tandem_operator.simulate.published.inputs import InputError, cut, poisson, read_azure, replay

HEAD = "TIMESTAMP,ContextTokens,GeneratedTokens\r\n"
ROWS = "2023-11-16 18:15:46.6805900,374,44\r\n2023-11-16 18:15:48.1805900,2000,109\r\n"


@pytest.fixture
def azure(tmp_path):
    path = tmp_path / "azure.csv"
    path.write_text(HEAD + ROWS, newline="")
    return read_azure(path)


def test_a_replay(azure):
    again = replay(azure)
    assert again.at == pytest.approx([0.001, 1.501])
    assert again.prompt.tolist() == [374, 2000]
    assert again.output.tolist() == [44, 109]


def test_a_cut(azure):
    short = cut(azure, 1500, 100, slower=4)
    assert (short.at.tolist(), short.prompt.tolist(), short.output.tolist()) == ([0.0, 6.0], [374, 1500], [44, 100])


def test_a_sweep_draws_lengths_apart(azure):
    made = poisson(azure, 50, 100)
    assert len(made) == pytest.approx(5000, rel=0.05)
    assert (np.diff(made.at) >= 0).all()
    assert made.at[-1] < 100
    assert set(zip(made.prompt.tolist(), made.output.tolist(), strict=True)) == {
        (374, 44),
        (374, 109),
        (2000, 44),
        (2000, 109),
    }
    assert poisson(azure, 50, 100).at.tolist() == made.at.tolist()


@pytest.mark.parametrize(
    ("text", "error"),
    [
        pytest.param("TIMESTAMP,ContextTokens\n", "GeneratedTokens is missing", id="a column"),
        pytest.param(HEAD + "yesterday,1,2\r\n", "line 2", id="no time"),
        pytest.param(HEAD + ROWS + "2023-11-16 18:15:46.6805900,x,44\r\n", "line 4", id="no number"),
        pytest.param(HEAD, "no requests", id="empty"),
    ],
)
def test_what_is_no_trace_is_refused(tmp_path, text, error):
    path = tmp_path / "azure.csv"
    path.write_text(text, newline="")
    with pytest.raises(InputError, match=error):
        read_azure(path)
