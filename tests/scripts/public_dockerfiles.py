"""Healthy Dockerfiles in the shapes that public projects use, written for these tests.

Name -> text.
"""

WHEELS = "https://download.pytorch.org/whl"

HEALTHY = {
    "a CUDA base, torch of its index, flash-attn compiled": f"""\
FROM nvidia/cuda:12.4.1-cudnn-devel-ubuntu22.04
ENV DEBIAN_FRONTEND=noninteractive TOKENIZERS_PARALLELISM=false
RUN apt-get update && apt-get install -y python3.10 python3-pip git && rm -rf /var/lib/apt/lists/*
RUN pip3 install --no-cache-dir torch==2.6.0 torchvision==0.21.0 torchaudio==2.6.0 --index-url {WHEELS}/cu124
RUN pip3 install --no-cache-dir flash-attn==2.7.4.post1 --no-build-isolation
COPY . /workspace
WORKDIR /workspace
CMD ["python3", "train.py"]
""",
    "PyTorch's image and a file of requirements": """\
FROM pytorch/pytorch:2.4.0-cuda12.1-cudnn9-devel
ENV CUDA_HOME="/usr/local/cuda"
RUN apt-get update; apt-get install -y curl unzip git
COPY ./requirements.txt /workspace/requirements.txt
RUN pip install -r /workspace/requirements.txt
RUN pip install flash-attn==2.6.3 --no-build-isolation
CMD ["/bin/bash"]
""",
    "PyTorch's image whose torch is asked for again": """\
FROM pytorch/pytorch:2.6.0-cuda12.6-cudnn9-devel
RUN pip install torch==2.6.0 torchvision torchaudio
RUN pip install flash-attn --no-build-isolation
""",
    "NGC with packages beside its torch": """\
FROM nvcr.io/nvidia/pytorch:24.10-py3
RUN pip install ninja deepspeed==0.15.4 einops transformers==4.46.0
RUN git clone https://github.com/Dao-AILab/flash-attention && cd flash-attention && python setup.py install
ENV FI_PROVIDER=efa FI_EFA_USE_DEVICE_RDMA=1 FI_EFA_USE_HUGE_PAGE=0
""",
    "NGC whose torch and what was compiled against it are removed": """\
FROM nvcr.io/nvidia/pytorch:24.10-py3
RUN pip3 uninstall -y pytorch-triton torch torchvision transformer_engine flash_attn apex
RUN pip install --no-cache-dir vllm==0.8.5 torch==2.6.0 torchvision==0.21.0 torchaudio==2.6.0 \\
    transformers>=4.49.0 accelerate pyarrow>=15.0.0
RUN pip uninstall -y flash-attn && \\
    wget -nv https://own.io/flash_attn-2.7.4.post1+cu12torch2.6cxx11abiFALSE-cp310-linux.whl && \\
    pip install flash_attn-2.7.4.post1+cu12torch2.6cxx11abiFALSE-cp310-cp310-linux_x86_64.whl
""",
    "libfabric and the plugin from source on NGC": """\
FROM nvcr.io/nvidia/pytorch:25.01-py3
ARG LIBFABRIC_VERSION="2.3.0"
RUN cd /tmp && wget -q https://github.com/ofiwg/libfabric/releases/v${LIBFABRIC_VERSION}.tar.bz2 && \\
    tar xjf libfabric-${LIBFABRIC_VERSION}.tar.bz2 && cd libfabric-${LIBFABRIC_VERSION} && \\
    ./configure --prefix=/opt/amazon/efa --enable-efa=yes && make -j$(nproc) && make install
ARG AWS_OFI_NCCL_VERSION="1.17.1"
RUN git clone --depth 1 --branch v${AWS_OFI_NCCL_VERSION} https://github.com/aws/aws-ofi-nccl.git && \\
    cd aws-ofi-nccl && ./autogen.sh && make -j$(nproc) && make install
RUN pip install --no-cache-dir nemo_toolkit[nlp] megatron-core --extra-index-url https://pypi.nvidia.com
ENV LD_LIBRARY_PATH=/opt/aws-ofi-nccl/lib:/opt/amazon/efa/lib:${LD_LIBRARY_PATH}
""",
    "NCCL tests with AWS's installer": """\
ARG CUDA_VERSION=12.8.1
FROM nvcr.io/nvidia/cuda:${CUDA_VERSION}-devel-ubuntu22.04
ARG EFA_INSTALLER_VERSION=1.43.2
ARG AWS_OFI_NCCL_VERSION=v1.16.3
ARG NCCL_VERSION=v2.27.7-1
RUN curl -O https://efa-installer.amazonaws.com/aws-efa-installer-${EFA_INSTALLER_VERSION}.tar.gz \\
    && tar -xf aws-efa-installer-${EFA_INSTALLER_VERSION}.tar.gz && cd aws-efa-installer \\
    && ./efa_installer.sh -y -g -d --skip-kmod --skip-limit-conf --no-verify
RUN git clone -b ${NCCL_VERSION} https://github.com/NVIDIA/nccl.git /opt/nccl && cd /opt/nccl \\
    && make -j $(nproc) src.build NVCC_GENCODE="-gencode=arch=compute_80,code=sm_80"
SHELL ["/bin/bash", "-c"]
RUN curl -OL https://github.com/aws/aws-ofi-nccl/releases/download/${AWS_OFI_NCCL_VERSION}/x-${AWS_OFI_NCCL_VERSION//v}.tar.gz
ENV OMPI_MCA_pml=^ucx \\
    OMPI_MCA_btl=tcp,self \\
    NCCL_SOCKET_IFNAME=^docker,lo,veth
ENV LD_PRELOAD=/opt/nccl/build/lib/libnccl.so
""",
    "the newest installer, whatever it is": """\
FROM nvidia/cuda:12.8.1-devel-ubuntu24.04
ARG EFA_INSTALLER_VERSION=latest
RUN curl -O https://efa-installer.amazonaws.com/aws-efa-installer-${EFA_INSTALLER_VERSION}.tar.gz && \\
    case "$VERSION_ID" in \\
      24.04) DEBS=UBUNTU2404 ;; \\
      *)     DEBS=UBUNTU2204 ;; \\
    esac && ./efa_installer.sh -y
RUN pip install --break-system-packages torch==2.9.1
""",
    "a base whose name is an argument": """\
ARG BASE_TAG=main-base
FROM team/trainer-base:$BASE_TAG
ARG TORCH_CUDA_ARCH_LIST="7.0 7.5 8.0 8.6+PTX"
ARG PYTORCH_VERSION
ENV PYTORCH_VERSION=$PYTORCH_VERSION
WORKDIR /workspace
RUN git clone --depth=1 https://github.com/team/trainer.git && cd trainer && \\
    if [ "$EXTRAS" != "" ] ; then \\
        pip install --no-build-isolation -e .[deepspeed,$EXTRAS]; \\
    else \\
        pip install --no-build-isolation -e .[deepspeed]; \\
    fi
""",
    "a base for builders, with wheels between stages": f"""\
ARG CUDA_VERSION="11.8.0"
ARG UBUNTU_VERSION="22.04"
FROM nvidia/cuda:$CUDA_VERSION-cudnn8-devel-ubuntu$UBUNTU_VERSION as base-builder
ARG PYTHON_VERSION="3.9"
ARG PYTORCH="2.4.1"
ARG CUDA="cu118"
RUN conda create -n "py${{PYTHON_VERSION}}" python="${{PYTHON_VERSION}}"
RUN python3 -m pip install -U torch==${{PYTORCH}} torchvision torchaudio --extra-index-url {WHEELS}/$CUDA
FROM base-builder AS flash-builder
ARG TORCH_CUDA_ARCH_LIST="7.0 7.5 8.0 8.6+PTX"
RUN git clone https://github.com/x/flash && cd flash && python3 setup.py bdist_wheel
FROM base-builder
RUN mkdir -p /workspace/wheels
COPY --from=flash-builder /workspace/flash/dist/flash_attn-*.whl wheels
RUN pip3 install wheels/flash_attn-*.whl
RUN pip3 install "peft @ git+https://github.com/huggingface/peft.git@main" && pip3 install awscli
""",
    "an index that the shell computes": f"""\
ARG CUDA_VERSION=12.8.1
ARG PYTHON_VERSION=3.12
ARG BUILD_BASE_IMAGE=nvidia/cuda:${{CUDA_VERSION}}-devel-ubuntu20.04
FROM ${{BUILD_BASE_IMAGE}} AS base
ARG CUDA_VERSION
ARG PIP_INDEX_URL UV_INDEX_URL
ARG TARGETPLATFORM
RUN --mount=type=cache,target=/root/.cache/uv \\
    if [ "$TARGETPLATFORM" = "linux/arm64" ]; then \\
        uv pip install --system --index-url {WHEELS}/nightly/cu$(echo $CUDA_VERSION | tr -d '.') \\
            "torch==2.8.0.dev20250318+cu128" "torchvision==0.22.0.dev20250319"; \\
    fi
COPY requirements/common.txt requirements/common.txt
COPY requirements/cuda.txt requirements/cuda.txt
RUN --mount=type=cache,target=/root/.cache/uv \\
    uv pip install --system -r requirements/cuda.txt \\
    --extra-index-url {WHEELS}/cu$(echo $CUDA_VERSION | cut -d. -f1,2 | tr -d '.')
FROM base AS build
COPY . .
RUN python3 setup.py bdist_wheel --dist-dir=dist
FROM base AS final
RUN --mount=type=bind,from=build,src=/workspace/dist,target=/x/dist uv pip install --system dist/*.whl
""",
    "the shell decides the version": f"""\
FROM nvidia/cuda:12.1.0-cudnn8-devel-ubuntu22.04
ARG PYTORCH='2.6.0'
ARG CUDA='cu121'
RUN [ ${{#PYTORCH}} -gt 0 ] && VERSION='torch=='$PYTORCH'.*' ||  VERSION='torch'; \\
    python3 -m pip install --no-cache-dir -U $VERSION --extra-index-url {WHEELS}/$CUDA
RUN python3 -m pip install --no-cache-dir -e ./transformers[dev-torch,testing]
RUN python3 -m pip uninstall -y tensorflow flax
""",
    "pip's index is configured": """\
ARG BASE_IMAGE=team/pytorch:th2.6.0-cu124-flashattn2.7.4-cxx11abi0-devel
FROM ${BASE_IMAGE}
ARG PIP_INDEX=https://mirror.example/simple
ARG INSTALL_FLASHATTN=false
ENV FLASH_ATTENTION_FORCE_BUILD=TRUE
SHELL ["/bin/bash", "-c"]
RUN pip config set global.index-url "${PIP_INDEX}" && pip install --upgrade pip "hatchling>=1.18.0"
COPY . /app
WORKDIR /app
RUN pip install --no-build-isolation -e ".[metrics,deepspeed]"
RUN if [ "${INSTALL_FLASHATTN}" == "true" ]; then \\
        pip uninstall -y ninja && pip install flash-attn --no-build-isolation; \\
    fi
EXPOSE 7860
""",
    "a rollout engine on a newer base": f"""\
FROM nvidia/cuda:12.9.1-devel-ubuntu22.04
RUN add-apt-repository ppa:deadsnakes/ppa -y && apt-get install -y python3.12 python3.12-dev
RUN pip install torch==2.9.0 torchvision torchaudio --index-url {WHEELS}/cu129
RUN pip install vllm==0.12.0
RUN MAX_JOBS=128 pip install -v --no-build-isolation --config-settings "--build-option=--cuda_ext" git+https://github.com/NVIDIA/apex.git
RUN pip install flash_attn==2.8.1 --no-build-isolation
RUN pip install git+https://github.com/team/verl.git@v0.6.0 && pip uninstall -y verl
""",
    "a base of a project, with its cuDNN replaced": """\
FROM team/verl:base-cu126-cudnn9.8-torch2.7.0-fa2.7.4
ENV VLLM_WORKER_MULTIPROC_METHOD=spawn
ENV HF_HUB_ENABLE_HF_TRANSFER="1"
RUN pip install --resume-retries 999 --no-cache-dir vllm==0.9.1
RUN pip install "tensordict==0.6.2" "transformers[hf_xet]>=4.51.0" ray[default] "numpy<2.0.0"
RUN pip install --no-cache-dir nvidia-cudnn-cu12==9.8.0.87
RUN export NVTE_FRAMEWORK=pytorch && pip3 install --no-deps git+https://github.com/NVIDIA/TransformerEngine.git@v2.2
""",
    "EFA on the base of a project": """\
FROM team/verl:base-v3-cu126-cudnn9.8-torch2.6-fa2.8.0-te2.3
ENV NCCL_VERSION=2.25.1-1
ENV EFA_INSTALLER_VERSION=1.40.0
ENV AWS_OFI_NCCL_VERSION=1.14.2
ENV FI_EFA_SET_CUDA_SYNC_MEMOPS=0
ENV FI_PROVIDER=efa
RUN curl -O https://efa-installer.amazonaws.com/aws-efa-installer-${EFA_INSTALLER_VERSION}.tar.gz && ldconfig
RUN curl -LO https://github.com/aws/aws-ofi-nccl/archive/refs/tags/v${AWS_OFI_NCCL_VERSION}.tar.gz
""",
    "AWS's container, with a newer trainer": """\
FROM 763104351884.dkr.ecr.us-west-2.amazonaws.com/pytorch-training:2.5.1-gpu-py311-cu124-ubuntu22.04-sagemaker
COPY requirements.txt /opt/ml/requirements.txt
RUN pip install --no-cache-dir -r /opt/ml/requirements.txt
ENV SAGEMAKER_PROGRAM=train.py
""",
    "uv with bound files": """\
FROM python:3.12-slim-bookworm
COPY --from=ghcr.io/astral-sh/uv:0.5 /uv /uvx /bin/
WORKDIR /app
ENV UV_LINK_MODE=copy
RUN --mount=type=cache,target=/root/.cache/uv \\
    --mount=type=bind,source=uv.lock,target=uv.lock \\
    --mount=type=bind,source=pyproject.toml,target=pyproject.toml \\
    uv sync --frozen --no-install-project
ADD . /app
RUN uv sync --frozen
ENV PATH="/app/.venv/bin:$PATH"
USER 1000
""",
    "another Python than the base's": """\
FROM python:3.9-slim
RUN pip install uv && uv venv --python 3.12 /opt/venv
RUN VIRTUAL_ENV=/opt/venv uv pip install torch==2.13.0
""",
    "poetry in one stage, the environment in the next": """\
FROM python:3.10-slim AS build
RUN pip install poetry==1.8.3 && python -m venv /venv
COPY pyproject.toml poetry.lock ./
RUN . /venv/bin/activate && poetry install --no-root
FROM python:3.10-slim
COPY --from=build /venv /venv
ENV PATH=/venv/bin:$PATH
COPY . /app
""",
    "conda on a CUDA base": """\
FROM nvidia/cuda:11.8.0-devel-ubuntu22.04
COPY environment.yml /tmp/environment.yml
RUN conda env create -f /tmp/environment.yml
RUN conda install pytorch==2.4.1 pytorch-cuda=11.8 -c pytorch -c nvidia && conda clean -ya
""",
    "torch for the CPU": f"""\
FROM python:3.11-slim
RUN pip install --no-cache-dir torch==2.4.1 torchvision==0.19.1 --index-url {WHEELS}/cpu
COPY serve.py /serve.py
USER nobody
""",
    "requirements without torch's line": """\
FROM pytorch/pytorch:2.5.1-cuda12.4-cudnn9-runtime
WORKDIR /app
COPY . .
RUN grep -v '^torch' requirements.txt > small.txt && pip install -r small.txt
""",
    "requirements with an index, copied as a folder": """\
FROM nvidia/cuda:12.1.1-runtime-ubuntu22.04
WORKDIR /srv
COPY . /srv/
RUN python3 -m pip install -r requirements/gpu.txt
""",
    "a token for the build only": """\
# syntax=docker/dockerfile:1
FROM python:3.11-slim
ARG HF_TOKEN
ENV HF_TOKEN_PATH=/run/secrets/hf_token WANDB_API_KEY=""
RUN --mount=type=secret,id=hf_token pip install huggingface_hub && huggingface-cli download x
RUN <<EOF
pip install torch==2.6.0
echo done
EOF
USER 1000:1000
""",
    "InfiniBand": f"""\
FROM nvidia/cuda:12.4.1-devel-ubuntu22.04
ENV NCCL_IB_HCA=mlx5 NCCL_IB_TIMEOUT=22
RUN pip install torch==2.5.1+cu124 torchvision==0.20.1+cu124 -f {WHEELS}/torch_stable.html
""",
}
FILES: dict[str, dict[str, str]] = {
    "a CUDA base, torch of its index, flash-attn compiled": {"train.py": ""},
    "PyTorch's image and a file of requirements": {
        "requirements.txt": "transformers==4.45.0\naccelerate>=0.30\ntorch>=2.2\nwandb\n"
    },
    "an index that the shell computes": {
        "requirements/common.txt": "numpy\n",
        "requirements/cuda.txt": "-r common.txt\ntorch==2.7.0\ntorchvision==0.22.0\ntorchaudio==2.7.0\n",
    },
    "AWS's container, with a newer trainer": {"requirements.txt": "torch==2.5.1\ntransformers==4.49.0\n"},
    "uv with bound files": {"uv.lock": "version = 1\n", "pyproject.toml": "[project]\nname = 'a'\n"},
    "poetry in one stage, the environment in the next": {"pyproject.toml": "", "poetry.lock": ""},
    "conda on a CUDA base": {"environment.yml": "dependencies:\n  - python=3.9\n"},
    "torch for the CPU": {"serve.py": ""},
    "requirements without torch's line": {"requirements.txt": "torch==2.2.0\ntorchvision==0.20.0\n"},
    "requirements with an index, copied as a folder": {
        "requirements/gpu.txt": f"--index-url {WHEELS}/cu121\n--extra-index-url https://pypi.org/simple\n"
        "torch==2.5.1\ntorchvision==0.20.1\n"
    },
}
"""The other files of a context."""
