# The sidecar alone, with Redis, TLS, tracing and KV events: no Envoy, no fitting libraries. Build: docker build -t fairlead .
# Run: docker run -v $PWD/fairlead.yaml:/etc/fairlead/fairlead.yaml:ro -p 9002:9002 fairlead
FROM python:3.11-slim-bookworm AS build
WORKDIR /src
COPY requirements.lock ./
RUN python -m venv /opt/fairlead \
 && /opt/fairlead/bin/pip install --no-cache-dir --disable-pip-version-check --require-hashes -r requirements.lock
COPY pyproject.toml hatch_build.py README.md LICENSE ./
COPY protos protos
COPY src src
RUN /opt/fairlead/bin/pip install --no-cache-dir --disable-pip-version-check --no-deps .

FROM python:3.11-slim-bookworm
RUN useradd --system --no-create-home --uid 10001 fairlead
COPY --from=build /opt/fairlead /opt/fairlead
USER 10001
# 9002: Envoy's processor, which the configuration must bind to 0.0.0.0 here. 9003: admin, on loopback unless you say.
EXPOSE 9002
STOPSIGNAL SIGTERM
ENTRYPOINT ["/opt/fairlead/bin/fairlead"]
CMD ["serve", "--config", "/etc/fairlead/fairlead.yaml"]
