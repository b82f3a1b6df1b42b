# The router: no torch. Never built where it was written (no container runtime there): check it before you rely on it.
# Build from the repository's root:  docker build -f workers/images/router.Dockerfile -t tandem-router .
FROM python:3.11-slim AS build
WORKDIR /src
RUN pip install --no-cache-dir uv==0.13.9
COPY requirements.lock pyproject.toml README.md ./
COPY operator operator
COPY workers workers
# The lock is a constraint here: this image takes the versions that were tested, and only the packages of its extra.
RUN uv venv /opt/tandem \
 && sed -e 's/ *--hash=[^ ]*//; s/ *\\$//' -e '/^ *$/d' -e '/^ *#/d' requirements.lock > constraints.txt \
 && uv pip install --python /opt/tandem/bin/python --constraint constraints.txt ".[router]"

FROM python:3.11-slim
RUN useradd --uid 65532 --no-create-home --shell /usr/sbin/nologin tandem
COPY --from=build /opt/tandem /opt/tandem
ENV PATH=/opt/tandem/bin:$PATH PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1
USER 65532:65532
EXPOSE 8000
ENTRYPOINT ["tandem-router"]
