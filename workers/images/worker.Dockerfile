# The worker. Never built where it was written (no container runtime there): check it before you rely on it.
# Build from the repository's root:  docker build -f workers/images/worker.Dockerfile -t tandem-worker .
# The locked torch is PyPI's CUDA build, so one image serves GPU and CPU nodes; the driver comes from the node.
FROM python:3.11-slim AS build
WORKDIR /src
RUN pip install --no-cache-dir uv==0.13.9
COPY requirements.lock pyproject.toml README.md ./
RUN uv venv /opt/tandem && uv pip install --python /opt/tandem/bin/python --require-hashes -r requirements.lock
COPY operator operator
COPY workers workers
RUN uv pip install --python /opt/tandem/bin/python --no-deps --no-build-isolation .
# The engine's kernels for CPUs with AVX-512 or AVX2; a starting worker compiles nothing.
RUN apt-get update && apt-get install -y --no-install-recommends g++ && /opt/tandem/bin/python -m tandem_worker.engine.native

FROM python:3.11-slim
# 65532: the user that the operator's pod specs name; it owns nothing and needs only /tmp.
RUN useradd --uid 65532 --no-create-home --shell /usr/sbin/nologin tandem
COPY --from=build /opt/tandem /opt/tandem
ENV PATH=/opt/tandem/bin:$PATH PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1
USER 65532:65532
EXPOSE 8000 8001
ENTRYPOINT ["tandem-worker"]
