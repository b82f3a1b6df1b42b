import pytest

from workers.tests.engine.halves import GREEDY, PROMPTS, WARM
from workers.tests.tiny import generate, make_engine, write_tiny


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    return write_tiny(tmp_path_factory.mktemp("models") / "tiny")


@pytest.fixture
def engines(tiny):
    """Makes engines and stops them."""
    made = []

    def make(**changes):
        made.append(make_engine(tiny, **changes))
        return made[-1]

    yield make
    for engine in made:
        engine.stop()


@pytest.fixture(scope="module")
def expected(tiny):
    """Each prompt alone, unchunked, without a prefix cache."""
    engine = make_engine(tiny, chunk_tokens=512, prefix_cache=False, max_batch=1)
    found = {}
    for name, sampling in (("greedy", GREEDY), ("warm", WARM)):
        found[name] = [generate(engine, [prompt], sampling)[0] for prompt in PROMPTS]
    engine.stop()
    return found
