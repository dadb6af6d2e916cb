# Images that train with Horovod: targets cpu and gpu. How to build, run and check them: docs/images.md.
#   docker build --target cpu --tag wirebench:cpu . && docker run --rm wirebench:cpu
#
# Any Debian or Ubuntu with Python 3.11 or 3.12 will do, for both targets: CUDA comes from the Python package index.
# Debian 12.15, for all architectures.
ARG BASE_IMAGE=debian:bookworm-slim@sha256:88200866dfff7ea7f5cbcb6ec7c8a701889efe6fe859fe64d6990e4b07ea4171

# What both images start from: Python, ssh and MPI for runs over several hosts, tc for links of a chosen rate, and the
# run-time packages as requirements.lock pins them. 6 GB, never copied.
FROM ${BASE_IMAGE} AS environment
RUN apt-get update \
    && DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends \
        ca-certificates iproute2 openmpi-bin openssh-client openssh-server python3 python3-venv \
    && rm -rf /var/lib/apt/lists/* /etc/ssh/ssh_host_* \
    && python3 -m venv /opt/venv
ENV PATH=/opt/venv/bin:$PATH
WORKDIR /app
COPY pyproject.toml requirements.lock ./
# The dependencies, and the extras that training and figures need: no compiler, no linter.
RUN python -c 'import tomllib as t; p = t.load(open("pyproject.toml", "rb"))["project"]; e = p["optional-dependencies"]; \
        print(*p["dependencies"], *e["train"], *e["figures"], *e["horovod"], *e["papers"][1:], sep="\n")' >/tmp/wanted \
    && python -m pip install --no-cache-dir --progress-bar off --constraint requirements.lock -r /tmp/wanted \
    && rm /tmp/wanted

# The stages that build Horovod, and alone have compilers.
FROM environment AS compilers
RUN apt-get update \
    && DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends g++ libopenmpi-dev make python3-dev \
    && rm -rf /var/lib/apt/lists/* \
    && python -m pip install --no-cache-dir --progress-bar off --constraint requirements.lock cmake wheel
COPY scripts/build_horovod.sh scripts/

# MPI=only leaves Gloo out, as conda-forge's Horovod does: the image then trains by mpirun alone.
FROM compilers AS wheel-cpu
ARG MPI=1
RUN mkdir /wheel && cp "$(GPU_OPS=none MPI=$MPI bash scripts/build_horovod.sh /opt/venv/bin/python)" /wheel

# The project's user, who may write results and nothing else, and ssh between the hosts of one job.
FROM environment AS application
RUN useradd --create-home --shell /bin/bash --uid 1000 wirebench \
    && install -d -o wirebench -g wirebench results results/runs && install -d /run/sshd \
    && printf '#!/bin/sh\nexec python -m wirebench "$@"\n' >/usr/local/bin/wirebench && chmod 755 /usr/local/bin/wirebench
COPY launch/ssh_config /etc/ssh/ssh_config.d/wirebench.conf
COPY launch/sshd_config /home/wirebench/sshd_config
# One thread a rank, as torchrun does: ranks share the cores. Traffic stays on the loopback interface.
ENV HOME=/home/wirebench PYTHONPATH=/app PYTHONUNBUFFERED=1 NP=4 OMP_NUM_THREADS=1 GLOO_SOCKET_IFNAME=lo
LABEL org.opencontainers.image.title=wirebench \
    org.opencontainers.image.description="A benchmark suite for what data-parallel training puts on the wire" \
    org.opencontainers.image.licenses=Apache-2.0

# nvcc comes from the package index, of the same release as PyTorch's CUDA. It lacks two names that CMake looks for.
FROM compilers AS wheel-gpu
RUN python -m pip install --no-cache-dir --progress-bar off --constraint requirements.lock 'cuda-toolkit[nvcc,cudart]' \
    && ln -s "$(dirname /opt/venv/lib/python3*/site-packages/nvidia/*/bin/nvcc | xargs dirname)" /opt/cuda \
    && ln -s lib /opt/cuda/lib64 \
    && ln -s "$(basename /opt/cuda/lib/libcudart.so.*)" /opt/cuda/lib/libcudart.so
# A failed build must not end in the CPU build that the script falls back to.
RUN mkdir /wheel \
    && cp "$(CUDA_HOME=/opt/cuda GPU_OPS=nccl MPI=1 bash scripts/build_horovod.sh /opt/venv/bin/python | grep nccl)" /wheel

# The NCCL build carries CPU tensors over Gloo, so this image runs without a GPU too.
# Triton builds the launcher of its kernels where it starts them, with a C compiler and Python's headers.
FROM application AS gpu
RUN apt-get update \
    && DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends gcc libc6-dev python3-dev \
    && rm -rf /var/lib/apt/lists/*
COPY --from=wheel-gpu /wheel /wheel
RUN python -m pip install --no-cache-dir --no-index --no-deps /wheel/*.whl && rm -r /wheel
# What changes most comes last: after an edit only this is done again.
COPY . ./
# NCCL takes one process a GPU.
ENV NP=1 NVIDIA_VISIBLE_DEVICES=all NVIDIA_DRIVER_CAPABILITIES=compute,utility
USER wirebench
CMD ["configs/smoke.toml"]
ENTRYPOINT ["sh", "-c", "exec horovodrun -np $NP -H 127.0.0.1:$NP --gloo --network-interface lo --disable-cache --gloo-timeout-seconds 120 python train.py \"$@\"", "horovodrun"]

FROM application AS cpu
COPY --from=wheel-cpu /wheel /wheel
RUN python -m pip install --no-cache-dir --no-index --no-deps /wheel/*.whl && rm -r /wheel
# What changes most comes last: after an edit only this is done again.
COPY . ./
USER wirebench
CMD ["configs/smoke.toml"]
ENTRYPOINT ["sh", "-c", "exec horovodrun -np $NP -H 127.0.0.1:$NP --gloo --network-interface lo --disable-cache --gloo-timeout-seconds 120 python train.py \"$@\"", "horovodrun"]
