# The server in an image. docs/deploy.md says how it is run.
#
#   docker build -t plimsoll .                                                        CPU
#   docker build -t plimsoll:cuda --build-arg RUNTIME=nvidia/cuda:13.0.2-runtime-ubuntu24.04 .
#   docker build -t plimsoll:cuda --build-arg "CUDA_WHEELS=nvidia-cublas<14 nvidia-nccl-cu13" .
#
# The last one takes the two CUDA libraries of serving out of their Python wheels: smaller than NVIDIA's image. The
# driver is in none of them: it comes from the host (`--gpus all`).

ARG RUST_IMAGE=rust:1.95-slim-bookworm
ARG PYTHON_IMAGE=python:3.12-slim-bookworm
# Of the same glibc as the image of Rust, or a later one.
ARG RUNTIME=debian:bookworm-slim

FROM ${RUST_IMAGE} AS build
WORKDIR /src
# What the program is made of, a folder a line: documentation and scripts may change without a build.
COPY Cargo.toml Cargo.lock ./
COPY core core
COPY backend-sim backend-sim
COPY backend-host backend-host
COPY backend-cuda backend-cuda
COPY calibrate calibrate
COPY catalog catalog
COPY checkpoint checkpoint
COPY cli cli
COPY diagnosis diagnosis
COPY fuzz fuzz
COPY ingest ingest
COPY python python
COPY replay replay
COPY report report
COPY scenarios scenarios
COPY server server
COPY sweep sweep
# Not built: the manifest names them.
COPY benches benches
COPY tests/main.rs tests/main.rs
RUN --mount=type=cache,target=/usr/local/cargo/registry \
    --mount=type=cache,target=/src/target \
    cargo build --release --locked --bin plimsoll \
    && cp target/release/plimsoll /plimsoll

FROM ${PYTHON_IMAGE} AS libraries
# Names of wheels, as pip takes them; none by default.
ARG CUDA_WHEELS=""
RUN set -eu; \
    mkdir -p /cuda /wheels; \
    set -f; set -- ${CUDA_WHEELS}; set +f; \
    if [ "$#" -gt 0 ]; then \
      pip install --quiet --no-cache-dir --no-deps --target /wheels "$@"; \
      find /wheels/nvidia \( -name 'libcublasLt.so.*' -o -name 'libnccl.so.*' \) -exec mv -t /cuda {} +; \
      test -n "$(ls /cuda)"; \
    fi; \
    rm -rf /wheels

FROM ${RUNTIME}
COPY --from=build /plimsoll /usr/local/bin/plimsoll
COPY --from=libraries /cuda /opt/cuda
# The loader is told by its own file: a variable would replace that of NVIDIA's image.
RUN set -eu; \
    echo /opt/cuda > /etc/ld.so.conf.d/plimsoll.conf; \
    ldconfig; \
    groupadd --gid 10001 plimsoll; \
    useradd --uid 10001 --gid 10001 --no-create-home --home-dir /nonexistent --shell /usr/sbin/nologin plimsoll; \
    install -d -o 10001 -g 10001 /recordings
# What the container runtime brings of the driver: its library, and NVML.
ENV NVIDIA_VISIBLE_DEVICES=all \
    NVIDIA_DRIVER_CAPABILITIES=compute,utility
# By number, so that Kubernetes can see that it is not root.
USER 10001:10001
WORKDIR /recordings
VOLUME /recordings
EXPOSE 30000
# It drains on SIGTERM; give it `docker stop --timeout 90`.
STOPSIGNAL SIGTERM
# One look at the server's own pages, which need no key: the program is the client.
HEALTHCHECK --interval=15s --timeout=10s --start-period=120s --retries=3 \
    CMD plimsoll watch http://127.0.0.1:30000 --once --memory none --timeout 5s --output /dev/null 2>/dev/null || exit 1
ENTRYPOINT ["plimsoll"]
# The model is mounted: a folder from the hub, or one .gguf file, as /model.
CMD ["serve", "--model-path", "/model", "--host", "0.0.0.0", "--port", "30000"]
