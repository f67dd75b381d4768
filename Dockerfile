# The sidecar with all that its configuration can ask for (the extra `serve`): no Envoy, no fitting libraries.
# Build: docker build -t fairlead .
# Run: docker run -v $PWD/fairlead.yaml:/etc/fairlead/fairlead.yaml:ro -p 9002:9002 fairlead
# The base by digest: docker build --build-arg BASE=python@sha256:..., which docs/image.md says how to find.
ARG BASE=python:3.11-slim-bookworm
FROM ${BASE} AS build
WORKDIR /src
COPY requirements.lock requirements-build.lock ./
RUN python -m venv /opt/fairlead && python -m venv /opt/build \
 && /opt/fairlead/bin/pip install --no-cache-dir --disable-pip-version-check --require-hashes -r requirements.lock \
 && /opt/build/bin/pip install --no-cache-dir --disable-pip-version-check --require-hashes -r requirements-build.lock
COPY pyproject.toml hatch_build.py README.md LICENSE ./
COPY protos protos
COPY src src
# Nothing is fetched from here on: each package was checked by its hash above.
RUN /opt/build/bin/pip wheel --no-cache-dir --disable-pip-version-check --no-index --no-build-isolation --no-deps -w dist . \
 && /opt/fairlead/bin/pip install --no-cache-dir --disable-pip-version-check --no-index --no-deps dist/*.whl

FROM ${BASE}
RUN useradd --system --no-create-home --uid 10001 fairlead
COPY --from=build /opt/fairlead /opt/fairlead
USER 10001
# 9002: Envoy's processor, which the configuration must bind to 0.0.0.0 here. 9003: admin, on loopback unless you say.
EXPOSE 9002
STOPSIGNAL SIGTERM
# Ready to decide, by the admin port: for another one than the default, and for other commands, see docs/image.md.
HEALTHCHECK --interval=5s --timeout=5s --start-period=30s CMD ["/opt/fairlead/bin/python", "-c", "import http.client as h; \
c = h.HTTPConnection('127.0.0.1:9003', timeout=2); c.request('GET', '/readyz'); raise SystemExit(c.getresponse().status != 200)"]
ENTRYPOINT ["/opt/fairlead/bin/fairlead"]
CMD ["serve", "--config", "/etc/fairlead/fairlead.yaml"]
