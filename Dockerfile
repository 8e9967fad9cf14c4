# `docker build .` builds from source; `--build-arg FEATURES=otel` with traces (docs/traces.md). The run-time stage stands first and alone, so that
# `--target runtime` gives what a binary built elsewhere needs around it (scripts/compose-smoke).

FROM debian:trixie-slim AS runtime
# Certificates of public authorities, for TLS to a database that is not next door.
RUN test -s /etc/ssl/certs/ca-certificates.crt \
    || (apt-get update -qq \
        && apt-get install -y -qq --no-install-recommends ca-certificates \
        && rm -rf /var/lib/apt/lists/*)
RUN useradd --system --uid 10001 --no-create-home --shell /usr/sbin/nologin fencepost
USER fencepost
# Workers (gRPC), producers and operators (HTTP).
EXPOSE 7433 7434
# The first SIGTERM drains: no new claims, workers told to go elsewhere, results still settled.
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=5s --timeout=3s --start-period=20s --retries=3 \
    CMD ["fencepost", "healthcheck", "--http", "127.0.0.1:7434"]
ENTRYPOINT ["fencepost"]
CMD ["serve", "--grpc", "0.0.0.0:7433", "--http", "0.0.0.0:7434"]

FROM rust:1.95-slim-trixie AS build
ARG FEATURES=""
WORKDIR /src
# Dependencies first: this layer changes with the lock file only.
COPY Cargo.toml Cargo.lock ./
RUN mkdir -p src tests/it \
    && echo 'fn main() {}' | tee build.rs src/main.rs tests/it/main.rs >/dev/null \
    && touch src/lib.rs \
    && cargo build --release --locked --features "$FEATURES"
COPY build.rs ./
COPY proto proto
COPY migrations migrations
COPY sql sql
COPY src src
# Copied files keep their times, which may be older than the layer above.
RUN touch build.rs src/lib.rs src/main.rs && cargo build --release --locked --features "$FEATURES"

FROM runtime
COPY --from=build /src/target/release/fencepost /usr/local/bin/fencepost
