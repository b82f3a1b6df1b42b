import pytest

from tandem_operator.api.v1alpha1 import read
from tandem_operator.loop.observe import known_shape


@pytest.mark.parametrize(
    ("source", "layers"),
    [
        pytest.param("file:///models/Qwen3-32B", 64, id="a published model"),
        pytest.param("file:///models/DeepSeek-R1", 61, id="a published mixture of experts"),
        pytest.param("file:///models/ours", None, id="a model that nobody published"),
    ],
)
def test_an_engine_that_does_not_report_its_model_is_planned_for_by_its_name(api, source, layers):
    body = api.find("DisaggregatedInference", "chat")
    body["spec"]["model"]["source"] = source
    shape = known_shape(read(body).spec)
    assert (shape and shape.layers) == layers
