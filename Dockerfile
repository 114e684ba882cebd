# The image of gpuledger.
#
#   docker build -t gpuledger:0.2.0 .                       `gpuledger` with any command
#   docker build -t gpuledger:0.2.0-smi --target smi .      serves on :9835, in nvidia_gpu_exporter's place
#   docker buildx build --platform linux/amd64,linux/arm64 ...
#
# No step depends on the architecture. Every package is pinned by its hash (`make lock`). A package without a wheel
# for the platform fails the build, as the image has no compiler.
ARG DEBIAN=debian:bookworm-slim

FROM ${DEBIAN} AS base
RUN apt-get update -q \
 && apt-get install -qy --no-install-recommends python3 tzdata \
 && rm -rf /var/lib/apt/lists/* /var/cache/apt/* /var/log/apt /var/log/*.log

FROM base AS build
RUN apt-get update -q \
 && apt-get install -qy --no-install-recommends binutils python3-pip python3-venv
WORKDIR /src
COPY requirements.lock requirements-build.lock ./
# The debug symbols of compiled modules are larger than the modules.
RUN python3 -m venv --without-pip /opt/gpuledger \
 && python3 -m venv --without-pip /opt/build \
 && pip --python /opt/gpuledger install --no-cache-dir --require-hashes --only-binary :all: -r requirements.lock \
 && pip --python /opt/build install --no-cache-dir --require-hashes --only-binary :all: -r requirements-build.lock \
 && find /opt/gpuledger -name '*.so' -exec strip --strip-debug {} +
COPY pyproject.toml README.md LICENSE ./
COPY src src
RUN /opt/build/bin/hatchling build -t wheel -d /wheels \
 && pip --python /opt/gpuledger install --no-cache-dir --no-index --no-deps /wheels/*.whl

FROM base AS program
# Root by default: the kubelet's socket, and which executable another user's process is, are root's to read. What needs
# neither may run as this user.
RUN groupadd --gid 65532 gpuledger \
 && useradd --uid 65532 --gid 65532 --no-create-home --home-dir /var/lib/gpuledger --shell /usr/sbin/nologin gpuledger \
 && install -d -m 0700 /var/lib/gpuledger \
 && install -d -m 0755 /run/gpuledger \
 && ln -s /opt/gpuledger/bin/gpuledger /usr/bin/gpuledger
COPY --from=build /opt/gpuledger /opt/gpuledger
# The container toolkit injects only the part of the driver that reads GPUs. The one who starts the container
# chooses the GPUs.
ENV NVIDIA_DRIVER_CAPABILITIES=utility \
    PYTHONDONTWRITEBYTECODE=1
ARG VERSION=0.2.0
ARG REVISION=unknown
LABEL org.opencontainers.image.title="gpuledger" \
      org.opencontainers.image.description="Who used this GPU, for how long, and what it cost, in books that balance." \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}"
ENTRYPOINT ["gpuledger"]

FROM program AS smi
EXPOSE 9835
ENTRYPOINT ["gpuledger", "serve", "--web.listen-address", ":9835"]

FROM program AS gpuledger
EXPOSE 9400
